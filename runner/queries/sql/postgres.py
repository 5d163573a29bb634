"""A question to Postgres, in a process of its own, usually over a login of its own (``login``).

The server bounds what it can do. Its text becomes the definition of a temporary view: the grammar takes
exactly one SELECT there, and does not run it. The parsed view names the functions that the question
calls, and functions that can do more than read are refused. Then the question runs in a READ ONLY
transaction, for a bounded time, and the transaction is rolled back with the view.

It runs inside a SECURITY DEFINER function of the role whose rights it has. Postgres refuses to change
the role there, so that nothing that it calls regains what the role has given up
(https://www.postgresql.org/docs/current/sql-set-role.html#SQL-SET-ROLE-NOTES).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from runner.errors import UsageError

_LOCK_SECONDS = 5
_CONNECT_SECONDS = 10
_LONGEST_TIMEOUT = (1 << 31) - 1  # milliseconds; the process ends itself after longer ones
_TEMPORARY_KB = 2 << 20  # what a sort may put on the server's disk
_READER = "pg_read_all_data"  # since Postgres 14
_MOST, _MOST_DIGITS = (1 << 63) - 1, 20


def answer(request: dict[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    """The names of the columns, and the rows as they come. Raises ``UsageError``."""
    try:
        given = {"connect_timeout": _CONNECT_SECONDS, **request["postgres"]}
        connection = psycopg.connect(**given, autocommit=True)
    except psycopg.Error as error:
        raise UsageError(f"the database does not answer ({error})") from error
    for known in connection.adapters.types:
        for oid in (known.oid, known.array_oid):
            connection.adapters.register_loader(oid, _loader(str))
    for name, convert in _CONVERT.items():
        connection.adapters.register_loader(name, _loader(convert))
    server = _Server(connection)
    server.begin(request["seconds"])
    server.become(request["role"])
    names = server.look_at(request["sql"], any_function=request["any_function"])
    # The transaction ends with the connection, and that with the process.
    return names, server.rows(len(names), request["rows"])


def _number(text: str) -> Any:
    """A number of any length; it stays text if no integer column could hold it."""
    if not text.lstrip("-").isdigit():
        return float(text)
    number = int(text) if len(text) <= _MOST_DIGITS else _MOST + 1
    return number if abs(number) <= _MOST else text


# Values in the types that SQLite would return, from Postgres' text; of other types they stay text.
_CONVERT: dict[str | int, Callable[[str], Any]] = {
    0: str,  # types that psycopg does not know
    **dict.fromkeys(("int2", "int4", "int8", "oid"), int),
    **dict.fromkeys(("float4", "float8"), float),
    "bool": lambda text: int(text == "t"),
    "bytea": lambda text: text.removeprefix("\\x"),
    "numeric": _number,
}


def _loader(convert: Callable[[str], Any]) -> type[Loader]:
    class Converted(Loader):
        def load(self, data: Buffer) -> Any:
            return convert(bytes(data).decode("utf-8", "replace"))

    return Converted


class _Server:
    """Runs the statements of a question."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def run(self, statement: str, *, alone: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows. One that has to be ``alone`` is prepared, which Postgres
        refuses for several statements
        (https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY)."""
        with _refusals():
            cursor = self._connection.execute(statement.encode(), prepare=alone)
            return cursor.fetchall() if cursor.description else []

    def begin(self, seconds: float) -> None:
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        settings = {
            "statement_timeout": str(min(math.ceil(seconds * 1000), _LONGEST_TIMEOUT)),
            "lock_timeout": f"{_LOCK_SECONDS}s",
            "client_connection_check_interval": "1s",  # this process may be killed
            "client_encoding": "UTF8",
            "TimeZone": "UTC",
            "DateStyle": "ISO",
            "IntervalStyle": "iso_8601",
            "bytea_output": "hex",
            "extra_float_digits": "1",
            "jit": "off",  # compiling takes longer than most questions
        }
        if self._is_superuser():
            settings["temp_file_limit"] = str(_TEMPORARY_KB)
        for name, value in settings.items():
            self.run(f"SET LOCAL {name} = '{value}'")

    def become(self, role: str | None) -> None:
        """Take the rights of a role; a superuser without one can only read."""
        if role is None and self._is_superuser():
            role = _READER
        if role is None:
            return
        if role.lower() == "none":  # to Postgres this is no role, even in quotes
            raise UsageError(f"--role {role} keeps all rights: name a role")
        name = sql.Identifier(role.encode("utf-8", "replace").decode())
        self.run(f"SET LOCAL ROLE {name.as_string(self._connection)}")
        if self._is_superuser():
            raise UsageError(f"the role {role} is a superuser, who may do anything: name another")

    def _is_superuser(self) -> bool:
        return self.run("SELECT pg_catalog.current_setting('is_superuser')") == [("on",)]

    def look_at(self, sql: str, *, any_function: bool) -> list[str]:
        """Let the server parse a question as the temporary view ``runner_question``, without running it,
        and return the names of its columns. With ``any_function`` it may call functions that are not
        Postgres' own."""
        server = self._connection.pgconn
        with _refusals():
            for parsed in (server.prepare(b"", sql.encode()), server.describe_prepared(b"")):
                if parsed.status != ExecStatus.COMMAND_OK:
                    raise error_from_result(parsed)
        if not parsed.nfields:
            raise UsageError("the SQL returns no rows: write a SELECT")
        fields = (parsed.fname(column) or b"" for column in range(parsed.nfields))
        names = [field.decode("utf-8", "replace") for field in fields]
        columns = ", ".join(f"c{number}" for number in range(len(names)))
        try:
            self.run(f"CREATE TEMPORARY VIEW runner_question ({columns}) AS\n{sql}\n", alone=True)
        except UsageError as error:
            raise UsageError(_in_their_names(str(error), names)) from error
        refuse_more_than_reading(self.run, any_function=any_function)
        return names

    def rows(self, columns: int, most: int | None) -> Iterator[list[Any]]:
        """Run the question in a function whose role nothing in it can change, and yield its rows as they
        come: one more than ``most`` if there are more."""
        limit = "" if most is None else f" LIMIT {most + 1}"
        self.run(
            "CREATE FUNCTION pg_temp.runner_answer() RETURNS SETOF pg_temp.runner_question "
            "LANGUAGE sql STABLE SECURITY DEFINER "
            f"AS 'SELECT * FROM pg_temp.runner_question{limit}'"
        )
        self.run("SET TRANSACTION READ ONLY")
        # In FROM, the function would compute all of its rows before the first is sent.
        values = ", ".join(f"(answer).c{number}" for number in range(columns))
        query = f"SELECT {values} FROM (SELECT pg_temp.runner_answer() AS answer) AS answers"
        with _refusals():
            yield from map(list, self._connection.cursor().stream(query.encode()))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and "memory" in str(error):
            raise MemoryError from error  # this process has no room for what the server sends
        raise UsageError(f"Postgres says: {_reason(error)}") from error


