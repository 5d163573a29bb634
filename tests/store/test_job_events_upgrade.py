"""Databases without events of jobs are given those that their rows still tell of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from runner.store.connection import migrate
from runner.store.connection.database import Database
from runner.store.look.changes import changes_of
from runner.store.tables import events, job_events
from tests.store.examples import NOW
from tests.store.test_migrate import fill_first_schema, insert_row


def filled(open_database: Callable[[], Database]) -> Database:
    """A job of unknown people, and one whose people are known, as revision 0004 has them."""
    database = open_database()
    with migrate._alone(database) as connection:
        migrate._run_migrations(connection, "0004")
    fill_first_schema(database)
    job = {"id": "job_2", "key": "nightly", "name": "x" * 500, "source": "mend.toml"}
    insert_row(database, "jobs", **job, spec_text="", spec_digest="", spec="{}", created_at=NOW + 1)
    state = {"state": "succeeded", "max_turns": 5, "token_ceiling": 1000, "progress": "{}"}
    run = {"job_id": "job_2", "item_key": "one", "created_at": NOW + 1, **state}
    insert_row(database, "runs", id="run_2", **run)
    insert_row(database, "runs", id="run_3", **run, fresh_of="run_2")
    insert_row(database, "runs", id="run_4", **run, fork_of="run_2")
    rule = {"job_id": "job_2", "author": "ada", "created_at": NOW + 1}
    insert_row(database, "permission_rules", **rule, position=0, effect="deny", rule="Bash")
    revoked = {"revoked_in": 3, "revoked_by": "bo", "revoked_at": NOW + 9}
    remembered = {"origin": "remembered", "added_in": 2, "why": "It is safe.", **revoked}
    rule |= {"created_at": NOW + 5, **remembered}
    insert_row(database, "permission_rules", **rule, position=1, effect="allow", rule="Bash(uv)")
    limit = {"run_id": "run_2", "attempt": 1, "type": "limit_reached", "data": "{}"}
    insert_row(database, "events", **limit, number=1, at=NOW + 2)
    return database


def told(database: Database, job_id: str) -> list[tuple[int, float, str, Any]]:
    table = job_events.c
    query = select(table.number, table.at, table.type, table.data).where(table.job_id == job_id)
    rows = database.read(lambda connection: connection.execute(query.order_by(table.number)).all())
    return [(row.number, row.at, row.type, row.data) for row in rows]


def test_jobs_that_are_there_tell_what_is_known_of_them(
    open_database: Callable[[], Database],
) -> None:
    database = filled(open_database)
    migrate.upgrade(database)
    new = {"name": "mend", "key": None, "source": "mend.toml", "runs": 1, "rules": 2}
    submitted = {"by": None, "why": "", "old": None, "new": new}
    assert told(database, "job_1") == [(1, NOW, "submitted", submitted)]
    new = {"name": "x" * 100, "key": "nightly", "source": "mend.toml", "runs": 1, "rules": 1}
    submitted = {"by": "ada", "why": "", "old": None, "new": new}
    rule = {"position": 1, "effect": "allow", "rule": "Bash(uv)", "origin": "remembered"}
    rule |= {"run_id": None, "snapshot": 2}
    added = {"by": "ada", "why": "It is safe.", "old": None, "new": rule}
    revoked = {"snapshot": 3, "by": "bo", "why": "", "old": rule, "new": None}
    assert told(database, "job_2") == [
        (1, NOW + 1, "submitted", submitted),
        (2, NOW + 5, "rule_added", added),
        (3, NOW + 9, "rule_revoked", revoked),
    ]


def test_what_happened_before_the_upgrade_is_read_with_what_happens_after(
    open_database: Callable[[], Database],
) -> None:
    database = filled(open_database)
    insert_row(
        database,
        "events",
        run_id="run_1",
        number=1,
        at=NOW + 1,
        attempt=1,
        type="cancelled",
        data='{"was": "queued"}',
    )
    migrate.upgrade(database)
    before = [change["type"] for change in changes_of(database, "job_1")]
    assert before == ["submitted", "cancelled"]
    query = select(events.c.run_id).where(events.c.type == "limit_reached")
    assert database.read(lambda connection: connection.execute(query).scalars().all()) == ["run_2"]
