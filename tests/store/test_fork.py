"""Runs that go on from a turn of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import insert, select, update

from runner.core.budget import Limits
from runner.core.commands import Change, Target
from runner.core.context import Compacted
from runner.core.conversation import ToolResult, Usage
from runner.core.entries import SnapshotRecorded, ToolFinished
from runner.core.steps import CallModel
from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.permissions import Rule
from runner.queries import decisions, transcript
from runner.queries.jobs import current_runs, list_runs, show_job
from runner.queries.transcript import sent_request, show_run, tool_output
from runner.store import ids
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.retry import retry, say
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    events,
    model_calls,
    run_items,
    runs,
    tool_calls,
    tool_outputs,
)
from tests.core.sendable import faults
from tests.store.asked import priced, submit_budgeted
from tests.store.attempts import claim, event_types, run_row, submit_one, text, tool_use
from tests.store.compacting import compact, stand_in, truncation
from tests.store.examples import NOW, SPEC
from tests.store.forking import (
    LATER,
    RECORDED,
    SAID,
    begun,
    begun_input,
    contents,
    copied,
    forked,
    rows,
    three_turns,
)


def test_fork_has_the_conversation_up_to_its_turn(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1)
    state = begun(database, fork_id).state
    assert state.messages == attempt.state.messages[:3]
    assert contents(state.messages) == [["Mend one."], ["tool_use"], ["made 1"]]
    assert state.calls == ()


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_conversation_of_a_fork_can_be_sent(database: Database, turn: int) -> None:
    forked_run = begun(database, forked(database, three_turns(database), turn, **SAID))
    assert isinstance(forked_run.effect, CallModel)
    assert not faults(forked_run.state.messages)
    assert contents(forked_run.state.messages)[-1][-1] == "Go on."
    forked_run.reply(text("Done."))
    assert run_row(database, forked_run.lease.run_id).state == "succeeded"


def test_rows_of_calls_and_outputs_are_copied_up_to_the_turn(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    for number in (1, 2):
        attempt.reply(tool_use(number), stop="tool_use")
        attempt.finish("cut", output=f"whole {number}".encode())
    run_id, fork_id = attempt.lease.run_id, forked(database, attempt, 1)
    for table in (tool_calls, tool_outputs):
        assert copied(database, table, fork_id) == copied(database, table, run_id)[:1]
    assert copied(database, run_items, fork_id) == copied(database, run_items, run_id)
    name = ids.call_id(fork_id, 1, 0)
    assert tool_output(database, fork_id, name) == b"whole 1"
    assert tool_output(database, fork_id, ids.call_id(fork_id, 2, 0)) is None
    assert transcript.show_call(database, name)["output"] == "whole 1"


def test_calls_of_a_fork_are_counted_on_from_those_it_copied(database: Database) -> None:
    again = begun(database, forked(database, three_turns(database), 1))
    again.reply(tool_use(7, "Bash", command="ls"), stop="tool_use")
    found = copied(database, tool_calls, again.lease.run_id)
    assert [(call["turn"], call["tool_use_id"]) for call in found] == [
        (1, "toolu_1"),
        (2, "toolu_7"),
    ]


def test_what_was_said_after_the_turn_is_not_copied(database: Database) -> None:
    attempt = claim(database, submit_one(database)).reply(tool_use(1), stop="tool_use")
    say(database, attempt.lease.run_id, "Be quick.", NOW)
    attempt.finish("one")
    assert contents(attempt.state.messages)[-1] == ["one", "Be quick."]
    attempt.reply(tool_use(2), stop="tool_use").finish("two")
    first = begun(database, forked(database, attempt, 1, text="Be slow."))
    assert contents(first.state.messages)[-1] == ["one", "Be slow."]
    second = begun(database, forked(database, attempt, 2))
    assert contents(second.state.messages)[2] == ["one", "Be quick."]


def test_compactions_up_to_the_turn_are_copied_and_sent(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    compact(attempt, truncation(2))
    compact(attempt, stand_in(2))
    compact(attempt, truncation(6))
    attempt.reply(text("Done."))
    for turn, count in ((1, 0), (2, 1), (3, 2)):
        again = begun(database, forked(database, attempt, turn))
        assert again.state.context.compacted.count == count
        assert run_row(database, again.lease.run_id).compaction_count == count
        sent = sent_request(database, again.lease.run_id, turn + 1)
        assert sent.messages == again.state.sent
    row = copied(database, compactions, again.lease.run_id)[-1]
    assert (row["first_sent_in"], row["made_by_call"]) == (1, None)


def test_fork_counts_what_its_first_prompt_holds(database: Database) -> None:
    """As its own journal would, had it lived through the turns itself."""
    attempt = claim(database, submit_one(database))
    usage = Usage(input_tokens=60, output_tokens=10)
    attempt.reply(tool_use(1), stop="tool_use", usage=usage).finish("one")
    before = attempt.state.context
    after = begun(database, forked(database, attempt, 1)).state.context
    assert replace(after, checked_window=None) == replace(before, checked_window=None)
    assert after.last_prompt_tokens == before.last_prompt_tokens == 60
    assert after.appended_bytes == before.appended_bytes


def test_other_model_s_prompt_is_bounded_by_its_bytes(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    state = begun(database, forked(database, attempt, 1, model="claude-other")).state
    assert state.context.last_prompt_tokens is None
    assert state.context.measured is None
    assert state.context.appended_bytes == state.spec.request_bytes(state.messages)
    assert state.context.estimate == attempt.state.context.estimate


# --- files ---


@pytest.mark.parametrize(
    ("turn", "tree"), [(0, "tree 0"), (1, "tree 1"), (2, "tree 2"), (3, "tree 2")]
)
def test_fork_begins_with_the_files_of_its_turn(database: Database, turn: int, tree: str) -> None:
    fork_id = forked(database, three_turns(database), turn, **SAID)
    assert begun(database, fork_id).state.files.tree == tree
    assert run_row(database, fork_id).start_tree == "tree 0"


def test_fork_can_work_where_the_trees_of_the_other_are(database: Database) -> None:
    attempt = three_turns(database)
    placed = {"workspace_path": "/worktrees/1", "workspace_id": "snap_1"}
    these = runs.c.id == attempt.lease.run_id
    database.write(lambda c: c.execute(update(runs).where(these).values(**placed)))
    row = run_row(database, forked(database, attempt, 1))
    assert (row.workspace_path, row.workspace_id) == ("/worktrees/1", "snap_1")


def test_fork_can_work_anywhere_where_the_trees_are_pushed(database: Database) -> None:
    """Also when the host is gone that the other's sub-agents hold it to."""
    workspace = Workspace("/repo", "git", remote="git@example.org:repo.git")
    attempt = three_turns(database, replace(RECORDED, workspace=workspace))
    held = {"workspace_path": "/worktrees/1", "workspace_id": "snap_1"}
    these = runs.c.id == attempt.lease.run_id
    database.write(lambda c: c.execute(update(runs).where(these).values(**held)))
    row = run_row(database, forked(database, attempt, 1))
    assert (row.workspace_path, row.workspace_id) == (None, None)


