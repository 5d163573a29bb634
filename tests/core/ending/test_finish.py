"""How a run comes to its end: its result, what verifies it, the commit that it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from runner.core.budget import Limits
from runner.core.conversation import ToolResult
from runner.core.entries import Delivered, Entry, SnapshotRecorded, VerificationStarted, Verified
from runner.core.fold import apply, rested
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import CallModel, Deliver, Effect, RunTools, RunVerify
from runner.core.text import RESULT_TEXT
from runner.core.workspace import RESULT_TOOL, Verify, Workspace, result_tool
from tests.core.story import TOOLS, Story, a_run, a_spec, changed, outcome_of, says, text_of, uses

RESULT = result_tool({"type": "object"})
WITH_RESULT = {"tools": (*TOOLS, RESULT)}
GIT = Workspace("/repo", "git")
TESTS = Verify(("ruff check", "pytest -q"), rounds=2)
PASSED = ToolResult("12 passed")
FAILED = ToolResult("1 failed\nExit code 1", "failed")


def submits(call_id: str = "toolu_r", **result: Any) -> Any:
    return uses(RESULT_TOOL, call_id, result)


def verified(number: int, result: ToolResult = PASSED) -> Entry:
    return Verified(number, "pytest -q", result)


def entries(story: Story, kind: type) -> list[Entry]:
    return [entry for entry in story.entries if isinstance(entry, kind)]


# --- a structured result --------------------------------------------------------------------------


def test_a_submitted_result_ends_the_run_without_another_model_call() -> None:
    story = Story(**WITH_RESULT)
    effect = story.reply("tool_use", submits(files=3))
    assert outcome_of(effect) == Ended("succeeded", "submitted")
    assert story.state.model.calls == 1


def test_the_other_calls_of_the_reply_that_submits_still_run() -> None:
    story = Story(**WITH_RESULT)
    effect = story.reply("tool_use", submits("t0"), uses("Bash", "t1"), uses("Read", "t2"))
    assert isinstance(effect, RunTools)
    assert outcome_of(story.finish_all()) == Ended("succeeded", "submitted")


def test_who_ends_without_a_result_is_asked_for_it_twice_and_then_has_failed() -> None:
    story = Story(**WITH_RESULT)
    for _ in range(2):
        assert isinstance(story.reply("end_turn", says()), CallModel)
        assert text_of(story.tail) == [RESULT_TEXT]
    outcome = outcome_of(story.reply("end_turn", says()))
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "no_result")


def test_a_result_that_was_asked_for_ends_the_run() -> None:
    story = Story(**WITH_RESULT)
    story.reply("end_turn", says())
    assert outcome_of(story.reply("tool_use", submits())) == Ended("succeeded", "submitted")
    assert story.state.ending.result_nudges == 0


def test_a_message_that_waits_is_answered_before_the_run_ends_with_its_result() -> None:
    story = Story(**WITH_RESULT)
    story.go_on()
    story.say("And the docs?")
    assert isinstance(story.reply("tool_use", submits()), CallModel)
    assert text_of(story.tail) == ["And the docs?"]
    assert not story.state.ending.submitted
    assert outcome_of(story.reply("tool_use", submits("again"))) == Ended("succeeded", "submitted")


def test_a_job_without_a_schema_asks_for_no_result() -> None:
    assert outcome_of(Story().reply("end_turn", says())) == Ended("succeeded", "end_turn")


# --- verification ---------------------------------------------------------------------------------


def test_an_end_is_verified_before_it_is_a_success() -> None:
    story = Story(verify=TESTS)
    assert story.reply("end_turn", says("All done!")) == RunVerify(1)
    assert entries(story, VerificationStarted) == [VerificationStarted(1)]
    assert outcome_of(story.go_on(verified(1))) == Ended("succeeded", "end_turn")


def test_a_submitted_result_is_verified_too() -> None:
    story = Story(verify=TESTS, **WITH_RESULT)
    assert story.reply("tool_use", submits()) == RunVerify(1)
    assert outcome_of(story.go_on(verified(1))) == Ended("succeeded", "submitted")


def test_what_failed_goes_back_to_the_model_with_its_command_and_output() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    assert isinstance(story.go_on(verified(1, FAILED)), CallModel)
    (told,) = text_of(story.tail)
    assert "$ pytest -q\n1 failed\nExit code 1" in told


def test_braces_in_the_output_of_a_verification_are_only_text() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    story.go_on(verified(1, ToolResult("{command} {0} {", "failed")))
    assert text_of(story.tail)[0].endswith("\n{command} {0} {")


def test_after_its_rounds_a_run_that_does_not_pass_has_failed() -> None:
    story = Story(verify=TESTS)
    for number in (1, 2):
        assert story.reply("end_turn", says()) == RunVerify(number)
        assert isinstance(story.go_on(verified(number, FAILED)), CallModel)
    assert story.reply("end_turn", says()) == RunVerify(3)
    outcome = outcome_of(story.go_on(verified(3, FAILED)))
    assert outcome == Ended("failed", "verify", "`pytest -q` failed")


def test_a_round_that_passes_is_a_success() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    story.go_on(verified(1, FAILED))
    story.reply("end_turn", says())
    assert outcome_of(story.go_on(verified(2))) == Ended("succeeded", "end_turn")


@pytest.mark.parametrize("verify", [Verify(("x",), "fail"), Verify(("x",), rounds=0)])
def test_a_job_can_fail_at_the_first_verification_that_does(verify: Verify) -> None:
    story = Story(verify=verify)
    story.reply("end_turn", says())
    outcome = outcome_of(story.go_on(verified(1, FAILED)))
    assert isinstance(outcome, Ended)
    assert (outcome.state, outcome.reason) == ("failed", "verify")


def test_a_verification_that_was_cut_off_runs_again_under_its_number() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    assert story.claim() == RunVerify(1)
    assert entries(story, VerificationStarted) == [VerificationStarted(1)]


def test_what_a_person_changed_after_a_verification_is_verified_anew() -> None:
    story = Story(verify=TESTS, workspace=GIT)
    story.go_on(SnapshotRecorded("tree 1", "created"))
    story.reply("end_turn", says())
    assert isinstance(story.go_on(verified(1)), Deliver)
    assert story.claim() == Deliver(Ended("succeeded", "end_turn"))
    assert story.go_on(SnapshotRecorded("tree 2", "changed")) == RunVerify(2)


def test_a_verification_does_not_begin_in_a_worker_that_drains() -> None:
    story = Story(verify=TESTS)
    story.go_on()
    story.draining = True
    effect = story.reply("end_turn", says())
    assert outcome_of(effect) == Requeued(story.now, "shutdown")
    story.draining = False
    assert story.claim() == RunVerify(1)


def test_one_that_is_under_way_when_the_worker_drains_is_left_for_the_next() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    story.draining = True
    assert outcome_of(story.go_on()) == Requeued(story.now, "shutdown")


def test_a_run_pauses_before_it_is_verified() -> None:
    story = Story(a_run(a_spec(verify=TESTS)))
    story.go_on()
    story.state = changed(story.state, pause_requested=True)
    assert outcome_of(story.reply("end_turn", says())) == Waiting("paused")
    assert story.claim() == RunVerify(1)


def test_a_message_that_came_while_it_was_verified_is_answered_first() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    story.say("And the docs?")
    assert isinstance(story.go_on(verified(1)), CallModel)
    assert story.reply("end_turn", says()) == RunVerify(2)


def test_the_output_is_kept_with_the_run_only_until_the_model_has_it() -> None:
    story = Story(verify=TESTS)
    story.reply("end_turn", says())
    story.go_on(verified(1, FAILED))
    verification = story.state.ending.verification
    assert verification is not None
    assert (verification.passed, verification.output) == (False, "")


def test_a_run_that_is_taken_up_again_has_its_rounds_again() -> None:
    story = Story(verify=Verify(("x",), rounds=1))
    story.reply("end_turn", says())
    story.go_on(verified(1, FAILED))
    story.reply("end_turn", says())
    assert isinstance(outcome_of(story.go_on(verified(2, FAILED))), Ended)
    assert isinstance(story.claim(), CallModel)
    assert story.reply("end_turn", says()) == RunVerify(3)
    assert isinstance(story.go_on(verified(3, FAILED)), CallModel)


# --- the commit -----------------------------------------------------------------------------------


def test_a_run_on_a_branch_commits_before_it_ends() -> None:
    story = Story(workspace=GIT)
    outcome = Ended("succeeded", "end_turn")
    assert story.reply("end_turn", says()) == Deliver(outcome)
    assert outcome_of(story.go_on(Delivered("c0ffee"))) == outcome
    assert story.state.ending.delivered == "c0ffee"


def test_what_failed_or_was_stopped_is_committed_too() -> None:
    failed = Story(workspace=GIT)
    failed.go_on()
    assert failed.reply("refusal") == Deliver(
        Ended("failed", "refused", "the model refused to go on")
    )
    stopped = Story(a_run(a_spec(workspace=GIT), Limits(max_turns=1)))
    stopped.reply("tool_use", uses("Read"))
    effect = stopped.finish(0)
    assert isinstance(effect, Deliver)
    assert effect.outcome.reason == "max_turns"


@pytest.mark.parametrize(
    "workspace", [None, Workspace("/w"), Workspace("/w", "copy"), Workspace(mode="none")]
)
def test_only_runs_on_a_branch_commit(workspace: Workspace | None) -> None:
    effect: Effect = Story(workspace=workspace).reply("end_turn", says())
    assert outcome_of(effect) == Ended("succeeded", "end_turn")


def test_a_wait_is_no_end_and_commits_nothing() -> None:
    story = Story(workspace=GIT)
    story.draining = True
    assert outcome_of(story.go_on()) == Requeued(story.now, "shutdown")


def test_a_worker_that_drains_leaves_the_commit_to_the_next() -> None:
    story = Story(workspace=GIT)
    story.go_on()
    story.draining = True
    assert outcome_of(story.reply("end_turn", says())) == Requeued(story.now, "shutdown")
    story.draining = False
    assert isinstance(story.claim(), Deliver)


def test_a_run_that_goes_on_after_its_commit_commits_again_at_its_end() -> None:
    story = Story(workspace=GIT)
    story.reply("end_turn", says())
    story.say("And the docs?")
    assert isinstance(story.go_on(Delivered("c0ffee")), CallModel)
    assert story.state.ending.delivered is None
    assert isinstance(story.reply("end_turn", says()), Deliver)


def test_another_end_than_the_one_that_was_committed_is_committed_too() -> None:
    story = Story(a_run(a_spec(workspace=GIT), Limits(max_turns=1)))
    story.reply("end_turn", says())
    story.say("And the docs?")
    effect = story.go_on(Delivered("c0ffee"))
    assert isinstance(effect, Deliver)
    assert effect.outcome.reason == "max_turns"


def test_a_workspace_that_changed_after_the_commit_is_committed_again() -> None:
    story = Story(workspace=GIT)
    story.go_on(SnapshotRecorded("tree 1", "created"))
    story.reply("end_turn", says())
    for entry in (Delivered("c0ffee"), SnapshotRecorded("tree 2", "changed")):
        story.state = apply(story.state, entry)
    assert isinstance(story.claim(), Deliver)


def test_resuming_a_run_forgets_what_only_its_end_counted() -> None:
    story = Story(verify=TESTS, **WITH_RESULT)
    story.reply("end_turn", says())
    story.reply("tool_use", submits())
    story.go_on(verified(1, FAILED))
    before, after = story.state.ending, rested(story.state).ending
    assert (before.verify_failures, after.verify_failures) == (1, 0)
    assert (after.result_nudges, after.submitted) == (0, False)
