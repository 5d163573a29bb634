"""Rules about an argument of a tool of one's own or of an MCP server: ``merge(branch:main)``."""

from __future__ import annotations

import pytest

from runner.permissions import Request, Rule, ToolContext
from runner.permissions.decisions import Policy, evaluate

CONTEXT = ToolContext("/workspace", None, "/home/user", {})


def decided(effect, text, arguments, tool="mcp__hub__merge"):
    """The effect of a policy of this one rule on a call; None if the rule does not match the call."""
    decision = evaluate(Policy((Rule(effect, text),)), Request(tool, arguments, CONTEXT))
    return decision.effect if decision.matched_rules else None


@pytest.mark.parametrize(
    ("text", "arguments", "allowed"),
    [
        ("mcp__hub__merge(branch:main)", {"branch": "main"}, True),
        ("mcp__hub(branch:ma*)", {"branch": "main"}, True),
        ("mcp__hub__*(branch:*)", {"branch": "main"}, True),
        ("mcp__hub__merge(branch:main)", {"branch": "maintenance"}, False),
        ("mcp__hub__merge(branch:main)", {"branch": "MAIN"}, False),
        ("mcp__hub__merge(branch:main)", {"repo": "main"}, False),
        ("mcp__hub__merge(branch:*)", {}, False),
        ("mcp__hub__merge(branch:*)", {"branch": None}, False),
        ("mcp__hub__merge(number:7)", {"number": 7}, True),
        ("mcp__hub__merge(squash:true)", {"squash": True}, True),
        ("mcp__hub__merge(at:{*)", {"at": {"x": 1}}, True),
        ("mcp__hub__merge(files:src/*)", {"files": ["src/a", "src/b"]}, True),
        ("mcp__hub__merge(files:src/*)", {"files": ["src/a", "docs/b"]}, False),
        ("mcp__hub__merge(files:src/*)", {"files": []}, False),
        ("mcp__hub__merge(files:src/*)", {"files": "src/../.env"}, False),
        ("mcp__hub__merge(files:src/*)", {"files": "src/%2E%2e/.env"}, False),
        ("mcp__hub__merge(files:src/*)", {"files": "src/..\\.env"}, False),
        ("mcp__hub__merge(title:*)", {"title": "a/../b"}, True),
        ("mcp__hub__close(branch:main)", {"branch": "main"}, False),
    ],
)
def test_an_argument_is_allowed_if_all_its_texts_fit(text, arguments, allowed):
    assert decided("allow", text, arguments) == ("allow" if allowed else None)


@pytest.mark.parametrize("effect", ["deny", "ask"])
@pytest.mark.parametrize(
    ("arguments", "caught"),
    [
        ({"files": ["src/a", "secrets/b"]}, True),
        ({"files": [["secrets/b"]]}, True),
        ({"files": "secrets/b"}, True),
        ({"files": "src/a"}, False),
        ({"other": "secrets/b"}, False),
    ],
)
def test_one_text_of_an_argument_is_enough_to_deny_or_ask(effect, arguments, caught):
    assert decided(effect, "mcp__hub__merge(files:secrets/*)", arguments) == (
        effect if caught else None
    )


def test_functions_of_ones_own_have_such_rules_too():
    assert decided("allow", "weather(city:Oslo)", {"city": "Oslo"}, "weather") == "allow"
    assert decided("allow", "weather(city:Oslo)", {"city": "Rome"}, "weather") is None


def test_no_built_in_tool_does():
    assert decided("allow", "Bash*(command:ls)", {"command": "ls"}, "Bash") is None