def test_turn_whose_files_were_not_recorded_cannot_be_forked(database: Database) -> None:
    attempt = claim(database, submit_one(database, spec=RECORDED))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    with pytest.raises(UsageError, match="are not known, as none were recorded"):
        forked(database, attempt, 1)
    assert run_row(database, forked(database, attempt, 0)).state == "queued"


def test_shared_workspace_has_no_tree(database: Database) -> None:
    spec = replace(RECORDED, workspace=Workspace("/repo"))
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    fork_id = forked(database, attempt, 1)
    row = run_row(database, fork_id)
    assert (row.workspace_path, row.start_tree, row.progress["files"]["tree"]) == (
        "/repo",
        None,
        None,
    )


def test_fork_is_told_of_its_folders_when_the_conversation_names_the_other_s(
    database: Database,
) -> None:
    attempt = claim(database, submit_one(database, spec=RECORDED))
    run_id = attempt.lease.run_id
    attempt.append(SnapshotRecorded("tree 0", "created"))
    attempt.reply(tool_use(1, "Bash", command="pwd"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult(f"/home/workspaces/{run_id}"), "tree 1"))
    fork_id = forked(database, attempt, 1, text="Go on.")
    told, said = contents(begun(database, fork_id).state.messages)[-1][1:]
    assert said == "Go on."
    assert run_id.removeprefix("run_") in told
    assert fork_id.removeprefix("run_") in told
    assert contents(begun(database, forked(database, attempt, 0)).state.messages) == [["Mend one."]]


