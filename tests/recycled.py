"""Databases of a Postgres server that tests use one after the other: emptying one takes a hundredth of
what making it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from sqlalchemy import make_url

from tests.postgres import execute, url_on
from tests.upgraded import Upgraded

_MOST_USES = 50  # what was deleted still takes room
_SHAPE = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
  SELECT concat_ws(' ', c.oid, relname, pg_relation_size(c.oid) >> 20, attname, atttypid, attnotnull)
    AS part
  FROM pg_class c JOIN pg_attribute ON attrelid = c.oid WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT oid::text FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  UNION ALL SELECT oid::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT oid::text FROM pg_trigger
  UNION ALL SELECT 'analyzed' FROM pg_statistic JOIN pg_class c ON starelid = c.oid
    WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT setconfig::text FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS parts
"""
_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_EMPTY = """
DO $$
DECLARE name regclass;
BEGIN
  SET LOCAL session_replication_role = replica;  -- no foreign keys
  FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
    AND relkind = 'r' AND relname <> 'alembic_version'
  LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
  FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
  LOOP EXECUTE 'ALTER SEQUENCE ' || name || ' RESTART'; END LOOP;
END $$
"""


class Recycled:
    """Databases that are up to date and hold nothing, on one server."""

    def __init__(self, upgraded: Upgraded) -> None:
        self._upgraded = upgraded
        self._free: list[tuple[str, str, int]] = []

    @contextmanager
    def one(self, server: str) -> Iterator[str]:
        """The URL of a database, for one test. One is not used again if the test changed its schema, or
        what plans depend on: it was analyzed, or a table grew by a MiB."""
        url, shape, uses = self._free.pop() if self._free else self._made(server)
        try:
            yield url
        finally:
            name = make_url(url).database
            if uses < _MOST_USES and self._is_emptied(url, shape):
                self._free.append((url, shape, uses + 1))
            else:
                execute(server, f"DROP DATABASE {name} WITH (FORCE)")

    def _made(self, server: str) -> tuple[str, str, int]:
        url = url_on(server, f"test_{uuid4().hex}")
        self._upgraded.copy_to(url)
        with _connected(url) as connection:
            return url, _shape(connection), 1

    def _is_emptied(self, url: str, shape: str) -> bool:
        with _connected(url) as connection:
            connection.execute(_OTHERS)
            if _shape(connection) != shape:
                return False
            connection.execute(_EMPTY)
            return True


def _connected(url: str) -> psycopg.Connection:
    """Without an engine: to make one takes more than what is asked over it."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True)


def _shape(connection: psycopg.Connection) -> str:
    found = connection.execute(_SHAPE).fetchone()
    assert found is not None
    return str(found[0])
