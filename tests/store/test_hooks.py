"""Hooks in the database: the same read back as folded while it grew."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from runner.queries.transcript import sent_request
from runner.store.database import Database
from runner.store.tables import hook_runs, tool_calls
from tests.store.driving import HookedDriver, RecordedHookedDriver
from tests.store.test_journal import check_events_and_charges, histories

HISTORIES = [
    pytest.param(*history, marks=[pytest.mark.slow] if number > 1 else [])
    for number, history in enumerate(histories(sqlite=12, postgresql=6))
]


@pytest.mark.parametrize(("empty_url", "seed"), HISTORIES, indirect=["empty_url"])
@pytest.mark.parametrize("driver", [HookedDriver, RecordedHookedDriver])
def test_loading_gives_the_view_of_a_run_with_hooks(
    database: Database, seed: int, driver: Any
) -> None:
    driven = driver(database, seed)
    sent = driven.drive()
    check_events_and_charges(database, driven.run_id)
    check_hooks(database)
    assert {turn: sent_request(database, driven.run_id, turn) for turn in sent} == sent


def check_hooks(database: Database) -> None:
    """They are numbered without gaps, none was begun after it had ended, and none is about a call that
    a rule had denied."""

    def read(connection: Any) -> tuple[list[Any], list[Any]]:
        ran = connection.execute(select(hook_runs).order_by(hook_runs.c.number)).all()
        return ran, connection.execute(select(tool_calls)).all()

    ran, calls = database.read(read)
    assert [row.number for row in ran] == list(range(1, len(ran) + 1))
    assert all(row.ended_at is None or row.started_at <= row.ended_at for row in ran)
    by_rule = {
        (call.message, call.position)
        for call in calls
        if call.decision == "deny" and call.rule is not None and call.updated_input is None
    }
    assert not by_rule & {(row.message, row.position) for row in ran}
