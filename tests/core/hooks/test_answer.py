"""What a hook's end amounts to, by Claude Code's protocol."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.hooks import MOST_CHARACTERS, Hook, HookAnswer, Said, read_answer
from runner.core.spec import JobSpec

EVENTS = ("RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd")


def answered(event, printed=b"", errors=b"", code=0, **said):
    data = printed if isinstance(printed, bytes) else json.dumps(printed).encode()
    return read_answer(event, Said("exited", code, data, errors, **said), 60.0)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("printed", [b"", b"\n", {}, {"systemMessage": "x", "other": [1]}])
def test_who_says_nothing_known_changes_nothing(event, printed):
    assert answered(event, printed).answer == HookAnswer("succeeded")


@pytest.mark.parametrize("event", EVENTS)
def test_exit_code_2_is_an_objection_whatever_was_printed(event):
    result = answered(event, {"continue": False}, b"no\r\n\x1b[31m", 2)
    decision = "deny" if event == "PreToolUse" else "block"
    assert result.answer == HookAnswer("succeeded", decision, "no\n\\x1b[31m")


@pytest.mark.parametrize(
    ("printed", "decision"),
    [
        ({"hookSpecificOutput": {"permissionDecision": "allow"}}, "allow"),
        ({"hookSpecificOutput": {"permissionDecision": "ask"}}, "ask"),
        ({"hookSpecificOutput": {"permissionDecision": "deny"}}, "deny"),
        ({"decision": "approve"}, "allow"),
        ({"decision": "block"}, "deny"),
        ({"decision": None, "hookSpecificOutput": None}, None),
        ({"continue": None}, None),
    ],
)
def test_decisions_on_calls(printed, decision):
    assert answered("PreToolUse", printed).answer == HookAnswer("succeeded", decision)


@pytest.mark.parametrize(
    ("old", "new", "decision", "reason"),
    [
        ("block", "allow", "deny", "old"),
        ("block", "ask", "deny", "old"),
        ("block", "deny", "deny", "new"),
        ("approve", "allow", "allow", "new"),
        ("approve", "ask", "ask", "new"),
        ("approve", "deny", "deny", "new"),
        (None, "ask", "ask", "new"),
        ("approve", None, "allow", "old"),
    ],
)
def test_of_two_decisions_in_one_answer_the_stricter_holds_with_its_reason(
    old, new, decision, reason
):
    specific = {"permissionDecision": new, "permissionDecisionReason": "new"}
    printed = {"decision": old, "reason": "old", "hookSpecificOutput": specific}
    assert answered("PreToolUse", printed).answer == HookAnswer("succeeded", decision, reason)


def test_a_decision_has_the_reason_that_is_given_where_it_has_none_of_its_own():
    printed = {
        "decision": "block",
        "reason": "old",
        "hookSpecificOutput": {"permissionDecision": "deny"},
    }
    assert answered("PreToolUse", printed).answer.reason == "old"


@pytest.mark.parametrize("event", ["RunStart", "PostToolUse", "TurnEnd", "RunEnd"])
def test_only_hooks_before_calls_decide_on_them(event):
    specific = {"permissionDecision": "deny", "updatedInput": {"a": 1}}
    result = answered(event, {"hookSpecificOutput": specific, "decision": "block", "reason": "x"})
    assert result.answer == HookAnswer("succeeded", "block", "x")
    assert result.updated_input is None


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"decision": "block", "decision": "approve"}', "the key 'decision' twice in one object"),
        (
            b'{"hookSpecificOutput": {"updatedInput": {"command": "ls", "command": "rm x"}}}',
            "what it printed makes no sense: it has the key 'command' twice",
        ),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "is not JSON"),
        ({"hookSpecificOutput": []}, "hookSpecificOutput is not an object"),
        ({"continue": "no"}, "continue is neither"),
        ({"decision": "defer"}, "decision is none of"),
        ({"decision": ["deny"]}, "decision is none of"),
        ({"hookSpecificOutput": {"permissionDecision": "defer"}}, "permissionDecision is none of"),
        ({"hookSpecificOutput": {"updatedInput": "ls"}}, "updatedInput is not an object"),
        ({"hookSpecificOutput": {"additionalContext": 1}}, "additionalContext is not a text"),
        ({"pad": "x" * 1_000_001}, "more than the 1,000,000 bytes"),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure(printed, why):
    result = answered("PreToolUse", printed)
    assert result.answer.outcome == "failed"
    assert why in result.answer.reason
    assert (result.answer.decision, result.updated_input) == (None, None)


@pytest.mark.parametrize("event", EVENTS)
def test_plain_text_is_for_the_model_when_the_run_starts_alone(event):
    context = "It is Monday." if event == "RunStart" else ""
    assert answered(event, b"It is Monday.\n").answer == HookAnswer("succeeded", context=context)


def test_who_wants_the_run_to_end_says_why():
    answer = answered("TurnEnd", {"continue": False, "stopReason": "enough"}).answer
    assert answer == HookAnswer("succeeded", None, "enough", stops=True)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("timed_out", "timed_out"),
        ("not_started", "failed"),
        ("lost", "unknown"),
        ("shut_down", "interrupted"),
    ],
)
def test_a_hook_that_did_not_end_by_itself_has_said_nothing(end, outcome):
    result = read_answer("PreToolUse", Said(end, output=b'{"decision": "approve"}'), 60.0)
    assert (result.answer.outcome, result.answer.decision) == (outcome, None)
    assert result.exit_code is None


def test_long_texts_are_cut():
    result = answered("TurnEnd", {"hookSpecificOutput": {"additionalContext": "x" * 20_000}})
    assert len(result.answer.context) < MOST_CHARACTERS + 100
    assert "10,000 characters are left out" in result.answer.context
    assert len(result.output) < MOST_CHARACTERS + 100


@pytest.mark.slow
@given(st.sampled_from(EVENTS), st.binary(max_size=200), st.binary(max_size=50), st.integers(-9, 3))
def test_whatever_is_printed_amounts_to_something(event, printed, errors, code):
    result = answered(event, printed, errors, code)
    assert result.answer.outcome in ("succeeded", "failed")
    for text in (result.output, result.errors, result.answer.reason, result.answer.context):
        text.encode()
        assert "\0" not in text


def test_a_stored_hook_is_read_back_as_it_was():
    hook = Hook("PreToolUse", ("Bash",), function="a:b@/c", timeout=5.0, on_failure="continue")
    stored = json.dumps(JobSpec("job", "model", hooks=(hook,)).to_json())
    assert JobSpec.from_json(json.loads(stored)).hooks == (hook,)


@pytest.mark.parametrize(
    ("printed", "code", "message"),
    [
        ({"systemMessage": "Mind\x1b the gap."}, 0, "Mind\\x1b the gap."),
        ({"systemMessage": 7}, 0, ""),
        (b"{systemMessage", 0, ""),
        ({"systemMessage": "x"}, 1, ""),
        (b"systemMessage", 0, ""),
    ],
)
def test_a_message_for_people_is_read(printed, code, message):
    assert answered("PreToolUse", printed, code=code).message == message


def test_only_a_hook_after_a_call_replaces_its_result():
    def replacing(given):
        return {"hookSpecificOutput": {"updatedToolOutput": given}}

    assert answered("PostToolUse", replacing("a\x1b[31m")).updated_output == "a\\x1b[31m"
    assert answered("PostToolUse", replacing({"a": [1]})).updated_output == '{"a": [1]}'
    assert answered("PostToolUse", replacing(None)).updated_output is None
    assert answered("PreToolUse", replacing("a")).updated_output is None
    long = answered("PostToolUse", replacing("x" * 50_001))
    assert (long.answer.outcome, long.updated_output) == ("failed", None)
