from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Budget, Limits
from runner.core.context.window import Context
from runner.core.permissions import Rule
from runner.core.retry import Patience
from runner.jobfile.check import KEYS, Items, Text, check

LEAST: dict[str, Any] = {"model": "m", "prompt": "Do it."}


def problems_of(**keys: Any) -> list[str]:
    return [str(problem) for problem in check({**LEAST, **keys})[1]]


def test_the_least_job_has_the_defaults_of_core() -> None:
    draft, problems = check(LEAST)
    assert problems == []
    assert draft.limits == Limits()
    assert (draft.budget, draft.context) == (Budget(), Context())
    assert draft.retry == Patience()
    assert (draft.provider, draft.parallel_tools, draft.workspace_mode) == (
        "anthropic",
        "safe",
        "shared",
    )
    assert draft.prompt == Text("text", "Do it.")
    assert draft.items is None


def test_every_value_arrives() -> None:
    draft, problems = check(
        {
            **LEAST,
            "name": "n",
            "provider": "scripted",
            "script": "s.toml",
            "system_file": "s.md",
            "tools": ["Bash", "own.tools:look"],
            "parallel_tools": "off",
            "items": {"glob": "*.py"},
            "workspace": {"path": "w", "mode": "copy"},
            "permissions": {"allow": ["B*"], "deny": ["look"]},
            "limits": {
                "max_turns": 1,
                "token_ceiling": 2,
                "max_output_tokens": 3,
                "tool_timeout": "1.5m",
                "deadline": "8h",
                "working_time": "2h",
                "cost_ceiling_usd": 1.5,
                "budget_usd": 40,
                "budget_tokens": 5,
            },
            "context": {
                "window": 100_000,
                "reserve": 20_000,
                "chars_per_token": 3,
                "keep_messages": 12,
                "compaction": "off",
                "summary_model": "s",
                "summary_instructions": "Keep names.\nKeep numbers.",
            },
            "retry": {"max_attempts": 4, "max_seconds": "2d"},
            "model_options": {"thinking": {"type": "adaptive"}},
        }
    )
    assert problems == []
    assert draft.system == Text("file", "s.md")
    assert draft.tools == ((0, "Bash"), (1, "own.tools:look"))
    assert draft.permissions.rules == ((0, Rule("deny", "look")), (0, Rule("allow", "B*")))
    assert draft.items == Items("glob", "*.py")
    assert draft.limits == Limits(1, 2, 3, 90.0, 28_800.0, 7_200.0, 1.5)
    assert draft.budget == Budget(40.0, 5)
    assert draft.context == Context(
        100_000, 20_000, 3.0, 12, "off", "s", "Keep names.\nKeep numbers."
    )
    assert draft.retry == Patience(4, 172_800.0)
    assert draft.model_options == {"thinking": {"type": "adaptive"}}
    assert (draft.workspace_path, draft.workspace_mode) == ("w", "copy")
    assert (draft.script, draft.parallel_tools, draft.name) == ("s.toml", "off", "n")


