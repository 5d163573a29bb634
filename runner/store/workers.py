"""Workers in the database: one row each, whose expiry is that of all the leases it holds."""

from __future__ import annotations

import time

from sqlalchemy import Connection, bindparam, func, insert, select, text, update

from runner.store.connection.database import Database
from runner.store.connection.statement import Statement
from runner.store.tables import runs, workers

LEASE_SECONDS = 15.0


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


def register(
    database: Database,
    worker_id: str,
    *,
    host_id: str,
    hostname: str,
    pid: int,
    slots: int,
    now: float,
) -> None:
    """Make a worker known; its leases last until it renews them."""
    database.write(
        lambda connection: connection.execute(
            insert(workers).values(
                id=worker_id,
                host_id=host_id,
                hostname=hostname,
                pid=pid,
                slots=slots,
                started_at=now,
                lease_expires_at=now + LEASE_SECONDS,
            )
        )
    )


_RENEW = Statement(
    update(workers)
    .where(workers.c.id == bindparam("worker"))
    .values(lease_expires_at=bindparam("expires_at"), ended_at=None)
)


def renew(database: Database, worker_id: str, now: float) -> None:
    """Extend all leases of a worker. Raises ``UnreachableError``."""
    values = {"worker": worker_id, "expires_at": now + LEASE_SECONDS}
    database.write(lambda connection: _RENEW.run(connection, values))


def end(database: Database, worker_id: str, now: float) -> None:
    """A worker that holds nothing any more."""
    database.write(
        lambda connection: connection.execute(
            update(workers).where(workers.c.id == worker_id).values(ended_at=now)
        )
    )


def others(database: Database, worker_id: str) -> list[tuple[str, str, float]]:
    """Id, host id and lease expiry of every other worker that has not ended, or that holds a run."""

    def work(connection: Connection) -> list[tuple[str, str, float]]:
        holds = select(runs.c.worker_id).where(runs.c.worker_id.is_not(None))
        query = select(workers.c.id, workers.c.host_id, workers.c.lease_expires_at).where(
            workers.c.id != worker_id, workers.c.ended_at.is_(None) | workers.c.id.in_(holds)
        )
        return [(row.id, row.host_id, row.lease_expires_at) for row in connection.execute(query)]

    return database.read(work)


def live(database: Database, now: float) -> int:
    """How many workers hold valid leases."""
    query = select(func.count()).where(
        workers.c.ended_at.is_(None), workers.c.lease_expires_at > now
    )
    return database.read(lambda connection: connection.execute(query).scalar_one())
