"""Words: what a program gets when bash has taken the quotes off.

A second reading beside the grammar's. It follows the quoting rules character by character, and meets
an expansion only where the grammar found one; where the two differ, ``UnclearError`` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

_BREAKS = frozenset(" \t\n;&|<>()")
_NAMING = re.compile(r"[A-Za-z0-9_({\[`@*#?$!'\"-]")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)")
_PLAIN = re.compile(r"[^\s\"'\\$`;&|<>()*?\[\]{}~]+")
_ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)


class UnclearError(Exception):
    """This reading and the grammar's differ, or bash does more here than is understood."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command."""

    source: str  # as it is written
    value: str  # without its quotes, expansions in it as written
    exact: bool = True  # the value is just what the program gets
    loose: bool = False  # it may become several words, or one that starts with "-"

    @property
    def shown(self) -> str:
        """The value where that cannot be read in another way, else as written."""
        return self.value if _PLAIN.fullmatch(self.value) else self.source


def plain_word(text: str) -> Word:
    """Return a word that is just its text."""
    return Word(text, text)


def names(text: str) -> frozenset[str]:
    """Return the names that a text lists, with blanks between."""
    return frozenset(text.split())


DEVICES = names("/dev/null /dev/stdout /dev/stderr /dev/tty")  # writing to them changes no file


def path_of(word: Word) -> str:
    """Return the path that a word names: ``~/x`` for one in the home, "" for one that is not literal."""
    if word.exact:
        return f"./{word.value}" if word.value.startswith("~") else word.value
    plain = word.source == word.value and re.fullmatch(r"~/[A-Za-z0-9_./@+,=-]*", word.value)
    return word.value if plain else ""


def unicode(text: str) -> str:
    """Return the characters of a text whose bytes were read as Latin-1."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


class Reader:
    """Reads one word of ``text``.

    Args:
        text: bytes as Latin-1, so that positions are byte offsets.
        expansions: the grammar's, by where they start.
        visit: called with each expansion that is met.
    """

    def __init__(
        self, text: str, expansions: Mapping[int, Node], visit: Callable[[Node], None]
    ) -> None:
        self.text = text
        self.expansions = expansions
        self.visit = visit
        self.pieces: list[str] = []
        self.exact = True
        self.loose = False
        self.met = 0

    def read(self, start: int, end: int) -> Word:
        """Return the word from ``start`` to ``end``. Raises UnclearError."""
        at = start
        while at < end:
            character = self.text[at]
            if character == "'":
                at = self._single(at, end)
            elif character == '"':
                at = self._double(at, end)
            elif character == "\\":
                at = self._escaped(at, end)
            else:
                at = self._bare(at, start, end)
        if self.met != len(self.expansions):
            raise UnclearError("an expansion is in an unexpected place")
        source = unicode(self.text[start:end])
        return Word(source, unicode("".join(self.pieces)), self.exact, self.loose)

    def _single(self, at: int, end: int) -> int:
        close = self.text.find("'", at + 1, end)
        if close < 0:
            raise UnclearError("a quote is not closed")
        self.pieces.append(self.text[at + 1 : close])
        return close + 1

    def _escaped(self, at: int, end: int) -> int:
        if at + 1 >= end or self.text[at + 1] == "\n":
            raise UnclearError("a line goes on inside of a word")
        self.pieces.append(self.text[at + 1])
        return at + 2

    def _double(self, at: int, end: int) -> int:
        first = not self.pieces
        at += 1
        while at < end:
            character = self.text[at]
            if character == '"':
                self.pieces.append("")
                return at + 1
            if character == "\\":
                at = self._escaped_in_double(at, end)
            elif character == "`" or (character == "$" and at in self.expansions):
                many = self.text.startswith(("$@", "${"), at) and "@" in self.text[at:end]
                self.loose = self.loose or many or (first and not any(self.pieces))
                at = self._expansion(at, end)
            elif character == "$" and _NAMING.match(self.text[at + 1 : at + 2] or " "):
                if self.text[at + 1] not in "\"'":
                    raise UnclearError("an expansion was not understood")
                self.pieces.append(character)
                at += 1
            else:
                self.pieces.append(character)
                at += 1
        raise UnclearError("a quote is not closed")

    def _escaped_in_double(self, at: int, end: int) -> int:
        following = self.text[at + 1] if at + 1 < end else ""
        if following == "\n":
            raise UnclearError("a line goes on inside of a word")
        self.pieces.append(following if following in '$`"\\' else "\\" + following)
        return at + 2

    def _expansion(self, at: int, end: int) -> int:
        node = self.expansions.get(at)
        if node is None or node.end_byte > end:
            raise UnclearError("an expansion was not understood")
        self.visit(node)
        self.met += 1
        self.exact = False
        self.pieces.append(self.text[at : node.end_byte])
        return node.end_byte

    def _bare(self, at: int, start: int, end: int) -> int:
        character = self.text[at]
        if character in "$`" or self.text.startswith(("<(", ">("), at):
            if self.text.startswith("$'", at):
                return self._ansi(at, end)
            if character != "$" or at in self.expansions:
                self.loose = self.loose or character in "$`"
                return self._expansion(at, end)
            if _NAMING.match(self.text[at + 1 : end][:1] or " "):
                raise UnclearError("an expansion was not understood")
        if character in _BREAKS or (character == "#" and at == start):
            raise UnclearError("a word ends where it should not")
        braces = character == "{" and _BRACES.match(self.text, at, end)
        if character in "*?[" or braces:
            self.exact = False
            self.loose = self.loose or at == start or self.text[start] == "-"
        elif character == "~" and (at == start or self.text[at - 1] in "=:"):
            self.exact = False
        self.pieces.append(character)
        return at + 1

    def _ansi(self, at: int, end: int) -> int:
        close = _ANSI_QUOTED.match(self.text, at, end)
        if close is None:
            raise UnclearError("a quote is not closed")
        self.exact = False
        self.loose = self.loose or not any(self.pieces)
        self.pieces.append(close.group())
        return close.end()
