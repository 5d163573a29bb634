"""Read, Write and Edit.

Write and Edit replace whole files in one step, byte for byte. Read numbers lines and keeps only
what it shows in memory.
"""

# ruff: noqa: PTH120 - pathlib has no descriptors of folders, and costs a fast path time

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import BufferedReader, BytesIO
from itertools import takewhile
from typing import Any

from runner.core.conversation import ToolResult
from runner.core.media import Media
from runner.core.text import plain
from runner.permissions import ResolvedPath
from runner.permissions.decisions import may_touch
from runner.ports import Interrupt, ToolCall
from runner.tools.file_access import (
    Places,
    ToolFailure,
    check_regular,
    explained,
    make_folders,
    named,
    open_file,
    open_folder,
    permitted,
    tool_context_of,
)
from runner.tools.host import Starter
from runner.tools.media import (
    MOST_NOTEBOOK_BYTES,
    Opener,
    is_media,
    notebook_cells,
    read_media,
    read_whole,
)
from runner.tools.output import MOST_CHARACTERS

MOST_EDITED_BYTES = 64 << 20
MOST_COMPARED_BYTES = 4 << 20  # past that, the lines of a file would take hundreds of megabytes
MOST_LINES = 2_000
MOST_LINE_CHARACTERS = 2_000
MOST_PATCHED_BYTES = 1 << 20  # of a file before or after

_LINE_NUMBER = re.compile(r"\s*\d+\t")
_PIECE = 1 << 16
_MOST_PLACES = 10
_LOOKED_AT = 1 << 13
_NOTE_ROOM = 500
_NOT_UTF8 = "not UTF-8: what cannot be shown is \ufffd, and Edit refuses the file"
_NOTEBOOK = "the cells of a notebook; the file itself is JSON, which Edit and Grep see"
_PATCH_CONTEXT = 3  # lines before and after the change
_MOST_PATCH_CHARACTERS = 100_000  # of the hunk, which is stored with the call
_NO_NEWLINE = "\\ No newline at end of file"
_CR_LF = "lines end with \\r\\n, which an Edit over several lines has to give too"


def write(call: ToolCall, places: Places, interrupt: Interrupt) -> ToolResult:
    """Make a file, or replace its content. Raises ``ToolFailure`` if it cannot or may not."""
    path = call.input["file_path"]
    content = _encode(call.input["content"], "content")
    real = permitted(call, places, writing=True)
    try:
        make_folders(os.path.dirname(real), os.path.dirname(path) or ".")
    except OSError as error:
        raise ToolFailure(f"the folder of {path} cannot be made: {error.strerror}") from error
    before = _readable(call, places, real)
    made = _replace(real, path, content)
    text = f"{'Made' if made else 'Replaced'} {plain(path)} ({len(content):,} bytes)."
    return ToolResult(text, details=change_of(before, content, made=made))


def _readable(call: ToolCall, places: Places, real: str) -> bytes | None:
    """Return what a file holds before it is changed, no more of it than a patch is made of; None if it
    cannot or may not be read: the run can read what hooks are told of it."""
    path = call.input["file_path"]
    place = ResolvedPath(named(path, call.surroundings, places), real)
    policy, context = call.authorization.policy, tool_context_of(places)
    if may_touch(policy, "Read", place, context).effect != "allow":
        return None
    with suppress(OSError, ToolFailure), open(open_file(real, path), "rb") as file:
        return file.read(MOST_PATCHED_BYTES + 1)
    return None


def edit(call: ToolCall, places: Places, interrupt: Interrupt) -> ToolResult:
    """Replace a text in a file. Raises ``ToolFailure`` if the text is not there, is there more than
    once, or the file cannot or may not be edited."""
    path = call.input["file_path"]
    old = _encode(call.input["old_string"], "old_string")
    new = _encode(call.input["new_string"], "new_string")
    if not old:
        raise ToolFailure(
            "old_string is empty: give the text to replace, or use Write to make a file"
        )
    if old == new:
        raise ToolFailure("old_string and new_string are the same: nothing was changed")
    real = permitted(call, places, writing=True)
    with explained(path), open(open_file(real, path), "rb") as file:
        content = file.read(MOST_EDITED_BYTES + 1)
    if len(content) > MOST_EDITED_BYTES:
        raise ToolFailure(
            f"{path} is larger than {MOST_EDITED_BYTES:,} bytes: edit it with Bash (sed)"
        )
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailure(
            f"{path} is not UTF-8 (byte {error.start:,}): Edit would damage it, change it with Bash"
        ) from error
    found = content.count(old)
    if found == 0:
        raise ToolFailure(_not_found(content, old, path))
    if found > 1 and not call.input.get("replace_all", False):
        raise ToolFailure(
            f"old_string was found {found} times in {path} (lines {_places_of(content, old)}): add lines "
            "around it until it is unique, or set replace_all to change all of them"
        )
    edited, before = content.replace(old, new), _readable(call, places, real)
    _replace(real, path, edited)
    times = "1 place" if found == 1 else f"{found} places"
    text = f"Edited {plain(path)} in {times} (line {_places_of(content, old)})."
    return ToolResult(text, details=change_of(before, edited))


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFailure(
            f"{name} has a lone surrogate at character {error.start}, which no file can hold: leave it out",
            "invalid_input",
        ) from error


