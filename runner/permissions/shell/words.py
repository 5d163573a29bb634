"""Words: what a program gets when bash has taken the quotes off.

A second reading beside the grammar's. It follows the quoting rules character by character, and meets
an expansion only where the grammar found one; where the two differ, ``UnclearError`` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from tree_sitter import Node

T = TypeVar("T")
Printed = Literal[
    "number", "word", "path", ""
]  # numbers, words without dashes in front, absolute paths

IS_GLOB = re.compile(r"[*?\[]")
_BREAKS = frozenset(" \t\n;&|<>()")
_NAMING = re.compile(r"[A-Za-z0-9_({\[`@*#?$!'\"-]")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)")
_PLAIN = re.compile(r"[^\s\"'\\$`;&|<>()*?\[\]{}~]+")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:/?#@!&+,;=%-]*")
_ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)


class UnclearError(Exception):
    """This reading and the grammar's differ, or bash does more here than is understood."""


class Word(NamedTuple):
    source: str  # as written
    value: str  # without its quotes, expansions in it as written
    exact: bool = True  # the value is just what the program gets
    loose: bool = False  # it may become several words, or one that starts with "-"
    choices: tuple[str, ...] = ()  # globs for all that it may become; () if that is not known
    sample: str = ""  # the value with 1 for each number, if nothing else in it is unknown

    @property
    def shown(self) -> str:
        """The value where that cannot be read in another way, else as written."""
        plain = _PLAIN.fullmatch(self.value) or (self.exact and _ADDRESS.fullmatch(self.value))
        return self.value if plain else self.source


@dataclass(frozen=True, slots=True)
class Assignment:
    name: str
    source: str  # as written
    value: Word | None  # None when it is not known


def names(text: str) -> frozenset[str]:
    """Return the names that a text lists, with blanks between."""
    return frozenset(text.split())


def by_name(table: Mapping[str, T]) -> dict[str, T]:
    """Return a table whose keys list several names, with a key for each name."""
    return {name: value for listed, value in table.items() for name in listed.split()}


# Writing to them changes no file: they are a call's own outputs, or keep nothing.
DEVICES = names("/dev/null /dev/stdout /dev/stderr /dev/fd/1 /dev/fd/2 /dev/tty")


def path_of(word: Word) -> str:
    """Return the path that a word names: ``~/x`` for one in the home, "" for one that is not literal."""
    if word.exact:
        return f"./{word.value}" if word.value.startswith("~") else word.value
    plain = word.source == word.value and re.fullmatch(r"~(?:/[A-Za-z0-9_./@+,=-]*)?", word.value)
    return word.value if plain else ""


def targets_of(word: Word) -> tuple[str, ...]:
    """Return all paths that a word may name; "" for one that is not literal."""
    literal = word.choices and not any(map(IS_GLOB.search, word.choices))
    return word.choices if literal else (path_of(word),)


def unicode(text: str) -> str:
    """Return the characters of a text whose bytes were read as Latin-1."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


@dataclass(slots=True)
class Reader:
    text: str  # bytes as Latin-1, so that positions are byte offsets
    expansions: Mapping[int, Node]  # the grammar's, by where they start
    visit: Callable[[Node], None]  # called with each expansion that is met
    printed: Callable[[Node], Printed]  # what an expansion becomes
    pieces: list[str] = field(default_factory=list)  # of the value, so far
    exact: bool = True
    loose: bool = False
    numbers: list[int] = field(default_factory=list)  # the pieces that are known to be numbers
    met: int = 0  # how many expansions were met
    bare: bool = False  # one of them is not quoted: bash makes words and paths of what it becomes

    def read(self, start: int, end: int) -> Word:
        """Return the word from ``start`` to ``end``. Raises UnclearError."""
        at = start
        while at < end:
            match self.text[at]:
                case "'":
                    close = self.text.find("'", at + 1, end)
                    if close < 0:
                        raise UnclearError("a quote is not closed")
                    self.pieces.append(self.text[at + 1 : close])
                    at = close + 1
                case '"':
                    at = self._double(at + 1, end)
                case "\\":
                    if at + 1 >= end or self.text[at + 1] == "\n":
                        raise UnclearError("a line goes on inside of a word")
                    self.pieces.append(self.text[at + 1])
                    at += 2
                case character:
                    at = self._bare(character, at, start, end)
        if self.met != len(self.expansions):
            raise UnclearError("an expansion is in an unexpected place")
        source = unicode(self.text[start:end])
        value = unicode("".join(self.pieces))
        if not self.numbers:
            return Word(source, value, self.exact, self.loose)
        for at in self.numbers:
            self.pieces[at] = "1"
        sample = unicode("".join(self.pieces)) if self.exact else ""
        return Word(source, value, False, self.loose, sample=sample)

    def _double(self, at: int, end: int) -> int:
        """Read what is between double quotes. Return the position behind the closing one."""
        while at < end:
            character, following = self.text[at], self.text[at + 1 : at + 2]
            if character == '"':
                self.pieces.append("")
                return at + 1
            if character == "`" or (character == "$" and at in self.expansions):
                many = self.text.startswith(("$@", "${"), at) and "@" in self.text[at:end]
                begins = not "".join(self.pieces).strip("-")  # with what it becomes, or a dash
                self.loose = self.loose or many or (begins and not self._becomes(at))
                at = self._expansion(at, end)
            elif character == "\\":
                if following == "\n":
                    raise UnclearError("a line goes on inside of a word")
                self.pieces.append(following if following in '$`"\\' else f"\\{following}")
                at += 2
            elif character == "$" and _NAMING.match(following) and following not in "\"'":
                raise UnclearError("an expansion was not understood")
            else:
                self.pieces.append(character)
                at += 1
        raise UnclearError("a quote is not closed")

    def _becomes(self, at: int) -> Printed:
        node = self.expansions.get(at)
        return self.printed(node) if node is not None else ""

    def _expansion(self, at: int, end: int) -> int:
        node = self.expansions.get(at)
        if node is None or node.end_byte > end:
            raise UnclearError("an expansion was not understood")
        self.visit(node)
        self.met += 1
        if self._becomes(at) == "number":
            self.numbers.append(len(self.pieces))
        else:
            self.exact = False
        self.pieces.append(self.text[at : node.end_byte])
        return node.end_byte

    def _bare(self, character: str, at: int, start: int, end: int) -> int:
        """Read what is not quoted: an expansion or one character. Return the position behind it."""
        if self.text.startswith("$'", at):
            quoted = _ANSI_QUOTED.match(self.text, at, end)
            if quoted is None:
                raise UnclearError("a quote is not closed")
            self.exact = False
            self.loose = self.loose or not any(self.pieces)
            self.pieces.append(quoted.group())
            return quoted.end()
        if self.text.startswith(("`", "<(", ">("), at) or (
            character == "$" and at in self.expansions
        ):
            known = character in "$`" and self._becomes(at) in ("number", "word")
            self.loose = self.loose or (character in "$`" and not known)
            self.bare = True
            return self._expansion(at, end)
        if character == "$" and _NAMING.match(self.text, at + 1, end):
            raise UnclearError("an expansion was not understood")
        if character in _BREAKS or (character == "#" and at == start):
            raise UnclearError("a word ends where it should not")
        if character in "*?[" or (character == "{" and _BRACES.match(self.text, at, end)):
            self.exact = False
            self.loose = self.loose or at == start or self.text[start] == "-"
        elif character == "~" and (at == start or self.text[at - 1] in "=:"):
            self.exact = False
        self.pieces.append(character)
        return at + 1
