"""Who steers a run steers all that it has started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, Select, update

from runner.core.budget import Budget
from runner.core.commands import Raised, Reply, Target
from runner.core.run import Author, Waiting
from runner.core.steps import CallModel, Done
from runner.errors import LeaseLost, UsageError
from runner.permissions import Rule
from runner.store import budgets as budget
from runner.store.approvals import answer, apply_new_rules
from runner.store.children import attend
from runner.store.control import cancel, pause, resume
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.questions import waiting
from runner.store.retry import retry, say
from runner.store.specs import JobCache
from runner.store.tables import jobs
from tests.store.asked import add_rules
from tests.store.attempts import claim, event_types, run_row, text, tool_use
from tests.store.children.family import PARENT, WAITS, asks, end, start, told, tree_of
from tests.store.examples import NOW

ADA = Author("ada", "enough")
LATER = NOW + 5


def states(database: Database, run_id: str) -> dict[str, str]:
    """The states of a run and of all below it, by what they are called in their tree."""
    rows = {run_id: run_row(database, run_id), **tree_of(database, run_id)}
    return {each.partition(".")[2]: row.state for each, row in rows.items()}


def grown(database: Database) -> str:
    """A parent with a child that runs, one that waits for a child of its own, and one that has ended."""
    run_id = start(database, asks(1), asks(2), asks(3)).state.run_id
    claim(database, f"{run_id}.1")
    claim(database, f"{run_id}.2").reply(asks(4), stop="tool_use")
    end(database, f"{run_id}.3")
    return run_id


def test_cancelling_a_run_cancels_all_below_it(database: Database) -> None:
    run_id = grown(database)
    changes = cancel(database, Target("run", run_id), NOW, author=ADA)
    assert {change.id for change in changes if change.changed} == {
        run_id,
        f"{run_id}.1",
        f"{run_id}.2",
        f"{run_id}.2.1",
    }
    assert states(database, run_id) == {
        "": "cancelled",
        "1": "cancelled",
        "2": "cancelled",
        "3": "succeeded",
        "2.1": "cancelled",
    }
    (cancelled,) = told(database, f"{run_id}.2.1", "cancelled")
    assert (cancelled["by"], cancelled["why"]) == ("ada", "enough")
    assert attend(database, LATER) == []


def test_cancelling_a_child_leaves_its_siblings_and_tells_its_parent(database: Database) -> None:
    run_id = grown(database)
    cancel(database, Target("run", f"{run_id}.2"), NOW)
    assert states(database, run_id)["2.1"] == "cancelled"
    assert states(database, run_id)["1"] == "running"
    assert states(database, run_id)[""] == "waiting"


def test_a_child_that_is_cancelled_can_store_nothing_more(database: Database) -> None:
    run_id = start(database).state.run_id
    child = claim(database, f"{run_id}.1")
    cancel(database, Target("run", run_id), NOW)
    with pytest.raises(LeaseLost):
        child.reply(text("Fine."))


def test_a_child_that_is_born_while_its_tree_is_cancelled_is_cancelled_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child starts one of its own after who cancels has looked which there are."""
    run_id = start(database, asks(1), asks(2)).state.run_id
    child = claim(database, f"{run_id}.1")
    rows = database.rows
    looked: list[Any] = []

    def looks(query: Select[Any]) -> Sequence[Row[Any]]:
        found = rows(query)
        if not looked:
            child.reply(asks(3), stop="tool_use")
            assert child.effect == WAITS
        looked.extend(found)
        return found

    monkeypatch.setattr(database, "rows", looks)
    cancel(database, Target("run", run_id), NOW)
    assert set(states(database, run_id).values()) == {"cancelled"}
    assert f"{run_id}.1.1" in tree_of(database, run_id)


@pytest.mark.slow
def test_a_paused_tree_goes_on_where_it_was(database: Database) -> None:
    run_id = start(database, asks(1), asks(2)).state.run_id
    running = claim(database, f"{run_id}.1")
    pause(database, Target("run", run_id), NOW, author=ADA)
    assert run_row(database, run_id).reason == "paused"
    assert run_row(database, f"{run_id}.2").reason == "paused"
    running.reply(text("One."))
    assert run_row(database, f"{run_id}.1").state == "succeeded"
    assert attend(database, LATER) == []
    assert run_row(database, run_id).reason == "paused"
    resume(database, Target("run", run_id), NOW, author=ADA)
    assert run_row(database, f"{run_id}.2").state == "queued"
    assert claim(database, run_id).effect == WAITS
    end(database, f"{run_id}.2", "Two.")
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    assert [block["content"] for block in again.state.messages[-1].blocks] == ["One.", "Two."]


@pytest.mark.slow
def test_pausing_a_tree_stops_a_child_at_its_next_step(database: Database) -> None:
    run_id = start(database).state.run_id
    running = claim(database, f"{run_id}.1")
    pause(database, Target("run", run_id), NOW)
    running.reply(tool_use(2, "Read", file_path="a"), stop="tool_use")
    assert running.effect == Done(Waiting("paused"))
    resume(database, Target("run", run_id), NOW)
    assert run_row(database, f"{run_id}.1").state == "queued"