def _in_their_names(reason: str, names: list[str]) -> str:
    """Postgres' words with the question's names of columns instead of the view's."""

    def name(found: re.Match[str]) -> str:
        return f'column {int(found[1]) + 1} ("{names[int(found[1])]}")'

    reason = re.sub(r'column "c([0-9]+)"', name, reason)
    return f"{reason}: cast it to text" if "has pseudo-type" in reason else reason


def _reason(error: psycopg.Error) -> str:
    reason = (error.diag.message_primary or str(error)).strip()
    match error.sqlstate:
        case "57014":  # query_canceled
            return (
                f"{reason}: narrow the question (by run_id, job_id or time), or give it more time"
            )
        case "42601" if "multiple commands" in reason:
            return "the SQL has several statements: ask one SELECT at a time"
        case "42601":
            return f"{reason}: a question is one SELECT"
        case "25006" if "recovery" in reason:
            return f"{reason}: ask the server that takes writes, questions need a temporary view"
    return reason


Run = Callable[[str], list[tuple[Any, ...]]]

# Postgres marks functions that can do more than compute or read as volatile
# (https://www.postgresql.org/docs/current/xfunc-volatility.html): pg_terminate_backend, lo_export,
# set_config, pg_read_file, query_to_xml (which runs SQL of its own) and so on. A function that is not
# Postgres' own can lie about it. These are volatile only because they return another value each time.
_HARMLESS = "'random', 'random_normal', 'clock_timestamp', 'timeofday', 'gen_random_uuid'"
_OF_POSTGRES = (
    "p.pronamespace = 'pg_catalog'::regnamespace AND p.oid < 16384"  # FirstNormalObjectId
)
# The last of these are stable, and read tables that the question does not name.
_DOES_MORE = f"""(
    p.provolatile = 'v' AND NOT ({_OF_POSTGRES} AND p.proname IN ({_HARMLESS}))
    OR p.proname ~ '^(table|schema|database)_to_xml(_and_xmlschema)?$'
)"""
_CALLED = """
    SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
    WHERE (p.oid IN ({functions}) OR p.oid IN (
        SELECT o.oprcode FROM pg_catalog.pg_operator o WHERE o.oid IN ({operators})))
"""
# These hold passwords of users and other servers, or hashes of them.
_SECRET = """
    SELECT c.relname FROM pg_catalog.pg_class c WHERE c.oid IN ({relations})
    AND c.relnamespace = 'pg_catalog'::regnamespace
    AND c.relname IN ('pg_authid', 'pg_shadow', 'pg_user_mapping', 'pg_subscription')
"""

