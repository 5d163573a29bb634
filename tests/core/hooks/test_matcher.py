"""A hook's matcher chooses the calls that the hook is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.hook_decisions import is_matched
from runner.core.hooks import Hook, matchers_in
from runner.core.state import Call
from runner.permissions import ToolContext

CALL = Call(0, "c", "Bash", {"command": "git push"}, tool_context=ToolContext())


@pytest.mark.parametrize(
    ("matcher", "matched"),
    [
        ("", {"Bash", "Edit", "NotebookEdit", "mcp__db__query"}),
        ("*", {"Bash", "Edit", "NotebookEdit", "mcp__db__query"}),
        (".*", {"Bash", "Edit", "NotebookEdit", "mcp__db__query"}),
        ("mcp__.*", {"mcp__db__query"}),
        ("mcp__(db|web)__.*", {"mcp__db__query"}),
        ("Notebook.*", {"NotebookEdit"}),
        ("^Edit$", {"Edit"}),
        (".*Edit", {"Edit", "NotebookEdit"}),
        ("Edit", {"Edit"}),
        ("edit", set()),
        ("Edit|Bash", {"Edit", "Bash"}),
        ("Edit, Bash", {"Edit", "Bash"}),
        ("Bash(git *)", {"Bash"}),
        ("Bash(*)", {"Bash"}),
        ("Bash(npm *)", set()),
    ],
)
def test_a_matcher_is_searched_for_in_names_as_claude_code_does(
    matcher: str, matched: set[str]
) -> None:
    hook = Hook("PreToolUse", matchers_in(matcher), "true")
    calls = [
        replace(CALL, name=name) for name in ("Bash", "Edit", "NotebookEdit", "mcp__db__query")
    ]
    assert {call.name for call in calls if is_matched(hook, call)} == matched


def test_a_stored_matcher_that_is_broken_matches_every_call() -> None:
    """A job file is refused for it; a guard that came another way must not fall away."""
    assert is_matched(Hook("PreToolUse", ("mcp__[",), "true"), CALL)


@pytest.mark.parametrize(
    ("matcher", "condition", "matched"),
    [
        ("Bash", "Bash(git push *)", True),
        ("Bash", "Bash(git pull *)", False),
        ("Edit", "Bash(git push *)", False),
        ("", "Bash(git push *)", True),
        ("Bash", "", True),
    ],
)
def test_of_a_hook_with_a_condition_both_match(matcher: str, condition: str, matched: bool) -> None:
    hook = Hook("PreToolUse", matchers_in(matcher), "true", condition=matchers_in(condition))
    assert is_matched(hook, CALL) is matched
