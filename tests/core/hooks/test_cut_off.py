"""A hook that its worker left in the middle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.conversation import ToolResult
from runner.core.entries import Delivered, HookFinished, HookStarted, SnapshotRecorded, Verified
from runner.core.fold import rested
from runner.core.hooks import Hook, HookAnswer, HookEvent, HookResult
from runner.core.run import Ended
from runner.core.steps import CallModel, Deliver, RunHook, RunVerify
from runner.core.tool_calls import undo_needed
from runner.core.workspace import Verify, Workspace
from tests.core.story import Story, changed, outcome_of, says, uses


def left_in_the_middle(*, repeatable: bool) -> Story:
    hook = Hook("RunStart", command="./begin", repeatable=repeatable)
    story = Story(hooks=(hook,), workspace=Workspace("/repo", "copy"))
    effect = story.go_on(SnapshotRecorded("tree 1", "created"))
    assert isinstance(effect, RunHook)
    return story


@pytest.mark.parametrize("repeatable", [True, False])
def test_files_are_put_back_for_a_hook_that_runs_again_alone(repeatable):
    story = left_in_the_middle(repeatable=repeatable)
    assert not undo_needed(story.state)
    assert undo_needed(replace(story.state, attempt=2)) == repeatable


def test_a_hook_that_may_runs_again_under_its_number():
    story = left_in_the_middle(repeatable=True)
    effect = story.claim()
    assert isinstance(effect, RunHook)
    assert (effect.run.number, effect.run.started_by) == (1, 2)
    assert story.entries[-1] == HookStarted(1, 0, "RunStart")
    assert isinstance(story.go_on(HookFinished(1, HookResult(HookAnswer("succeeded")))), CallModel)
    assert len(story.state.hooks.runs) == 1


def test_a_hook_that_may_not_has_an_unknown_outcome():
    story = left_in_the_middle(repeatable=False)
    assert isinstance(story.claim(), CallModel)
    (run,) = story.state.hooks.runs
    assert run.answer == HookAnswer("unknown", reason="its worker died while it ran")


UNKNOWN = HookAnswer("unknown", reason="its worker died while it ran")


def left_at_the_end(*, repeatable: bool) -> Story:
    """A run that is verified and delivered, and whose last hook is left in the middle."""
    hook = Hook("RunEnd", command="./tell", repeatable=repeatable)
    verify = Verify(("true",))
    story = Story(hooks=(hook,), workspace=Workspace("/repo", "git"), verify=verify)
    story.go_on(SnapshotRecorded("tree 1", "created"))
    assert isinstance(story.reply("end_turn", says()), RunVerify)
    assert isinstance(story.go_on(Verified(1, "true", ToolResult("ok"))), Deliver)
    assert isinstance(story.go_on(Delivered("commit 1")), RunHook)
    story.state = replace(story.state, attempt=2)
    return story


@pytest.mark.parametrize("repeatable", [True, False])
def test_what_a_hook_of_the_end_has_changed_is_put_back_whether_it_runs_again_or_not(repeatable):
    story = left_at_the_end(repeatable=repeatable)
    assert undo_needed(story.state)
    effect = story.go_on(SnapshotRecorded("tree 1", "restored", "tree 2"))
    if repeatable:
        assert isinstance(effect, RunHook)
        effect = story.go_on(HookFinished(1, HookResult(HookAnswer("succeeded"))))
    assert outcome_of(effect) == Ended("succeeded", "end_turn")
    assert sum(isinstance(entry, Delivered) for entry in story.entries) == 1
    assert story.state.ending.verification.number == 1
    (run,) = story.state.hooks.runs
    assert repeatable or run.answer == UNKNOWN


def test_what_a_hook_of_the_end_has_changed_is_put_back_when_the_run_goes_on_instead():
    story = left_at_the_end(repeatable=False)
    story.say("Wait.")
    assert undo_needed(story.state)
    assert isinstance(story.go_on(SnapshotRecorded("tree 1", "restored", "tree 2")), CallModel)


@pytest.mark.parametrize("event", ["RunStart", "RunEnd"])
@pytest.mark.parametrize("repeatable", [True, False])
def test_a_hook_that_was_cut_off_with_its_run_is_over_when_that_is_taken_up(
    event: HookEvent, repeatable: bool
):
    """The files are put back once; what somebody changes after that stays."""
    story = (
        left_at_the_end(repeatable=repeatable)
        if event == "RunEnd"
        else left_in_the_middle(repeatable=repeatable)
    )
    cancelled = replace(rested(story.state), attempt=2)
    story.state = replace(cancelled, attempt=3)
    assert undo_needed(story.state) == (repeatable or event == "RunEnd")
    story.go_on()
    assert story.state.hooks.runs[0].answer == UNKNOWN
    assert not undo_needed(changed(story.state, attempt=4, runs=story.state.hooks.runs[:1]))


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_hook_before_a_call_that_was_cut_off_with_its_run_is_over_as_its_call_is(
    repeatable: bool,
):
    """What somebody changed before they took the run up again stays, at this attempt and at the next."""
    hook = Hook("PreToolUse", command="./look", repeatable=repeatable)
    story = Story(hooks=(hook,), workspace=Workspace("/repo", "copy"))
    story.go_on(SnapshotRecorded("tree 1", "created"))
    assert isinstance(story.reply("tool_use", uses("Bash")), RunHook)
    assert undo_needed(replace(story.state, attempt=2)) == repeatable
    calls = tuple(replace(call, interrupted=True) for call in story.state.calls)
    cancelled = replace(rested(story.state), attempt=2, calls=calls)
    story.state = replace(cancelled, attempt=3)
    assert not undo_needed(story.state)
    assert isinstance(story.go_on(SnapshotRecorded("tree 2", "changed")), CallModel)
    (run,) = story.state.hooks.runs
    assert run.answer == UNKNOWN
    assert not undo_needed(replace(story.state, attempt=4))
