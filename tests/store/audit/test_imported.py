"""What an imported run holds breaks no question, whatever its events and calls say."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, update

from runner.queries.decisions import decision_rows
from runner.queries.filters import Filters
from runner.queries.problems import limit_rows
from runner.queries.timeline import timeline_rows
from runner.store.database import Database
from runner.store.tables import events, tool_calls
from tests.store.audit.played import play
from tests.store.test_costs import PRICES

ALL = Filters()
ODD: tuple[Any, ...] = (
    {},
    {"turn": "x", "call_index": 0, "call": [1], "duration": "x", "name": {}, "by": 7},
    {"call_index": 1, "old": 3, "new": "much", "reason": None, "detail": ["x"]},
    ["no object"],
)


def change(database: Database, table: Any, **values: Any) -> None:
    def work(connection: Connection) -> None:
        connection.execute(update(table).values(**values))

    database.write(work)


@pytest.mark.slow
@pytest.mark.parametrize("data", range(len(ODD)))
def test_events_may_hold_anything(database: Database, data: int) -> None:
    job = play(database)
    change(database, events, data=ODD[data])
    rows = list(timeline_rows(database, ALL, job.runs[0], PRICES))
    assert [row["call_id"] for row in rows] == [None] * len(rows)
    assert list(timeline_rows(database, Filters(tool="Bash"), job.runs[0], PRICES)) == []


def test_limits_may_be_told_in_any_way(database: Database) -> None:
    job = play(database)
    for odd in ODD[1:]:
        change(database, events, type="limit_reached", data=odd)
        assert {row["run_id"] for row in limit_rows(database, ALL)} == set(job.runs)
        change(database, events, type="retried")
        assert list(limit_rows(database, ALL)) == []


@pytest.mark.slow
def test_rule_that_no_job_has_decided_all_the_same(database: Database) -> None:
    play(database)
    change(database, tool_calls, rule_position=99)
    counted = list(decision_rows(database, ALL))
    assert sum(row["calls"] for row in counted) == len(
        list(decision_rows(database, ALL, each=True))
    )
    assert {row["rule_by"] for row in counted} == {None}


def test_rule_of_a_sub_agents_type_is_from_its_type(database: Database) -> None:
    play(database)
    change(database, tool_calls, rule_position=None)
    for each in (True, False):
        found = decision_rows(database, ALL, each=each)
        assert {(row["rule_from"], row["rule_by"]) for row in found} == {("agent", None)}
