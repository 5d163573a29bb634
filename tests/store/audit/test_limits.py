"""Limits stay in the record, also those that somebody raised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from runner.core.commands import Raised, Target
from runner.core.conversation import Usage
from runner.core.run import Author
from runner.queries.filters import Filters
from runner.queries.problems import limit_rows
from runner.store.database import Database
from runner.store.retry import retry
from tests.store.asked import priced, submit_budgeted
from tests.store.attempts import claim, text
from tests.store.audit.played import PLAYED, bash, submit, turn
from tests.store.examples import NOW

ALL = Filters()


def stop(database: Database) -> str:
    """A run that is stopped after its first turn."""
    spec = replace(PLAYED, limits=replace(PLAYED.limits, max_turns=1))
    (run_id,) = submit(database, "a.py", spec=spec).runs
    turn(claim(database, run_id), *bash("ls"), at=NOW + 10)
    return run_id


def test_who_raised_a_limit_is_told(database: Database) -> None:
    run_id = stop(database)
    (row,) = limit_rows(database, ALL)
    assert (row["limit"], row["state"], row["raised_by"]) == ("max_turns", "stopped", None)
    author = Author("lena", "it was nearly done")
    retry(database, Target("run", run_id), NOW + 20, raised=Raised(max_turns=5), author=author)
    (row,) = limit_rows(database, ALL)
    assert (row["at"], row["state"]) == (NOW + 10, "queued")
    assert (row["raised_at"], row["raised_by"]) == (NOW + 20, "lena")
    assert (row["raised_to"], row["why"]) == ({"max_turns": 5}, "it was nearly done")


@pytest.mark.slow
def test_each_time_that_a_limit_was_reached_is_told(database: Database) -> None:
    run_id = stop(database)
    for at, most in ((NOW + 20, 2), (NOW + 40, 3)):
        author = Author(f"person {most}")
        retry(database, Target("run", run_id), at, raised=Raised(max_turns=most), author=author)
        turn(claim(database, run_id, at + 1), *bash("ls"), at=at + 5)
    rows = list(limit_rows(database, ALL))
    assert [(row["at"], row["raised_by"]) for row in rows] == [
        (NOW + 45, None),
        (NOW + 25, "person 3"),
        (NOW + 10, "person 2"),
    ]
    assert list(limit_rows(database, Filters(limit=1))) == rows[:1]
    assert limit_rows(database, Filters(limit=1)).note.startswith("only the newest 1")


def test_run_that_waits_for_its_budget_is_told(database: Database) -> None:
    job_id, (first, second) = submit_budgeted(database, "a", "b", tokens=6_000)
    claim(database, first, NOW, priced).reply(text("Done."), usage=Usage(2_000, 0, 0, 1_000))
    claim(database, second, NOW + 5, priced)
    (row,) = limit_rows(database, ALL)
    assert (row["run_id"], row["limit"], row["state"]) == (second, "budget", "waiting")
    assert (row["at"], row["job_id"]) == (NOW + 5, job_id)
    assert "tokens" in row["detail"]


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)  # Postgres plans by what is stored
def test_limits_are_found_without_reading_all_events(database: Database) -> None:
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        list(limit_rows(database, Filters(limit=10)))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    query, parameters = next(one for one in statements if "limit_reached" in one[0])
    plan = database.read(
        lambda connection: connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {query}", parameters
        ).all()
    )
    assert any("USING INDEX ix_events_at" in row.detail for row in plan), plan
