"""A run that is to end before its sub-agents: these are cancelled, and it ends with their results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.budget import Budget
from runner.core.commands import Target
from runner.core.run import Ended, Waiting
from runner.core.spec import Asking
from runner.core.steps import CallModel, Done, EndChildren
from runner.errors import LeaseLost
from runner.permissions import Rule
from runner.store.approvals import expire
from runner.store.children import attend
from runner.store.control import cancel, pause
from runner.store.database import Database
from runner.store.journal import StoredJournal
from tests.core.story import changed
from tests.store.attempts import Attempt, claim, free, run_row
from tests.store.children.family import PARENT, asks, end, start, told, tree_of
from tests.store.examples import NOW

LATER = NOW + 20
ASKING = replace(
    PARENT,
    rules=(Rule("allow", "Read"), Rule("allow", "Agent(reviewer)"), Rule("ask", "Agent(tester)")),
    asking=Asking(timeout=10.0, on_timeout="stop"),
    budget=Budget(tokens=10_000_000),
)
LATE = Ended("stopped", "approval_timeout", "nobody answered in time")


def about_to_end(database: Database) -> Attempt:
    """A run whose question nobody has answered, and which has one sub-agent that calls the model, one
    that waits for its own, and one that has ended."""
    asked = start(database, asks(1), asks(2), asks(3), asks(4, "tester"), spec=ASKING)
    assert asked.effect == Done(Waiting("approval"))
    run_id = asked.state.run_id
    assert isinstance(claim(database, f"{run_id}.1").effect, CallModel)
    claim(database, f"{run_id}.2").reply(asks(5), stop="tool_use")
    end(database, f"{run_id}.3", "Three.")
    assert expire(database, LATER) == [run_id]
    attempt = claim(database, run_id, LATER)
    assert attempt.effect == EndChildren()
    return attempt


def end_children(attempt: Attempt) -> None:
    journal = StoredJournal(attempt.database, lambda: LATER, free)
    journal.end_children(attempt.lease)
    attempt.state = changed(attempt.state, cancelled=True)


def states(database: Database, run_id: str) -> dict[str, str]:
    found = {run_id: run_row(database, run_id), **tree_of(database, run_id)}
    return {each.partition(".")[2]: row.state for each, row in found.items()}


@pytest.mark.slow
def test_all_below_a_run_that_is_to_end_is_cancelled_and_it_is_taken_up_again(
    database: Database,
) -> None:
    attempt = about_to_end(database)
    run_id = attempt.lease.run_id
    end_children(attempt)
    cancelled = {"1": "cancelled", "2": "cancelled", "2.1": "cancelled", "3": "succeeded"}
    assert states(database, run_id) == {"": "running", **cancelled}
    for below in ("1", "2", "2.1"):
        (why,) = told(database, f"{run_id}.{below}", "cancelled")
        assert (why["by"], why["why"]) == ("runner", "its parent is about to end")
    assert attempt.append().effect == Done(Waiting("children"))
    assert states(database, run_id) == {"": "queued", **cancelled}
    again = claim(database, run_id, LATER)
    assert again.effect == Done(LATE)
    results = [call.result and call.result["content"] for call in again.state.calls]
    assert [result and result.partition(" ")[0] for result in results] == [
        "The",
        "The",
        "Three.",
        None,
    ]
    assert "cancelled" in results[0]
    assert attend(database, LATER) == []


@pytest.mark.slow
def test_a_call_in_hand_of_a_sub_agent_that_is_ended_is_charged(database: Database) -> None:
    attempt = about_to_end(database)
    before = run_row(database, f"{attempt.lease.run_id}.1")
    assert before.charged_tokens == 0
    end_children(attempt)
    after = run_row(database, f"{attempt.lease.run_id}.1")
    assert (
        after.charged_tokens == before.progress["model"]["open_call"]["reservation"]["worst_case"]
    )


def test_an_attempt_that_lost_its_run_ends_no_sub_agent(database: Database) -> None:
    attempt = about_to_end(database)
    stale = replace(attempt.lease, attempt=attempt.lease.attempt - 1)
    with pytest.raises(LeaseLost):
        StoredJournal(database, lambda: LATER, free).end_children(stale)
    assert states(database, attempt.lease.run_id)["1"] == "running"
    cancel(database, Target("run", attempt.lease.run_id), LATER)
    with pytest.raises(LeaseLost):
        end_children(attempt)


@pytest.mark.slow
def test_who_dies_as_it_ends_its_sub_agents_ends_with_their_results_all_the_same(
    database: Database,
) -> None:
    attempt = about_to_end(database)
    end_children(attempt)
    lost = replace(attempt, state=StoredJournal(database, lambda: LATER, free).load(attempt.lease))
    assert lost.append().effect == Done(LATE)
    assert [call.result is None for call in lost.state.calls] == [False, False, False, True]


@pytest.mark.slow
def test_a_pause_holds_as_sub_agents_are_ended(database: Database) -> None:
    attempt = about_to_end(database)
    end_children(attempt)
    pause(database, Target("run", attempt.lease.run_id), LATER)
    assert attempt.append().effect == Done(Waiting("paused"))
