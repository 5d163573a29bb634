"""Read: a file's lines, numbered; only what is shown is kept in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from io import BufferedReader

from runner.core.conversation import ToolResult
from runner.core.text.plain import plain
from runner.ports import Interrupt, ToolCall
from runner.tools.failure import ToolFailure
from runner.tools.files.permission import permitted
from runner.tools.files.places import Places, explain, open_file
from runner.tools.output import MOST_CHARACTERS

MOST_LINES = 2_000
MOST_LINE_CHARACTERS = 2_000
_PIECE = 1 << 16
_LOOKED_AT = 1 << 13
_NOTE_ROOM = 500


def read(call: ToolCall, places: Places, interrupt: Interrupt) -> ToolResult:
    """Show lines of a text file, as ``cat -n`` does.

    Raises:
        ToolFailure: it cannot or may not be read, or is not text.
    """
    path = call.input["file_path"]
    real = permitted(call, places)
    try:
        return _lines_shown(call, real, interrupt)
    except OSError as error:  # a disk or a server that failed in the middle of it
        raise ToolFailure(explain(error, path)) from error


def _lines_shown(call: ToolCall, real: str, interrupt: Interrupt) -> ToolResult:
    path = call.input["file_path"]
    first = int(call.input.get("offset") or 1)
    most = int(call.input.get("limit") or MOST_LINES)
    with open(open_file(real, path), "rb") as file:
        _check_text(file, path)
        deadline = time.monotonic() + call.timeout

        def check() -> None:
            interrupt.check()
            if time.monotonic() > deadline:
                raise ToolFailure(f"{path}: reading took over {call.timeout:g} s", "timed_out")

        shown = _Shown(first)
        seen = 0
        for number, line, whole in _lines(file, check):
            seen = number
            if number < first:
                continue
            if number >= first + most or not shown.add(number, line, whole):
                return ToolResult(shown.text(f"the file goes on: read it with offset={number}"))
    if seen < first:
        if seen == 0:
            return ToolResult("(the file is empty)")
        raise ToolFailure(f"{path} has {seen} lines: offset {first} is past its end")
    return ToolResult(shown.text())


class _Shown:
    """The lines to show, up to what the model is shown at once, and what is to be said of them."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._lines: list[str] = []
        self._room = MOST_CHARACTERS - _NOTE_ROOM
        self._notes: dict[str, None] = {}

    def add(self, number: int, line: bytes, whole: bool) -> bool:
        """Add a line; False, and nothing is added, when there is no room for it."""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            if whole:  # else it may be the cut that parted a character
                self._notes[
                    "not UTF-8: what cannot be shown is \ufffd, and Edit refuses the file"
                ] = None
        text = text.removesuffix("\n")
        if text.endswith("\r"):
            text = text[:-1]
            self._notes[
                "lines end with \\r\\n, which an Edit over several lines has to give too"
            ] = None
        text = plain(text)
        if not whole or len(text) > MOST_LINE_CHARACTERS:
            text = f"{text[:MOST_LINE_CHARACTERS]} [… the line goes on]"
        shown = f"{number:6}\t{text}"
        if len(shown) + 1 > self._room:
            return False
        self._room -= len(shown) + 1
        self._lines.append(shown)
        return True

    def text(self, note: str = "") -> str:
        notes = [*self._notes, *([note] if note else [])]
        return "\n".join([*self._lines, *(f"[{note}]" for note in notes)])


def _lines(file: BufferedReader, check: Callable[[], None]) -> Iterator[tuple[int, bytes, bool]]:
    """Each line's number (from 1), its first 64 KiB, and whether that is the whole line. ``check`` is
    called often, however long a line is."""
    number = 0
    while line := file.readline(_PIECE):
        check()
        number += 1
        whole = line.endswith(b"\n") or len(line) < _PIECE
        yield number, line, whole
        while not whole:
            check()
            piece = file.readline(_PIECE)
            whole = piece.endswith(b"\n") or len(piece) < _PIECE


def _check_text(file: BufferedReader, path: str) -> None:
    beginning = file.read(_LOOKED_AT)
    file.seek(0)
    if b"\0" not in beginning:
        return
    size = os.fstat(file.fileno()).st_size
    kind = "UTF-16 text" if beginning[:2] in (b"\xff\xfe", b"\xfe\xff") else "a binary file"
    raise ToolFailure(f"{path} is {kind} ({size:,} bytes): Read shows only text in UTF-8")
