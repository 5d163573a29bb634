"""Runs that wait cost nothing: what workers look for in each pass is found by an index of it alone. What
a person looks at does not take time with the square of a job's runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from runner.queries.jobs import list_runs, show_job
from runner.store.approvals import apply_new_rules, expire
from runner.store.database import Database
from runner.store.jobs import submit
from runner.store.questions import announce
from tests.store.examples import NOW, submission

# Postgres plans by what is stored.
pytestmark = pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)


def plans(database: Database, work: Callable[[], object]) -> list[tuple[str, list[str]]]:
    """Each statement of the work that SQLAlchemy executed, with the steps of its plan."""
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    def explain(query: str, parameters: Any) -> list[str]:
        explained = f"EXPLAIN QUERY PLAN {query}"
        rows = database.read(lambda c: c.exec_driver_sql(explained, parameters).all())
        return [row.detail for row in rows]

    return [(query, explain(query, parameters)) for query, parameters in statements]


@pytest.mark.parametrize(
    ("look", "index"),
    [
        (expire, "SEARCH approvals USING INDEX ix_approvals_expires_at"),
        (apply_new_rules, "SEARCH jobs USING INDEX ix_jobs_rules_snapshot"),
        (apply_new_rules, "SEARCH approvals USING INDEX ix_approvals_job_id_checked_snapshot"),
        (announce, "SCAN approvals USING INDEX ix_approvals_asked_at"),
    ],
)
def test_pass_looks_only_at_what_it_is_for(
    database: Database, look: Callable[[Database, float], object], index: str
) -> None:
    found = plans(database, lambda: look(database, NOW))
    plan = next(plan for query, plan in found if "approvals" in query)
    assert any(step.startswith(index) for step in plan), plan


@pytest.mark.parametrize("look", [show_job, list_runs])
def test_no_question_about_a_job_scans_all_runs(
    database: Database, look: Callable[[Database, str], object]
) -> None:
    job_id = submit(database, submission(), NOW)
    for query, plan in plans(database, lambda: look(database, job_id)):
        scans = [step for step in plan if step.startswith("SCAN") and "INDEX" not in step]
        assert not scans, query
