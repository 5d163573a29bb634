"""The line of each key of a TOML text: ``tomllib`` reads values and does not tell their lines.

Only for text that ``tomllib`` has accepted: the scanner trusts the syntax (https://toml.io/en/v1.0.0).
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter

Part = str | int
Path = tuple[Part, ...]

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
    scanner = _Scanner(text.replace("\r\n", "\n"))
    base: Path = ()
    while scanner.tokens:
        if scanner.tokens[-1][0] == "[":
            base = scanner.header()
        else:
            scanner.pair(base)
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []  # with their lines, in reverse
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup != "gap":
                self.tokens.append((match.group(), line))
            line += match.group().count("\n")
        self.tokens.reverse()
        self.lines: dict[str, int] = {}
        self._array_tables: Counter[Path] = Counter()

    def header(self) -> Path:
        """Take the header of a table or an array of tables, and return its path."""
        line = self.tokens.pop()[1]
        if is_array := self.tokens[-1][0] == "[":
            self.tokens.pop()
        names = self._key("]")
        if is_array:
            self.tokens.pop()
        path: Path = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            self._note(path, line)
            if is_array and number == len(names):
                self._array_tables[path] += 1
            if path in self._array_tables:
                path = (*path, self._array_tables[path] - 1)
        self._note(path, line)
        return path

    def pair(self, path: Path) -> None:
        line = self.tokens[-1][1]
        for name in self._key("="):
            path = (*path, name)
            self._note(path, line)
        self._value(path)

    def _note(self, path: Path, line: int) -> None:
        self.lines.setdefault(place(*path), line)

    def _key(self, end: str) -> list[str]:
        """Take a dotted key with its end, and return its names."""
        names: list[str] = []
        while (token := self.tokens.pop()[0]) != end:
            if token[0] in "\"'":
                names.append(str(tomllib.loads(f"key = {token}")["key"]))
            else:
                names += _BARE_KEY.findall(token)
        return names

    def _value(self, path: Path) -> None:
        opening = self.tokens.pop()[0]
        end = {"[": "]", "{": "}"}.get(opening)
        index = 0
        while end and (token := self.tokens[-1])[0] != end:
            if token[0] == ",":
                self.tokens.pop()
            elif opening == "{":
                self.pair(path)
            else:
                self._note((*path, index), token[1])
                self._value((*path, index))
                index += 1
        if end:
            self.tokens.pop()
