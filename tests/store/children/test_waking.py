"""A parent goes on when its sub-agents have ended, whoever comes first and whoever dies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from runner.core.agents import AgentType
from runner.core.budget import Limits
from runner.core.commands import Reply, Target
from runner.core.conversation import Block, ModelReply
from runner.core.entries import RunSettled
from runner.core.run import Ended, Lease, Waiting
from runner.core.state import RunState
from runner.core.steps import CallModel, Done, RunTools
from runner.core.workspace import RESULT_TOOL
from runner.errors import UnreachableError
from runner.permissions import Rule
from runner.store import due_runs as runs_store
from runner.store.approvals import answer
from runner.store.children import attend, wake
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.leases import give_up
from runner.store.questions import waiting
from runner.store.retry import retry
from tests.core.story import replied
from tests.postgres import waiting_for_locks
from tests.store.attempts import (
    USAGE,
    WORKER,
    Attempt,
    claim,
    decide,
    decide_nothing,
    free,
    run_row,
    text,
    tool_use,
)
from tests.store.children.family import PARENT, WAITS, asks, end, start, told, tree_of
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect

LATER = NOW + 5
MOST_AT_ONCE = Limits().max_agents_at_once


def state_of(database: Database, run_id: str) -> tuple[str, str]:
    row = run_row(database, run_id)
    return row.state, row.reason


def results(attempt: Attempt) -> list[tuple[str, bool]]:
    """What the calls of the last reply gave, and whether it is an error."""
    blocks = attempt.state.messages[-1].blocks
    return [(block["content"], block.get("is_error", False)) for block in blocks]


def load(database: Database, run_id: str) -> tuple[Lease, RunState]:
    """An attempt of a run that waits begins, as somebody paused it and let it go on."""
    pause(database, Target("run", run_id), NOW)
    resume(database, Target("run", run_id), NOW)
    run = runs_store.look_at(database, run_id, NOW)
    assert run is not None
    lease = runs_store.claim(database, run, WORKER, NOW)
    assert lease is not None
    return lease, StoredJournal(database, lambda: NOW, free).load(lease)


@pytest.mark.slow
def test_a_parent_is_woken_by_the_last_of_its_children(database: Database) -> None:
    run_id = start(database, asks(1), asks(2)).state.run_id
    end(database, f"{run_id}.2", "Two.")
    assert state_of(database, run_id) == ("waiting", "children")
    end(database, f"{run_id}.1", "One.")
    assert state_of(database, run_id) == ("queued", "")
    (resumed,) = told(database, run_id, "resumed")
    assert (resumed["reason"], resumed["by"]) == ("children", "runner")
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    assert results(again) == [("One.", False), ("Two.", False)]


@pytest.mark.slow
def test_a_child_that_ends_after_its_parent_was_loaded_wakes_it(database: Database) -> None:
    run_id = start(database).state.run_id
    lease, state = load(database, run_id)
    end(database, f"{run_id}.1", "One.")
    assert state_of(database, run_id) == ("running", "")
    journal = StoredJournal(database, lambda: NOW, free)
    _, effect = journal.commit(lease, state, (), decide)
    assert effect == WAITS
    assert state_of(database, run_id) == ("queued", "")
    assert results(claim(database, run_id)) == [("One.", False)]


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_child_that_ends_while_its_parent_begins_to_wait_wakes_it(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """The child's end is stored while the parent has its own row and has not stored that it waits."""
    run_id = start(database).state.run_id
    lease, state = load(database, run_id)
    other, watcher = open_database(), open_database()

    def meanwhile() -> float:
        if not ended:
            ended.append(pool.submit(end, other, f"{run_id}.1", "One."))
            while not waiting_for_locks(watcher):
                assert not ended[0].done()
        return NOW

    with ThreadPoolExecutor(1) as pool:
        ended = []
        journal = StoredJournal(database, meanwhile, free)
        journal.commit(lease, state, (), decide)
        ended[0].result()
    assert state_of(database, run_id) == ("queued", "")
    assert results(claim(database, run_id)) == [("One.", False)]


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_parent_that_begins_to_wait_while_its_child_ends_is_woken(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """The parent stores that it waits while the child has not stored its end."""
    run_id = start(database).state.run_id
    lease, state = load(database, run_id)
    child = claim(database, f"{run_id}.1")
    other = open_database()
    waited: list[object] = []

    def meanwhile() -> float:
        if not waited:
            journal = StoredJournal(other, lambda: NOW, free)
            with ThreadPoolExecutor(1) as pool:
                step = pool.submit(journal.commit, lease, state, (), decide)
                waited.append(step.result()[1])
            assert state_of(other, run_id) == ("waiting", "children")
        return NOW

    said = replied(ModelReply((text("One."),), "end_turn", USAGE, "claude-test", "req_1"))
    journal = StoredJournal(database, meanwhile, free)
    journal.commit(child.lease, child.state, [said], decide)
    assert waited == [WAITS]
    assert state_of(database, run_id) == ("queued", "")


def test_a_parent_whose_child_s_worker_died_before_it_could_wake_it_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start(database).state.run_id

    def dies(*args: object) -> None:
        raise UnreachableError("the database is away")

    with monkeypatch.context() as away:
        away.setattr("runner.store.journal.wake", dies)
        end(database, f"{run_id}.1")
    assert state_of(database, run_id) == ("waiting", "children")
    assert runs_store.unfinished(database, NOW)
    assert attend(database, LATER) == [run_id]
    assert state_of(database, run_id) == ("queued", "")
    assert attend(database, LATER) == []


def test_a_parent_whose_children_are_under_way_is_left_alone(database: Database) -> None:
    """Also where another call of the same reply has not begun."""
    run_id = start(database, asks(1), tool_use(2, "Read", file_path="a"), asks(3)).state.run_id
    assert len(tree_of(database, run_id)) == 1
    assert attend(database, LATER) == []
    assert not wake(database, run_id, LATER)
    assert state_of(database, run_id) == ("waiting", "children")
    cancel(database, Target("run", f"{run_id}.1"), NOW)
    assert attend(database, LATER) == [run_id]


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, MOST_AT_ONCE, MOST_AT_ONCE + 2])
def test_another_child_starts_when_one_of_many_has_ended(database: Database, most: int) -> None:
    many = [asks(number) for number in range(most + 2)]
    spec = replace(PARENT, limits=replace(PARENT.limits, max_agents_at_once=most))
    run_id = start(database, *many, spec=spec).state.run_id
    assert len(tree_of(database, run_id)) == most
    assert attend(database, LATER) == []
    end(database, f"{run_id}.2", "Two.")
    assert state_of(database, run_id) == ("queued", "")
    assert claim(database, run_id).effect == WAITS
    assert len(tree_of(database, run_id)) == most + 1
    assert state_of(database, run_id) == ("waiting", "children")
    assert attend(database, LATER) == []
    end(database, f"{run_id}.1")
    assert claim(database, run_id).effect == WAITS
    assert len(tree_of(database, run_id)) == most + 2


