"""What a question to Postgres is allowed to be: of a role that gives up its rights for good, and over
what somebody has put into the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from runner.errors import UsageError
from runner.queries.sql.ask import Bounds, ask
from runner.store.database import Database
from tests.postgres import execute

QUICK = Bounds(seconds=60, rows=1_000)
# It has all that a question of a superuser has without a role, and may call any function.
READER = "pg_read_all_data"

_MADE = (
    "CREATE SCHEMA made",
    "CREATE VIEW made.deep AS SELECT set_config('role', 'none', false) AS was",
    "CREATE VIEW made.shallow AS SELECT was FROM made.deep",
    "CREATE VIEW made.harmless AS SELECT run_id, random() < 2 AS is_true FROM v_runs",
    "CREATE VIEW made.secret AS SELECT rolpassword FROM pg_authid",
    "CREATE FUNCTION made.run(query text) RETURNS text LANGUAGE plpgsql STABLE "
    "AS $$ DECLARE said text; BEGIN EXECUTE query INTO said; RETURN said; END $$",
    "CREATE FUNCTION made.run_when_planned(query text) RETURNS text LANGUAGE plpgsql IMMUTABLE "
    "AS $$ BEGIN RETURN made.run(query); END $$",
    "CREATE FUNCTION made.twice(number int) RETURNS int LANGUAGE sql IMMUTABLE "
    "AS 'SELECT number * 2'",
    "CREATE OPERATOR made.%% (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl)",
    "CREATE OPERATOR made.^^^ (RIGHTARG = int, FUNCTION = made.twice)",
    "CREATE AGGREGATE made.all_of (text) (SFUNC = textcat, STYPE = text)",
    "CREATE VIEW made.calls AS SELECT made.twice(2) AS four",
)


@pytest.fixture(scope="module")
def record(both: dict[str, Database]) -> Iterator[Database]:
    """The record, in whose database somebody has made things."""
    database = both["postgresql"]
    url = database.url.render_as_string(hide_password=False)
    for statement in _MADE:
        execute(url, statement)
    yield database
    execute(url, "DROP SCHEMA made CASCADE")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["none", "NONE", "None"])
def test_no_role_is_no_role(record: Database, role: str) -> None:
    with pytest.raises(UsageError, match="keeps all rights"):
        ask(record, "SELECT current_user", QUICK, role=role)


@pytest.mark.slow
def test_role_of_a_superuser_is_refused(record: Database) -> None:
    with pytest.raises(UsageError, match="postgres is a superuser"):
        ask(record, "SELECT current_user", QUICK, role="postgres")


@pytest.mark.slow
@pytest.mark.parametrize("role", [None, READER])
@pytest.mark.parametrize("view", ["deep", "shallow"])
def test_view_calls_nothing_that_a_question_may_not(
    record: Database, role: str | None, view: str
) -> None:
    for sql in (
        f"SELECT was FROM made.{view}",
        f"SELECT 1 AS a WHERE EXISTS (SELECT FROM made.{view})",
        f"WITH w AS (SELECT * FROM made.{view}) SELECT (SELECT was FROM w) AS a",
    ):
        with pytest.raises(UsageError, match="set_config can do more than"):
            ask(record, sql, QUICK, role=role)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT made.run('SELECT 1')",
        "SELECT made.twice(1)",
        "SELECT OPERATOR(made.^^^) 1",
        "SELECT made.all_of(id) FROM runs",
        "SELECT four FROM made.calls",
    ],
)
def test_function_of_nobody_knows_whom_is_called_only_as_a_role_that_is_given(
    record: Database, sql: str
) -> None:
    with pytest.raises(UsageError, match="not a function of Postgres"):
        ask(record, sql, QUICK)
    url = record.url.render_as_string(hide_password=False)
    execute(url, f"GRANT USAGE ON SCHEMA made TO {READER}")
    assert list(ask(record, sql, QUICK, role=READER))


@pytest.mark.slow
def test_operator_by_another_name_is_what_it_calls(record: Database) -> None:
    assert list(ask(record, "SELECT 1 OPERATOR(made.%%) 2 AS three", QUICK)) == [{"three": 3}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE postgres",
        "SET LOCAL ROLE NONE",
        "RESET ROLE",
        "SET SESSION AUTHORIZATION DEFAULT",
        "SELECT set_config($q$role$q$, $q$none$q$, false)",
        "SELECT set_config($q$role$q$, $q$postgres$q$, true)",
        "SELECT set_config($q$session_authorization$q$, $q$postgres$q$, false)",
    ],
)
@pytest.mark.parametrize("login", ["its own", "the user's"])
def test_role_is_not_changed_back_by_what_a_question_calls(
    record: Database, statement: str, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by a function that lies about what it does."""
    if login == "the user's":
        monkeypatch.setattr("runner.queries.sql.login.login_for_question", _of_the_user)
    for function in ("run", "run_when_planned"):
        with pytest.raises(UsageError, match=r"within security-definer|non-volatile function"):
            ask(record, f"SELECT made.{function}('{statement}')", QUICK, role=READER)


