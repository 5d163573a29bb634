"""A hook that its worker left in the middle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.entries import HookFinished, HookStarted, TreeRecorded
from runner.core.files.doubt import undo_needed
from runner.core.files.workspace import Workspace
from runner.core.hooks.hook import Hook
from runner.core.hooks.run import HookAnswer, HookResult
from runner.core.steps import CallModel, RunHook
from tests.core.story import Story


def left_in_the_middle(*, repeatable: bool) -> Story:
    hook = Hook("RunStart", command="./begin", repeatable=repeatable)
    story = Story(hooks=(hook,), workspace=Workspace("/repo", "copy"))
    effect = story.go_on(TreeRecorded("tree 1", "created"))
    assert isinstance(effect, RunHook)
    return story


@pytest.mark.parametrize("repeatable", [True, False])
def test_files_are_put_back_for_a_hook_that_runs_again_alone(repeatable):
    story = left_in_the_middle(repeatable=repeatable)
    assert not undo_needed(story.view)
    assert undo_needed(replace(story.view, attempt=2)) == repeatable


def test_a_hook_that_may_runs_again_under_its_number():
    story = left_in_the_middle(repeatable=True)
    effect = story.claim()
    assert isinstance(effect, RunHook)
    assert (effect.run.number, effect.run.started_by) == (1, 2)
    assert story.entries[-1] == HookStarted(1, 0, "RunStart")
    assert isinstance(story.go_on(HookFinished(1, HookResult(HookAnswer("succeeded")))), CallModel)
    assert len(story.view.hook_runs) == 1


def test_a_hook_that_may_not_has_an_unknown_outcome():
    story = left_in_the_middle(repeatable=False)
    assert isinstance(story.claim(), CallModel)
    (run,) = story.view.hook_runs
    assert run.answer == HookAnswer("unknown", reason="its worker died while it ran")
