"""What the audit record says of compactions and summaries, and of waiting for money."""

from __future__ import annotations

import json

import pytest

from runner.core.budget import JobBudget, Reservation
from runner.core.context import Compaction, TruncatedResult
from runner.core.conversation import ModelReply, Usage
from runner.core.entries import ContextCompacted, ModelCallStarted, SummaryReplied
from runner.core.entry_events import events_of
from runner.core.events import Event
from runner.core.fold import fold
from tests.core.story import Story, a_run, changed, says, uses


def told(entries, state=None) -> list[Event]:
    return [event for one in fold(state or a_run(), entries) for event in events_of(one)]


def types(found):
    return [event.type for event in found]


def only(found, kind):
    return [event.data for event in found if event.type == kind]


def a_compaction(kind, text=""):
    results = (TruncatedResult(2, 0, "shorter"),) if kind == "clip" else ()
    return Compaction(kind, 1, 2, text, results, tokens_before=900, tokens_after=300)


def a_long_story():
    story = Story()
    for number in range(2):
        story.reply("tool_use", uses("Bash", f"t{number}"))
        story.finish(0, "x" * 3_000)
    return story


@pytest.mark.parametrize("kind", ["clip", "prune"])
def test_a_compaction_tells_its_range_and_its_tokens(kind):
    compaction = a_compaction(kind, "secret")
    story = a_long_story()
    [event] = told([ContextCompacted(compaction)], story.state)
    assert event.type == "context_compacted"
    assert event.data == {
        "kind": kind,
        "first": 1,
        "last": 2,
        "tokens_before": 900,
        "tokens_after": 300,
    }


def summary_told(compaction, why=""):
    state = a_long_story().state
    state = changed(state, open_call=None, tries=0)
    reservation = Reservation(500, 900, lowered=False)
    reply = ModelReply((says("secret"),), "end_turn", Usage(10, 0, 0, 5), "m", "req_1", 1.5)
    started = ModelCallStarted(3, reservation, 1_000.0, "summary")
    return told([started, SummaryReplied(reply, compaction, why)], state)


def test_a_summary_is_a_model_call_and_no_turn():
    found = summary_told(a_compaction("summary", "secret"))
    assert types(found) == ["model_call_started", "model_call_ended", "context_compacted"]
    assert found[0].data == {"call": 3, "turn": 3, "max_tokens": 500, "purpose": "summary"}
    assert found[1].data["purpose"] == "summary"
    assert found[1].data["turn"] == 3
    assert found[1].data["usage"] == {
        "input": 10,
        "cache_read": 0,
        "cache_creation": 0,
        "output": 5,
    }
    assert "secret" not in json.dumps([event.data for event in found])


def test_a_summary_of_no_use_says_why():
    found = summary_told(None, "the summary is empty")
    assert types(found) == ["model_call_started", "model_call_ended"]
    assert found[1].data["error"] == "the summary is empty"


def test_a_call_of_a_turn_names_no_purpose():
    story = Story()
    story.go_on()
    [data] = only(told(story.entries), "model_call_started")
    assert "purpose" not in data


def test_a_run_that_waits_for_its_budget_says_so():
    story = Story(changed(a_run(), budget=JobBudget(most_tokens=1)))
    story.go_on()
    [event] = only(told(story.entries), "waiting")
    assert event["reason"] == "budget"
    assert event["detail"].startswith("its next call may use 34,")
    assert event["detail"].endswith(" tokens, and 1 are left")
