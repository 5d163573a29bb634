"""Forks and turns of runs with hooks that change files, and with instructions of their workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from runner.core.commands import Target
from runner.core.conversation import ToolResult, Usage
from runner.core.entries import HookFinished, InstructionsRead, SnapshotRecorded, ToolFinished
from runner.core.hooks import WITHHELD, Hook, HookAnswer, HookResult
from runner.core.steps import CallModel, RunHook, RunTools
from runner.core.workspace import Instructions
from runner.errors import UsageError
from runner.queries.transcript import sent_request
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.retry import retry
from runner.store.tables import run_instructions
from runner.store.workspaces import snapshots_around_turn
from tests.store.attempts import Attempt, claim, run_row, submit_one, text, tool_use
from tests.store.forking import RECORDED, SAID, begun, copied, forked

HOOKED = replace(
    RECORDED,
    hooks=(
        Hook("RunStart", command="set up"),
        Hook("PreToolUse", ("Read",), command="look"),
        Hook("PostToolUse", command="format"),
        Hook("TurnEnd", command="check"),
        Hook("RunEnd", command="tell"),
    ),
)
FINE = HookResult(HookAnswer("succeeded"))


def begin(database: Database) -> Attempt:
    """A run with hooks, up to the first of them."""
    created = SnapshotRecorded("tree 0", "created")
    return claim(database, submit_one(database, spec=HOOKED), found=[created])


def through_hooks(attempt: Attempt, **trees: str) -> Attempt:
    """Hooks run, and change files as it is said of their events."""
    while isinstance(attempt.effect, RunHook):
        run = attempt.effect.run
        attempt.append(HookFinished(run.number, FINE, trees.get(run.event)))
    return attempt


def a_turn(attempt: Attempt, made: str | None, **trees: str) -> Attempt:
    """A turn with a command that makes a tree, or with a call that only reads."""
    number = attempt.state.turns + 1
    use = tool_use(number, "Bash", command="make") if made else tool_use(number, path="a")
    attempt.reply(use, stop="tool_use")
    through_hooks(attempt, **trees)
    assert isinstance(attempt.effect, RunTools)
    attempt.append(ToolFinished(0, ToolResult("done"), made))
    return through_hooks(attempt, **trees)


def hooked(database: Database) -> Attempt:
    """Two commands, with a turn between them in which only a hook changes files, and a last word."""
    attempt = begin(database)
    through_hooks(attempt, RunStart="set up")
    a_turn(attempt, "made 1", PostToolUse="formatted 1", TurnEnd="checked 1")
    a_turn(attempt, None, PreToolUse="looked 2")
    a_turn(attempt, "made 3", PostToolUse="formatted 3")
    return through_hooks(attempt.reply(text("Done.")))


AFTER: Mapping[int, str] = {
    0: "tree 0",
    1: "checked 1",
    2: "looked 2",
    3: "formatted 3",
    4: "formatted 3",
}


@pytest.mark.parametrize("turn", AFTER)
def test_fork_begins_with_what_hooks_of_its_turn_have_made_of_the_files(
    database: Database, turn: int
) -> None:
    fork_id = forked(database, hooked(database), turn, **SAID)
    assert run_row(database, fork_id).progress["files"]["tree"] == AFTER[turn]
    assert run_row(database, fork_id).start_tree == "tree 0"


@pytest.mark.slow
def test_fork_of_a_fork_begins_with_what_the_hooks_of_each_have_made(database: Database) -> None:
    second = begun(database, forked(database, hooked(database), 2))
    through_hooks(second, RunStart="set up again")
    a_turn(second, None)
    a_turn(second, "made 4", PostToolUse="formatted 4")
    through_hooks(second.reply(text("Done.")))
    run_id = second.lease.run_id
    found = {
        turn: run_row(database, forked(database, second, turn, **SAID)).progress["files"]["tree"]
        for turn in range(1, 6)
    }
    assert found == {
        1: "checked 1",
        2: "looked 2",
        3: "set up again",
        4: "formatted 4",
        5: "formatted 4",
    }
    assert snapshots_around_turn(database, run_id, 1) == ("tree 0", "checked 1")
    assert snapshots_around_turn(database, run_id, 3) == ("looked 2", "set up again")
    assert snapshots_around_turn(database, run_id, 4) == ("set up again", "formatted 4")


def test_what_turns_have_changed_adds_up_with_what_hooks_did(database: Database) -> None:
    run_id = hooked(database).lease.run_id
    assert [snapshots_around_turn(database, run_id, turn) for turn in range(1, 5)] == [
        ("tree 0", "checked 1"),
        ("checked 1", "looked 2"),
        ("looked 2", "formatted 3"),
        None,
    ]


def test_what_a_hook_left_that_was_cut_off_is_of_its_turn(database: Database) -> None:
    attempt = begin(database)
    through_hooks(attempt).reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("done"), "made"))
    assert isinstance(attempt.effect, RunHook)
    run_id = attempt.lease.run_id
    cancel(database, Target("run", run_id), attempt.now)
    retry(database, Target("run", run_id), attempt.now)
    again = claim(database, run_id, found=[SnapshotRecorded("half formatted", "changed")])
    assert isinstance(through_hooks(again.locate()).effect, CallModel)
    assert snapshots_around_turn(database, run_id, 1) == ("tree 0", "half formatted")
    assert begun(database, forked(database, again, 1)).state.files.tree == "half formatted"


def test_turn_whose_hooks_have_not_run_cannot_be_forked_yet(database: Database) -> None:
    attempt = begin(database)
    through_hooks(attempt).reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("done"), "made"))
    with pytest.raises(UsageError, match="hooks of it may still change files"):
        forked(database, attempt, 1)
    assert run_row(database, forked(database, attempt, 0)).state == "queued"
    through_hooks(attempt, TurnEnd="checked")
    assert isinstance(attempt.effect, CallModel)
    assert begun(database, forked(database, attempt, 1)).state.files.tree == "checked"


def test_turn_is_not_forked_past_a_hook_that_may_replace_its_results(database: Database) -> None:
    """Its run was cancelled in the hook: the fork would show the model what the hook has not seen."""
    attempt = begin(database)
    through_hooks(attempt).reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("done"), "made"))
    run_id = attempt.lease.run_id
    cancel(database, Target("run", run_id), attempt.now)
    with pytest.raises(UsageError, match=f"`runner retry {run_id}` runs them"):
        forked(database, attempt, 1)
    retry(database, Target("run", run_id), attempt.now)
    again = through_hooks(claim(database, run_id).locate())
    assert again.state.messages[-1].blocks[0]["content"] == WITHHELD
    assert begun(database, forked(database, again, 1)).state.messages == again.state.messages


def test_turn_in_whose_last_hooks_a_run_was_cancelled_can_be_forked(database: Database) -> None:
    """Hooks of TurnEnd replace no results."""
    hooks = tuple(hook for hook in HOOKED.hooks if hook.event in ("RunStart", "TurnEnd"))
    spec = replace(HOOKED, hooks=hooks)
    created = SnapshotRecorded("tree 0", "created")
    attempt = claim(database, submit_one(database, spec=spec), found=[created])
    through_hooks(attempt).reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("done"), "made"))
    cancel(database, Target("run", attempt.lease.run_id), attempt.now)
    again = begun(database, forked(database, attempt, 1))
    assert again.state.files.tree == "made"
    assert [run.event for run in again.state.hooks.runs] == ["RunStart"]


# --- instructions ---

READ = InstructionsRead((Instructions("AGENTS.md", "12" * 32, "Be kind.\n" * 40),))


def instructed(database: Database) -> Attempt:
    """A run of one turn that has read instructions."""
    spec = replace(RECORDED, instructions=True)
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.append(SnapshotRecorded("tree 0", "created"), READ)
    usage = Usage(input_tokens=260, output_tokens=10)
    attempt.reply(tool_use(1, "Bash", command="make"), stop="tool_use", usage=usage)
    return attempt.append(ToolFinished(0, ToolResult("made"), "tree 1"))


@pytest.mark.parametrize("model", [None, "claude-other"])
def test_fork_has_the_instructions_that_its_conversation_was_made_under(
    database: Database, model: str | None
) -> None:
    attempt = instructed(database)
    fork_id = forked(database, attempt, 1, model=model)
    assert copied(database, run_instructions, fork_id) == copied(
        database, run_instructions, attempt.lease.run_id
    )
    again = begun(database, fork_id)
    assert again.state.files.instructed
    assert again.state.spec.system == attempt.state.spec.system
    assert sent_request(database, fork_id, 2).system == attempt.state.spec.system
    before, after = attempt.state.context, again.state.context
    assert after.estimate == before.estimate
    if model is None:
        assert after.tokens == before.tokens
        assert after.appended_bytes == before.appended_bytes
    else:
        assert after.appended_bytes == again.state.spec.request_bytes(again.state.messages)


def test_fork_from_the_beginning_reads_instructions_anew(database: Database) -> None:
    fork_id = forked(database, instructed(database), 0)
    assert copied(database, run_instructions, fork_id) == []
    again = begun(database, fork_id)
    assert not again.state.files.instructed
    assert again.state.spec.system == RECORDED.system
