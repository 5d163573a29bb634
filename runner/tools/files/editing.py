"""Write and Edit: whole files, replaced in one step, byte for byte what was asked."""

# ruff: noqa: PTH120
# (pathlib has no descriptors of folders, and costs a fast path time)

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress

from runner.core.conversation import ToolResult
from runner.core.text.plain import plain
from runner.ports import Interrupt, ToolCall
from runner.tools.failure import ToolFailure
from runner.tools.files.permission import permitted
from runner.tools.files.places import (
    Places,
    check_regular,
    explain,
    make_folders,
    open_file,
    open_folder,
)

MOST_EDITED_BYTES = 64 << 20
MOST_COMPARED_BYTES = 4 << 20  # past that, the lines of a file would take hundreds of megabytes
_LINE_NUMBER = re.compile(r"\s*\d+\t")


def write(call: ToolCall, places: Places, interrupt: Interrupt) -> ToolResult:
    """Make a file, or replace what is in it.

    Raises:
        ToolFailure: it cannot or may not be written.
    """
    path = call.input["file_path"]
    content = _encode(call.input["content"], "content")
    real = permitted(call, places, writing=True)
    try:
        make_folders(os.path.dirname(real), os.path.dirname(path) or ".")
    except OSError as error:
        raise ToolFailure(f"the folder of {path} cannot be made: {error.strerror}") from error
    made = _replace(real, path, content)
    return ToolResult(f"{'Made' if made else 'Replaced'} {plain(path)} ({len(content):,} bytes).")


def edit(call: ToolCall, places: Places, interrupt: Interrupt) -> ToolResult:
    """Replace a text in a file.

    Raises:
        ToolFailure: the text is not there, is there more than once, or the file cannot or
            may not be edited.
    """
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
    content = _content(real, path)
    found = content.count(old)
    if found == 0:
        raise ToolFailure(_not_found(content, old, path))
    if found > 1 and not call.input.get("replace_all", False):
        raise ToolFailure(
            f"old_string was found {found} times in {path} (lines {_places_of(content, old)}): add lines "
            "around it until it is unique, or set replace_all to change all of them"
        )
    _replace(real, path, content.replace(old, new))
    times = "1 place" if found == 1 else f"{found} places"
    return ToolResult(f"Edited {plain(path)} in {times} (line {_places_of(content, old)}).")


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFailure(
            f"{name} has a lone surrogate at character {error.start}, which no file can hold: leave it out",
            "invalid_input",
        ) from error


def _content(real: str, path: str) -> bytes:
    try:
        with open(open_file(real, path), "rb") as file:
            content = file.read(MOST_EDITED_BYTES + 1)
    except OSError as error:
        raise ToolFailure(explain(error, path)) from error
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
    return content


def _replace(real: str, path: str, content: bytes) -> bool:
    """Put ``content`` in the place of a file at once, with its mode and owner; True when there was
    none. Whoever reads the file sees the old content or the new, and a crash leaves one of them."""
    folder_path, name = os.path.split(real)
    folder = open_folder(folder_path, os.path.dirname(path) or ".")
    temporary = f".runner-{secrets.token_hex(8)}"
    try:
        before = _before(folder, name, path)
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder
        )
        try:
            with open(descriptor, "wb") as file:
                if before is not None:
                    if (before.st_uid, before.st_gid) != _owner(os.fstat(descriptor)):
                        with suppress(PermissionError):  # only root can give a file away
                            os.fchown(descriptor, before.st_uid, before.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
                file.write(content)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # whatever it was: no half-written file is left
            os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        raise ToolFailure(explain(error, path)) from error
    finally:
        os.close(folder)
    return before is None


def _owner(status: os.stat_result) -> tuple[int, int]:
    return status.st_uid, status.st_gid


def _before(folder: int, name: str, path: str) -> os.stat_result | None:
    """The status of the file that is to be replaced, None when there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    check_regular(status, path)
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise ToolFailure(f"{path} is read-only")
    return status


def _places_of(content: bytes, old: bytes, most: int = 10) -> str:
    """The numbers of the lines where ``old`` begins, the first ``most`` of them."""
    lines: list[int] = []
    start = content.find(old)
    line, counted = 1, 0
    while start >= 0:
        if len(lines) == most:
            return ", ".join(map(str, lines)) + ", …"
        line += content.count(b"\n", counted, start)
        counted = start
        lines.append(line)
        start = content.find(old, start + len(old))
    return ", ".join(map(str, lines))


def _not_found(content: bytes, old: bytes, path: str) -> str:
    """Why a text is not in a file, as well as can be told."""
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
    return message + "read the file and give the text exactly as it is there"


def _stripped(text: str) -> str:
    """The lines of a text without the white space around each, every one between two line ends."""
    return "\n" + "".join(f"{line.strip()}\n" for line in text.splitlines())
