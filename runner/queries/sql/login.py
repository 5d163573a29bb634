"""A login of its own for one question on Postgres: a role that may only read, and is dropped afterwards.

The process of the question never holds the credentials of the user who asks. Where that user may not
create such a role, or the server does not let it in, the question is asked over the user's own login,
within the same limits (see ``postgres``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

_PREFIX = "runner_question_"
_READER = "pg_read_all_data"  # since Postgres 14
_GRACE_SECONDS = 60
_CONNECT_SECONDS = 10
_TEMPORARY = "2GB"  # what a question's sorts may put on the server's disk


# True for a superuser, False for others who may create a login with the rights of a role.
_CREATOR = """
SELECT me.rolsuper FROM pg_catalog.pg_roles AS me, pg_catalog.pg_roles AS given
WHERE me.rolname = current_user AND (me.rolsuper OR me.rolcreaterole)
    AND given.rolname = %s AND NOT given.rolsuper
"""
_Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def login_for_question(
    arguments: dict[str, Any], role: str | None, seconds: float
) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield connection arguments for one question with a time limit in seconds, and the role whose
    rights it takes, from the user's arguments and the role that the user named, if any."""
    rights = role or _READER
    user, password = _PREFIX + secrets.token_hex(8), secrets.token_urlsafe(32)
    login = {**arguments, "user": user, "password": password}
    limited: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS}
    is_made = False
    with ExitStack() as opened:
        with suppress(psycopg.Error):  # the question itself tells why the database does not answer
            connection = psycopg.connect(**limited | arguments, autocommit=True)
            opened.enter_context(connection)
            # Else the question itself tells what is wrong with the role.
            if creators := connection.execute(_CREATOR, [rights]).fetchall():
                opened.callback(_drop, connection, user)
                _create(connection, user, password, rights, seconds)
                if creators == [(True,)]:  # a superuser
                    limit = sql.SQL("ALTER ROLE {} SET temp_file_limit = {}")
                    name, most = sql.Identifier(user), sql.Literal(_TEMPORARY)
                    connection.execute(limit.format(name, most))
                psycopg.connect(**limited | login).close()  # the server lets it in
                is_made = True
        yield (login, rights) if is_made else (arguments, role)


def _create(connection: _Connection, user: str, password: str, role: str, seconds: float) -> None:
    expired = (
        "SELECT rolname FROM pg_catalog.pg_roles "
        "WHERE rolname ~ %s AND rolvaliduntil < pg_catalog.now()"
    )
    for (name,) in connection.execute(expired, [f"^{_PREFIX}[0-9a-f]+$"]).fetchall():
        _drop(connection, name)
    until = "SELECT (pg_catalog.now() + pg_catalog.make_interval(secs => %s))::text"
    (ends,) = connection.execute(until, [seconds + _GRACE_SECONDS]).fetchall()[0]
    # Servers may log statements: the password is sent as the verifier that they store.
    verifier = connection.pgconn.encrypt_password(
        password.encode(), user.encode(), b"scram-sha-256"
    )
    create = sql.SQL(
        "CREATE ROLE {} LOGIN CONNECTION LIMIT 2 PASSWORD {} VALID UNTIL {} IN ROLE {}"
    )
    given = (sql.Literal(verifier.decode()), sql.Literal(ends), sql.Identifier(role))
    connection.execute(create.format(sql.Identifier(user), *given))


def _drop(connection: _Connection, name: str) -> None:
    """End what is left of a question on the server, and drop its role. One that cannot be dropped now is
    dropped with a later question, once it has expired."""
    with suppress(psycopg.Error):
        connection.execute(
            "SELECT pg_catalog.pg_terminate_backend(pid, 2000) FROM pg_catalog.pg_stat_activity "
            "WHERE usename = %s",
            [name],
        )
        connection.execute("SET lock_timeout = '2s'")
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
