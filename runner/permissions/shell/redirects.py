"""Redirects: the files that are read and written, and here-documents, whose text the grammar reads
only in part."""

from __future__ import annotations

import re

from tree_sitter import Node

from runner.permissions.shell.expansions import visit_expansion
from runner.permissions.shell.script import Moment
from runner.permissions.shell.tree import Tree
from runner.permissions.shell.words import DEVICES, Word, names, path_of

_OPERATORS = names("> >> >| &> &>> < >& <&")
_NETWORK = re.compile(r"/+dev/+(?:\.*/+)*(?:tcp|udp)(?:/|$)")
_PLAIN = re.compile(r"[A-Za-z0-9_./~ +=:,@%-]+")
_HEREDOC_START = re.compile(r"\\?([A-Za-z0-9_.-]+)|'([A-Za-z0-9_. -]+)'|\"([A-Za-z0-9_. -]+)\"")
_HEREDOC_EXPANSIONS = names("simple_expansion expansion command_substitution arithmetic_expansion")


def visit_redirect(tree: Tree, node: Node, moment: Moment) -> list[Word]:
    """Add the file, opened at that moment. Return the words after it that belong to the command."""
    operator = ""
    targets: list[Word] = []
    pipe = False
    for child in tree.children(node):
        if child.type == "file_descriptor":
            if operator or tree.text[child.end_byte] not in "<>&":
                tree.give_up(node)
        elif child.is_named:
            pipe = pipe or (not targets and child.type == "process_substitution")
            targets.append(tree.word(child))
        else:
            operator = operator or child.type
    if operator in (">&-", "<&-"):
        return targets
    if targets and operator == "<<<":
        return targets[1:]
    if not targets or operator not in _OPERATORS:
        tree.give_up(node)
        return targets
    _add_target(tree, operator, targets[0], moment, pipe)
    return targets[1:]


def _add_target(tree: Tree, operator: str, word: Word, moment: Moment, pipe: bool) -> None:
    if operator in (">&", "<&") and word.exact and re.fullmatch(r"[0-9]+-?|-", word.value):
        return
    if "&" in operator and not _PLAIN.fullmatch(word.value):
        # Bash expands the word of ``>&`` a second time, what was quoted in it too.
        tree.findings.give_up("bash expands the target of such a redirect twice")
    if _NETWORK.match(word.value):
        tree.findings.give_up("it opens a network connection")
    path = path_of(word)
    target = tree.findings.target(path, moment, pipe)
    if operator in ("<", "<&"):
        tree.findings.reads.append(target)
    elif path not in DEVICES:
        tree.findings.writes.append(target)


def visit_heredoc(tree: Tree, node: Node) -> list[Word]:
    """Visit the commands in a here-document and after its operator. Return the words there that belong
    to the command."""
    words: list[Word] = []
    body = end = start = None
    at = node.start_byte
    tree.children(node, lines=True)
    for child in node.children:
        tree.gap(at, child.start_byte, child.type in ("heredoc_body", "heredoc_end"))
        at = max(at, child.end_byte)
        if child.type == "heredoc_start":
            start = child
        elif child.type == "heredoc_body":
            body = child
        elif child.type == "heredoc_end":
            end = child
        elif child.type in ("file_redirect", "herestring_redirect"):
            words.extend(tree.redirect(child))
        elif child.type in ("pipeline", "list", "command"):
            statements = tree.children(child) if child.type == "pipeline" else [child]
            tree.visit_each(statements, {}, ("|", "|&"), named=tree.visit)
        elif child.is_named:
            words.append(tree.word(child))
        elif child.type not in ("<<", "<<-", "&&", "||"):
            tree.give_up(child)
    if start is None or end is None:
        tree.give_up(node, "a here-document has no end")
    else:
        _check_heredoc(tree, node, start, body, end)
    return words


def _check_heredoc(tree: Tree, node: Node, start: Node, body: Node | None, end: Node) -> None:
    """Give up unless the text is just what bash takes for it."""
    unclear = "the end of a here-document is not clear"
    tag = _HEREDOC_START.fullmatch(tree.text, start.start_byte, start.end_byte)
    if tag is None:
        tree.give_up(node, unclear)
        return
    word = next(group for group in tag.groups() if group)
    first = tree.text.find("\n", start.end_byte) + 1
    strip = tree.text.startswith("<<-", node.start_byte)
    lines = tree.text[first : end.end_byte].split("\n")
    ends = [line.lstrip("\t") if strip else line for line in lines]
    following = tree.text[end.end_byte : end.end_byte + 1]
    if not first or word in ends[:-1] or ends[-1] != word or following not in ("", "\n"):
        tree.give_up(node, unclear)
        return
    if body is not None and body.start_byte < first:
        tree.give_up(node, unclear)
    if tree.text[start.start_byte] not in "\\'\"":
        _visit_expanded(tree, node, tree.text[first : end.start_byte], first, body)


def _visit_expanded(tree: Tree, node: Node, text: str, first: int, body: Node | None) -> None:
    """Visit the expansions in the text of a here-document, which begins at ``first``."""
    expansions = {child.start_byte: child for child in body.children} if body is not None else {}
    for child in expansions.values():
        if child.type in _HEREDOC_EXPANSIONS:
            visit_expansion(tree, child)
        elif child.type != "heredoc_content":
            tree.give_up(child)
    at, last = 0, len(text)
    while at < last:
        character = text[at]
        if character == "\\":
            if text[at + 1 : at + 2] == "\n":
                tree.give_up(node, "a line goes on inside of a here-document")
                return
            at += 2
            continue
        inner = expansions.get(first + at)
        if character in "$`" and inner is not None and inner.type != "heredoc_content":
            at = inner.end_byte - first
            continue
        if character == "`" or re.match(r"\$[A-Za-z0-9_({\[`@*#?$!\\-]", text[at : at + 2]):
            tree.give_up(node, "an expansion in a here-document was not understood")
            return
        at += 1