@pytest.mark.slow
def test_cancelling_a_job_cancels_its_sub_agents(database: Database) -> None:
    run_id = grown(database)
    job_id = run_row(database, run_id).job_id
    changes = cancel(database, Target("job", job_id), NOW)
    assert len(changes) == 4
    assert set(states(database, run_id).values()) == {"cancelled", "succeeded"}


@pytest.mark.slow
def test_what_only_the_run_of_an_item_can_be_is_refused_of_a_child(database: Database) -> None:
    run_id = start(database).state.run_id
    child = f"{run_id}.1"
    end(database, child)
    for refused in (
        lambda: retry(database, Target("run", child), NOW),
        lambda: retry(database, Target("run", child), NOW, fresh=True),
        lambda: say(database, child, "Go on.", NOW),
        lambda: fork(database, child, 0, NOW),
    ):
        with pytest.raises(UsageError, match=f"{child} is a sub-agent .* name {run_id}"):
            refused()
    assert event_types(database, child)[-1] == "done"


@pytest.mark.slow
def test_a_job_that_is_retried_takes_up_the_runs_of_its_items_alone(database: Database) -> None:
    run_id = grown(database)
    job_id = run_row(database, run_id).job_id
    cancel(database, Target("job", job_id), NOW)
    assert [change.id for change in retry(database, Target("job", job_id), NOW)] == [run_id]
    assert states(database, run_id)["1"] == "cancelled"


@pytest.mark.slow
def test_a_retried_parent_is_told_that_its_children_were_cancelled(database: Database) -> None:
    run_id = grown(database)
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW)
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    errors = [block.get("is_error", False) for block in again.state.messages[-1].blocks]
    assert errors == [True, True, False]
    assert len(tree_of(database, run_id)) == 4


def test_what_children_have_used_counts_when_a_ceiling_is_raised(database: Database) -> None:
    run_id = start(database).state.run_id
    end(database, f"{run_id}.1")
    parent = claim(database, run_id)
    used = parent.state.used.tokens
    assert used > parent.state.money.charged_tokens
    cancel(database, Target("run", run_id), NOW)
    charged = run_row(database, run_id).charged_tokens + used - parent.state.money.charged_tokens
    lowered = Raised(token_ceiling=charged + 100)
    with pytest.raises(UsageError, match=f"has used {charged:,} of {charged + 100:,} tokens"):
        retry(database, Target("run", run_id), NOW, raised=lowered)


def test_a_child_that_waits_for_the_budget_is_woken_at_its_own_deadline(database: Database) -> None:
    spec = replace(PARENT, budget=Budget(tokens=90_000))
    run_id = start(database, asks(1, "tester", snapshot=False), spec=spec).state.run_id
    job_id = run_row(database, run_id).job_id
    budget.set_budget(database, job_id, NOW, author=ADA, tokens=1_000)
    child = claim(database, f"{run_id}.1")
    assert child.effect == Done(Waiting("budget"))
    assert budget.wake_overdue(database, JobCache(), NOW + 599) == []
    assert budget.wake_overdue(database, JobCache(), NOW + 600) == [f"{run_id}.1"]
    ended = claim(database, f"{run_id}.1", NOW + 600)
    assert isinstance(ended.effect, Done)
    assert run_row(database, f"{run_id}.1").reason == "deadline"


def test_new_rules_answer_a_child_s_question_within_what_its_type_may(database: Database) -> None:
    closed = replace(PARENT.agents[0], rules=(Rule("allow", "Bash(make *)"),))
    spec = replace(PARENT, agents=(closed,))
    run_id = start(database, asks(1), asks(2), spec=spec).state.run_id
    asking = claim(database, f"{run_id}.1")
    asking.reply(tool_use(2, "Bash", command="make all"), stop="tool_use")
    barred = claim(database, f"{run_id}.2")
    barred.reply(tool_use(3, "Bash", command="npm test"), stop="tool_use")
    assert isinstance(barred.effect, CallModel)
    (denied,) = barred.state.messages[-1].blocks
    assert "agent type 'reviewer'" in denied["content"]
    (asked,) = waiting(database)
    assert (asked.run_id, asked.agent_types) == (f"{run_id}.1", ("reviewer",))
    reply = Reply("approved", "ada", remember="job", rule="Bash(npm *)")
    with pytest.raises(UsageError, match="does not cover"):
        answer(database, [asked.id], reply, NOW)
    job_id = run_row(database, run_id).job_id
    add_rules(database, job_id, Rule("allow", "Bash(make *)", origin="remembered"))
    assert apply_new_rules(database, NOW).queued == [f"{run_id}.1"]


def test_no_answer_lets_a_child_do_what_its_type_may_not(database: Database) -> None:
    """Its type's rules stand above the answer that was given before they were looked at."""
    run_id = start(database).state.run_id
    asking = claim(database, f"{run_id}.1")
    asking.reply(tool_use(2, "Bash", command="make all"), stop="tool_use")
    (asked,) = waiting(database)
    edited = replace(PARENT.agents[0], rules=(Rule("deny", "Bash(rm *)"),))
    spec = replace(PARENT, agents=(edited,)).to_json()
    change = update(jobs).where(jobs.c.id == asked.job_id).values(spec=spec)
    database.write(lambda connection: connection.execute(change))
    reply = Reply("approved", "ada", edited={"command": "rm -rf ."})
    with pytest.raises(UsageError, match="cannot be approved"):
        answer(database, [asked.id], reply, NOW)
