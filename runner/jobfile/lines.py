"""Where in a TOML text each key stands: ``tomllib`` reads values and says nothing of their lines.

Only for text that ``tomllib`` has taken: the scanner trusts the syntax (https://toml.io/en/v1.0.0).
"""

from __future__ import annotations

import bisect
import re
import tomllib

Part = str | int

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


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
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[str, int] = {}
        self.array_tables: dict[tuple[Part, ...], int] = {}

    def scan(self) -> dict[str, int]:
        base: tuple[Part, ...] = ()
        while self._skip_gap():
            if self.text.startswith("[", self.at):
                base = self._header()
            else:
                self._pair(base)
        return self.lines

    def _skip_gap(self) -> bool:
        """Pass over blanks, line ends and comments; False at the end of the text."""
        self._take(_GAP)
        return self.at < len(self.text)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def _note(self, path: tuple[Part, ...]) -> None:
        line = bisect.bisect_left(self.ends, self.at) + 1
        self.lines.setdefault(place(*path), line)

    def _header(self) -> tuple[Part, ...]:
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        start = self.at
        self.at += brackets
        names = self._key()
        end = self.at + brackets
        self.at = start
        path: tuple[Part, ...] = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            self._note(path)
            if brackets == 2 and number == len(names):
                self.array_tables[path] = self.array_tables.get(path, -1) + 1
            if path in self.array_tables:
                path = (*path, self.array_tables[path])
        self._note(path)
        self.at = end
        return path

    def _key(self) -> list[str]:
        names = []
        while True:
            self._take(_BLANK)
            if quoted := self._take(_STRINGS[2]) or self._take(_STRINGS[3]):
                names.append(str(tomllib.loads(f"key = {quoted}")["key"]))
            else:
                names.append(self._take(_BARE_KEY))
            self._take(_BLANK)
            if not self.text.startswith(".", self.at):
                return names
            self.at += 1

    def _pair(self, base: tuple[Part, ...]) -> None:
        start = self.at
        names = self._key()
        end, self.at = self.at, start
        path = base
        for name in names:
            path = (*path, name)
            self._note(path)
        self.at = end + 1  # the equals sign
        self._take(_BLANK)
        self._value(path)

    def _value(self, path: tuple[Part, ...]) -> None:
        if self.text.startswith("[", self.at):
            self._array(path)
        elif self.text.startswith("{", self.at):
            self._inline_table(path)
        elif not any(self._take(pattern) for pattern in _STRINGS):
            self._take(_SCALAR)

    def _array(self, path: tuple[Part, ...]) -> None:
        self.at += 1
        index = 0
        while self._skip_gap() and not self.text.startswith("]", self.at):
            if self.text.startswith(",", self.at):
                self.at += 1
                continue
            self._note((*path, index))
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: tuple[Part, ...]) -> None:
        self.at += 1
        while self._skip_gap() and not self.text.startswith("}", self.at):
            if self.text.startswith(",", self.at):
                self.at += 1
                continue
            self._pair(path)
        self.at += 1
