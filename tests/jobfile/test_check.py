from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.context import Context
from runner.core.spec import Patience
from runner.core.workspace import TOOL_CACHES
from runner.jobfile.check import check
from runner.jobfile.keys import TABLES
from runner.jobfile.values import is_url
from runner.permissions import Rule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://example.com/x.git", True),
        ("ssh://git@example.com:22/x", True),
        ("git@example.com:me/x.git", True),
        ("example.com:x", True),
        ("file:///srv/x.git", True),
        ("../x", False),
        ("/srv/x", False),
        ("./a:b", False),
        ("project", False),
        ("projects/a:b", False),
    ],
)
def test_urls_and_paths_are_told_apart_as_git_does(text: str, expected: bool) -> None:
    assert is_url(text) is expected


LEAST: dict[str, Any] = {"model": "m", "prompt": "Do it."}


def problems_of(**keys: Any) -> list[str]:
    return [str(problem) for problem in check({**LEAST, **keys}).problems]


def test_a_minimal_job_has_the_defaults_of_the_core() -> None:
    top = check(LEAST)
    assert top.problems == []
    assert top["limits"].fill(Limits) == Limits()
    assert (top["limits"]["budget_usd"], top["limits"]["budget_tokens"]) == (None, None)
    assert top["context"].fill(Context) == Context()
    assert top["retry"].fill(Patience) == Patience()
    assert (top["provider"]["name"], top["parallel_tools"]) == ("anthropic", "safe")
    assert (top["workspace"], top["verify"], top["output_schema"]) == (None, (), None)
    assert (top["prompt"], top["prompt_file"], top["items"]) == ("Do it.", None, None)


