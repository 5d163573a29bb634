"""What the audit record says of each entry, and that no summary can steer a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import JobBudget, Limits
from runner.core.conversation import ToolResult
from runner.core.entries import (
    Entry,
    HookFinished,
    HookStarted,
    RunSettled,
    ToolFinished,
    VerificationStarted,
    Verified,
)
from runner.core.entry_events import events_of
from runner.core.events import INPUT_SUMMARY_LENGTH, OUTPUT_SUMMARY_LENGTH, Event, summarise_input
from runner.core.fold import fold
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.network import Connection
from runner.core.prices import Rates, Tariff
from runner.core.run import Ended, Requeued, Waiting
from runner.core.state import RunState
from runner.core.text import shorten, visible
from tests.core.story import Story, a_run, a_spec, changed, says, several, uses

STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")

steering_text = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]),
        st.sampled_from("\n\r\t \x1b\x7f\x9b\u202e\u2066\u200b\ufeff\U000e0041"),
    )
)


def told(entries: Sequence[Entry], state: RunState | None = None) -> list[Event]:
    """The events of a run's entries, from its first on."""
    return [event for one in fold(state or a_run(), entries) for event in events_of(one)]


def types(found: Sequence[Event]) -> list[str]:
    return [event.type for event in found]


def only(found: Sequence[Event], kind: str) -> list[dict[str, Any]]:
    return [event.data for event in found if event.type == kind]


# --- text on one visible line ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a⏎b"),
        ("a\r\nb", "a␍⏎b"),
        ("a\tb", "a b"),
        ("\0", "␀"),
        ("\x1b[31mred", "␛[31mred"),
        ("\a\b", "␇␈"),
        ("\x7f", "\\u007f"),
        ("\x9b31m", "\\u009b31m"),
        ("\x85", "\\u0085"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\ue0041"),
        ("größer 漢字 🙂", "größer 漢字 🙂"),
    ],
)
def test_what_steers_a_terminal_is_shown_and_all_else_stays(text, shown):
    assert visible(text) == shown


@pytest.mark.slow
@given(steering_text)
def test_visible_text_is_one_line_without_any_steering_character(text):
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in STEERING]
    assert shown.splitlines() in ([], [shown])
    assert shown.encode().decode() == shown


@pytest.mark.slow
@given(steering_text, st.integers(1, 200))
def test_short_text_is_visible_and_never_too_long(text, length):
    line = shorten(text, length)
    assert len(line) <= length
    assert visible(line) == line


@pytest.mark.slow
@given(st.text(st.characters(categories=["L", "N"]), max_size=30), st.integers(1, 30))
def test_short_text_is_the_text_or_its_beginning_with_an_ellipsis(text, length):
    line = shorten(text, length)
    assert line == text if len(text) <= length else line == text[: length - 1] + "…"


# --- summaries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ({"description": "Count", "command": "ls | wc -l"}, "ls | wc -l"),
        ({"path": "src", "pattern": "def ", "file_path": "a.py"}, "a.py"),
        ({"pattern": "def ", "path": "src"}, "src"),
        ({"pattern": "x+", "query": "tea"}, "tea"),
        ({"url": "https://example.org", "pattern": "*.py"}, "*.py"),
        ({"method": "GET", "url": "https://example.org"}, "https://example.org"),
        ({"command": "a", "file_path": "b", "path": "c", "query": "d", "pattern": "e"}, "a"),
    ],
)
def test_input_is_summed_up_by_its_most_telling_argument(arguments, summary):
    assert summarise_input(arguments) == summary


@pytest.mark.parametrize("useless", ["", None, 3, ["ls"], {"in": "ls"}])
def test_argument_that_tells_nothing_gives_way_to_the_next(useless):
    assert summarise_input({"command": useless, "file_path": "a.py"}) == "a.py"


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ({"word": "grün", "times": 3}, '{"word": "grün", "times": 3}'),
        ({}, "{}"),
        (["a"], '["a"]'),
        ("a", '"a"'),
        (None, "null"),
    ],
)
def test_input_without_a_telling_argument_is_shown_as_it_is(arguments, summary):
    assert summarise_input(arguments) == summary


