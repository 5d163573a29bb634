"""The time by which leases expire and runs are due: the database's."""

from __future__ import annotations

import time

from sqlalchemy import text

from runner.store.database import Database


class DatabaseClock:
    """The process's clock, corrected by its offset against the database's (``runner.ports.Clock``).

    SQLite's clock is the process's own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0.0

    def now(self) -> float:
        return time.time() + self._offset

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def measure(self) -> None:
        """Ask the database for its time. Raises ``UnreachableError``."""
        if self._database.dialect == "sqlite":
            return
        query = text("SELECT extract(epoch FROM clock_timestamp())")
        before = time.time()
        theirs = self._database.read(lambda c: float(c.execute(query).scalar_one()))
        self._offset = theirs - (before + time.time()) / 2