def test_every_value_arrives() -> None:
    top = check(
        {
            **LEAST,
            "name": "n",
            "provider": "scripted",
            "script": "s.toml",
            "system_file": "s.md",
            "tools": ["Bash", "own.tools:look"],
            "parallel_tools": "off",
            "items": {"glob": "*.py"},
            "workspace": {
                "mode": "git",
                "repo": "git@example.com:me/project.git",
                "base": "main",
                "accept": ["lfs", "links"],
                "remote": "../shared.git",
                "setup": ["npm ci", "make\nall"],
                "setup_timeout": "5m",
                "snapshot_ignored": ["build/**", "*.log"],
                "largest_file": 1_000,
                "external": ["Bash(git push *)", {"rule": "Bash(curl *)", "why": "the net"}],
                "on_unknown": "ask",
                "commit_message": "Mend {{ item }}\n\nAs asked.",
            },
            "verify": ["pytest -q"],
            "on_failure": "feedback",
            "verify_rounds": 2,
            "verify_timeout": "10m",
            "output_schema": {"type": "object"},
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
    assert top.problems == []
    assert (top["system"], top["system_file"]) == (None, "s.md")
    assert [name for _, name in top["tools"]] == ["Bash", "own.tools:look"]
    assert [rule for _, rule in top["permissions"]["deny"]] == [Rule("deny", "look")]
    assert [rule for _, rule in top["permissions"]["allow"]] == [Rule("allow", "B*")]
    assert top["items"].values == {"list": None, "glob": "*.py", "jsonl": None, "command": None}
    assert top["limits"].fill(Limits) == Limits(1, 2, 3, 90.0, 28_800.0, 7_200.0, 1.5)
    assert (top["limits"]["budget_usd"], top["limits"]["budget_tokens"]) == (40.0, 5)
    assert top["context"].fill(Context) == Context(
        100_000, 20_000, 3.0, 12, "off", "s", "Keep names.\nKeep numbers."
    )
    assert top["retry"].fill(Patience) == Patience(4, 172_800.0)
    assert top["model_options"].written == {"thinking": {"type": "adaptive"}}
    workspace = top["workspace"]
    assert [rule for _, rule in workspace["external"]] == [
        Rule("ask", "Bash(git push *)"),
        Rule("ask", "Bash(curl *)", "the net"),
    ]
    assert {**workspace.values, "external": ()} == {
        "mode": "git",
        "path": None,
        "repo": "git@example.com:me/project.git",
        "base": "main",
        "uncommitted": False,
        "accept": ("lfs", "links"),
        "remote": "../shared.git",
        "setup": ("npm ci", "make\nall"),
        "setup_timeout": 300.0,
        "snapshot_ignored": ("build/**", "*.log"),
        "ignore": TOOL_CACHES,
        "largest_file": 1_000,
        "external": (),
        "on_unknown": "ask",
        "max_concurrency": None,
        "commit_message": "Mend {{ item }}\n\nAs asked.",
    }
    assert top["verify"] == ("pytest -q",)
    assert (top["on_failure"], top["verify_rounds"], top["verify_timeout"]) == ("feedback", 2, 600)
    assert top["output_schema"] == {"type": "object"}
    assert (top["script"], top["parallel_tools"], top["name"]) == ("s.toml", "off", "n")


GIT: dict[str, Any] = {"mode": "git", "repo": "r"}
COPY: dict[str, Any] = {"mode": "copy", "path": "w"}

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
        {"limits": {"tool_timeout": 86_401}},
        "limits.tool_timeout: must be at most 86,400 seconds, not 86401",
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
    (
        {"context": {"compaction": "on"}},
        'context.compaction: must be "auto" or "reactive" or "off", not \'on\'',
    ),
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
    (
        {"provider": 1},
        'provider: must be "anthropic", "bedrock", "vertex" or "scripted", or a table, not',
    ),
    ({"provider": {"name": "antropic"}}, "provider.name: must be"),
    ({"provider": {"max_concurrent": 0}}, "provider.max_concurrent: must be"),
    ({"provider": {"max_request_per_minute": 9}}, "did you mean max_requests_per_minute?"),
    ({"provider": "scripted"}, "script: is missing"),
    ({"script": "s.toml"}, 'script: is only for provider = "scripted"'),
    ({"parallel_tools": "none"}, 'parallel_tools: must be "safe" or "all" or "off", not \'none\''),
    ({"tools": "Bash"}, "tools: must be a list of strings, not a string"),
    ({"tools": ["own:bash", 3]}, "tools[1]: must be a string, not an integer"),
    ({"tools": ["a:b", "a:b"]}, "tools[1]: 'a:b' is listed twice"),
    ({"tools": ["a:b", "Read", "Edit"]}, "tools[1]: Read, Edit need a folder to work in"),
    ({"workspace": {"mode": "copy"}}, "workspace: the key path is missing"),
    ({"workspace": {"mode": "git"}}, "workspace: the key repo is missing: the path or URL"),
    (
        {"workspace": {**GIT, "path": "w"}},
        'path: is only for mode = "shared" or mode = "copy"; this',
    ),
    ({"workspace": {"repo": "w"}}, 'repo: is only for mode = "git"; this is mode = "shared"'),
    ({"workspace": {**COPY, "base": "x"}}, 'base: is only for mode = "git"; this is mode = "copy"'),
    (
        {"workspace": {**GIT, "ignore": []}},
        'ignore: is only for mode = "copy"; this is mode = "git"',
    ),
    ({"workspace": {**COPY, "ignore": ["a\nb"]}}, "ignore[0]: holds a line break"),
    ({"workspace": {**COPY, "remote": "x"}}, 'remote: is only for mode = "git"'),
    (
        {"workspace": {"path": "w", "setup": ["x"]}},
        'setup: is only for mode = "git" or mode = "copy"',
    ),
    ({"workspace": {"mode": "none", "external": []}}, "external: is only for mode"),
    (
        {"workspace": {**GIT, "uncommitted": 1}},
        "uncommitted: must be true or false, not an integer",
    ),
    (
        {"workspace": {**GIT, "uncommitted": True, "base": "x"}},
        "workspace.base: is HEAD when uncommitted = true",
    ),
    (
        {"workspace": {"mode": "git", "repo": "me@host:x", "uncommitted": True}},
        "workspace.uncommitted: has no meaning for a URL",
    ),
    ({"workspace": {**GIT, "base": "-x"}}, "'-x' is not a branch, tag or commit"),
    ({"workspace": {**GIT, "base": "a\nb"}}, "base: holds a line break"),
    ({"workspace": {"mode": "git", "repo": "-x"}}, "repo: cannot begin with '-'"),
    (
        {"workspace": {"mode": "git", "repo": "ext::sh -c x://y"}},
        "repo: must begin with one of https, http, ssh, git, file, not 'ext::sh -c x'",
    ),
    (
        {"workspace": {"mode": "git", "repo": "https://me:secret@host/x.git"}},
        "repo: holds a password, which would be stored with the job",
    ),
    ({"workspace": {**GIT, "remote": f"https://{'x' * 40}@host/x"}}, "remote: holds a password"),
    ({"workspace": {**GIT, "remote": "https://[x"}}, "remote: is not a URL: Invalid IPv6 URL"),
    (
        {"workspace": {**GIT, "accept": ["lfs", "hooks"]}},
        "accept[1]: must be one of submodules, lfs, links, case, not 'hooks'",
    ),
    ({"workspace": {**GIT, "setup": []}}, "setup: is empty: give at least one shell command"),
    ({"workspace": {**GIT, "setup": ["x", " "]}}, "workspace.setup[1]: is empty"),
    ({"workspace": {**GIT, "setup": "x"}}, "workspace.setup: must be a list of strings"),
    ({"workspace": {**GIT, "setup_timeout": "1m"}}, "setup_timeout: does nothing without setup"),
    (
        {"workspace": {**GIT, "snapshot_ignored": ["a", "../b"]}},
        "snapshot_ignored[1]: '../b' must be",
    ),
    ({"workspace": {**GIT, "snapshot_ignored": ["/b"]}}, "'/b' must be a pattern of files in the"),
    (
        {"workspace": {**GIT, "snapshot_ignored": [":!b"]}},
        "':!b' must be a pattern of files in the",
    ),
    ({"workspace": {**GIT, "largest_file": 0}}, "largest_file: must be at least 1, not 0"),
    (
        {"workspace": {**GIT, "on_unknown": "stop"}},
        'on_unknown: must be "tell" or "ask", not \'stop\'',
    ),
    (
        {"workspace": {**GIT, "external": ["Bash("]}},
        "workspace.external[0]: the rule 'Bash(' has no",
    ),
    (
        {"workspace": {**GIT, "external": [{"rule": "Bash(curl *)", "match": ["wget x"]}]}},
        "external[0].match[0]: the rule 'Bash(curl *)' does not match the example 'wget x'",
    ),
    ({"on_failure": "fail"}, "on_failure: does nothing without verify; give that too"),
    ({"verify_rounds": 2}, "verify_rounds: does nothing without verify"),
    ({"verify": ["x"]}, "verify: needs a folder to run in: add a [workspace]"),
    ({"verify": ["x"], "workspace": {"mode": "none"}}, "verify: needs a folder to run in"),
    ({"verify": [], "workspace": GIT}, "verify: is empty: give at least one shell command"),
    ({"verify": [1], "workspace": GIT}, "verify[0]: must be a string, not an integer"),
    (
        {"verify": ["x"], "on_failure": "fail", "verify_rounds": 2, "workspace": GIT},
        'verify_rounds: does nothing with on_failure = "fail"',
    ),
    (
        {"tools": ["Bash"], "workspace": {"mode": "none"}},
        "tools[0]: Bash needs a folder to work in: give it another mode",
    ),
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
def test_a_mistake_is_one_problem_that_says_what_to_write(
    keys: dict[str, Any], expected: str
) -> None:
    problems = problems_of(**keys)
    assert len(problems) == 1
    assert expected in problems[0]


def test_missing_keys_are_named() -> None:
    places = {problem.place for problem in check({}).problems}
    assert places == {"model", "prompt"}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(sorted({name for table in TABLES for name in table.names}))
tables = st.dictionaries(known, anything | st.dictionaries(known, anything, max_size=5), max_size=8)


@pytest.mark.slow
@given(tables)
def test_check_raises_for_no_file(data: dict[str, Any]) -> None:
    top = check(data)
    for problem in top.problems:
        assert str(problem).isprintable()
    if not top.problems:
        assert top["model"]
        assert top["prompt"]
