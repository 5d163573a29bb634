"""What the audit record says of a run's files and of its end."""

from __future__ import annotations

from typing import Any

from runner.core.conversation import ToolResult
from runner.core.entries import (
    Delivered,
    Entry,
    OutcomeAsked,
    SnapshotRecorded,
    ToolFinished,
    Verified,
)
from runner.core.entry_events import events_of
from runner.core.events import Event
from runner.core.fold import Applied, apply
from runner.core.state import RunState
from runner.core.workspace import Verify
from tests.core.story import Story, says, uses


def told(state: RunState, entry: Entry) -> list[Event]:
    return list(events_of(Applied(state, entry, apply(state, entry))))


def only(state: RunState, entry: Entry) -> dict[str, Any]:
    (event,) = told(state, entry)
    return event.data


def test_a_tree_is_told_with_its_cause_and_what_was_put_aside() -> None:
    state = Story().state
    assert only(state, SnapshotRecorded("t1", "created")) == {"tree": "t1", "cause": "created"}
    data = only(state, SnapshotRecorded("t1", "restored", "t2"))
    assert data == {"tree": "t1", "cause": "restored", "found": "t2"}


def test_a_result_is_told_with_the_tree_after_it() -> None:
    story = Story()
    story.reply("tool_use", uses("Bash"))
    with_tree, *_ = told(story.state, ToolFinished(0, ToolResult("ok"), "t2"))
    without, *_ = told(story.state, ToolFinished(0, ToolResult("ok")))
    assert with_tree.data["tree"] == "t2"
    assert "tree" not in without.data


def test_a_verification_is_told_as_it_begins_and_as_it_ends() -> None:
    story = Story(verify=Verify(("pytest -q",)))
    story.go_on(SnapshotRecorded("t1", "created"))
    story.reply("end_turn", says())
    begun = Story(verify=Verify(("pytest -q",))).state
    (*_, entry) = story.entries
    assert only(begun, entry)["verification"] == 1
    result = ToolResult("\x1b[31m1 failed\n" + "x" * 200, "failed", duration=1.5)
    data = only(story.state, Verified(1, "pytest\n-q", result))
    assert (data["verification"], data["command"]) == (1, "pytest⏎-q")
    assert (data["outcome"], data["is_error"], data["duration"]) == ("failed", True, 1.5)
    assert data["output"].startswith("␛[31m1 failed⏎")
    assert len(data["output"]) <= 80


def test_a_question_about_an_outcome_names_the_call_and_who_began_it() -> None:
    story = Story()
    story.reply("tool_use", uses("Bash", "t0", {"command": "git push\x07"}))
    data = only(story.state, OutcomeAsked(0))
    assert (data["call_index"], data["name"], data["started_by"]) == (0, "Bash", 1)
    assert data["input"] == "git push␇"


def test_a_commit_is_told() -> None:
    assert only(Story().state, Delivered("c0ffee")) == {"commit": "c0ffee"}