def _replace(real: str, path: str, content: bytes) -> bool:
    """Put ``content`` in the place of a file at once, with its mode and owner; return True if there was
    none. Whoever reads the file sees the old content or the new, and a crash leaves one of them."""
    folder_path, name = os.path.split(real)
    folder = open_folder(folder_path, os.path.dirname(path) or ".")
    temporary = f".runner-{secrets.token_hex(8)}"
    before: os.stat_result | None = None
    with explained(path), ExitStack() as opened:
        opened.callback(os.close, folder)
        with suppress(FileNotFoundError):
            before = os.stat(name, dir_fd=folder, follow_symlinks=False)
            check_regular(before, path)
            if not os.access(name, os.W_OK, dir_fd=folder):
                raise ToolFailure(f"{path} is read-only")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                if before is not None:
                    made = os.fstat(descriptor)
                    if (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
                        with suppress(PermissionError):  # only root can give a file away
                            os.fchown(descriptor, before.st_uid, before.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
                file.write(content)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # whatever it was: no half-written file is left
            os.unlink(temporary, dir_fd=folder)
            raise
    return before is None


def _places_of(content: bytes, old: bytes) -> str:
    """Return the numbers of the lines where ``old`` begins, the first ten of them."""
    lines: list[str] = []
    start, line, counted = content.find(old), 1, 0
    while start >= 0 and len(lines) < _MOST_PLACES:
        line += content.count(b"\n", counted, start)
        counted = start
        lines.append(str(line))
        start = content.find(old, start + len(old))
    return ", ".join([*lines, "…"] if start >= 0 else lines)


def _not_found(content: bytes, old: bytes, path: str) -> str:
    """Return why a text is not in a file, as well as can be told."""
    message = f"old_string was not found in {path}: "
    text, wanted = content.decode("utf-8"), old.decode("utf-8")
    if "\r\n" in text and wanted in text.replace("\r\n", "\n"):
        return (
            message
            + "the file's lines end with \\r\\n, so give \\r\\n where old_string ends a line"
        )
    given = [line for line in wanted.splitlines() if line.strip()]
    if given and all(_LINE_NUMBER.match(line) for line in given):
        return message + "leave out the line numbers that Read puts before each line"
    if given and len(content) <= MOST_COMPARED_BYTES:
        # As one text, because a search in it takes time by its length, whatever the lines repeat.
        lines = _stripped(text)
        place = lines.find(_stripped(wanted.strip()))
        if place >= 0:
            number = lines.count("\n", 0, place) + 1
            return message + (
                f"line {number} differs from it only in white space; "
                "copy the indentation exactly as Read shows it"
            )
    return message + "read the file and give its exact text"


def _stripped(text: str) -> str:
    """Return a text's lines, stripped of white space, each between two line ends."""
    return "\n" + "".join(f"{line.strip()}\n" for line in text.splitlines())


def read(call: ToolCall, places: Places, interrupt: Interrupt, host: Starter) -> ToolResult:
    """Show lines of a text file or of a notebook's cells, as ``cat -n`` does, an image, or pages of a PDF.
    Raises ``ToolFailure`` if the file cannot or may not be read, or is none of these."""
    path, real = call.input["file_path"], permitted(call, places)
    first = int(call.input.get("offset") or 1)
    most = int(call.input.get("limit") or MOST_LINES)
    deadline = time.monotonic() + call.timeout

    def check() -> None:
        interrupt.check()
        if time.monotonic() > deadline:
            raise ToolFailure(f"{path}: reading took over {call.timeout:g} s", "timed_out")

    shown, seen, media = _Shown(), 0, tuple[Media, ...]()
    with explained(path), open(open_file(real, path), "rb") as opened:
        file, opener = opened, Opener.of(call, host, interrupt)
        if is_media(file.peek(_LOOKED_AT)):
            return read_media(file, path, call.input.get("pages") or "", opener)
        if path.endswith(".ipynb"):
            text, media = notebook_cells(read_whole(file, path, MOST_NOTEBOOK_BYTES), path, opener)
            file = BufferedReader(BytesIO(text.encode("utf-8", "replace")))
            shown.note(_NOTEBOOK)
        else:
            _check_text(file, path)
        for seen, line, whole in _lines(file, check):
            if seen < first:
                continue
            if seen >= first + most or not shown.add(seen, line, whole):
                text = shown.text(f"the file goes on: read it with offset={seen}")
                return ToolResult(text, media=media)
    if seen == 0:
        return ToolResult("(the file is empty)")
    if seen < first:
        raise ToolFailure(f"{path} has {seen} lines: offset {first} is past its end")
    return ToolResult(shown.text(), media=media)


class _Shown:
    """Return the lines to show, up to the model's limit, and a note about them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._room = MOST_CHARACTERS - _NOTE_ROOM
        self._notes: dict[str, None] = {}

    def add(self, number: int, line: bytes, whole: bool) -> bool:
        """Add a line; return False, and add nothing, if there is no room for it."""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            if whole:  # else it may be the cut that parted a character
                self._notes[_NOT_UTF8] = None
        text = text.removesuffix("\n")
        if text.endswith("\r"):
            text = text[:-1]
            self._notes[_CR_LF] = None
        text = plain(text)
        if not whole or len(text) > MOST_LINE_CHARACTERS:
            text = f"{text[:MOST_LINE_CHARACTERS]} [… the line goes on]"
        shown = f"{number:6}\t{text}"
        if len(shown) + 1 > self._room:
            return False
        self._room -= len(shown) + 1
        self._lines.append(shown)
        return True

    def note(self, text: str) -> None:
        self._notes[text] = None

    def text(self, *notes: str) -> str:
        return "\n".join([*self._lines, *(f"[{note}]" for note in (*self._notes, *notes))])


def _lines(file: BufferedReader, check: Callable[[], None]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield each line's number (from 1), its first 64 KiB, and whether that is the whole line.
    ``check`` is called often, however long a line is."""
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
    raise ToolFailure(
        f"{path} is {kind} ({size:,} bytes): Read shows text in UTF-8, PNG, JPEG, GIF, WebP and PDF"
    )


# The one-hunk patch of a Write or Edit that hooks get, in the form of Claude Code's tools


def change_of(before: bytes | None, after: bytes, *, made: bool = False) -> dict[str, Any]:
    """Return the type of a change and its patch. There is no patch of a large change, of a new file
    (``made``), or if the old content is unknown (``before``: None)."""
    change: dict[str, Any] = {"type": "create" if made else "update"}
    if made or before is None or max(len(before), len(after)) > MOST_PATCHED_BYTES:
        return change
    hunk = _hunk(_whole_lines(before), _whole_lines(after))
    if before != after and sum(map(len, hunk["lines"])) <= _MOST_PATCH_CHARACTERS:
        change["structuredPatch"] = [hunk]
    return change


def _hunk(old: list[str], new: list[str]) -> dict[str, Any]:
    """Return one hunk from the first to the last line that differ, with lines around it. It is not
    the shortest difference, which would take quadratic time to find."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    first = max(0, head - _PATCH_CONTEXT)
    before, gone = old[first:head], old[head : len(old) - tail]
    come, after = new[head : len(new) - tail], new[len(new) - tail :][:_PATCH_CONTEXT]
    signed = ((" ", before), ("-", gone), ("+", come), (" ", after))
    around = len(before) + len(after)
    return {
        "oldStart": first + 1,
        "oldLines": around + len(gone),
        "newStart": first + 1,
        "newLines": around + len(come),
        "lines": [text for sign, lines in signed for line in lines for text in _signed(sign, line)],
    }


def _common(old: list[str], new: list[str]) -> int:
    """The number of leading lines that both have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _whole_lines(content: bytes) -> list[str]:
    """The lines of a text with their line feeds."""
    *whole, rest = content.decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _signed(sign: str, line: str) -> list[str]:
    return [sign + line[:-1]] if line.endswith("\n") else [sign + line, _NO_NEWLINE]