_QUERIES = """
    SELECT r.ev_action::text FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_class c ON c.oid = r.ev_class WHERE
"""
_OF_TEMPORARY = "c.relname = '{view}' AND c.relnamespace = pg_catalog.pg_my_temp_schema()"
# Postgres' own views are not looked into: they give nobody more rights.
_OF_VIEWS = """
    c.oid IN ({views}) AND c.relkind = 'v'
    AND NOT (c.oid < 16384 AND c.relnamespace IN (
        'pg_catalog'::regnamespace, 'information_schema'::regnamespace))
"""

# How a stored query names functions, operators and relations: the nodes of Postgres'
# src/include/nodes/primnodes.h and parsenodes.h.
_NAMED = {
    "functions": (r" :(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)(?![^ )}])",),
    "operators": (r" :(?:opno|eqop|sortop) (\d+)(?![^ )}])", r" :opnos \(o ([\d ]+)\)"),
    "relations": (r" :relid (\d+)(?![^ )}])",),
}


def refuse_more_than_reading(run: Run, *, any_function: bool) -> None:
    """Raise ``UsageError`` if the temporary view ``runner_question`` names anything that it may not. With
    ``any_function`` it may call functions that are not Postgres' own, if they claim only to read."""
    # A future Postgres may store queries in another notation, in which nothing would be found.
    run(
        "CREATE TEMPORARY VIEW runner_known AS SELECT pg_catalog.random() + 1.0::float8 AS known "
        "FROM pg_catalog.pg_class"
    )
    known = _named(run, "runner_known")
    ((function, relation),) = run(
        "SELECT 'pg_catalog.random()'::regprocedure::oid::text, "
        "'pg_catalog.pg_class'::regclass::oid::text"
    )
    is_known = function in known["functions"] and relation in known["relations"]
    if not (is_known and known["operators"]):
        raise UsageError("this Runner cannot check queries on this version of Postgres")
    named = {kind: _listed(numbers) for kind, numbers in _named(run, "runner_question").items()}
    called = _CALLED.format(**named)

    def names(query: str) -> str:
        return ", ".join(sorted(row[0] for row in run(query)))

    if secret := names(_SECRET.format(**named)):
        raise UsageError(f"a query may not read {secret}, which holds passwords")
    if volatile := names(f"{called} AND {_DOES_MORE}"):
        raise UsageError(f"a query may only read: the function {volatile} can do more than that")
    if not any_function and (foreign := names(f"{called} AND NOT ({_OF_POSTGRES})")):
        raise UsageError(
            f"{foreign} is not a function of Postgres itself: give --role to call it with only the "
            "rights of a role"
        )


def _named(run: Run, view: str) -> dict[str, set[str]]:
    """The object ids that a temporary view names, and the views that it names, recursively; by kind."""
    found: dict[str, set[str]] = {kind: set() for kind in _NAMED}
    looked_into: set[str] = set()
    condition = _OF_TEMPORARY.format(view=view)
    while queries := run(_QUERIES + condition):
        for kind, patterns in _NAMED.items():
            for pattern in patterns:
                numbers = re.findall(pattern, " ".join(query for (query,) in queries))
                found[kind].update(" ".join(numbers).split())
        views = found["relations"] - looked_into
        looked_into |= views
        condition = _OF_VIEWS.format(views=_listed(views))
    return found


def _listed(numbers: set[str]) -> str:
    return ", ".join(sorted(numbers)) or "NULL"