@pytest.mark.slow
def test_a_child_that_ends_while_its_parent_begins_to_wait_is_not_overlooked(
    database: Database,
) -> None:
    """The parent has looked at its children before, and starts another as soon as it is woken."""
    spec = replace(PARENT, limits=replace(PARENT.limits, max_agents_at_once=2))
    run_id = start(database, asks(1), asks(2), asks(3), spec=spec).state.run_id
    lease, state = load(database, run_id)
    end(database, f"{run_id}.2", "Two.")
    journal = StoredJournal(database, lambda: NOW, free)
    journal.commit(lease, state, [RunSettled(Waiting("children"))], decide_nothing)
    assert state_of(database, run_id) == ("queued", "")
    assert claim(database, run_id).effect == WAITS
    assert len(tree_of(database, run_id)) == 3
    assert attend(database, LATER) == []


@pytest.mark.parametrize(
    ("how", "told_why"),
    [("cancelled", "cancelled"), ("failed", "the model refused"), ("stopped", "max_tokens")],
)
def test_a_child_that_comes_to_no_good_end_is_an_error_for_its_parent(
    database: Database, how: str, told_why: str
) -> None:
    run_id = start(database, asks(1), asks(2)).state.run_id
    end(database, f"{run_id}.1", "One.")
    if how == "cancelled":
        cancel(database, Target("run", f"{run_id}.2"), NOW)
        attend(database, NOW)
    elif how == "failed":
        claim(database, f"{run_id}.2").reply(stop="refusal")
    else:
        child = claim(database, f"{run_id}.2")
        for _ in range(3):
            child.reply(text("…"), stop="max_tokens")
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    (_, (why, is_error)) = results(again)
    assert is_error
    assert told_why in why
    assert "\n" not in why