def test_input_is_summed_up_in_100_characters_and_output_in_80():
    story = Story()
    story.reply("tool_use", uses("Bash", arguments={"command": "x" * 500}))
    story.finish(0, "y" * 500)
    (start,) = only(told(story.entries), "tool_started")
    (done,) = only(told(story.entries), "tool_done")
    assert start["input"] == "x" * (INPUT_SUMMARY_LENGTH - 1) + "…"
    assert done["output"] == "y" * (OUTPUT_SUMMARY_LENGTH - 1) + "…"
    assert (INPUT_SUMMARY_LENGTH, OUTPUT_SUMMARY_LENGTH) == (100, 80)


@pytest.mark.slow
@given(steering_text, steering_text, steering_text)
def test_nothing_that_a_model_or_a_tool_says_can_steer_a_terminal(name, command, output):
    story = Story(parallel_tools="all")
    story.reply("tool_use", uses("Bash", "t0", {"command": command}), uses(name, "t1", {}))
    story.finish(0, output)
    for event in told(story.entries):
        for value in event.data.values():
            assert not isinstance(value, str) or visible(value) == value


# --- what each entry says -------------------------------------------------------------------------


def test_a_turn_with_a_tool_is_told_in_order():
    story = Story()
    story.reply("tool_use", uses("Read"))
    story.finish(0)
    story.reply("end_turn", says())
    assert types(told(story.entries)) == [
        *("turn_started", "model_call_started", "model_call_ended", "permission_decided"),
        *("tool_started", "tool_done", "turn_ended"),
        *("turn_started", "model_call_started", "model_call_ended", "turn_ended"),
        *("attempt_ended", "done"),
    ]


def test_a_tool_is_named_the_same_way_in_all_of_its_events():
    story = Story()
    story.reply("tool_use", *several("Read", "Deploy"))
    story.finish(0)
    found = [each for each in told(story.entries) if "call_index" in each.data]
    which = ("turn", "call_index", "tool_use_id", "name")
    assert [(each.type, *(each.data[key] for key in which)) for each in found] == [
        ("permission_decided", 1, 0, "t0", "Read"),
        ("permission_decided", 1, 1, "t1", "Deploy"),
        ("tool_done", 1, 1, "t1", "Deploy"),
        ("tool_started", 1, 0, "t0", "Read"),
        ("tool_done", 1, 0, "t0", "Read"),
    ]


def test_a_decision_names_its_rule():
    story = Story()
    story.reply("tool_use", *several("Read", "Deploy"))
    decided = only(told(story.entries), "permission_decided")
    assert [(data["decision"], data["rule"]) for data in decided] == [
        ("allow", "*"),
        ("deny", "Deploy"),
    ]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "timed_out", "interrupted"])
def test_a_result_says_what_became_of_the_call(outcome):
    story = Story()
    story.reply("tool_use", uses("Read"))
    story.go_on(ToolFinished(0, ToolResult("gone\nwrong", outcome, duration=1.23456)))
    (done,) = only(told(story.entries), "tool_done")
    assert done["outcome"] == outcome
    assert done["is_error"] == (outcome != "succeeded")
    assert done["output"] == "gone⏎wrong"
    assert done["duration"] == 1.2346


def test_a_turn_ends_with_its_last_result():
    story = Story(parallel_tools="all")
    story.reply("tool_use", *several("Read", "Grep", "Edit"))
    for index in (2, 0, 1):
        story.finish(index)
    found = told(story.entries)
    ends = [
        (n, event.data["call_index"]) for n, event in enumerate(found) if "output" in event.data
    ]
    assert [index for _, index in ends] == [2, 0, 1]
    assert types(found).index("turn_ended") == ends[-1][0] + 1
    assert only(found, "turn_ended") == [{"turn": 1}]


def test_a_turn_starts_once_however_often_its_call_is_tried():
    story = Story()
    story.break_off(retry_at=story.now)
    story.break_off(retry_at=story.now + 60)
    story.now += 60
    story.claim()
    story.claim()  # its worker died during the call
    story.reply("end_turn", says())
    found = told(story.entries)
    assert only(found, "turn_started") == [{"turn": 1}]
    assert [data["call"] for data in only(found, "model_call_started")] == [1, 2, 3, 4]
    assert {data["turn"] for data in only(found, "model_call_started")} == {1}


