"""Reading what a workspace says to agents."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from runner.core.files.instructions import (
    INSTRUCTION_FILES,
    MOST_INSTRUCTION_BYTES,
    Instructions,
)
from runner.core.plain import plain


def read_instructions(root: Path) -> tuple[Sequence[Instructions], Sequence[str]]:
    """The files of instructions in a workspace's root, each once, whatever links there are between
    them.

    Returns:
        What they say; and of those that are there and are not used, why, a line each.
    """
    files: dict[str, Instructions] = {}
    left_out = []
    for name in INSTRUCTION_FILES:
        real = os.path.realpath(root / name)
        if not os.path.lexists(root / name) or real in files:
            continue
        try:
            files[real] = _read(name, real, os.path.realpath(root))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            left_out.append(f"{name}: {why}")
    return list(files.values()), left_out


def _read(name: str, real: str, root: str) -> Instructions:
    if not real.startswith(f"{root.rstrip('/')}/"):
        raise ValueError("it is a link out of the workspace")
    # Whoever puts something else in its place meanwhile: no link is followed, and no pipe waited for.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        content = file.read(MOST_INSTRUCTION_BYTES + 1)
    if len(content) > MOST_INSTRUCTION_BYTES:
        raise ValueError(f"it has more than {MOST_INSTRUCTION_BYTES:,} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    if not text.strip():
        raise ValueError("it is empty")
    return Instructions(name, hashlib.sha256(content).hexdigest(), plain(text))
