"""How far the index has come, for whoever waits for it at a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from runner.cli.terminal import note

_PATIENCE_SECONDS = 1.0
_BETWEEN_SECONDS = 0.2
_ERASE_LINE = "\r\x1b[K"


class Indexing:
    """Shows progress on stderr once it takes long: in place at a terminal, else one line."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE_SECONDS
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, all_: int) -> None:
        """Say how far it is, now and then.

        Args:
            done, all_: rows.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BETWEEN_SECONDS
        if sys.stderr.isatty():
            percent = 100 * done // max(all_, 1)
            sys.stderr.write(f"{_ERASE_LINE}indexing: {done:,} of {all_:,} texts ({percent}%)")
            sys.stderr.flush()
        elif not self._has_begun:
            note(f"indexing {all_:,} texts first")
        self._has_begun = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_begun and sys.stderr.isatty():
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
