"""Calls that wait for a person: what goes on meanwhile, and what becomes of each answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.budget import Limits
from runner.core.conversation import ModelReply, Usage
from runner.core.entries import ModelReplied
from runner.core.run import Ended, Waiting
from runner.core.spec import Asking
from runner.core.steps import CallModel, Done, Effect, LocateCalls, RunTools
from runner.permissions import Answer, AnswerEffect, ResolvedPath, Rule, ToolContext, digest_of
from tests.core.story import RULES, Story, changed, several

PARKED = Done(Waiting("approval"))


def a_story(*asked: str, **spec: object) -> Story:
    rules = (*RULES, *(Rule("ask", name) for name in asked))
    return Story(**{"rules": rules, **spec})


def answer(story: Story, index: int, effect: AnswerEffect, reason: str = "") -> Effect:
    """A person answers; the run is taken up again."""
    call = story.state.calls[index]
    given = Answer(effect, digest_of(call.input), "ann", reason)
    calls = tuple(replace(c, answer=given) if c is call else c for c in story.state.calls)
    story.state = replace(story.state, calls=calls, outcome=None, attempt=story.state.attempt + 1)
    return story.go_on()


def running(effect: Effect) -> list[int]:
    assert isinstance(effect, RunTools), effect
    return [call.index for call in effect.calls]


def result(story: Story, index: int) -> str:
    return str(story.state.messages[-1].blocks[index]["content"])


def test_call_that_is_asked_parks_the_run():
    story = a_story("Bash")
    assert story.reply("tool_use", *several("Bash")) == PARKED
    assert story.state.calls[0].decision.effect == "ask"


def test_all_calls_of_a_reply_are_asked_at_once():
    story = a_story("Bash", "Edit")
    assert story.reply("tool_use", *several("Bash", "Edit", "Bash")) == PARKED
    assert [call.decision.effect for call in story.state.calls] == ["ask"] * 3


def test_calls_before_the_question_run_and_those_after_it_wait():
    story = a_story("Edit")
    effect = story.reply("tool_use", *several("Read", "Edit", "Bash"))
    assert running(effect) == [0]
    assert story.finish(0) == PARKED
    assert running(answer(story, 1, "approved")) == [1]
    assert running(story.finish(1)) == [2]


def test_reading_passes_a_question_only_among_calls_that_only_read():
    story = a_story("Grep", "Bash")
    effect = story.reply("tool_use", *several("Read", "Grep", "Read", "Bash", "Read"))
    assert running(effect) == [0, 2]
    story.finish(0)
    assert story.finish(2) == PARKED


@pytest.mark.parametrize("mode", ["safe", "all", "off"])
def test_a_test_never_runs_before_the_edit_that_it_tests(mode):
    story = a_story("Edit", parallel_tools=mode)
    assert story.reply("tool_use", *several("Edit", "Bash", "Read")) == PARKED


def test_approved_call_runs_once_and_the_run_goes_on():
    story = a_story("Bash")
    story.reply("tool_use", *several("Bash"))
    assert running(answer(story, 0, "approved")) == [0]
    assert isinstance(story.finish(0, "ran"), CallModel)
    assert result(story, 0) == "ran"


def test_denial_reaches_the_model_with_its_reason():
    story = a_story("Bash")
    story.reply("tool_use", *several("Bash"))
    assert isinstance(answer(story, 0, "denied", "not at night"), CallModel)
    assert "denied by the person who was asked: not at night" in result(story, 0)


def test_question_that_nobody_answered_in_time_is_denied():
    story = a_story("Bash", asking=Asking(timeout=60.0))
    story.reply("tool_use", *several("Bash"))
    assert isinstance(answer(story, 0, "expired"), CallModel)
    assert "nobody answered in time" in result(story, 0)


def test_question_that_nobody_answered_in_time_stops_the_run_when_the_job_says_so():
    story = a_story("Bash", asking=Asking(timeout=60.0, on_timeout="stop"))
    story.reply("tool_use", *several("Bash"))
    effect = answer(story, 0, "expired")
    assert isinstance(effect, Done)
    assert isinstance(effect.outcome, Ended)
    assert (effect.outcome.state, effect.outcome.reason) == ("stopped", "approval_timeout")
    story.state = replace(story.state, outcome=None)  # somebody takes it up again all the same
    assert isinstance(story.go_on(), CallModel)
    assert "Interrupted" in result(story, 0)


def test_approved_call_that_had_started_when_its_worker_died_is_not_run_again():
    story = a_story("Bash")
    story.reply("tool_use", *several("Bash"))
    answer(story, 0, "approved")
    story.state = replace(story.state, attempt=story.state.attempt + 1)
    assert isinstance(story.go_on(), CallModel)
    assert "outcome of this call is unknown" in result(story, 0)


def test_question_is_not_asked_again_after_the_rules_have_changed():
    """A decision is final: what a later rule means for it is an answer."""
    story = a_story("Bash")
    story.reply("tool_use", *several("Bash"))
    policy = replace(story.state.policy, rules=(Rule("allow", "*"),), snapshot=2)
    story.state = replace(story.state, policy=policy, outcome=None)
    assert story.go_on() == PARKED


def test_calls_are_located_before_they_are_decided_on():
    story = a_story()
    story.go_on()
    blocks = tuple(several("Read", "Bash"))
    effect = story.go_on(
        ModelReplied(ModelReply(blocks, "tool_use", Usage(1, output_tokens=1), "m"))
    )
    assert isinstance(effect, LocateCalls)
    assert [call.index for call in effect.calls] == [0, 1]
    assert [call.decision for call in story.state.calls] == [None, None]


def test_pause_comes_before_the_question():
    story = a_story("Bash")
    story.go_on()
    story.state = changed(story.state, pause_requested=True)
    assert story.reply("tool_use", *several("Bash")) == Done(Waiting("paused"))


def test_nobody_is_asked_about_a_call_that_cannot_run():
    story = a_story("Bash")
    story.go_on()
    broken = ToolContext(problem="The input does not fit Bash: 'command' is missing.")
    reply = ModelReply(tuple(several("Bash")), "tool_use", Usage(1, output_tokens=1), "m")
    assert isinstance(story.go_on(ModelReplied(reply, (broken,))), CallModel)
    assert story.state.messages[-1].blocks[0]["is_error"]
    assert result(story, 0) == broken.problem


def edited(story: Story, arguments: dict[str, str]) -> Effect:
    """A person approves the first call with another input; the run is taken up again."""
    call = story.state.calls[0]
    given = Answer("approved", digest_of(call.input), "ann", input=arguments)
    changed = replace(call, answer=given, tool_context=None)
    story.state = replace(story.state, calls=(changed,), outcome=None)
    return story.go_on()


def test_edited_call_is_located_anew_and_runs_with_its_new_input():
    story = a_story("Bash")
    story.reply("tool_use", *several("Bash"))
    effect = edited(story, {"command": "true"})
    assert isinstance(effect, LocateCalls)
    assert effect.calls[0].input_to_run == {"command": "true"}
    story.state = replace(
        story.state, calls=tuple(replace(call, tool_context=ToolContext()) for call in effect.calls)
    )
    assert running(story.go_on()) == [0]


def test_denial_holds_for_what_a_person_makes_of_a_call():
    story = a_story("Bash", rules=(*RULES, Rule("ask", "Bash"), Rule("deny", "Edit(//etc/**)")))
    story.reply("tool_use", *several("Bash"))
    effect = edited(story, {"command": "echo x > link"})
    assert isinstance(effect, LocateCalls)
    places = {"link": ResolvedPath("/work/link", "/etc/passwd")}
    located = (
        replace(call, tool_context=ToolContext("/work", places=places)) for call in effect.calls
    )
    story.state = replace(story.state, calls=tuple(located))
    assert isinstance(story.go_on(), CallModel)
    assert "denied by the rule deny 'Edit(//etc/**)'" in result(story, 0)


def test_approved_call_does_not_run_after_the_deadline():
    story = a_story("Bash", limits=Limits(deadline=2_000.0))
    story.reply("tool_use", *several("Bash"))
    story.now = 2_001.0
    effect = answer(story, 0, "approved")
    assert isinstance(effect, Done)
    assert isinstance(effect.outcome, Ended)
    assert effect.outcome.reason == "deadline"
