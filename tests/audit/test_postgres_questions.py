"""SQL that tries to do more than ask Postgres, as the superuser that tests and careless sites are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text

from runner.errors import RunnerError, UsageError
from runner.queries.sql.ask import Bounds, ask
from runner.store.database import Database
from tests.postgres import execute

QUICK = Bounds(seconds=60, rows=1_000)
MAY_NOT = "can do more than"


@pytest.fixture
def record(both: dict[str, Database]) -> Database:
    return both["postgresql"]


def state(database: Database) -> list[Any]:
    """Marks of changes: rows of tables, what is defined, sequences, locks, settings."""
    queries = (
        "SELECT relname, relkind, relacl::text FROM pg_class WHERE relname !~ '^pg_' ORDER BY 1",
        "SELECT count(*), md5(string_agg(r::text, '' ORDER BY id)) FROM runs r",
        "SELECT last_value, is_called FROM queued_messages_id_seq",
        "SELECT count(*) FROM pg_largeobject_metadata",
        "SELECT rolname, rolsuper, rolcanlogin FROM pg_roles ORDER BY 1",
        "SELECT count(*) FROM pg_proc",
        "SELECT name, setting FROM pg_settings WHERE source NOT IN ('session', 'client') ORDER BY 1",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
        "SELECT slot_name FROM pg_replication_slots",
    )
    return database.read(lambda c: [list(map(tuple, c.execute(text(q)).all())) for q in queries])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM runs",
        "DELETE FROM runs RETURNING id",
        "WITH gone AS (DELETE FROM runs RETURNING id) SELECT * FROM gone",
        "UPDATE runs SET state = 'failed' RETURNING id",
        "MERGE INTO runs USING jobs ON false WHEN NOT MATCHED THEN DO NOTHING",
        "SELECT 1 AS a INTO evil",
        "CREATE TABLE evil (a int)",
        "CREATE TEMPORARY TABLE evil (a int)",
        "COPY (SELECT 1) TO PROGRAM 'touch {folder}/evil'",
        "COPY runs TO '{folder}/evil'",
        "COPY runs FROM PROGRAM 'true'",
        "DO $$ BEGIN PERFORM pg_sleep(1); END $$",
        "CALL evil()",
        "LOAD 'evil'",
        "SET ROLE postgres",
        "SET transaction_read_only = off",
        "RESET ALL",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "PREPARE TRANSACTION 'evil'",
        "SAVEPOINT a",
        "LOCK TABLE runs",
        "LISTEN a",
        "NOTIFY a",
        "VACUUM",
        "CHECKPOINT",
        "DISCARD ALL",
        "ALTER SYSTEM SET work_mem = '1GB'",
        "SHOW data_directory",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE DELETE FROM runs",
        "SELECT id FROM runs FOR UPDATE",
        "SELECT 1; DELETE FROM runs",
        "SELECT 1; COMMIT; DELETE FROM runs",
        "COMMIT; DELETE FROM runs; BEGIN; SELECT 1",
        "SELECT 1) AS x; DELETE FROM runs; --",
        "SELECT 1 WITH CHECK OPTION",
        "SELECT $1",
        "SELECT",
        "",
        "-- nothing",
        "SELECT 'a\0b'",
        "SELECT * FROM pg_temp.runner_question",
    ],
)
def test_only_a_question_is_answered(record: Database, tmp_path: Path, sql: str) -> None:
    before = state(record)
    with pytest.raises(UsageError) as refused:
        ask(record, sql.replace("{folder}", str(tmp_path)), QUICK)
    assert "\n" not in str(refused.value)
    assert state(record) == before
    assert list(tmp_path.iterdir()) == []


CALLS = [
    "pg_terminate_backend(1)",
    "pg_cancel_backend(1)",
    "pg_read_file('/etc/passwd')",
    "pg_read_binary_file('/etc/passwd')",
    "pg_ls_dir('/')",
    "lo_export(1, '/tmp/evil')",
    "lo_import('/etc/passwd')",
    "lo_from_bytea(0, 'x')",
    "lo_unlink(1)",
    "set_config('role', 'postgres', false)",
    "set_config('session_authorization', 'postgres', false)",
    "set_config('transaction_read_only', 'off', false)",
    "set_config('statement_timeout', '0', false)",
    "query_to_xml('DELETE FROM runs', true, true, '')",
    "query_to_xml_and_xmlschema('SELECT lo_unlink(1)', true, true, '')",
    "cursor_to_xml('c', 1, true, true, '')",
    "pg_advisory_lock(125762588864370)::text",
    "pg_try_advisory_lock(1)",
    "pg_notify('a', 'b')::text",
    "nextval('queued_messages_id_seq')",
    "setval('queued_messages_id_seq', 99)",
    "pg_reload_conf()",
    "pg_rotate_logfile()",
    "pg_switch_wal()",
    "pg_create_restore_point('evil')",
    "pg_backup_start('evil')",
    "pg_promote()",
    "pg_export_snapshot()",
    "pg_logical_emit_message(false, 'a', 'b')",
    "pg_create_physical_replication_slot('evil')::text",
    "pg_stat_reset()::text",
    "pg_sleep(60)::text",
    "pg_import_system_collations('public')",
]
PLACES = [
    "SELECT ({call})::text AS a",
    "SELECT 1 AS a FROM runs WHERE {call} IS NULL",
    "SELECT count(*) FROM runs GROUP BY ({call})::text",
    "SELECT 1 AS a FROM runs ORDER BY ({call})::text",
    "SELECT count(*) FILTER (WHERE {call} IS NULL) FROM runs",
    "SELECT a FROM (SELECT ({call})::text AS a) AS s WHERE a <> ''",
    "WITH s AS (SELECT ({call})::text AS a) SELECT * FROM s",
    "SELECT CASE WHEN false THEN ({call})::text END AS a",
    "SELECT ARRAY(SELECT ({call})::text) AS a",
    "SELECT coalesce(id, ({call})::text) AS a FROM runs",
    "SELECT 1 AS a FROM runs r JOIN jobs j ON ({call})::text = r.id",
    "SELECT 1 AS a LIMIT (SELECT length(({call})::text))",
    "SELECT sum(1) OVER (PARTITION BY ({call})::text) FROM runs",
    "SELECT 1 AS a UNION ALL SELECT length(({call})::text)",
    "SELECT * FROM runs, LATERAL (SELECT ({call})::text AS b) AS s",
    "VALUES (({call})::text)",
    "SELECT 1 AS a FROM runs TABLESAMPLE system (length(({call})::text))",
]


@pytest.mark.slow
def test_functions_that_do_more_than_read_are_not_called(record: Database) -> None:
    before = state(record)
    with pytest.raises(UsageError, match=MAY_NOT) as refused:
        ask(record, "SELECT " + ", ".join(f"({call})::text" for call in CALLS), QUICK)
    assert [call for call in CALLS if call.partition("(")[0] not in str(refused.value)] == []
    assert state(record) == before


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_function_is_found_wherever_it_is_called(record: Database, place: str) -> None:
    with pytest.raises(UsageError, match=MAY_NOT):
        ask(record, place.format(call="pg_advisory_xact_lock_shared(1)"), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM pg_ls_dir('/')",
        "SELECT * FROM ROWS FROM (pg_ls_dir('/'), generate_series(1, 2))",
        "SELECT (x).size FROM (SELECT pg_stat_file('/etc/passwd') AS x) AS s",
        "SELECT * FROM json_to_recordset((SELECT query_to_xml('x', true, true, '')::text::json)) "
        "AS t(a int)",
        "SELECT 1 === 2 AS a",
        "SELECT ARRAY[1] @ 2 AS a",
        "SELECT harmless_looking(id) FROM runs",
    ],
)
def test_function_is_found_behind_other_names(record: Database, sql: str) -> None:
    """Also behind operators: a superuser's question could name one that somebody made."""
    for statement in _EVIL:
        execute(record.url.render_as_string(hide_password=False), statement)
    try:
        with pytest.raises(UsageError, match=rf"{MAY_NOT}|operator does not exist"):
            ask(record, sql, QUICK)
    finally:
        for statement in ("DROP OPERATOR === (int, int)", "DROP FUNCTION evil(int, int)"):
            execute(record.url.render_as_string(hide_password=False), statement)
        execute(record.url.render_as_string(hide_password=False), "DROP FUNCTION harmless_looking")