@pytest.mark.slow
def test_an_answer_that_was_cut_reaches_the_parent_from_its_beginning(database: Database) -> None:
    """However often; but not what was said before it called something, or was asked again."""
    run_id = start(database, asks(1), asks(2)).state.run_id
    child = claim(database, f"{run_id}.1")
    child.reply(text("I look."), tool_use(2, "Read", file_path="a"), stop="max_tokens")
    child.finish("There is nothing.").reply(text("First, "), stop="max_tokens")
    child.reply(text("second, "), stop="model_context_window_exceeded").reply(text("third."))
    child = claim(database, f"{run_id}.2").reply(text("One."), stop="max_tokens")
    child.reply(stop="end_turn").reply(text("Two."))
    again = claim(database, run_id)
    assert results(again) == [("First, second, third.", False), ("Two.", False)]


def test_what_a_child_has_submitted_is_its_result_as_json(database: Database) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    judge = AgentType("judge", "Judges.", result_schema=schema)
    run_id = start(database, asks(1, "judge"), spec=replace(PARENT, agents=(judge,))).state.run_id
    judging = claim(database, f"{run_id}.1")
    judging.reply(text("It is."), tool_use(2, RESULT_TOOL, ok=True), stop="tool_use")
    assert results(claim(database, run_id)) == [('{"ok": true}', False)]


@pytest.mark.slow
def test_a_child_that_asks_a_person_keeps_its_parent_waiting(database: Database) -> None:
    run_id = start(database).state.run_id
    child = claim(database, f"{run_id}.1")
    child.reply(tool_use(2, "Bash", command="make"), stop="tool_use")
    assert child.effect == Done(Waiting("approval"))
    assert attend(database, LATER) == []
    assert not runs_store.unfinished(database, NOW)
    (asked,) = waiting(database, Target("run", f"{run_id}.1"))
    answer(database, [asked.id], Reply("approved", "ada"), NOW)
    child = claim(database, f"{run_id}.1").locate()
    assert isinstance(child.effect, RunTools)
    child.finish("made").reply(text("Made."))
    assert results(claim(database, run_id)) == [("Made.", False)]


@pytest.mark.slow
def test_orphans_are_cancelled(database: Database) -> None:
    """A parent that ends by itself leaves them to whoever looks next."""
    run_id = start(database, asks(1), asks(2, "tester", snapshot=False)).state.run_id
    claim(database, f"{run_id}.1").reply(asks(3), stop="tool_use")
    end(database, f"{run_id}.2")
    lease, state = load(database, run_id)
    journal = StoredJournal(database, lambda: NOW, free)
    journal.commit(lease, state, [RunSettled(Ended("stopped", "approval_timeout"))], decide_nothing)
    assert attend(database, LATER) == []
    attend(database, LATER)
    assert {row.state for row in tree_of(database, run_id).values()} == {"cancelled", "succeeded"}
    (cancelled,) = told(database, f"{run_id}.1.1", "cancelled")
    assert (cancelled["by"], cancelled["why"]) == ("runner", "its parent has ended")


def test_an_orphan_whose_parent_is_taken_up_again_meanwhile_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start(database).state.run_id
    lease, state = load(database, run_id)
    journal = StoredJournal(database, lambda: NOW, free)
    journal.commit(lease, state, [RunSettled(Ended("failed", "workspace"))], decide_nothing)
    find = database.find

    def found_before_the_retry(*arguments: Any) -> list[Any]:
        monkeypatch.undo()
        found = find(*arguments)
        retry(database, Target("run", run_id), NOW)
        return found

    monkeypatch.setattr(database, "find", found_before_the_retry)
    assert attend(database, LATER) == []
    assert state_of(database, run_id) == ("queued", "")
    assert state_of(database, f"{run_id}.1") == ("queued", "")
    assert told(database, f"{run_id}.1", "cancelled") == []


