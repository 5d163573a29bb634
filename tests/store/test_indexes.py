"""Runs that wait cost nothing: what workers look for in each pass is found by an index of it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from runner.store.approvals import apply_new_rules, expire
from runner.store.database import Database
from runner.store.questions import take_notices
from tests.store.examples import NOW


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)  # Postgres plans by what is stored
@pytest.mark.parametrize(
    ("look", "index"),
    [
        (expire, "SEARCH approvals USING INDEX ix_approvals_expires_at"),
        (apply_new_rules, "SEARCH jobs USING INDEX ix_jobs_rules_snapshot"),
        (apply_new_rules, "SEARCH approvals USING INDEX ix_approvals_job_id_checked_snapshot"),
        (take_notices, "SCAN approvals USING INDEX ix_approvals_asked_at"),
    ],
)
def test_pass_looks_only_at_what_it_is_for(
    database: Database, look: Callable[[Database, float], object], index: str
) -> None:
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        look(database, NOW)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    query, parameters = next(one for one in statements if "approvals" in one[0])
    plan = database.read(
        lambda connection: connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {query}", parameters
        ).all()
    )
    assert any(row.detail.startswith(index) for row in plan), plan