CASES: list[tuple[dict[str, Any], str]] = [
    ({"nme": "x"}, "nme: unknown key 'nme'; did you mean name?"),
    ({"max_turns": 3}, "max_turns: unknown key 'max_turns' here; it belongs in [limits]"),
    ({"max_turn": 3}, "did you mean max_turns, which belongs in [limits]?"),
    ({"zzzzzz": 3}, "unknown key 'zzzzzz'; known here: name, "),
    (
        {"limits": {"max_turn": 3}},
        "limits.max_turn: unknown key 'max_turn'; did you mean max_turns?",
    ),
    ({"limits": {"tools": []}}, "limits.tools: unknown key 'tools' here; it belongs at the top"),
    ({"limits": 3}, "limits: must be a table, written [limits], not an integer"),
    ({"limits": {"max_turns": True}}, "limits.max_turns: must be an integer, not a boolean"),
    ({"limits": {"max_turns": 1.0}}, "limits.max_turns: must be an integer, not a number"),
    ({"limits": {"max_turns": 0}}, "limits.max_turns: must be at least 1, not 0"),
    ({"limits": {"token_ceiling": -5}}, "limits.token_ceiling: must be at least 1, not -5"),
    ({"limits": {"max_turns": 10**5000}}, "must be at most 1,000,000, not a number of that size"),
    (
        {"limits": {"tool_timeout": 601}},
        "limits.tool_timeout: must be at most 600 seconds, not 601",
    ),
    ({"limits": {"tool_timeout": -1}}, "limits.tool_timeout: must be more than 0 seconds, not -1"),
    ({"limits": {"deadline": "soon"}}, 'such as "90s", "30m", "8h", not \'soon\''),
    ({"limits": {"deadline": True}}, "limits.deadline: must be a number of seconds or a string"),
    ({"limits": {"deadline": float("inf")}}, "limits.deadline: must be at most"),
    ({"limits": {"deadline": float("nan")}}, "limits.deadline: must be more than 0 seconds"),
    ({"limits": {"deadline": -(10**400)}}, "limits.deadline: must be more than 0 seconds"),
    ({"limits": {"working_time": 0}}, "limits.working_time: must be more than 0 seconds, not 0"),
    ({"limits": {"budget_usd": "40"}}, "limits.budget_usd: must be a number, not a string"),
    ({"limits": {"budget_usd": True}}, "limits.budget_usd: must be a number, not a boolean"),
    (
        {"limits": {"budget_usd": 0}},
        "limits.budget_usd: must be a number from 0.000001 to 1,000,000,000, not 0",
    ),
    ({"limits": {"cost_ceiling_usd": float("nan")}}, "from 0.000001 to 1,000,000,000, not nan"),
    ({"limits": {"cost_ceiling_usd": 10**5000}}, "not a number of that size"),
    ({"limits": {"budget_tokens": 0}}, "limits.budget_tokens: must be at least 1, not 0"),
    ({"budget_usd": 4}, "budget_usd: unknown key 'budget_usd' here; it belongs in [limits]"),
    ({"context": 3}, "context: must be a table, written [context], not an integer"),
    ({"context": {"windows": 3}}, "context.windows: unknown key 'windows'; did you mean window?"),
    ({"context": {"window": 1.5}}, "context.window: must be an integer, not a number"),
    ({"context": {"window": 0}}, "context.window: must be at least 1, not 0"),
    ({"context": {"chars_per_token": 0.9}}, "context.chars_per_token: must be a number from 1 to"),
    (
        {"context": {"chars_per_token": 33}},
        "chars_per_token: must be a number from 1 to 32, not 33",
    ),
    ({"context": {"keep_messages": 0}}, "context.keep_messages: must be at least 1, not 0"),
    ({"context": {"compaction": "on"}}, 'context.compaction: must be "auto" or "off", not \'on\''),
    ({"context": {"summary_model": "a\nb"}}, "context.summary_model: holds a line break"),
    ({"context": {"summary_instructions": " "}}, "context.summary_instructions: is empty"),
    ({"model_options": {"thinking": "adaptive"}}, "model_options.thinking: must be a table"),
    (
        {"model_options": {"thinking": {"budget_tokens": "9"}}},
        "model_options.thinking.budget_tokens: must be an integer, not a string",
    ),
    ({"model_options": {"cache_control": "1h"}}, "model_options.cache_control: must be a table"),
    ({"retry": {"max_attempts": 0}}, "retry.max_attempts: must be at least 1, not 0"),
    ({"retry": {"max_seconds": "0s"}}, "retry.max_seconds: must be more than 0 seconds"),
    ({"model": 3}, "model: must be a string, not an integer"),
    ({"model": " "}, "model: is empty"),
    ({"model": "a\nb"}, "model: holds a line break"),
    ({"name": "a\0b"}, "name: holds a NUL"),
    ({"name": "x" * 201}, "name: has 201 characters; at most 200 are allowed"),
    ({"prompt_file": "p"}, "prompt_file: give only one of prompt and prompt_file"),
    ({"system": "a", "system_file": "b"}, "system_file: give only one of system and system_file"),
    ({"provider": "antropic"}, "not 'antropic'; did you mean anthropic?"),
    ({"provider": 1}, 'provider: must be "anthropic" or "scripted", not an integer'),
    ({"provider": "scripted"}, "script: is missing"),
    ({"script": "s.toml"}, 'script: is only for provider = "scripted"'),
    ({"parallel_tools": "none"}, 'parallel_tools: must be "safe" or "all" or "off", not \'none\''),
    ({"tools": "Bash"}, "tools: must be a list of strings, not a string"),
    ({"tools": ["own:bash", 3]}, "tools[1]: must be a string, not an integer"),
    ({"tools": ["a:b", "a:b"]}, "tools[1]: 'a:b' is listed twice"),
    ({"tools": ["a:b", "Read", "Edit"]}, "tools[1]: Read, Edit need a folder to work in"),
    ({"workspace": {"mode": "copy"}}, "workspace: the key path is missing"),
    ({"workspace": {"path": "w", "mode": "copied"}}, 'workspace.mode: must be "shared" or'),
    ({"permissions": {"alow": []}}, "permissions.alow: unknown key 'alow'; did you mean allow?"),
    (
        {"on_timeout": "deny"},
        "on_timeout: unknown key 'on_timeout' here; it belongs in [permissions]",
    ),
    ({"mode": "copy"}, "mode: unknown key 'mode'; did you mean model?"),
    ({"limits": {"mode": "copy"}}, "here; it belongs in [workspace] or in [permissions]"),
    ({"items": {}}, "items: one of list, glob, jsonl and command is needed"),
    ({"items": {"list": ["a"], "glob": "*"}}, "items.glob: give only one of list, glob, jsonl"),
    ({"items": {"list": []}}, "items.list: is empty: give at least one item"),
    ({"items": {"list": "a"}}, "items.list: must be a list of strings or tables"),
    ({"items": {"command": []}}, "items.command: is empty"),
    ({"items": {"command": ["ls", 1]}}, "items.command[1]: must be a string, not an integer"),
    ({"items": {"glob": 1}}, "items.glob: must be a string, not an integer"),
    ({"model_options": {"x": [float("nan")]}}, "model_options.x: [0] is nan"),
    ({"model_options": {"x": {"y": "\0"}}}, "model_options.x: y holds a NUL"),
]


@pytest.mark.parametrize(("keys", "expected"), CASES, ids=[case[1][:50] for case in CASES])
def test_a_mistake_is_the_one_problem_and_says_what_was_meant(
    keys: dict[str, Any], expected: str
) -> None:
    problems = problems_of(**keys)
    assert len(problems) == 1
    assert expected in problems[0]


def test_what_is_missing_is_named() -> None:
    places = {problem.place for problem in check({})[1]}
    assert places == {"model", "prompt"}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(sorted({key for keys in KEYS.values() for key in keys}))
tables = st.dictionaries(known, anything | st.dictionaries(known, anything, max_size=5), max_size=8)


@given(tables)
def test_whatever_a_file_holds_is_checked_without_an_exception(data: dict[str, Any]) -> None:
    draft, problems = check(data)
    for problem in problems:
        assert str(problem).isprintable()
    if not problems:
        assert draft.model
        assert draft.prompt
