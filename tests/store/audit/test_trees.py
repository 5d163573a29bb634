"""Sub-agents and hooks in what is asked of the record."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from runner.core.prices import PriceList
from runner.llm.prices import load_prices
from runner.queries.costs import cost_rows
from runner.queries.decisions import decision_rows
from runner.queries.filters import Filters
from runner.queries.timeline import timeline_rows
from runner.queries.tool_calls import command_rows, tool_rows
from runner.store.database import Database
from runner.store.tables import hook_runs, tool_calls
from tests.store.attempts import claim, run_row
from tests.store.audit.played import bash, submit, turn
from tests.store.examples import NOW
from tests.store.family import end_child, parent_with_two, start_child, work_child

PRICES: PriceList = load_prices()


def counted(database: Database, filters: Filters) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in tool_rows(database, filters):
        found[row["tool"]] = found.get(row["tool"], 0) + row["calls"]
    return found


@pytest.mark.slow
def test_a_filter_of_a_run_or_an_item_reaches_all_below_it(database: Database) -> None:
    parent, first, second = parent_with_two(database, "src/a.py")
    grandchild = start_child(database, second, 1)
    work_child(database, first)
    work_child(database, grandchild)
    _, elsewhere, _ = parent_with_two(database, "src/a.py+1")
    work_child(database, elsewhere)
    assert counted(database, Filters(run_id=parent)) == {"Agent": 2, "Read": 4}
    assert counted(database, Filters(run_id=second)) == {"Read": 2}
    assert counted(database, Filters(item="src/a.py")) == {"Agent": 2, "Read": 4}
    assert counted(database, Filters(item="src/a.py+2+1")) == {"Read": 2}
    (spent,) = cost_rows(database, Filters(run_id=parent), PRICES, "tree")
    assert (spent["tree_id"], spent["calls"]) == (parent, 3)


def test_calls_are_told_with_their_labels(database: Database) -> None:
    parent, _, second = parent_with_two(database)
    work_child(database, second)
    labels = {row["label"] for row in decision_rows(database, Filters(run_id=parent), each=True)}
    assert labels == {"1", "2", "2.1", "2.2"}
    told = timeline_rows(database, Filters(), second, PRICES)
    assert {row["label"] for row in told if row["call_id"]} == {"2.1", "2.2"}


def test_a_timeline_is_of_one_run_though_a_filter_may_name_one_above(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    of_all = [row["event"] for row in timeline_rows(database, Filters(), first, PRICES)]
    for filters in (Filters(run_id=parent), Filters(item=run_row(database, parent).item_key)):
        assert [row["event"] for row in timeline_rows(database, filters, first, PRICES)] == of_all
    assert list(timeline_rows(database, Filters(run_id=first), parent, PRICES)) == []


@pytest.mark.parametrize("pattern", ["git push *", "push", None])
def test_a_command_that_a_hook_put_in_the_place_of_another_is_found(
    database: Database, pattern: str | None
) -> None:
    (run_id,) = submit(database, "a.py").runs
    turn(claim(database, run_id), *bash("make docs"))
    row: dict[str, Any] = {
        "run_id": run_id,
        "number": 1,
        "hook": 0,
        "event": "PreToolUse",
        "name": "hook.sh",
        "turn": 1,
        "message": 1,
        "position": 0,
        "attempt": 1,
        "started_at": NOW,
    }

    def work(connection: Connection) -> None:
        connection.execute(insert(hook_runs).values(row))
        changed = update(tool_calls).where(tool_calls.c.run_id == run_id)
        connection.execute(changed.values(updated_input={"command": "git push origin"}))

    database.write(work)
    (found,) = command_rows(database, Filters(), pattern)
    assert (found["command"], found["ran"]) == ("make docs", "git push origin")
