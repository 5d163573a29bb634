"""Writing what comes out to files of the person who asked for it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from runner.errors import UsageError

_LONGEST_NAME = 100


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a link at ``path`` is replaced and not followed.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{os.getpid()}")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder where there is none. Raises ``UsageError`` when it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {path} cannot be made: {error.strerror}") from error


def file_names(runs: Iterable[tuple[str, str]], suffix: str) -> dict[str, str]:
    """A name for the file of each run, made of its item's key; of its id's end, too, where two
    would have the same one.

    Args:
        runs: ids with the items' keys. suffix: of each name, with its dot.

    Returns:
        Names by the runs' ids; none has a separator, a blank or a dot in front, and no two are the
        same to a file system that ignores case.
    """
    stems = {run_id: _stem(key) for run_id, key in runs}
    same = Counter(stem.casefold() for stem in stems.values())
    return {
        run_id: f"{stem}{suffix}" if same[stem.casefold()] == 1 else f"{stem}-{run_id[-8:]}{suffix}"
        for run_id, stem in stems.items()
    }


def _stem(key: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", key).strip("-.")
    return safe[:_LONGEST_NAME].rstrip("-.") or "run"
