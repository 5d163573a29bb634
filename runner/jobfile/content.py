"""What a job may hold: JSON values, and text that every database and the API can take."""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path
from typing import Any

from runner.jobfile.lines import Part, place

MOST_LEVELS = 50


def read_bytes(path: Path) -> bytes:
    """A file that a job names. Raises OSError, also when it is no regular file, which might never end."""
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would never open


def text_problem(text: str) -> str | None:
    """Why a text cannot be stored and sent, or None when it can."""
    if "\0" in text:
        return "holds a NUL character (U+0000); take it out"
    for character in text:
        if "\ud800" <= character <= "\udfff":
            return (
                f"holds half a surrogate pair (U+{ord(character):04X}), so it is not valid Unicode "
                "text; a file name with bytes that are not UTF-8 shows up like this"
            )
    return None


def line_problem(text: str, most: int) -> str | None:
    """Why a text is no usable one-line name of at most ``most`` characters, or None."""
    if not text.strip():
        return "is empty"
    if len(text) > most:
        return f"has {len(text):,} characters; at most {most} are allowed"
    if problem := text_problem(text):
        return problem
    if not text.isprintable():
        return "holds a line break or a control character; it has to be one line of plain text"
    return None


def json_problem(value: Any, path: tuple[Part, ...] = (), *, any_text: bool = False) -> str | None:
    """Why a value cannot be stored as JSON, or None when it can.

    Args:
        value: what TOML or JSON gave.
        path: where ``value`` stands, for the words of the problem.
        any_text: take NULs and lone surrogates in strings too.
    """
    at = f"{place(*path)} " if path else ""
    if len(path) > MOST_LEVELS:
        return f"is nested more than {MOST_LEVELS} levels deep"
    if isinstance(value, str):
        problem = None if any_text else text_problem(value)
        return f"{at}{problem}" if problem else None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{at}is {value}, which JSON has no word for"
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"{at}is a number of more than 64 bits; write it as a string"
    if value is None or isinstance(value, int | float):
        return None
    if isinstance(value, dict):
        steps: list[tuple[Part, Any]] = list(value.items())
    elif isinstance(value, list):
        steps = list(enumerate(value))
    else:
        return f"{at}is a {type(value).__name__}, which JSON has no word for; write it as a string"
    for step, inner in steps:
        if isinstance(step, str) and not any_text and (problem := text_problem(step)):
            return f"{at}has a key that {problem}"
        if problem := json_problem(inner, (*path, step), any_text=any_text):
            return problem
    return None
