"""A script's syntax tree, read so that nothing of its text is overlooked."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from runner.permissions.shell.script import Findings
from runner.permissions.shell.words import names, unicode

_PARSER = Parser(Language(tree_sitter_bash.language()))
# The grammar's scanner asks C's isalpha() about any character, which ends the process for some beyond
# ASCII. To bash their bytes are letters of a word like others, so the parser gets a letter for each.
_ASCII = bytes(byte if byte < 0x80 else ord("Q") for byte in range(256))

EXPANSIONS = names("""
    simple_expansion expansion command_substitution process_substitution arithmetic_expansion""")
WORDS = EXPANSIONS | names("""
    word number string raw_string concatenation ansi_c_string brace_expression""")
_WORDLIKE = WORDS | names("command_name variable_assignment heredoc_start")
REDIRECTS = names("file_redirect heredoc_redirect herestring_redirect")
TOKENS = names("; & && || | |& { } ( ) do done if then elif else fi while until !")
# Words that only mean something to bash when a blank or an operator follows.
_KEYWORDS = names(
    "if then else elif fi do done while until for select case in esac function { ! [["
)
_AFTER_KEYWORD = " \t\n;&|()<>"
_BLANK = re.compile(r"[ \t]*(?:(?<=[ \t\n])\\\n[ \t]*)*")
_BLANK_LINES = re.compile(r"[ \t\n]*(?:(?<=[ \t\n])\\\n[ \t\n]*)*")
_NUMBER = re.compile(r"(?:^|[\s;&|(){}<>`])[0-9]+\Z")  # the descriptor of a redirect behind it
_VARIABLE = re.compile(r"\{[^{}\s]*\}\Z")  # ``{name}> file`` sets the variable

_HEREDOC = r"<<-?[ \t]*(?:\\?[A-Za-z0-9_]+|'[A-Za-z0-9_. -]+'|\"[A-Za-z0-9_. -]+\")"
_BEHIND_HEREDOC = re.compile(
    rf"(?<=[ \t])({_HEREDOC})((?:[ \t]+(?:2>&1|(?:[12]?>>?|&>>?)[ \t]*[A-Za-z0-9_./-]+))+)(?=[ \t]*\|)"
)
_BACKSLASH = re.compile(rf"{_HEREDOC}[^\n]*\n\\")

# What every POSIX shell reads as bash does; dash takes [[ for a program and &> for &.
_PORTABLE = names("""
    program list pipeline command command_name word number string string_content raw_string
    simple_expansion special_variable_name variable_name variable_assignment command_substitution
    concatenation redirected_statement file_redirect file_descriptor comment subshell negated_command""")
_PORTABLE_TOKENS = names("""; & && || | ! ( ) $ $( ` " = > >> < >& <&""")

Visitor = Callable[[Node], object]


class Tree(ABC):
    """The syntax tree of a script, which an unknown node, or text that no node covers, makes
    unanalyzable. ``text`` has the script's bytes as Latin-1, so that positions in it are byte
    offsets."""

    def __init__(self, command: str, findings: Findings) -> None:
        self.text, self.root = _parsed(command.encode("utf-8", "replace").decode("latin-1"))
        self.findings = findings

    @abstractmethod
    def visit(self, node: Node) -> None:
        """Visit a statement, or another node in the place of one."""

    def text_of(self, node: Node) -> str:
        """Return the text of a node, bytes as Latin-1."""
        return self.text[node.start_byte : node.end_byte]

    def source_of(self, node: Node) -> str:
        """Return the text of a node."""
        return unicode(self.text_of(node))

    def give_up(self, node: Node, reason: str = "") -> None:
        """Note that a node is not understood. Its commands still become parts, so that deny and ask rules
        apply."""
        reason = reason or f"it has {node.type.replace('_', ' ')!r} in an unexpected place"
        self.findings.give_up(reason, self.text_of(node))
        for child in node.named_children:
            self.visit(child)

    def gap(self, start: int, end: int, lines: bool = False) -> None:
        """Give up unless there are only blanks (with ``lines`` line breaks too) in between."""
        if start == end or (end == start + 1 and self.text[start] == " "):
            return
        if not (_BLANK_LINES if lines else _BLANK).fullmatch(self.text, start, end):
            self.findings.give_up("some of its text was not understood", self.text[start:end])

    def children(self, node: Node, lines: bool = False, skipped: int = -1) -> list[Node]:
        """Return the children without comments; give up on gaps, except at ``skipped``."""
        at, word, found = node.start_byte, False, []
        for child in node.children:
            start, end, kind = child.start_byte, child.end_byte, child.type
            if at not in (start, skipped):
                self.gap(at, start, lines)
            follows, word = word, kind in _WORDLIKE
            if (
                (follows and word and at == start)
                or (kind in _KEYWORDS and self.text[end : end + 1] not in _AFTER_KEYWORD)
                or (kind == ";" and self.text[end : end + 1] in ("&", ";"))
            ):
                self.findings.give_up("it is not clear where a word ends")
            if kind in REDIRECTS:
                before = self.text[max(0, start - 200) : start]
                if _VARIABLE.search(before):
                    self.findings.give_up("a redirect sets a variable")
                elif before[-1:].isdigit() and _NUMBER.search(before):
                    self.findings.give_up("it is not clear where a word ends")
            at = max(at, end)
            if kind != "comment":
                found.append(child)
                continue
            alone = "\n" not in self.text[start:end] and self.text[end : end + 1] in ("", "\n")
            if not (lines and alone and self.text[start - 1 : start] in " \t\n;&|()"):
                self.findings.give_up("a comment is in an unexpected place")
        self.gap(at, node.end_byte, lines)
        return found

    def visit_each(
        self,
        children: Sequence[Node],
        visitors: Mapping[str, Visitor],
        tokens: Collection[str],
        named: Visitor | None = None,
    ) -> None:
        """Visit each child with the visitor of its type; a named one without a visitor with ``named``.
        Give up on any other child whose type is not in ``tokens``."""
        for child in children:
            visitor = visitors.get(child.type) or (named if child.is_named else None)
            if visitor is not None:
                visitor(child)
            elif child.type not in tokens:
                self.give_up(child)


def _parsed(text: str) -> tuple[str, Node]:
    """Return a script (bytes as Latin-1) and its tree. The grammar cannot parse a redirect between the
    operator of a here-document and a pipe: it is moved before the operator. Nor can it parse a
    here-document whose text begins with a backslash: the backslash is masked."""
    if "<<" not in text:
        return text, _tree(text)
    moved = _BEHIND_HEREDOC.sub(lambda found: found[2][1:] + found[2][0] + found[1], text)
    masked = _BACKSLASH.sub(lambda found: found[0][:-1] + "x", moved)
    root = _tree(masked)
    operators = [found.start() + len(found[2]) for found in _BEHIND_HEREDOC.finditer(text)]
    begins = [found.end() - 1 for found in _BACKSLASH.finditer(moved)]
    if all(_is_in(root, at, "heredoc_redirect") == at for at in operators) and all(
        _is_in(root, at, "heredoc_body") is not None for at in begins
    ):
        return moved, root
    return text, _tree(text)


def _tree(text: str) -> Node:
    return _PARSER.parse(text.encode("latin-1").translate(_ASCII)).root_node


def _is_in(root: Node, at: int, kind: str) -> int | None:
    """Return the position at which the innermost node of a kind around a position begins, or None."""
    node = root.descendant_for_byte_range(at, at + 1)
    while node is not None and node.type != kind:
        node = node.parent
    return None if node is None else node.start_byte


def is_portable(node: Node) -> bool:
    """True if every POSIX shell reads the script as bash does."""
    known = node.type in (_PORTABLE if node.is_named else _PORTABLE_TOKENS)
    return known and all(map(is_portable, node.children))