# --- a run of its own ---


def test_original_is_unchanged(database: Database) -> None:
    attempt = three_turns(database)
    before = rows(database, attempt.lease.run_id)
    begun(database, forked(database, attempt, 2, model="claude-other", **SAID)).reply(text("Yes."))
    assert rows(database, attempt.lease.run_id) == before


def test_fork_is_a_queued_run_of_the_same_job_and_item(database: Database) -> None:
    attempt = three_turns(database)
    change = fork(database, attempt.lease.run_id, 2, LATER)
    old, new = run_row(database, attempt.lease.run_id), run_row(database, change.id)
    assert change == Change(new.id, "one", "queued", True, f"forked from {old.id} after turn 2")
    assert (new.job_id, new.item_key) == (old.job_id, old.item_key)
    assert (new.fork_of, new.fork_turn, new.model) == (old.id, 2, None)
    assert (new.state, new.due_at, new.created_at) == ("queued", LATER, LATER)
    assert event_types(database, new.id) == ["run_submitted", "forked"]


def test_fork_begins_with_nothing_used(database: Database) -> None:
    row = run_row(database, forked(database, three_turns(database), 2))
    assert (row.turns, row.attempt, row.denials, row.answer_count) == (2, 0, 0, 0)
    assert (row.input_tokens, row.output_tokens, row.charged_tokens) == (0, 0, 0)
    assert (row.progress["money"]["charged_cost"], row.progress["worked"]) == (0, 0)
    assert row.progress["model"]["calls"] == 0


def test_fork_has_the_limits_of_the_other_to_itself(database: Database) -> None:
    spec = replace(SPEC, limits=Limits(max_turns=2, token_ceiling=100_000))
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    attempt.reply(tool_use(2), stop="tool_use").finish("two")
    assert run_row(database, attempt.lease.run_id).reason == "max_turns"
    again = begun(database, forked(database, attempt, 1))
    assert (again.state.limits.max_turns, again.state.limits.token_ceiling) == (3, 100_000)
    again.reply(tool_use(2), stop="tool_use").finish("two")
    assert isinstance(again.effect, CallModel)


def test_fork_calls_its_own_model(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1, model="claude-other")
    again = begun(database, fork_id)
    assert again.state.spec.model == "claude-other"
    query = select(model_calls.c.model).where(model_calls.c.run_id == fork_id)
    assert database.read(lambda c: c.execute(query).scalars().all()) == ["claude-other"]
    again.reply(tool_use(5), stop="tool_use").finish("five")
    of_fork = run_row(database, fork(database, fork_id, 2, LATER).id)
    assert (of_fork.model, of_fork.fork_of) == ("claude-other", fork_id)
    back = fork(database, fork_id, 2, LATER, model=SPEC.model)
    assert run_row(database, back.id).model is None


def test_text_is_said_to_the_fork_alone(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 3, text="And the tests?")
    assert event_types(database, fork_id) == ["run_submitted", "forked", "message_queued"]
    again = begun(database, fork_id)
    assert contents(again.state.messages)[-2:] == [["Done."], ["And the tests?"]]
    assert run_row(database, attempt.lease.run_id).queued_count == 0


def test_budget_of_the_job_holds_for_its_forks(database: Database) -> None:
    _, (run_id,) = submit_budgeted(database, "one", usd=5.0)
    attempt = claim(database, run_id, tariffs=priced)
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    spent = attempt.state.money.budget
    again = claim(database, forked(database, attempt, 1), LATER, tariffs=priced)
    assert again.state.money.budget is not None
    assert spent is not None
    assert again.state.money.budget.reserved_cost > spent.reserved_cost
    assert again.state.money.budget.spent_cost == spent.spent_cost