@contextmanager
def _of_the_user(
    arguments: dict[str, Any], role: str | None, _seconds: float
) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield arguments, role


@pytest.mark.slow
def test_what_a_question_calls_has_no_more_rights_than_to_read(record: Database) -> None:
    for query in (
        "SELECT pg_read_file('/etc/hostname')",
        "SELECT lo_export(1, '/tmp/evil')::text",
        "SELECT pg_ls_dir('/')",
    ):
        quoted = query.replace("'", "''")
        with pytest.raises(UsageError, match="permission denied"):
            ask(record, f"SELECT made.run('{quoted}')", QUICK, role=READER)
    sql = "SELECT made.run('SELECT current_setting(''is_superuser'')') AS a"
    assert list(ask(record, sql, QUICK, role=READER)) == [{"a": "off"}]


@pytest.mark.slow
@pytest.mark.parametrize("role", [None, READER])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT rolname, rolpassword FROM pg_authid",
        "SELECT * FROM pg_shadow",
        "SELECT (SELECT count(rolpassword) FROM pg_catalog.pg_authid) AS a",
        "SELECT umoptions FROM pg_user_mapping",
        "SELECT subname FROM pg_subscription",
        "SELECT * FROM made.secret",
    ],
)
def test_passwords_are_in_no_answer(record: Database, role: str | None, sql: str) -> None:
    with pytest.raises(UsageError, match="holds passwords"):
        ask(record, sql, QUICK, role=role)


@pytest.mark.slow
def test_no_function_reads_tables_that_are_not_named(record: Database) -> None:
    for call in (
        "table_to_xml('pg_authid', true, true, '')",
        "schema_to_xml('pg_catalog', true, true, '')",
        "database_to_xml_and_xmlschema(true, true, '')",
    ):
        with pytest.raises(UsageError, match="can do more than"):
            ask(record, f"SELECT ({call})::text", QUICK, role=READER)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS a FROM pg_stat_activity",
        "SELECT name AS a FROM pg_settings",
        "SELECT count(*) AS a FROM pg_locks",
        "SELECT rolname AS a FROM pg_roles",
        "SELECT table_name AS a FROM information_schema.tables",
    ],
)
def test_postgres_own_views_can_be_asked(record: Database, sql: str) -> None:
    assert list(ask(record, sql, QUICK))


@pytest.mark.slow
def test_views_that_only_read_can_be_asked(record: Database) -> None:
    url = record.url.render_as_string(hide_password=False)
    execute(url, f"GRANT USAGE ON SCHEMA made TO {READER}")
    rows = list(ask(record, "SELECT run_id, is_true FROM made.harmless", QUICK))
    assert rows
    assert {row["is_true"] for row in rows} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT 1 AS one, row(1, 2) AS pair", 'column 2 ("pair") has pseudo-type record'),
        ("SELECT row(1, 2)", 'column 1 ("row") has pseudo-type record'),
        ("SELECT pg_sleep(1)", 'column 1 ("pg_sleep") has pseudo-type void'),
    ],
)
def test_column_is_called_as_the_question_calls_it(record: Database, sql: str, column: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(record, sql, QUICK)
    assert f"{column}: cast it to text" in str(refused.value)


@pytest.mark.slow
def test_answer_of_one_column_or_none_or_many_is_whole(record: Database) -> None:
    assert list(ask(record, "SELECT NULL AS a", QUICK)) == [{"a": None}]
    assert list(ask(record, "SELECT 1 AS a WHERE false", QUICK)) == []
    many = ", ".join(f"{number} AS a{number}" for number in range(500))
    (row,) = ask(record, f"SELECT {many}", QUICK)
    assert row == {f"a{number}": number for number in range(500)}
    (whole, *_) = ask(record, "SELECT r AS whole FROM v_runs r", QUICK)
    assert whole["whole"].startswith("(run_")