def test_a_turn_that_failed_for_good_starts_once_when_the_run_is_taken_up():
    story = Story()
    story.break_off("authentication_error", retry_at=None, status=401)
    story.claim()
    story.reply("end_turn", says())
    assert only(told(story.entries), "turn_started") == [{"turn": 1}]


def test_each_turn_starts_and_ends_once():
    story = Story()
    for _ in range(3):
        story.break_off(retry_at=story.now)
        story.reply("tool_use", uses("Read"))
        story.finish(0)
    story.reply("pause_turn", says())
    story.reply("end_turn")
    story.reply("end_turn", says())
    found = told(story.entries)
    turns = [{"turn": turn} for turn in range(1, 7)]
    assert only(found, "turn_started") == turns
    assert only(found, "turn_ended") == turns


def test_a_reply_tells_its_usage_and_the_total():
    story = Story()
    story.reply("tool_use", uses("Read"), prompt=100, output=10)
    story.finish(0)
    story.reply("end_turn", says(), prompt=150, output=5)
    ended = only(told(story.entries), "model_call_ended")
    kinds = {"cache_read": 0, "cache_creation": 0}
    assert [data["usage"] for data in ended] == [
        {"input": 100, "output": 10, **kinds},
        {"input": 150, "output": 5, **kinds},
    ]
    assert [data["total"] for data in ended] == [
        {"input": 100, "output": 10, **kinds},
        {"input": 250, "output": 15, **kinds},
    ]
    assert [data["stop_reason"] for data in ended] == ["tool_use", "end_turn"]
    (done,) = only(told(story.entries), "done")
    assert done["total"] == {"input": 250, "output": 15, **kinds}


def test_a_failed_call_tells_the_words_the_request_and_when_it_is_tried_again():
    story = Story()
    story.break_off("rate_limit_error", retry_at=story.now + 60, charged=7, status=429)
    found = told(story.entries)
    assert only(found, "model_call_ended") == [
        {
            "call": 1,
            "kind": "rate_limit_error",
            "message": "its own words",
            "status": 429,
            "request_id": "req_7",
            "charged": 7,
            "unknown_cost": 0,
        }
    ]
    assert only(found, "retry_scheduled") == [{"at": story.now + 60, "after": "rate_limit_error"}]
    assert types(found)[-1] == "attempt_ended"


def test_a_failure_for_good_schedules_nothing_and_is_an_error():
    story = Story()
    story.break_off("authentication_error", retry_at=None, status=401)
    found = told(story.entries)
    assert types(found)[2:] == ["model_call_ended", "error", "attempt_ended", "done"]
    (error,) = only(found, "error")
    assert error["reason"] == "authentication_error"
    assert error["detail"] == "its own words (request req_7)"


def test_a_message_tells_why_it_was_added_and_not_what_it_says():
    story = Story()
    story.reply("tool_use", uses("Read"))
    story.say("Leave the tests alone.", "And hurry.")
    story.finish(0)
    assert only(told(story.entries), "message_added") == [{"cause": "queued", "messages": 2}]
    story.reply("end_turn")
    assert only(told(story.entries), "message_added")[1:] == [{"cause": "nudge", "messages": 1}]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Ended("succeeded", "end_turn"), ["attempt_ended", "done"]),
        (Ended("stopped", "max_turns"), ["limit_reached", "attempt_ended", "done"]),
        (Ended("failed", "refused"), ["error", "attempt_ended", "done"]),
        (Waiting("paused"), ["attempt_ended", "paused"]),
        (Waiting("approval"), ["attempt_ended", "waiting"]),
        (Requeued(5.0, "backoff"), ["attempt_ended"]),
        (Requeued(5.0, "shutdown"), ["attempt_ended"]),
    ],
)
def test_every_outcome_ends_the_attempt_and_only_an_end_is_done(outcome, expected):
    assert types(told([RunSettled(outcome)])) == expected


def test_why_an_attempt_ended_tells_when_the_run_is_due():
    assert told([RunSettled(Requeued(5.0, "backoff"))])[0].data == {"why": "backoff", "due_at": 5.0}


def test_the_words_of_an_end_are_one_visible_line():
    found = told([RunSettled(Ended("failed", "api_error", "<html>\n\x1b[2J" + "x" * 500))])
    for event in (found[0], found[-1]):
        assert event.data["detail"].startswith("<html>⏎␛[2J")
        assert len(event.data["detail"]) == 300


