"""Here-documents, whose text the grammar reads only in part."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tree_sitter import Node

from runner.permissions.shell.words import Word

if TYPE_CHECKING:
    from runner.permissions.shell.tree.walk import Walk

_START = re.compile(r"\\?([A-Za-z0-9_.-]+)|'([A-Za-z0-9_. -]+)'|\"([A-Za-z0-9_. -]+)\"")


def heredoc(walk: Walk, node: Node) -> list[Word]:
    """Visits the commands in it and after its operator; the words there that belong to the command."""
    words: list[Word] = []
    body = end = start = None
    at = node.start_byte
    walk.gaps(node, lines=True)
    for child in node.children:
        lines = child.type in ("heredoc_body", "heredoc_end")
        walk.gap(at, child.start_byte, lines)
        at = max(at, child.end_byte)
        if child.type == "heredoc_start":
            start = child
        elif child.type == "heredoc_body":
            body = child
        elif child.type == "heredoc_end":
            end = child
        elif child.type in ("file_redirect", "herestring_redirect"):
            words.extend(walk.redirect(child))
        elif child.type in ("pipeline", "list", "command"):
            _after(walk, child)
        elif child.is_named:
            words.append(walk.word(child))
        elif child.type not in ("<<", "<<-", "&&", "||"):
            walk.obscure(child)
    if start is None or end is None:
        walk.obscure(node, "a here-document has no end")
    else:
        _check(walk, node, start, body, end)
    return words


def _after(walk: Walk, node: Node) -> None:
    for child in walk.gaps(node) if node.type == "pipeline" else [node]:
        if child.is_named:
            walk.visit(child)
        elif child.type not in ("|", "|&"):
            walk.obscure(child)


def _check(walk: Walk, node: Node, start: Node, body: Node | None, end: Node) -> None:
    """Is the text just what bash takes for it?"""
    tag = _START.fullmatch(walk.text, start.start_byte, start.end_byte)
    if tag is None:
        walk.obscure(node, "the end of a here-document is not clear")
        return
    word = next(group for group in tag.groups() if group)
    first = walk.text.find("\n", start.end_byte) + 1
    strip = walk.text.startswith("<<-", node.start_byte)
    lines = walk.text[first : end.end_byte].split("\n")
    ends = [line.lstrip("\t") if strip else line for line in lines]
    following = walk.text[end.end_byte : end.end_byte + 1]
    if not first or word in ends[:-1] or ends[-1] != word or following not in ("", "\n"):
        walk.obscure(node, "the end of a here-document is not clear")
        return
    if body is not None and body.start_byte < first:
        walk.obscure(node, "the end of a here-document is not clear")
    if walk.text[start.start_byte] not in "\\'\"":
        _expanded(walk, node, walk.text[first : end.start_byte], first, body)


def _expanded(walk: Walk, node: Node, text: str, first: int, body: Node | None) -> None:
    expansions = {child.start_byte: child for child in body.children} if body is not None else {}
    for child in expansions.values():
        if child.type in (
            "simple_expansion",
            "expansion",
            "command_substitution",
            "arithmetic_expansion",
        ):
            walk.expansions.visit(child)
        elif child.type != "heredoc_content":
            walk.obscure(child)
    at, last = 0, len(text)
    while at < last:
        character = text[at]
        if character == "\\":
            if text[at + 1 : at + 2] == "\n":
                walk.obscure(node, "a line goes on inside of a here-document")
                return
            at += 2
            continue
        inner = expansions.get(first + at)
        if character in "$`" and inner is not None and inner.type != "heredoc_content":
            at = inner.end_byte - first
            continue
        if character == "`" or re.match(r"\$[A-Za-z0-9_({\[`@*#?$!\\-]", text[at : at + 2]):
            walk.obscure(node, "an expansion in a here-document was not understood")
            return
        at += 1
