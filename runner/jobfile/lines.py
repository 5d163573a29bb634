"""The line of each key of a TOML text: ``tomllib`` reads values and does not tell their lines.

Only for text that ``tomllib`` has accepted: the scanner trusts the syntax (https://toml.io/en/v1.0.0).
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter

Part = str | int
Path = tuple[Part, ...]

_LONGEST_LINE = 100
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(
    r"""
      (?P<gap> [ \t\n]+ | \#[^\n]* )
    | (?P<string> \"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
    | (?P<mark> [][{}=,] )
    | (?P<bare> [^][{}=,"'\#\n]+ )  # keys with their dots, numbers, dates
    """,
    re.DOTALL | re.VERBOSE,
)


def place(*parts: Part) -> str:
    """The name of a place in a job file: ``limits.max_turns``, ``items.list[2].key``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_KEY.fullmatch(part) else repr(part)
            text += f".{name}" if text else name
    return text


def locate(text: str) -> dict[str, int]:
    """The line (from 1) of every key, table and array element of a valid TOML text, by place."""
    return _Scanner(text).lines


class Excerpts:
    """Lines of a valid TOML text, with marks below."""

    def __init__(self, text: str) -> None:
        self._scanner = _Scanner(text)

    def mark(self, place: str, *, the_key: bool = False) -> str:
        """Return the line of a place, and on a second one carets below its value or its key. Empty if
        there is no such place, or it is far behind the beginning of its line."""
        scanner = self._scanner
        start, end = (scanner.keys if the_key else scanner.values).get(place, (0, 0))
        begins = scanner.text.rfind("\n", 0, start) + 1
        line = scanner.text[begins:].partition("\n")[0].expandtabs(4)
        first = len(scanner.text[begins:start].expandtabs(4))
        if not start < end or first >= _LONGEST_LINE:
            return ""
        marked = scanner.text[start:end].partition("\n")[0].rstrip()
        carets = "^" * min(len(marked.expandtabs(4)), _LONGEST_LINE - first)
        shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
        return f"{shown}\n{' ' * first}{carets}"


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.tokens: list[tuple[str, int, int]] = []  # with their lines and offsets, in reverse
        line = 1
        for match in _TOKEN.finditer(self.text):
            if match.lastgroup != "gap":
                self.tokens.append((match.group(), line, match.start()))
            line += match.group().count("\n")
        self.tokens.reverse()
        self.lines: dict[str, int] = {}
        # The offsets at which the key (or the header) and the value of a place begin and end.
        self.keys: dict[str, tuple[int, int]] = {}
        self.values: dict[str, tuple[int, int]] = {}
        self._end = 0  # of the last token taken
        self._array_tables: Counter[Path] = Counter()
        base: Path = ()
        while self.tokens:
            if self.tokens[-1][0] == "[":
                base = self.header()
            else:
                self.pair(base)

    def _take(self) -> str:
        token, _, start = self.tokens.pop()
        self._end = start + len(token)
        return token

    def header(self) -> Path:
        """Take the header of a table or an array of tables, and return its path."""
        _, line, start = self.tokens[-1]
        self._take()
        if is_array := self.tokens[-1][0] == "[":
            self._take()
        names = self._key("]")
        if is_array:
            self._take()
        path: Path = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            self._note(path, line)
            if is_array and number == len(names):
                self._array_tables[path] += 1
            if path in self._array_tables:
                path = (*path, self._array_tables[path] - 1)
        self._note(path, line)
        self.keys[place(*path)] = self.values[place(*path)] = (start, self._end)
        return path

    def pair(self, path: Path) -> None:
        key, line, start = self.tokens[-1]
        for name in self._key("="):
            path = (*path, name)
            self._note(path, line)
        self.keys[place(*path)] = (start, start + len(key.rstrip()))
        self._value(path)

    def _note(self, path: Path, line: int) -> None:
        self.lines.setdefault(place(*path), line)

    def _key(self, end: str) -> list[str]:
        """Take a dotted key with its end, and return its names."""
        names: list[str] = []
        while (token := self._take()) != end:
            if token[0] in "\"'":
                names.append(str(tomllib.loads(f"key = {token}")["key"]))
            else:
                names += _BARE_KEY.findall(token)
        return names

    def _value(self, path: Path) -> None:
        start = self.tokens[-1][2]
        opening = self._take()
        end = {"[": "]", "{": "}"}.get(opening)
        index = 0
        while end and (token := self.tokens[-1])[0] != end:
            if token[0] == ",":
                self._take()
            elif opening == "{":
                self.pair(path)
            else:
                self._note((*path, index), token[1])
                self._value((*path, index))
                index += 1
        if end:
            self._take()
        self.values[place(*path)] = (start, self._end)