def test_denials_that_were_copied_count_once(database: Database) -> None:
    attempt = claim(database, submit_one(database, spec=RECORDED))
    attempt.append(SnapshotRecorded("tree 0", "created"))
    attempt.reply(tool_use(1, "Bash"), tool_use(2, "Nothing"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("ok"), "tree 1"))
    denied = {"outcome": "denied", "decision": "deny"}
    second = tool_calls.c.position == 1
    database.write(lambda c: c.execute(update(tool_calls).where(second).values(**denied)))
    job_id = run_row(database, attempt.lease.run_id).job_id
    fork_id = forked(database, attempt, 1)
    assert decisions.denied_counts(database, job_id) == (1, 1)
    assert [kind["calls"] for kind in decisions.denied_kinds(database, job_id)] == [1]
    assert decisions.denied_calls(database, fork_id) == []


def test_fork_is_listed_beside_its_original(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1)
    job_id = run_row(database, fork_id).job_id
    found = current_runs(list_runs(database, job_id))
    assert [run["id"] for run in found] == [attempt.lease.run_id, fork_id]
    assert show_job(database, job_id)["runs"] == {"succeeded": 1, "queued": 1}
    assert show_run(database, fork_id)["item"] == {"file": "one"}


def test_questions_that_were_answered_stay_the_original_s(database: Database) -> None:
    spec = replace(RECORDED, rules=(Rule("allow", "Bash"),))
    attempt = three_turns(database, spec)
    question = {
        "run_id": attempt.lease.run_id,
        "message": 1,
        "position": 0,
        "job_id": run_row(database, attempt.lease.run_id).job_id,
        "id": ids.new("apr", NOW),
        "turn": 1,
        "tool": "Bash",
        "input_digest": "",
        "setting": {},
        "checked_snapshot": 1,
        "summary": "make",
        "group_key": "make",
        "suggested_rule": "",
        "asked_at": NOW,
        "answer": "approved",
        "answered_at": NOW,
    }
    database.write(lambda c: c.execute(insert(approvals).values(question)))
    fork_id = forked(database, attempt, 2)
    assert decisions.approvals_of_run(database, fork_id) == []
    assert decisions.decision_on_call(database, ids.call_id(fork_id, 1, 0))["approval"] is None


def test_fork_is_not_begun_afresh_but_forked_anew(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1)
    cancel(database, Target("run", fork_id), LATER)
    with pytest.raises(UsageError, match=f"runner fork {attempt.lease.run_id}@1"):
        retry(database, Target("run", fork_id), LATER, fresh=True)
    (change,) = retry(database, Target("run", fork_id), LATER)
    assert change.state == "queued"
    assert isinstance(begun(database, fork_id).effect, CallModel)


def test_original_that_has_forks_can_be_begun_afresh(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1)
    (change,) = retry(database, Target("run", attempt.lease.run_id), LATER, fresh=True)
    job_id = run_row(database, fork_id).job_id
    found = current_runs(list_runs(database, job_id))
    assert {run["id"] for run in found} == {fork_id, change.id}


def test_event_says_what_a_fork_is_of(database: Database) -> None:
    attempt = three_turns(database)
    fork_id = forked(database, attempt, 1, model="claude-other")
    query = select(events.c.data).where(events.c.run_id == fork_id, events.c.type == "forked")
    data = database.read(lambda c: c.execute(query).scalar_one())
    of = attempt.lease.run_id
    by = {"by": None, "why": ""}
    assert data == {"of": of, "turn": 1, "model": "claude-other", "messages": 3} | by


def test_blocks_are_copied_to_the_byte(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    hostile = "é\u0000\ud800\x1b[31m"
    attempt.reply(tool_use(1, "Read", z=1, a=hostile), stop="tool_use").finish(hostile)
    fork_id = forked(database, attempt, 1)
    assert copied(database, blocks, fork_id) == copied(database, blocks, attempt.lease.run_id)
    assert begun(database, fork_id).state.messages == attempt.state.messages
    assert list(begun_input(database, fork_id)) == ["z", "a"]


def test_nothing_is_compacted_where_nothing_was(database: Database) -> None:
    again = begun(database, forked(database, three_turns(database), 1))
    assert again.state.context.compacted == Compacted()
