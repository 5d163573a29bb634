"""A login of its own for one question on Postgres: a role that may only read, and is dropped afterwards.

The process of the question never holds the credentials of the user who asks. Where that user may not
create such a role, or the server does not let it in, the question is asked over the user's own login,
within the same limits (see ``postgres``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

_PREFIX = "runner_question_"
_READER = "pg_read_all_data"  # since Postgres 14
_GRACE_SECONDS = 60
_CONNECT_SECONDS = 10
_TEMPORARY = "2GB"  # what a question's sorts may put on the server's disk


@contextmanager
def login_for_question(
    arguments: dict[str, Any], role: str | None, seconds: float
) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Connection arguments for one question, and the role whose rights it is to take.

    Args:
        arguments: those of the user who asks.
        role: the role that the user named, if any.
        seconds: how long the question may take.
    """
    made: _Login | None = None
    with suppress(psycopg.Error):  # the question itself tells why the database does not answer
        made = _Login.make(arguments, role or _READER, seconds)
    if made is None:
        yield arguments, role
        return
    try:
        yield made.arguments, role or _READER
    finally:
        made.drop()


class _Login:
    def __init__(self, connection: psycopg.Connection[Any], arguments: dict[str, Any]) -> None:
        self._connection = connection
        self._name = sql.Identifier(_PREFIX + secrets.token_hex(8))
        password = secrets.token_urlsafe(32)
        self.arguments = {**arguments, "user": self._name.as_string()[1:-1], "password": password}

    @classmethod
    def make(cls, arguments: dict[str, Any], role: str, seconds: float) -> _Login | None:
        """A login with the rights of a role, or None where there cannot be one."""
        connect: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, **arguments}
        connection = psycopg.connect(**connect, autocommit=True)
        login = cls(connection, arguments)
        try:
            if login._create(role, seconds):
                psycopg.connect(**{**connect, **login.arguments}).close()  # the server lets it in
                return login
        except psycopg.Error:
            login.drop()
            raise
        connection.close()
        return None

    def _create(self, role: str, seconds: float) -> bool:
        query = (
            "SELECT rolsuper, rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user"
        )
        (is_superuser, may_create) = self._connection.execute(query).fetchall()[0]
        named = "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s"
        if not (is_superuser or may_create):
            return False
        if self._connection.execute(named, [role]).fetchall() != [(False,)]:
            return False  # the question itself tells what is wrong with the role
        self._drop_expired()
        (until,) = self._connection.execute(
            "SELECT (pg_catalog.now() + pg_catalog.make_interval(secs => %s))::text",
            [seconds + _GRACE_SECONDS],
        ).fetchall()[0]
        # Servers may log statements: the password is sent as the verifier that they store.
        user, password = self.arguments["user"].encode(), self.arguments["password"].encode()
        verifier = self._connection.pgconn.encrypt_password(password, user, b"scram-sha-256")
        self._run(
            "CREATE ROLE {} LOGIN CONNECTION LIMIT 2 PASSWORD {} VALID UNTIL {} IN ROLE {}",
            self._name,
            sql.Literal(verifier.decode()),
            sql.Literal(until),
            sql.Identifier(role),
        )
        if is_superuser:
            self._run("ALTER ROLE {} SET temp_file_limit = {}", self._name, sql.Literal(_TEMPORARY))
        return True

    def drop(self) -> None:
        """End what is left of the question on the server, and drop the role. One that cannot be dropped
        now is dropped with a later question, once it has expired."""
        with self._connection, suppress(psycopg.Error):
            self._drop(self.arguments["user"])

    def _drop_expired(self) -> None:
        query = (
            "SELECT rolname FROM pg_catalog.pg_roles "
            "WHERE rolname ~ %s AND rolvaliduntil < pg_catalog.now()"
        )
        for (name,) in self._connection.execute(query, [f"^{_PREFIX}[0-9a-f]+$"]).fetchall():
            with suppress(psycopg.Error):
                self._drop(name)

    def _drop(self, name: str) -> None:
        self._connection.execute(
            "SELECT pg_catalog.pg_terminate_backend(pid, 2000) FROM pg_catalog.pg_stat_activity "
            "WHERE usename = %s",
            [name],
        )
        self._run("SET lock_timeout = '2s'")
        self._run("DROP ROLE IF EXISTS {}", sql.Identifier(name))

    def _run(self, statement: str, *parts: sql.Composable) -> None:
        self._connection.execute(sql.SQL(statement).format(*parts))
