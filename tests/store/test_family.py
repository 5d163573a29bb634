"""Runs that have started others: what is counted, listed and found of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.agents import AgentType
from runner.core.conversation import Usage
from runner.errors import NotFoundError
from runner.queries import run_table as table
from runner.queries.jobs import list_jobs, list_runs
from runner.queries.names import Found, find
from runner.queries.outcomes import children_of, descendants_of, has_ended
from runner.queries.run_table import RunFilters
from runner.queries.timeline import events_after
from runner.store import jobs as jobs_store
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import runs
from tests.store.asked import ASKING, run_ids
from tests.store.attempts import claim, run_row, tool_use
from tests.store.attempts import text as said
from tests.store.examples import NOW, submission
from tests.store.family import asking, end_child, parent_with_two, start_child, work_child


def test_a_job_counts_the_runs_of_its_items_and_the_tokens_of_all(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    (job,) = list_jobs(database)
    assert job["runs"] == {"running": 1}
    own = run_row(database, parent).charged_tokens
    assert job["charged_tokens"] == own + run_row(database, first).charged_tokens > own


def test_only_runs_of_items_are_listed_unless_trees_are_asked_for(database: Database) -> None:
    parent, first, second = parent_with_two(database)
    grandchild = start_child(database, second, 1)
    end_child(database, grandchild)
    job_id = run_row(database, parent).job_id
    (listed,) = list_runs(database, job_id)
    assert (listed["id"], listed["below"], listed["depth"]) == (parent, 3, 0)
    used = run_row(database, grandchild).charged_tokens
    assert listed["tree_tokens"] == listed["charged_tokens"] + used
    whole = list_runs(database, job_id, whole_trees=True)
    assert [run["id"] for run in whole] == [parent, first, second, grandchild]
    assert [run["below"] for run in whole] == [3, 0, 1, 0]
    assert [run["label"] for run in whole] == ["", "1", "2", "2.1"]
    assert whole[2]["tree_tokens"] == used


def test_children_come_after_their_parents_by_number(database: Database) -> None:
    parent, *_ = parent_with_two(database)
    for number in range(3, 12):
        start_child(database, parent, number)
    job_id = run_row(database, parent).job_id
    whole = list_runs(database, job_id, whole_trees=True)
    assert [run["label"] for run in whole] == ["", *map(str, range(1, 12))]
    assert [child["label"] for child in children_of(database, parent)] == [*map(str, range(1, 12))]


def test_a_child_is_told_of_with_the_call_that_asked_for_it(database: Database) -> None:
    parent, first, second = parent_with_two(database)
    told = children_of(database, parent)
    assert [child["id"] for child in told] == [first, second]
    assert [child["description"] for child in told] == ["Review a", "Test b"]
    assert [child["agent_type"] for child in told] == ["reviewer", "tester"]
    name = parent.removeprefix("run_")
    assert [child["call_id"] for child in told] == [f"call_{name}_1_1", f"call_{name}_1_2"]
    assert children_of(database, first) == []


def test_a_child_without_a_call_is_told_of(database: Database) -> None:
    parent, *_ = parent_with_two(database)
    start_child(database, parent, 3, message=None, position=None)
    last = children_of(database, parent)[-1]
    assert (last["label"], last["call_id"], last["description"]) == ("3", None, "")


def test_events_say_whose_they_are(database: Database) -> None:
    parent, _, second = parent_with_two(database)
    grandchild = start_child(database, second, 1)
    work_child(database, grandchild)
    told = events_after(database, grandchild)
    place = {"root": parent, "parent": second, "depth": 2}
    assert all(place.items() <= event.items() for event in told)
    labels = {event["type"]: event["label"] for event in told}
    assert (labels["turn_started"], labels["tool_done"]) == ("2.1", "2.1.2")
    root = events_after(database, parent)
    assert {(event["root"], event["parent"], event["depth"]) for event in root} == {
        (parent, None, 0)
    }
    assert {"", "1", "2"} == {event["label"] for event in root}


def test_events_of_a_tree_are_those_of_its_runs_each_once(database: Database) -> None:
    parent, first, second = parent_with_two(database)
    known: dict[str, int] = {}
    seen = []
    for act in (
        lambda: None,
        lambda: end_child(database, first),
        lambda: work_child(database, second),
    ):
        act()
        for event in events_after(database, parent, known, whole_tree=True):
            known[event["run_id"]] = event["number"]
            seen.append((event["run_id"], event["number"]))
    whole = [
        (run_id, event["number"])
        for run_id in (parent, first, second)
        for event in events_after(database, run_id)
    ]
    assert len(seen) == len(whole)
    assert set(seen) == set(whole)
    (other,) = {event["run_id"] for event in events_after(database, second, whole_tree=True)}
    assert other == second


def test_a_tree_is_over_when_all_of_it_is(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    assert has_ended(database, first, whole_tree=True)
    assert not has_ended(database, parent, whole_tree=True)


def test_what_is_below_a_run_is_summed(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    work_child(database, first)
    found = descendants_of(database, parent)
    row = run_row(database, first)
    assert (found.runs, found.turns, found.tokens) == (2, row.turns, row.charged_tokens)
    assert descendants_of(database, first).runs == 0


def test_within_is_the_run_and_all_below_it(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    tenth = start_child(database, parent, 10)
    grandchild = start_child(database, first, 1)

    def ids(run_id: str) -> set[str]:
        query = runs.select().where(in_tree(run_id))
        return {row.id for row in database.read(lambda connection: connection.execute(query).all())}

    assert ids(first) == {first, grandchild}
    assert ids(parent) >= {parent, first, tenth, grandchild}
    assert len(ids(parent)) == 5


def test_a_beginning_means_the_run_of_the_item(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    for text in ("run_", parent[:-2], parent[-6:], parent):
        assert find(database, text, "job", "run") == Found("run", parent)
    assert find(database, first, "run") == Found("run", first)


def test_a_child_is_found_by_the_end_of_its_root_and_its_numbers(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    tenth = start_child(database, parent, 10)
    grandchild = start_child(database, first, 1)
    other, *_ = parent_with_two(database, "two")
    for text in (f"{parent[-8:]}.1", f"{parent[:-1]}.1", f"{parent[-8:].upper()}.1"):
        assert find(database, text, "job", "run", "call") == Found("run", first)
    assert find(database, f"{parent[-8:]}.10", "run") == Found("run", tenth)
    assert find(database, f"{parent[-8:]}.1.1", "run") == Found("run", grandchild)
    with pytest.raises(NotFoundError, match=rf"could be {parent}\.1, {other}\.1: give more"):
        find(database, "run_.1", "run")


@pytest.mark.parametrize("wrong", [".1", "1.1", "run_.7", "run_.1.1.1", "run_.", "run_..", ".."])
def test_a_wrong_name_with_dots_is_refused_in_a_line(database: Database, wrong: str) -> None:
    parent_with_two(database)
    with pytest.raises(NotFoundError, match=r"no run is named '\S+': look with `runner list`"):
        find(database, wrong, "run")


def test_calls_of_children_are_found(database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    work_child(database, first)
    name = f"call_{first.removeprefix('run_')}_1_2"
    short = f"{parent[-8:]}.1_1_2"
    for text in (name, short, name.replace(parent[-2:] + ".", "."), short.upper()):
        assert find(database, text, "job", "run", "call") == Found("call", name)
    of_parent = f"call_{parent.removeprefix('run_')}_1_2"
    assert find(database, f"{parent[-8:]}_1_2", "call") == Found("call", of_parent)
    assert find(database, of_parent[:-5] + "_1_2", "call") == Found("call", of_parent)


@pytest.mark.dialect
def test_filters_and_orders_of_a_jobs_runs_reach_sub_agents(database: Database) -> None:
    agents = (AgentType("reviewer", "Reviews."),)
    spec = replace(ASKING, agents=agents)
    job = jobs_store.submit(database, submission("a", "b", spec=spec), NOW)
    parent, other = run_ids(database, job)
    claim(database, other).reply(said("Done."), usage=Usage(output_tokens=100))
    claim(database, parent).reply(
        asking(1, "Review"), stop="tool_use", usage=Usage(output_tokens=9)
    )
    calls = [tool_use(0, "Bash", command="make"), tool_use(1, "Bash", command="rm x")]
    child = claim(database, start_child(database, parent, 1))
    child.reply(*calls, stop="tool_use", usage=Usage(output_tokens=500))
    for filters in (RunFilters(tool="Bash"), RunFilters(denied=True), RunFilters(waiting=True)):
        found = table.run_ids(database, job, filters, limit=9)
        assert [run_id for _, run_id in found] == [parent], filters
    ordered = table.run_ids(database, job, RunFilters(), sort="tokens", descending=True, limit=9)
    assert ordered == [(509, parent), (100, other)]
