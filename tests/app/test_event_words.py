"""Events of a run in one line each, for a person who follows it."""

from __future__ import annotations

from typing import Any

import pytest

from runner.app.event_words import event_note


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        ("attempt_started", {"worker": "worker_1"}, "attempt 2 begins, on worker_1"),
        ("turn_started", {"turn": 3}, "turn 3"),
        (
            "model_call_ended",
            {
                "stop_reason": "end_turn",
                "latency": 4.2,
                "usage": {"input": 10, "cache_read": 2_000, "output": 7},
            },
            "reply: 2,010 tokens in, 7 out, 4.2s",
        ),
        (
            "model_call_ended",
            {"call": 4, "kind": "overloaded_error"},
            "model call 4 failed: overloaded_error",
        ),
        ("tool_started", {"name": "Bash", "input": "pytest -q"}, "Bash pytest -q"),
        (
            "tool_done",
            {"name": "Bash", "outcome": "failed", "duration": 2.0, "output": "1 failed\x1b[2J"},
            "Bash failed, 2.0s: 1 failed␛[2J",
        ),
        (
            "permission_decided",
            {"name": "Bash", "decision": "deny", "rule": "Bash(rm *)"},
            "Bash denied by the rule Bash(rm *)",
        ),
        ("paused", {"by": "lena", "why": "too dear"}, "paused by lena: too dear"),
        (
            "verified",
            {"outcome": "succeeded", "command": "make test"},
            "verification succeeded: make test",
        ),
    ],
)
def test_an_event_is_one_line(type_: str, data: dict[str, Any], said: str) -> None:
    note = event_note(type_, data, 2)
    assert note is not None
    assert note.words == said


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("permission_decided", {"name": "Bash", "decision": "allow"}),
        ("message_added", {"cause": "tool_results"}),
        ("model_call_started", {"call": 1}),
        ("turn_ended", {"turn": 1}),
    ],
)
def test_what_follows_from_other_lines_is_not_said(type_: str, data: dict[str, Any]) -> None:
    assert event_note(type_, data, 1) is None
