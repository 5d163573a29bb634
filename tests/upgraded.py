"""Databases that are up to date: copies of one of each kind that went through the migrations."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from sqlalchemy import make_url

from runner.store import migrate
from runner.store.database import Database
from tests.postgres import execute, url_on

_TEMPLATE = "upgraded"


class Upgraded:
    """Args: folder: where the SQLite database lies that is copied."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{_TEMPLATE}.db"
        self._servers: set[str] = set()

    def copy_to(self, url: str) -> None:
        """Make the database at ``url``, in the place of one that nobody has open and that holds nothing."""
        parsed = make_url(url)
        assert parsed.database is not None
        if parsed.get_backend_name() == "sqlite":
            self._copy_file(Path(parsed.database))
        else:
            self._copy_on_server(url_on(url, "postgres"), parsed.database)

    def _copy_file(self, path: Path) -> None:
        if not self._file.exists():
            _upgrade(f"sqlite:///{self._file}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(self._file, path)

    def _copy_on_server(self, server: str, name: str) -> None:
        if server not in self._servers:
            execute(server, f"CREATE DATABASE {_TEMPLATE}")
            _upgrade(url_on(server, _TEMPLATE))
            self._servers.add(server)
        execute(server, f"DROP DATABASE IF EXISTS {name}")
        execute(server, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE} STRATEGY FILE_COPY")


def _upgrade(url: str) -> None:
    with closing(Database(url)) as database:
        migrate.upgrade(database)
