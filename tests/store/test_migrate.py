"""Upgrading databases, and what migrations may do."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import IntegrityError

from runner.core.run import Author
from runner.errors import UnreachableError, UsageError
from runner.permissions import Rule
from runner.store import migrate
from runner.store.database import Database
from runner.store.rules import add_standing, list_standing
from runner.store.tables import (
    jobs,
    metadata,
    notices,
    permission_rules,
    runs,
    schedules,
    sessions,
    tool_lists,
    workers,
)
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect

FOLDER = Path(__file__).parents[2] / "migrations"
ALLOWED = {"__future__", "alembic", "functools", "sqlalchemy", "typing"}
_DEFINITIONS = {
    "sqlite": "SELECT name, sql FROM sqlite_master"
    " WHERE tbl_name <> 'alembic_version' AND type <> 'view'",
    "postgresql": """
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND conrelid <> 'alembic_version'::regclass
        UNION ALL
        SELECT indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    """,
}


def definitions(database: Database) -> dict[str, list[str]]:
    """What the database itself says of its tables: parts of each definition, sorted. SQLite quotes
    the name of a table that was renamed."""
    rows = database.read(lambda c: c.execute(text(_DEFINITIONS[database.dialect])).all())
    return {
        name: sorted(re.split(r"[\s,]*\n\s*|,\s", sql.strip().replace('"', ""))) if sql else []
        for name, sql in rows
    }


def drop_views(connection: Connection) -> None:
    for name in inspect(connection).get_view_names():
        connection.execute(text(f"DROP VIEW {name}"))


def _context(connection: Connection) -> MigrationContext:
    """Without the index of texts: only Postgres has it in tables."""

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or not (name or "").startswith("search_")

    return MigrationContext.configure(connection, opts={"include_name": is_ours})


@pytest.mark.slow
def test_migrations_lead_to_the_tables_that_the_code_describes(database: Database) -> None:
    differences = database.read(lambda connection: compare_metadata(_context(connection), metadata))
    assert differences == []


@pytest.mark.slow
def test_migrations_lead_to_the_same_definitions_as_the_tables(
    database: Database, open_database: Callable[[], Database]
) -> None:
    migrated = definitions(database)
    again = open_database()
    again.write(drop_views)
    again.write(lambda connection: metadata.drop_all(connection))
    for index in chain.from_iterable(table.indexes for table in metadata.tables.values()):
        if condition := index.info.get("where"):
            index.dialect_options[again.dialect]["where"] = text(condition)
    again.write(lambda connection: metadata.create_all(connection))
    assert migrated == definitions(again)
    assert migrated


def test_every_migration_is_known_in_order() -> None:
    scripts = ScriptDirectory(str(FOLDER))
    files = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(files)) == migrate.REVISIONS


@pytest.mark.slow
def test_upgrade_says_how_far_the_database_was(open_database: Callable[[], Database]) -> None:
    database = open_database()
    assert migrate.upgrade(database).state == "empty"
    assert migrate.upgrade(database) == migrate.Status(migrate.HEAD)
    assert migrate.check(database).state == "current"


def insert_row(database: Database, table: str, **values: object) -> None:
    """Insert a row by the names of its columns, as the version of that schema did."""
    names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    statement = text(f"INSERT INTO {table} ({names}) VALUES ({places})")
    database.write(lambda connection: connection.execute(statement, values))


def fill_first_schema(database: Database) -> None:
    """Insert a job with a rule and a run, as revision r01 has them."""
    job = {"id": "job_1", "name": "mend", "source": "mend.toml", "spec_text": "", "spec": "{}"}
    insert_row(database, "jobs", **job, spec_digest="", created_at=NOW)
    insert_row(database, "permission_rules", job_id="job_1", position=0, effect="ask", rule="Edit")
    run = {"id": "run_1", "job_id": "job_1", "item_key": "one", "state": "stopped"}
    limits = {"max_turns": 5, "token_ceiling": 1000, "progress": "{}"}
    insert_row(database, "runs", **run, **limits, created_at=NOW)


@pytest.mark.slow
@pytest.mark.parametrize("revision", migrate.REVISIONS)
def test_an_upgrade_from_any_revision_keeps_the_stored_rows(
    open_database: Callable[[], Database], revision: str
) -> None:
    database = open_database()
    migrate.upgrade(database, to=migrate.REVISIONS[0])
    fill_first_schema(database)
    migrate.upgrade(database, to=revision)
    assert migrate.upgrade(database).current == revision
    assert migrate.check(database).state == "current"

    def rows(*columns: Any) -> list[Any]:
        return database.read(lambda connection: [*connection.execute(select(*columns))])

    assert rows(jobs.c.id, jobs.c.spec) == [("job_1", {})]
    assert rows(runs.c.id, runs.c.state, runs.c.answer_count) == [("run_1", "stopped", 0)]
    assert rows(permission_rules.c.rule, permission_rules.c.origin) == [("Edit", "job")]


def test_sessions_that_were_imported_before_are_known_by_their_ids(
    open_database: Callable[[], Database],
) -> None:
    database = open_database()
    migrate.upgrade(database, to="r01")
    fill_first_schema(database)
    key = "claude-code"
    insert_row(
        database,
        "jobs",
        id="job_2",
        key=key,
        name=key,
        source=key,
        spec_text="",
        spec="{}",
        spec_digest="",
        created_at=NOW,
    )
    limits = {"max_turns": 5, "token_ceiling": 1000, "progress": "{}"}
    for name, item in {
        "run_2": '{"claude_code": {"session_id": "5a1c", "agent_id": null, "title": "Carts"}}',
        "run_3": '{"claude_code": {"session_id": "5a1c", "agent_id": "a1", "title": null}}',
        "run_4": '"none"',
    }.items():
        run = {"id": name, "job_id": "job_2", "item_key": "/a", "state": "succeeded"}
        insert_row(database, "runs", **run, **limits, created_at=NOW)
        insert_row(database, "run_items", run_id=name, item=item)
    migrate.upgrade(database)
    columns = (sessions.c[name] for name in ("run_id", "session_id", "agent_id", "title", "notes"))
    query = select(*columns).order_by(sessions.c.run_id)
    assert database.rows(query) == [
        ("run_2", "5a1c", None, "Carts", ""),
        ("run_3", "5a1c", "a1", None, ""),
    ]


def test_older_workers_work_any_job_and_older_jobs_send_no_notices(
    open_database: Callable[[], Database],
) -> None:
    database = open_database()
    migrate.upgrade(database, to="r06")
    fill_first_schema(database)
    worker = {"id": "worker_1", "host_id": "host", "hostname": "here", "pid": 1, "slots": 16}
    times = {"started_at": NOW, "lease_expires_at": NOW + 15}
    insert_row(database, "workers", **worker, **times, version="1/r06")
    migrate.upgrade(database, to="r10")
    assert database.rows(select(workers.c.id, workers.c.job_id)) == [("worker_1", None)]
    assert database.rows(select(notices.c.event)) == []
    insert_row(
        database, "notices", job_id="job_1", event="done", subject="", channel="", state="armed"
    )
    migrate.upgrade(database)
    stored = select(notices.c.event, notices.c.state, notices.c.tries, notices.c.data)
    assert database.rows(stored) == [("done", "armed", 0, None)]


def test_jobs_with_on_ask_get_notify(open_database: Callable[[], Database]) -> None:
    database = open_database()
    migrate.upgrade(database, to="r11")
    notify = {"on": ["done"], "webhook": "RUNNER_HOOK"}
    specs = (
        {"asking": {"default": "ask", "notify": "mail lena"}, "name": "a"},
        {"asking": {"default": "ask", "notify": "mail lena"}, "notify": notify},
        {"asking": {"default": "deny", "notify": None}, "notify": None},
        {},
    )
    common = {"name": "mend", "spec_text": "", "created_at": NOW}
    for number, spec in enumerate(specs):
        job = {**common, "spec": json.dumps(spec), "source": "mend.toml", "spec_digest": ""}
        insert_row(database, "jobs", id=f"job_{number}", **job)
        schedule = {**common, "spec": json.dumps(spec), "cron": "0 22 * * *", "zone": "UTC"}
        schedule |= {"next_at": NOW, "changes": "[]", "runs": "[]"}
        insert_row(database, "schedules", id=f"sch_{number}", source="mend.toml", **schedule)
    migrate.upgrade(database)
    for table in (jobs, schedules):
        assert [row.spec for row in database.rows(select(table.c.spec).order_by(table.c.id))] == [
            {
                "asking": {"default": "ask"},
                "name": "a",
                "notify": {"on": ["needs_approval"], "command": "mail lena"},
            },
            {"asking": {"default": "ask"}, "notify": notify},
            {"asking": {"default": "deny"}, "notify": None},
            {},
        ]


def test_older_jobs_keep_their_rules_when_standing_rules_come(
    open_database: Callable[[], Database],
) -> None:
    database = open_database()
    migrate.upgrade(database, to="r15")
    fill_first_schema(database)
    insert_row(database, "permission_rules", job_id="job_1", position=90, effect="ask", rule="Bash")
    migrate.upgrade(database)
    rules = select(permission_rules.c.rule).where(permission_rules.c.position == 90)
    assert [row.rule for row in database.rows(rules)] == ["Bash"]
    assert list_standing(database, removed=True) == []
    rule = Rule("deny", "Bash")
    added = [database.write(lambda c: add_standing(c, rule, Author("a"), NOW)) for _ in range(2)]
    assert added == [1, None]


def test_older_runs_get_the_tools_that_their_servers_change(
    open_database: Callable[[], Database],
) -> None:
    database = open_database()
    migrate.upgrade(database, to="r17")
    fill_first_schema(database)
    before = database.rows(select(runs))
    migrate.upgrade(database)
    assert database.rows(select(runs)) == before
    assert database.rows(select(tool_lists)) == []
    tools = {"turn": 1, "first_sent_in": 2, "sha256": "", "tools": "[]", "created_at": NOW}
    insert_row(database, "tool_lists", run_id="run_1", number=1, **tools)
    with pytest.raises(IntegrityError):
        insert_row(database, "tool_lists", run_id="run_1", number=1, **tools)
    with pytest.raises(IntegrityError):
        insert_row(database, "tool_lists", run_id="run_2", number=1, **tools)


def test_migrations_import_nothing_of_runner_but_the_tables_in_env() -> None:
    imported = {
        (path.name, module)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in imported_by(node)
        if module.partition(".")[0] not in ALLOWED
    }
    assert imported == {("env.py", "runner.store.tables")}


def imported_by(node: ast.AST) -> list[str]:
    """The modules that a statement imports. A use of ``__import__`` counts as a module of that name."""
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=module, level=level):
            return ["." * level + (module or "")]
        case ast.Name(id="__import__" as name):
            return [name]
    return []


@pytest.mark.slow
def test_processes_may_upgrade_at_the_same_time(empty_url: str) -> None:
    code = (
        "import sys; from runner.store import migrate;"
        "from runner.store.database import Database;"
        "database = Database(sys.argv[1]); sys.stdin.read(); migrate.upgrade(database)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # all have started or soon will: now they race
        process.stdin = None
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, errors
    database = Database(empty_url)
    assert migrate.check(database).state == "current"
    database.close()


def test_database_of_a_newer_runner_is_left_alone(database: Database) -> None:
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    assert migrate.check(database).state == "newer"
    for use in (migrate.upgrade, migrate.require_current):
        with pytest.raises(UsageError, match="newer Runner"):
            use(database)


def test_tables_of_something_else_are_left_alone(open_database: Callable[[], Database]) -> None:
    database = open_database()
    database.write(lambda c: c.execute(text("CREATE TABLE jobs (theirs INTEGER)")))
    with pytest.raises(UsageError, match="another program"):
        migrate.upgrade(database)


@pytest.mark.slow
def test_failed_upgrade_leaves_nothing(open_database: Callable[[], Database]) -> None:
    database = open_database()
    database.write(lambda c: c.execute(text("CREATE TABLE v_costs (theirs INTEGER)")))
    with pytest.raises(Exception, match="already exists"):
        migrate.upgrade(database)
    assert migrate.check(database).state == "empty"


def test_empty_database_says_how_to_start(open_database: Callable[[], Database]) -> None:
    with pytest.raises(UsageError, match="runner run SPEC"):
        migrate.require_current(open_database())


def test_old_database_says_how_to_go_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "REVISIONS", ("0000", migrate.HEAD))
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '0000'")))
    with pytest.raises(UsageError, match="runner db upgrade"):
        migrate.require_current(database)


@pytest.mark.parametrize("revision", ["0001", "0011"])
def test_a_database_from_before_the_first_release_is_refused(
    database: Database, revision: str
) -> None:
    database.write(
        lambda c: c.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    )
    for use in (migrate.upgrade, migrate.require_current):
        with pytest.raises(UsageError, match=r"before 0\.1\.0 .*use a new database$") as raised:
            use(database)
        assert "\n" not in str(raised.value)
    assert migrate.check(database) == migrate.Status(revision)


def test_looking_for_a_database_creates_none(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runner.db"
    assert not migrate.is_created(f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == []
    assert migrate.is_created("postgresql://localhost/runner")


def test_database_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    database = Database(f"postgresql://nobody@/none?host={tmp_path}")
    with pytest.raises(UnreachableError):
        migrate.upgrade(database)
    database.close()