@pytest.mark.slow
def test_a_call_that_a_person_is_asked_about_holds_up_no_other_agent(database: Database) -> None:
    """Neither those past the most at once nor those that are asked about after it."""
    rules = (*PARENT.rules, Rule("ask", "Agent(tester)"))
    more = [asks(number) for number in range(3, MOST_AT_ONCE + 4)]
    spec = replace(PARENT, rules=rules)
    run_id = start(database, asks(1, "tester"), asks(2, "tester"), *more, spec=spec).state.run_id
    assert state_of(database, run_id) == ("waiting", "children")
    for number in range(1, MOST_AT_ONCE + 1):
        end(database, f"{run_id}.{number}")
    assert state_of(database, run_id) == ("queued", "")
    claim(database, run_id)
    assert len(tree_of(database, run_id)) == len(more)
    assert state_of(database, run_id) == ("waiting", "approval")
    _, second = waiting(database, Target("run", run_id))
    answer(database, [second.id], Reply("approved", "ada"), NOW)
    assert state_of(database, run_id) == ("queued", "")
    claim(database, run_id).locate()
    assert len(tree_of(database, run_id)) == len(more) + 1
    assert state_of(database, run_id) == ("waiting", "approval")
    assert attend(database, LATER) == []


def below_a_failed_child(database: Database, *more: Block) -> tuple[str, Attempt]:
    """A run whose first child has failed by itself while its own, in the same folder, calls the model."""
    spec = replace(PARENT, limits=replace(PARENT.limits, max_agents_at_once=1))
    run_id = start(database, asks(1), *more, spec=spec).state.run_id
    middle = claim(database, f"{run_id}.1")
    assert middle.reply(asks(2), stop="tool_use").effect == WAITS
    below = claim(database, f"{run_id}.1.1")
    lease, _ = load(database, f"{run_id}.1")
    for _ in range(2):  # once it is tried again
        give_up(database, lease, "KeyError: a bug", NOW)
        if (run := runs_store.look_at(database, lease.run_id, NOW)) is not None:
            claimed = runs_store.claim(database, run, WORKER, NOW)
            assert claimed is not None
            lease = claimed
    assert state_of(database, f"{run_id}.1") == ("failed", "bug")
    return run_id, below


@pytest.mark.slow
@pytest.mark.parametrize("waiting_for_its_place", [False, True])
def test_a_run_goes_on_when_nothing_at_all_is_under_way_below_it(
    database: Database, waiting_for_its_place: bool
) -> None:
    more = [asks(3)] if waiting_for_its_place else []
    run_id, _ = below_a_failed_child(database, *more)
    assert not wake(database, run_id, LATER)
    assert runs_store.unfinished(database, LATER)
    assert attend(database, LATER) == [run_id]
    assert state_of(database, f"{run_id}.1.1") == ("cancelled", "cancelled")
    again = claim(database, run_id, LATER)
    if waiting_for_its_place:
        assert again.effect == WAITS
        assert f"{run_id}.2" in tree_of(database, run_id)
    else:
        assert isinstance(again.effect, CallModel)


@pytest.mark.slow
def test_who_is_taken_up_while_something_is_under_way_below_an_ended_child_waits_for_it(
    database: Database,
) -> None:
    run_id, _ = below_a_failed_child(database)
    lease, state = load(database, run_id)
    assert [child.result for child in state.children.current] == [None]
    journal = StoredJournal(database, lambda: NOW, free)
    assert journal.commit(lease, state, (), decide)[1] == WAITS
    assert state_of(database, run_id) == ("waiting", "children")
    assert attend(database, LATER) == [run_id]
    ((_, is_error),) = results(claim(database, run_id, LATER))
    assert is_error


def test_what_is_left_below_a_failed_run_keeps_a_worker_until_it_is_cancelled(
    database: Database,
) -> None:
    run_id = start(database).state.run_id
    child = claim(database, f"{run_id}.1")
    child.reply(tool_use(2, "Bash", command="make"), stop="tool_use")
    lease, state = load(database, run_id)
    journal = StoredJournal(database, lambda: NOW, free)
    journal.commit(lease, state, [RunSettled(Ended("failed", "workspace"))], decide_nothing)
    assert runs_store.unfinished(database, LATER)
    attend(database, LATER)
    assert not runs_store.unfinished(database, LATER)
