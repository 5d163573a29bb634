"""Writing files for the person who asked: whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import UsageError

Write = Callable[[bytes], object]

_LONGEST_NAME = 100


@contextmanager
def output(path: Path | None) -> Iterator[Write]:
    """Write to a file that only its owner can read, or to stdout for None."""
    if path is not None:
        with _file(path, 0o600) as write:
            yield write
        return
    sys.stdout.flush()
    yield sys.stdout.buffer.write
    sys.stdout.buffer.flush()


def write_file(path: Path, content: bytes) -> None:
    """Write a file. Raises ``UsageError`` if it cannot be written."""
    with _file(path, 0o666) as write:
        write(content)


@contextmanager
def _file(path: Path, mode: int) -> Iterator[Write]:
    """A file that exists once the block ends, and not if it raises. A link at ``path`` is replaced.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{os.getpid()}")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(number, "wb") as file:
                yield file.write
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder if there is none. Raises ``UsageError`` if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {path} cannot be made: {error.strerror}") from error
