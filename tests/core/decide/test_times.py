"""Model calls begin only when the job's times allow it; tools that were asked for run at any time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from runner.core.budget import Limits
from runner.core.decide import wait_at_once
from runner.core.entries import RunSettled
from runner.core.hooks import Hook
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import CallModel, RunHook, RunTools
from runner.core.times import Moment, Times, Window
from tests.core.story import Story, a_run, a_spec, outcome_of, uses

HOUR = 3_600.0
DAY = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
NIGHT = Times(window=Window("22:00", "07:00", "UTC"))


def story_at(hour: float, times: Times = NIGHT, limits: Limits | None = None) -> Story:
    state = a_run(a_spec(times=times.at_submission(DAY)), limits)
    story = Story(replace(state, submitted_at=DAY))
    story.now = DAY + hour * HOUR
    return story


def test_a_model_call_waits_for_the_window() -> None:
    story = story_at(12)
    assert outcome_of(story.go_on()) == Requeued(DAY + 22 * HOUR, "window")
    story.now = DAY + 22 * HOUR
    assert isinstance(story.claim(), CallModel)


def test_a_model_call_waits_for_its_first_time() -> None:
    story = story_at(12, Times(not_before=Moment("13:30", "UTC")))
    assert outcome_of(story.go_on()) == Requeued(DAY + 13.5 * HOUR, "not_before")
    story.now = DAY + 36 * HOUR
    assert isinstance(story.claim(), CallModel)


def test_tools_that_were_asked_for_run_outside_the_window() -> None:
    story = story_at(6)
    assert isinstance(story.go_on(), CallModel)
    story.now = DAY + 8 * HOUR
    assert isinstance(story.reply("tool_use", uses("Bash")), RunTools)
    assert outcome_of(story.finish(0)) == Requeued(DAY + 22 * HOUR, "window")


def test_from_finish_by_on_runs_wait_for_a_person() -> None:
    story = story_at(6, Times(finish_by=Moment("07:00", "UTC")))
    story.state = replace(story.state, finish_by=DAY + 7 * HOUR)
    assert isinstance(story.go_on(), CallModel)
    story.now = DAY + 7 * HOUR
    assert isinstance(story.reply("tool_use", uses("Bash")), RunTools)
    assert outcome_of(story.finish(0)) == Waiting("finish_by")
    story.state = replace(story.state, finish_by=DAY + 9 * HOUR)
    assert isinstance(story.claim(), CallModel)


def test_a_run_whose_deadline_comes_before_the_window_stops_at_once() -> None:
    story = story_at(12, limits=Limits(deadline=18 * HOUR))
    assert outcome_of(story.go_on()) == Ended("stopped", "deadline", "the deadline of 64800 s")


def test_hooks_of_a_run_that_has_not_begun_wait_too() -> None:
    story = story_at(12)
    hook = Hook("RunStart", command="make")
    story.state = replace(story.state, spec=replace(story.state.spec, hooks=(hook,)))
    assert outcome_of(story.go_on()) == Requeued(DAY + 22 * HOUR, "window")
    story.now = DAY + 22 * HOUR
    assert isinstance(story.claim(), RunHook)


def test_only_a_run_with_nothing_else_to_do_waits_at_once() -> None:
    story = story_at(6)
    story.go_on()
    assert isinstance(story.reply("tool_use", uses("Bash")), RunTools)
    outside = DAY + 8 * HOUR
    assert wait_at_once(story.state, outside) == []  # its tool needs the workspace
    story.finish(0)
    story.reply("tool_use", uses("Bash"))
    story.now = outside
    story.finish(0)
    waits = wait_at_once(replace(story.state, outcome=None), outside)
    assert waits == [RunSettled(Requeued(DAY + 22 * HOUR, "window"))]
    assert wait_at_once(replace(story.state, outcome=None), DAY + 6 * HOUR) == []


def test_patience_with_the_model_begins_anew_after_the_window() -> None:
    story = story_at(6)
    story.go_on()
    story.break_off(retry_at=story.now + 2 * HOUR)
    story.now += 2 * HOUR
    assert outcome_of(story.claim()) == Requeued(DAY + 22 * HOUR, "window")
    assert story.state.model.failure is None