_EVIL = (
    "CREATE FUNCTION evil(int, int) RETURNS bool LANGUAGE sql VOLATILE AS 'SELECT true'",
    "CREATE FUNCTION harmless_looking(text) RETURNS bool LANGUAGE sql VOLATILE AS 'SELECT true'",
    "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = evil)",
)


@pytest.mark.slow
def test_question_is_asked_in_a_transaction_that_is_read_only(record: Database) -> None:
    (row,) = ask(record, "SELECT current_setting('transaction_read_only') AS a", QUICK)
    assert row == {"a": "on"}


WHO = "SELECT current_user AS a, session_user AS b, current_setting('is_superuser') AS c"


@pytest.mark.slow
def test_question_of_a_superuser_has_a_login_of_its_own_that_may_only_read(
    record: Database,
) -> None:
    (row,) = ask(record, WHO, QUICK)
    assert (row["a"], row["c"]) == ("pg_read_all_data", "off")
    assert row["b"].startswith("runner_question_")
    assert question_roles(record) == []


def question_roles(database: Database) -> list[str]:
    query = text("SELECT rolname FROM pg_roles WHERE rolname ~ '^runner_question_'")
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


@pytest.fixture
def without_login(record: Database) -> Iterator[Database]:
    """The record in a database that lets in nobody but superusers."""
    url = record.url.render_as_string(hide_password=False)
    execute(url, f"REVOKE CONNECT ON DATABASE {record.url.database} FROM PUBLIC")
    yield record
    execute(url, f"GRANT CONNECT ON DATABASE {record.url.database} TO PUBLIC")


