"""Runs that have started others, taken out of a database and brought into another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.agents import Coordinator
from runner.core.commands import Target
from runner.core.hooks import Hook
from runner.core.steps import CallModel
from runner.errors import UsageError
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import agent_id, session_id, session_lines
from runner.queries.jobs import list_jobs
from runner.queries.outcomes import children_of
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.exports import load_recorded
from runner.store.retry import retry
from runner.store.tables import hook_runs
from tests.audit.story import delegate
from tests.exchange.atif_rules import problems
from tests.store.attempts import claim, run_row, text, tool_use
from tests.store.children.family import PARENT, asks, start, submit_parent
from tests.store.examples import NOW
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.files import Lines, lines_of, look_everywhere, signed
from tests.store.exchange.test_round_trip import KINDS, brought, exported
from tests.store.family import end_child, parent_with_two, start_child


def ended_tree(database: Database) -> tuple[str, str, str, str]:
    """A run of an item, its children and a grandchild, which have all ended."""
    parent, first, second = parent_with_two(database)
    grandchild = start_child(database, second, 10, message=None, position=None)
    end_child(database, first)
    end_child(database, grandchild)
    for run_id in (second, parent):
        cancel(database, Target("run", run_id), NOW + 9)
    return parent, first, second, grandchild


def ids_in(content: bytes) -> list[str]:
    rows = [json.loads(line) for line in content.splitlines()]
    return [row["row"]["id"] for row in rows if row.get("table") == "runs"]


@pytest.mark.parametrize(("here", "there"), [KINDS, KINDS[::-1]])
def test_a_tree_is_the_same_in_another_database(
    make_database: MakeDatabase, here: str, there: str
) -> None:
    first, second = make_database(here), make_database(there)
    tree = ended_tree(first)
    content = exported(first, run_id=tree[0])
    assert ids_in(content) == list(tree)
    assert [what for what, _ in brought(second, content)] == ["imported"] * 4
    assert exported(second, run_id=tree[0]) == content
    assert [what for what, _ in brought(second, content)] == ["there"] * 4
    assert children_of(second, tree[0]) == children_of(first, tree[0])
    for run_id in tree:
        look_everywhere(second, run_id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_and_what_they_changed_come_along(make_database: MakeDatabase, kind: str) -> None:
    first, second = make_database("sqlite"), make_database(kind)
    delegate(first)
    (job,) = list_jobs(first)
    content = exported(first, job_id=job["id"])
    assert {what for what, _ in brought(second, content)} == {"imported"}
    hooks = [line for line in content.splitlines() if b'"table":"hook_runs"' in line]
    assert hooks
    again = exported(second, job_id=job["id"])
    assert hooks == [line for line in again.splitlines() if b'"table":"hook_runs"' in line]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_that_ended_by_a_signal_comes_along(make_database: MakeDatabase, kind: str) -> None:
    first, second = make_database(kind), make_database("sqlite")
    delegate(first)
    (job,) = list_jobs(first)
    killed = update(hook_runs).values(outcome="failed", exit_code=-9, reason="signal 9")
    first.write(lambda connection: connection.execute(killed))
    content = exported(first, job_id=job["id"])
    assert b'"exit_code":-9,' in content
    assert {what for what, _ in brought(second, content)} == {"imported"}
    codes = second.read(lambda db: db.execute(select(hook_runs.c.exit_code)).scalars().all())
    assert set(codes) == {-9}


def test_a_sub_agent_comes_with_those_that_it_works_for_and_all_below_it(
    database: Database,
) -> None:
    parent, _, second, grandchild = ended_tree(database)
    assert ids_in(exported(database, run_id=second)) == [parent, second, grandchild]


def test_a_tree_that_had_not_ended_is_cancelled_where_it_is_imported(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    parent, *children = parent_with_two(first)
    states = brought(second, exported(first, run_id=parent))
    assert states == [("imported", "cancelled")] * 3
    assert {run_row(second, run_id).state for run_id in (parent, *children)} == {"cancelled"}


def _row(lines: Lines, run_id: str) -> dict[str, Any]:
    rows = (line["row"] for line in lines if line.get("table") == "runs")
    return next(row for row in rows if row["id"] == run_id)


def _set(name: str, value: Any) -> Callable[[Lines, str], None]:
    return lambda lines, run_id: _row(lines, run_id).update({name: value})


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (_set("id", "run_x.1"), "id: string should match pattern"),
        (_set("parent_run", None), "parent_run is not what the run's id says"),
        (_set("root_run", None), "root_run is not what the run's id says"),
        (_set("depth", 2), "depth is not what the run's id says"),
        (_set("child_number", 7), "child_number is not what the run's id says"),
        (_set("agent_type", "nobody"), "no type of sub-agent that the job has"),
        (_set("agent_type", None), "no type of sub-agent that the job has"),
    ],
)
def test_a_run_that_is_not_where_its_id_says_is_refused(
    make_database: MakeDatabase, change: Callable[[Lines, str], None], refusal: str
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    parent, child, _ = parent_with_two(first)
    lines = lines_of(first, run_row(first, parent).job_id)
    change(lines, child)
    with pytest.raises(UsageError, match=refusal):
        brought(second, signed(lines))


def _first(lines: Lines, table: str) -> dict[str, Any]:
    row: dict[str, Any] = next(line["row"] for line in lines if line.get("table") == table)
    return row


@pytest.mark.parametrize(
    ("column", "value"),
    [("parent_position", 2), ("parent_position", 7), ("parent_message", 0), ("parent_message", 9)],
)
def test_a_sub_agent_that_no_call_of_its_parent_started_is_refused(
    make_database: MakeDatabase, column: str, value: int
) -> None:
    """Its parent would wait for it without end."""
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = start(first, asks(1), asks(2), tool_use(3, "Read", file_path="a")).state.run_id
    lines = lines_of(first, run_row(first, run_id).job_id)
    _set(column, value)(lines, f"{run_id}.2")
    with pytest.raises(UsageError, match="of no call of a parent that starts one"):
        brought(second, signed(lines))


@pytest.mark.parametrize(("name", "value"), [("hook", 1), ("hook", 2), ("event", "RunEnd")])
def test_a_hook_that_the_job_has_not_is_refused(
    make_database: MakeDatabase, name: str, value: int | str
) -> None:
    """What a run goes by when it goes on is looked up in its job."""
    first, second = make_database("sqlite"), make_database("sqlite")
    hooks = (Hook("PreToolUse", command="check"), Hook("PostToolUse", command="look"))
    run_id = start(first, asks(1), spec=replace(PARENT, hooks=hooks)).state.run_id
    lines = lines_of(first, run_row(first, run_id).job_id)
    _first(lines, "hook_runs")[name] = value
    with pytest.raises(UsageError, match="no hook that the job has at that event"):
        brought(second, signed(lines))


@pytest.mark.parametrize("decided", [[0], [0, 0, 0]])
def test_a_run_that_has_decided_on_more_or_fewer_calls_than_it_made_is_refused(
    make_database: MakeDatabase, decided: list[int]
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = start(first, asks(1), asks(2)).state.run_id
    lines = lines_of(first, run_row(first, run_id).job_id)
    _row(lines, run_id)["progress"]["hooks"]["decided"] = decided
    with pytest.raises(UsageError, match="decided is not of its last calls"):
        brought(second, signed(lines))


def _with_the_whole_task(database: Database) -> str:
    """A coordinator that has not split its task; its id."""
    spec = replace(PARENT, coordinator=Coordinator("reviewer"))
    attempt = claim(database, submit_parent(database, spec))
    while isinstance(attempt.effect, CallModel):
        attempt.reply(text("I do not split it."))
    assert attempt.state.children.split == "whole"
    return attempt.state.run_id


def test_a_coordinator_that_has_not_split_its_task_comes_with_the_child_that_has_it(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = _with_the_whole_task(first)
    assert len(brought(second, exported(first, run_id=f"{run_id}.1"))) == 2
    retry(second, Target("run", run_id), NOW + 1)
    assert isinstance(claim(second, run_id, NOW + 1).effect, CallModel)


def test_a_coordinator_without_the_child_that_has_its_whole_task_is_refused(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = _with_the_whole_task(first)
    lines = lines_of(first, run_row(first, run_id).job_id)
    row = _row(lines, f"{run_id}.1")
    del lines[[line.get("row") for line in lines].index(row) :]
    with pytest.raises(UsageError, match="its whole task to a sub-agent, which is not in the file"):
        brought(second, signed(lines))


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "of an older Runner"])
def test_limits_of_sub_agents_come_along_with_their_job(
    make_database: MakeDatabase, *, stored: bool
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    own = replace(PARENT.limits, max_agent_depth=10, max_agents_at_once=2, max_agents=9)
    run_id = start(first, asks(1), asks(2), asks(3), spec=replace(PARENT, limits=own)).state.run_id
    cancel(first, Target("run", run_id), NOW)
    lines = lines_of(first, run_row(first, run_id).job_id)
    limits = lines[1]["row"]["spec"]["limits"]
    for name in ("max_agent_depth", "max_agents_at_once", "max_agents"):
        assert name in limits
        if not stored:
            del limits[name]
    brought(second, signed(lines))
    retry(second, Target("run", run_id), NOW + 1)
    assert claim(second, run_id, NOW + 1).state.limits == (own if stored else PARENT.limits)


@pytest.mark.parametrize("end", [".0", ".01", 11 * ".1", ".99999", ".", "..1", ".1/../x", ".²"])
def test_an_id_that_no_sub_agent_can_have_is_refused(make_database: MakeDatabase, end: str) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    parent, child, _ = parent_with_two(first)
    lines = lines_of(first, run_row(first, parent).job_id)
    _row(lines, child)["id"] = parent + end
    with pytest.raises(UsageError, match="id: string should match pattern"):
        brought(second, signed(lines))


def test_what_a_snapshot_holds_asks_for_no_rows_of_calls(make_database: MakeDatabase) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    parent, *_ = parent_with_two(first)
    child = start_child(first, parent, 3, snapshot=("Said.", "Replied."))
    content = exported(first, run_id=parent)
    brought(second, content)
    steps = trajectory(load_recorded(second, child), "1")["steps"]
    copied = [step["message"] for step in steps if step.get("is_copied_context")]
    assert copied == ["Said.", "Replied."]


def test_a_trajectory_has_those_of_its_sub_agents_in_it(database: Database) -> None:
    parent, first, second, grandchild = ended_tree(database)

    def made(run_id: str) -> dict[str, Any]:
        recorded = load_recorded(database, run_id)
        below = [made(child) for started in recorded.children.values() for child in started]
        return trajectory(recorded, "1", below)

    found = json.loads(json.dumps(made(parent)))
    assert problems(found) == []
    assert [each["trajectory_id"] for each in found["subagent_trajectories"]] == [first, second]
    calls = [
        each["final_metrics"]["extra"]["model_calls"] for each in found["subagent_trajectories"]
    ]
    own = len(load_recorded(database, parent).model_calls)
    assert found["final_metrics"]["extra"]["model_calls"] == own + sum(calls) > own
    (below,) = found["subagent_trajectories"][1]["subagent_trajectories"]
    assert (below["trajectory_id"], below["session_id"]) == (grandchild, parent)
    results = [
        result
        for step in found["steps"]
        for result in step.get("observation", {}).get("results", ())
    ]
    refs = [result["subagent_trajectory_ref"] for result in results]
    assert refs == [[{"trajectory_id": first}], [{"trajectory_id": second}]]


def test_a_session_has_its_sub_agents_as_sidechains(database: Database) -> None:
    parent, first, _, grandchild = ended_tree(database)
    of = {run_id: load_recorded(database, run_id) for run_id in (parent, first, grandchild)}
    assert len({session_id(recorded) for recorded in of.values()}) == 1
    assert agent_id(of[parent]) is None
    assert len({agent_id(recorded) for recorded in of.values()}) == 3
    for run_id in (first, grandchild):
        for line in session_lines(of[run_id], "1"):
            assert line["isSidechain"] is True
            assert line["agentId"] == agent_id(of[run_id])
    assert not any(line["isSidechain"] for line in session_lines(of[parent], "1"))
