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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import DiagnosticField, Escaping, ExecStatus

from runner.errors import UsageError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult


_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_LOCK_SECONDS = 5
_CONNECT_SECONDS = 10
_LONGEST_TIMEOUT = (1 << 31) - 1  # milliseconds; the process ends itself after longer ones
_TEMPORARY_KB = 2 << 20  # what a sort may put on the server's disk
_READER = "pg_read_all_data"  # since Postgres 14

_INTEGERS = frozenset((20, 21, 23, 26))  # int8, int2, int4, oid: pg_type.dat of Postgres' source
_REALS = frozenset((700, 701))
_BOOLEAN, _BYTES, _NUMERIC = 16, 17, 1700
_MOST, _MOST_DIGITS = (1 << 63) - 1, 20


def answer(request: dict[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    """The names of the columns, and the rows as they come.

    Raises:
        UsageError: Postgres cannot answer it, or may not.
    """
    try:
        given = {"connect_timeout": _CONNECT_SECONDS, **request["postgres"]}
        connection = psycopg.connect(**given, autocommit=True)
    except psycopg.Error as error:
        raise UsageError(f"the database does not answer ({error})") from error
    server = _Server(connection.pgconn)
    server.begin(request["seconds"])
    server.become(request["role"])
    names = server.look_at(request["sql"], any_function=request["any_function"])
    query = server.guard(len(names), request["rows"])
    server.run("SET TRANSACTION READ ONLY")
    # The transaction ends with the connection, and that with the process.
    return names, server.rows(query, connection)


class _Server:
    """Runs statements in the extended protocol, which takes one statement at a time
    (https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY)."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn

    def run(self, statement: str) -> list[list[str | None]]:
        result = self._checked(self._pgconn.exec_params(statement.encode(), []))
        return [
            [_text(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

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
            raise UsageError(f"--role {role} gives up no rights: name a role")
        name = Escaping(self._pgconn).escape_identifier(role.encode("utf-8", "replace"))
        self.run(f"SET LOCAL ROLE {bytes(name).decode()}")
        if self._is_superuser():
            raise UsageError(f"the role {role} is a superuser, who may do anything: name another")

    def _is_superuser(self) -> bool:
        return self.run("SELECT pg_catalog.current_setting('is_superuser')") == [["on"]]

    def look_at(self, sql: str, *, any_function: bool) -> list[str]:
        """Let the server parse a question as the temporary view ``runner_question``, without running it.

        Args:
            any_function: it may call functions that are not Postgres' own.

        Returns:
            The names of its columns.
        """
        self._checked(self._pgconn.prepare(b"", sql.encode()))
        parsed = self._checked(self._pgconn.describe_prepared(b""))
        if not parsed.nfields:
            raise UsageError("the SQL gives no rows: it has to be a SELECT")
        names = [_text(parsed.fname(column)) or "" for column in range(parsed.nfields)]
        columns = ", ".join(f"c{number}" for number in range(len(names)))
        try:
            self.run(f"CREATE TEMPORARY VIEW runner_question ({columns}) AS\n{sql}\n")
        except UsageError as error:
            raise UsageError(_in_their_names(str(error), names)) from error
        refuse_more_than_reading(self.run, any_function=any_function)
        return names

    def guard(self, columns: int, rows: int | None) -> str:
        """Wrap the question in a function whose role nothing in it can change.

        Args:
            rows: how many are wanted; one more is queried. None: all.

        Returns:
            The query that runs it, whose rows come as they are found.
        """
        limit = "" if rows is None else f" LIMIT {rows + 1}"
        self.run(
            "CREATE FUNCTION pg_temp.runner_answer() RETURNS SETOF pg_temp.runner_question "
            "LANGUAGE sql STABLE SECURITY DEFINER "
            f"AS 'SELECT * FROM pg_temp.runner_question{limit}'"
        )
        # In FROM, the function would compute all of its rows before the first is sent.
        values = ", ".join(f"(answer).c{number}" for number in range(columns))
        return f"SELECT {values} FROM (SELECT pg_temp.runner_answer() AS answer) AS answers"

    def rows(self, query: str, connection: object) -> Iterator[list[Any]]:
        """The rows as they come; ``connection`` has to live that long."""
        self._pgconn.send_query_params(query.encode(), [])
        self._pgconn.set_single_row_mode()
        while (result := self._pgconn.get_result()) is not None:
            if result.status == ExecStatus.SINGLE_TUPLE:
                yield [
                    _value(result.ftype(column), _text(result.get_value(0, column)))
                    for column in range(result.nfields)
                ]
            else:
                self._checked(result)
        del connection

    def _checked(self, result: PGresult) -> PGresult:
        if result.status not in _DONE:
            if result.error_field(DiagnosticField.SQLSTATE) is None and "memory" in _said(result):
                raise MemoryError  # this process has no room for what the server sends
            raise UsageError(f"Postgres says: {_reason(result)}")
        return result


def _in_their_names(reason: str, names: list[str]) -> str:
    """Postgres' words with the question's names of columns instead of the view's."""

    def name(found: re.Match[str]) -> str:
        return f'column {int(found[1]) + 1} ("{names[int(found[1])]}")'

    reason = re.sub(r'column "c([0-9]+)"', name, reason)
    return f"{reason}: cast it to text" if "has pseudo-type" in reason else reason


def _said(result: PGresult) -> str:
    return result.error_message.decode("utf-8", "replace").strip()


def _reason(result: PGresult) -> str:
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY)
    state = result.error_field(DiagnosticField.SQLSTATE)
    reason = _said(result) if message is None else message.decode("utf-8", "replace").strip()
    if state == b"57014":  # query_canceled
        return f"{reason}: narrow the question (by run_id, job_id or time), or give it more time"
    if state == b"42601" and "multiple commands" in reason:
        return "the SQL has several statements: ask one SELECT at a time"
    if state == b"42601":
        return f"{reason}: a question is one SELECT"
    if state == b"25006" and "recovery" in reason:
        return f"{reason}: ask the server that takes writes, questions need a temporary view"
    return reason


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _value(kind: int, text: str | None) -> Any:
    """A value in the type that SQLite would return, from Postgres' text."""
    if text is None:
        return None
    if kind in _INTEGERS:
        return int(text)
    if kind in _REALS:
        return float(text)
    if kind == _BOOLEAN:
        return int(text == "t")
    if kind == _BYTES:
        return text.removeprefix("\\x")
    if kind == _NUMERIC:
        return _number(text)
    return text


def _number(text: str) -> Any:
    """A number of any length; it stays text if no integer column could hold it."""
    if not text.lstrip("-").isdigit():
        return float(text)
    number = int(text) if len(text) <= _MOST_DIGITS else _MOST + 1
    return number if abs(number) <= _MOST else text


Run = Callable[[str], list[list[str | None]]]

# Postgres marks functions that can do more than compute or read as volatile
# (https://www.postgresql.org/docs/current/xfunc-volatility.html): pg_terminate_backend, lo_export,
# set_config, pg_read_file, query_to_xml (which runs SQL of its own) and so on. A function that is not
# Postgres' own can lie about it. These are volatile only because they return another value each time.
_HARMLESS = "'random', 'random_normal', 'clock_timestamp', 'timeofday', 'gen_random_uuid'"
# These are stable, and read tables that the question does not name.
_READS_ANYTHING = r"'^(table|schema|database)_to_xml(_and_xmlschema)?$'"
# These hold passwords of users and other servers, or hashes of them.
_SECRETS = "'pg_authid', 'pg_shadow', 'pg_user_mapping', 'pg_subscription'"

# How a stored query names functions, operators and relations: the nodes of Postgres'
# src/include/nodes/primnodes.h and parsenodes.h.
_FUNCTION = re.compile(r" :(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)(?![^ )}])")
_OPERATOR = re.compile(r" :(?:opno|eqop|sortop) (\d+)(?![^ )}])")
_OPERATORS = re.compile(r" :opnos \(o ([\d ]+)\)")
_RELATION = re.compile(r" :relid (\d+)(?![^ )}])")


@dataclass(slots=True)
class _Named:
    """The object ids that queries name."""

    functions: set[str] = field(default_factory=set)
    operators: set[str] = field(default_factory=set)
    relations: set[str] = field(default_factory=set)

    def add(self, query: str) -> None:
        self.functions.update(_FUNCTION.findall(query))
        self.operators.update(_OPERATOR.findall(query))
        self.operators.update(n for numbers in _OPERATORS.findall(query) for n in numbers.split())
        self.relations.update(_RELATION.findall(query))


def refuse_more_than_reading(run: Run, *, any_function: bool) -> None:
    """Raise ``UsageError`` if the temporary view ``runner_question`` names anything that it may not.

    Args:
        run: runs a statement in the view's transaction, and returns its rows as text.
        any_function: it may call functions that are not Postgres' own, if they claim only to read.
    """
    _refuse_unknown_words(run)
    named = _named(run, "runner_question")
    if secret := _names(run, _SECRET.format(relations=_listed(named.relations))):
        raise UsageError(f"a question may not read {secret}, which holds passwords")
    called = _CALLED.format(functions=_listed(named.functions), operators=_listed(named.operators))
    if volatile := _names(run, f"{called} AND {_DOES_MORE}"):
        raise UsageError(f"a question may only read: the function {volatile} can do more than that")
    if not any_function and (foreign := _names(run, f"{called} AND {_FOREIGN}")):
        raise UsageError(
            f"nobody knows what {foreign} does, which is not Postgres' own: a question may call such "
            "a function as a role that is given (--role)"
        )


_CALLED = """
    SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
    WHERE (p.oid IN ({functions}) OR p.oid IN (
        SELECT o.oprcode FROM pg_catalog.pg_operator o WHERE o.oid IN ({operators})))
"""
_OF_POSTGRES = (
    "p.pronamespace = 'pg_catalog'::regnamespace AND p.oid < 16384"  # FirstNormalObjectId
)
_DOES_MORE = f"""(
    p.provolatile = 'v' AND NOT ({_OF_POSTGRES} AND p.proname IN ({_HARMLESS}))
    OR p.proname ~ {_READS_ANYTHING}
)"""
_FOREIGN = f"NOT ({_OF_POSTGRES})"
_SECRET = f"""
    SELECT c.relname FROM pg_catalog.pg_class c WHERE c.oid IN ({{relations}})
    AND c.relnamespace = 'pg_catalog'::regnamespace AND c.relname IN ({_SECRETS})
"""


def _names(run: Run, query: str) -> str:
    return ", ".join(sorted(str(row[0]) for row in run(query)))


def _refuse_unknown_words(run: Run) -> None:
    """Refuse a future Postgres that stores queries in another notation, in which nothing would be found."""
    run(
        "CREATE TEMPORARY VIEW runner_known AS SELECT pg_catalog.random() + 1.0::float8 AS known "
        "FROM pg_catalog.pg_class"
    )
    known = _Named()
    known.add(_queries(run, _OF_TEMPORARY.format(view="runner_known"))[0])
    ((function, relation),) = run(
        "SELECT 'pg_catalog.random()'::regprocedure::oid::text, "
        "'pg_catalog.pg_class'::regclass::oid::text"
    )
    found = function in known.functions and known.operators and relation in known.relations
    if not found:
        raise UsageError("this Postgres describes queries in words that this Runner does not know")


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


def _queries(run: Run, condition: str) -> list[str]:
    return [str(row[0]) for row in run(_QUERIES + condition)]


def _named(run: Run, view: str) -> _Named:
    """What a temporary view names, and the views that it names, recursively."""
    found, looked_into = _Named(), set[str]()
    queries = _queries(run, _OF_TEMPORARY.format(view=view))
    while queries:
        for query in queries:
            found.add(query)
        views = found.relations - looked_into
        looked_into |= views
        queries = _queries(run, _OF_VIEWS.format(views=_listed(views))) if views else []
    return found


def _listed(numbers: set[str]) -> str:
    return ", ".join(sorted(numbers)) or "NULL"