@pytest.mark.slow
@given(st.lists(st.sampled_from(["Read", "Deploy", "Bash", "Nothing"]), max_size=6))
def test_data_of_events_is_json_and_every_started_tool_is_done(names):
    story = Story()
    story.reply("tool_use" if names else "end_turn", says(), *several(*names))
    story.finish_all()
    found = told(story.entries)
    for event in found:
        assert json.loads(json.dumps(event.data)) == event.data
    done = [data["call_index"] for data in only(found, "tool_done")]
    assert sorted(done) == list(range(len(names)))
    assert {data["call_index"] for data in only(found, "tool_started")} <= set(done)


def test_each_connection_of_a_call_is_an_event_before_its_end():
    made = (
        Connection("packages.example.org", 443, 1_000.5, sent=12, received=3_400, count=2),
        Connection("evil.test", 443, 1_001.5, "refused", "it is not on the job's list of hosts"),
        Connection("a\x1b[31m", 0, 1_002.5, "refused", "no name"),
    )
    story = Story()
    story.reply("tool_use", uses("Read"))
    story.go_on(ToolFinished(0, ToolResult("ok", connections=made)))
    found = told(story.entries)
    first, second, third = only(found, "connection")
    done = types(found).index("tool_done")
    assert types(found)[done - 4 : done] == ["tool_started", *["connection"] * 3]
    about = {"turn": 1, "call_index": 0, "tool_use_id": "toolu_1", "name": "Read"}
    assert first == about | {
        "host": "packages.example.org",
        "port": 443,
        "at": 1_000.5,
        "outcome": "allowed",
        "why": "",
        "sent": 12,
        "received": 3_400,
        "count": 2,
    }
    assert (second["outcome"], second["why"]) == ("refused", made[1].why)
    assert visible(third["host"]) == third["host"]


def test_connections_of_verify_commands_and_hooks_say_whose_they_are():
    made = (Connection("packages.example.org", 443, 1_000.5),)
    state = a_run()
    one = Verified(3, "make", ToolResult("ok", connections=made))
    (event,) = only(told([VerificationStarted(3), one], state), "connection")
    assert (event["verification"], event["host"]) == (3, "packages.example.org")
    hooked = a_run(a_spec(hooks=(Hook("RunStart", command="x"),)))
    result = HookResult(HookAnswer("succeeded"), connections=made)
    found = told([HookStarted(1, 0, "RunStart"), HookFinished(1, result)], hooked)
    assert types(found) == ["hook_started", "connection", "hook_finished"]
    assert only(found, "connection")[0]["hook_run"] == 1


def test_a_limit_of_which_80_percent_are_used_is_told_once() -> None:
    limits = Limits(max_turns=5, token_ceiling=20_000, max_output_tokens=2_000, deadline=1_300)
    story = Story(a_run(limits=limits))
    for turn in range(5):
        story.now += 15
        story.reply("tool_use", uses("Read", f"t{turn}"), prompt=3_000, output=300)
        story.finish(0)
    near = only(told(story.entries, a_run(limits=limits)), "limit_near")
    assert [each["limit"] for each in near] == ["deadline", "max_turns", "token_ceiling"]
    assert near[1] == {"limit": "max_turns", "used": 4, "most": 5}
    assert near[2] == {"limit": "token_ceiling", "used": 16_500, "most": 20_000}


def test_a_budget_and_a_cost_ceiling_of_which_80_percent_are_used_are_told() -> None:
    budget = JobBudget(10_000_000, 10**9, spent_tokens=7_999_000, spent_cost=790_000_000)
    limits = Limits(max_output_tokens=2_000, cost_ceiling_usd=0.06)
    tariff = Tariff(Rates(*[Decimal(10)] * 5))
    start = changed(a_run(limits=limits), budget=budget, tariffs={"a-model": tariff})
    story = Story(start)
    story.reply("tool_use", uses("Read"), prompt=4_800, output=200)
    near = {each["limit"]: each for each in only(told(story.entries, start), "limit_near")}
    assert set(near) == {"budget_tokens", "budget_usd", "cost_ceiling"}
    assert near["budget_usd"]["used"] == 840_000_000