@pytest.mark.slow
def test_question_without_a_login_of_its_own_has_no_more_rights(without_login: Database) -> None:
    (row,) = ask(without_login, WHO, QUICK)
    assert row == {"a": "pg_read_all_data", "b": "postgres", "c": "off"}
    assert question_roles(without_login) == []
    before = state(without_login)
    for sql in ("DELETE FROM runs", "SELECT set_config('role', 'postgres', false)"):
        with pytest.raises(UsageError):
            ask(without_login, sql, QUICK)
    assert state(without_login) == before


@pytest.mark.slow
def test_logins_that_were_left_behind_are_dropped_by_the_next_question(record: Database) -> None:
    url = record.url.render_as_string(hide_password=False)
    execute(url, "CREATE ROLE runner_question_0a LOGIN VALID UNTIL '2001-01-01'")
    execute(url, "CREATE ROLE runner_question_0b LOGIN VALID UNTIL 'infinity'")
    try:
        assert list(ask(record, "SELECT 1 AS a", QUICK)) == [{"a": 1}]
        assert question_roles(record) == ["runner_question_0b"]
    finally:
        execute(url, "DROP ROLE runner_question_0b")


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(n) FROM generate_series(1, 100000000000) AS n",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c",
    ],
)
def test_question_that_takes_too_long_is_stopped(record: Database, sql: str) -> None:
    with pytest.raises(RunnerError, match=r"timeout|took longer"):
        ask(record, sql, Bounds(seconds=1))


@pytest.mark.slow
@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 60000000)",
        "SELECT repeat('x', 3000000) FROM generate_series(1, 100)",
        "SELECT repeat('x', 1100000000)",
    ],
)
def test_answer_that_is_too_large_is_not_given(record: Database, sql: str) -> None:
    bounds = Bounds(seconds=100, memory_bytes=200 << 20, answer_bytes=20 << 20)
    with pytest.raises(RunnerError, match=r"larger than|more memory|out of memory|too large"):
        ask(record, sql, bounds)


@pytest.mark.slow
def test_values_are_as_sqlite_has_them(record: Database) -> None:
    sql = r"""
        SELECT true AS a, 2::numeric AS b, 2.5::numeric AS c, '\x00ff'::bytea AS d,
            'NaN'::float8 AS e, '-Infinity'::numeric AS f, '{"a":1}'::jsonb AS g, NULL AS h,
            123456789012345678901234567890 AS i, sum(1) AS j, random() < 2 AS k
    """
    (row,) = ask(record, sql, QUICK)
    assert list(row.values()) == [
        *(1, 2, 2.5, "00ff", "NaN", "-Infinity", '{"a": 1}', None),
        *("123456789012345678901234567890", 1, 1),
    ]


@pytest.mark.slow
def test_rows_beyond_the_limit_are_left_out_and_that_is_said(record: Database) -> None:
    rows = ask(record, "SELECT n FROM generate_series(1, 1000) AS n", Bounds(rows=3))
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert rows.note


@pytest.fixture
def auditor(record: Database) -> Iterator[str]:
    """A role that sees only a view."""
    name = f"auditor_{uuid4().hex[:8]} \"'; DROP TABLE runs"
    quoted = '"' + name.replace('"', '""') + '"'
    url = record.url.render_as_string(hide_password=False)
    execute(url, f"CREATE ROLE {quoted} NOLOGIN".replace(":", "\\:"))
    execute(url, f"GRANT SELECT ON v_runs TO {quoted}")
    yield name
    execute(url, f"DROP OWNED BY {quoted}")
    execute(url, f"DROP ROLE {quoted}")


@pytest.mark.slow
def test_role_sees_what_it_may_and_nothing_else(record: Database, auditor: str) -> None:
    assert list(ask(record, "SELECT run_id FROM v_runs", QUICK, role=auditor))
    for sql in (
        "SELECT * FROM runs",
        "SELECT * FROM v_messages",
        "SELECT starelid FROM pg_statistic",
    ):
        with pytest.raises(UsageError, match="permission denied"):
            ask(record, sql, QUICK, role=auditor)


@pytest.mark.slow
def test_role_that_is_not_there_is_said(record: Database) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ask(record, "SELECT 1", QUICK, role="nobody")


@pytest.mark.slow
def test_ordinary_user_asks_too(record: Database) -> None:
    name = f"user_{uuid4().hex[:8]}"
    url = record.url.render_as_string(hide_password=False)
    execute(url, f"CREATE ROLE {name} LOGIN")
    execute(url, f"GRANT SELECT ON v_runs TO {name}")
    theirs = Database(make_url(url).set(username=name).render_as_string(hide_password=False))
    try:
        assert list(ask(theirs, "SELECT run_id FROM v_runs", QUICK))
        for sql in ("SELECT * FROM runs", "SELECT lo_export(1, '/tmp/evil')"):
            with pytest.raises(UsageError, match=r"permission denied|can do more"):
                ask(theirs, sql, QUICK)
    finally:
        theirs.close()
        execute(url, f"DROP OWNED BY {name}")
        execute(url, f"DROP ROLE {name}")


def test_database_that_does_not_answer_is_said(tmp_path: Path) -> None:
    database = Database(f"postgresql://nobody@/none?host={tmp_path}")
    with pytest.raises(UsageError, match="does not answer"):
        ask(database, "SELECT 1", QUICK)
    database.close()
