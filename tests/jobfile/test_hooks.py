"""``hooks`` and ``instructions``: what they become, and what is wrong with bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.core.hooks import HOOK_SECONDS, Hook
from runner.core.spec import JobSpec
from runner.jobfile.keys import EVENTS

from .conftest import Load, Problems

JOB = """\
model = "m"
prompt = "Do it."
tools = ["Bash", "Edit"]
workspace = { path = "." }
"""


def test_every_key_arrives_and_events_are_in_their_order(load_text: Load) -> None:
    text = f"""{JOB}
[[hooks.PostToolUse]]
matcher = "Edit"
command = "ruff format ."
repeatable = true

[[hooks.PreToolUse]]
matcher = ["Bash(git push *)", "Edit"]
command = "./check"
timeout = "5s"
on_failure = "continue"

[[hooks.PreToolUse]]
function = "hooks:look"

[[hooks.RunEnd]]
command = '''
echo done
'''
"""
    spec = load_text(text).spec
    before, every, after, end = spec.hooks
    assert before == Hook(
        "PreToolUse", ("Bash(git push *)", "Edit"), "./check", timeout=5.0, on_failure="continue"
    )
    assert (every.event, every.matcher, every.command) == ("PreToolUse", (), None)
    assert every.function is not None
    assert every.function.startswith("hooks:look@/")
    assert (every.timeout, every.on_failure) == (HOOK_SECONDS, "deny")
    assert after == Hook("PostToolUse", ("Edit",), "ruff format .", repeatable=True)
    assert end == Hook("RunEnd", command="echo done\n")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_listed_function_is_a_hook_of_every_event(load_text: Load, tmp_path: Path) -> None:
    spec = load_text(f'hooks = ["hooks:a", "hooks:b"]\n{JOB}').spec
    assert spec.hooks == tuple(
        Hook(event, function=f"hooks:{name}@{tmp_path}") for event in EVENTS.names for name in "ab"
    )


def test_a_matcher_may_name_several_tools_as_claude_code_has_it(load_text: Load) -> None:
    text = f"{JOB}[[hooks.PreToolUse]]\nmatcher = 'Edit|Bash'\ncommand = 'true'\n"
    assert load_text(text).spec.hooks[0].matcher == ("Edit", "Bash")


@pytest.mark.parametrize(
    ("written", "matcher"),
    [
        ("''", ()),
        ("'*'", ()),
        ("['Edit', '*']", ()),
        ("'.*'", (".*",)),
        ("'mcp__.*'", ("mcp__.*",)),
        ("'Notebook.*'", ("Notebook.*",)),
        ("'^(Edit|Write)$'", ("^(Edit|Write)$",)),
        ("'Edit|MultiEdit|Write|NotebookEdit'", ("Edit", "Write")),
        ("'Edit, Bash'", ("Edit", "Bash")),
        ("'Bash(git (push|pull) *)'", ("Bash(git (push|pull) *)",)),
        ("['mcp__(a|b)__.*', 'Bash(*)']", ("Bash(*)", "mcp__(a|b)__.*")),
    ],
)
def test_a_matcher_is_read_as_claude_code_reads_it(
    load_text: Load, written: str, matcher: tuple[str, ...]
) -> None:
    job = JOB.replace('"Edit"]', '"Edit", "Write"]')
    text = f"{job}[[hooks.PreToolUse]]\nmatcher = {written}\ncommand = 'true'\n"
    assert load_text(text).spec.hooks[0].matcher == matcher


def test_an_empty_matcher_is_none_for_any_event(load_text: Load) -> None:
    text = f"{JOB}[[hooks.RunEnd]]\nmatcher = ''\ncommand = 'true'\n"
    assert load_text(text).spec.hooks == (Hook("RunEnd", command="true"),)


def test_a_matcher_holds_in_copies_too(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    pattern = f"Edit(/{tmp_path}/tree/docs/**)"
    text = JOB.replace('path = "."', 'mode = "copy", path = "tree"')
    text += f"[[hooks.PreToolUse]]\nmatcher = '{pattern}'\ncommand = 'true'\n"
    assert load_text(text).spec.hooks[0].matcher == (pattern, "Edit(/docs/**)")


BAD = [
    ('[[hooks.PreTool]]\ncommand = "x"', "line 5: hooks.PreTool: unknown event 'PreTool'; did you"),
    (
        '[[hooks.Stop]]\ncommand = "x"',
        "line 5: hooks.Stop: unknown event 'Stop'; known are RunStart",
    ),
    (
        '[hooks.RunEnd]\ncommand = "x"',
        "line 5: hooks.RunEnd: must be a list of tables, written [[ho",
    ),
    ("hooks.RunEnd = [1]", "line 5: hooks.RunEnd[0]: must be a table, written [[hooks.RunEnd]]"),
    ('hooks = "a:b"', "line 5: hooks: must be a table, written [hooks], not a string"),
    (
        '[[hooks]]\nevent = "RunEnd"',
        "line 5: hooks: name the event of each, as in [[hooks.PreToolUse]]",
    ),
    ("hooks = [1]", "line 5: hooks[0]: must be a string, not an integer"),
    ('hooks = ["hooks:a", "hooks:a"]', "line 5: hooks[1]: 'hooks:a' is listed twice"),
    ('hooks = ["other:a"]', "line 5: hooks[0]: there is no other:a"),
    ("[[hooks.RunEnd]]", "line 5: hooks.RunEnd[0]: one of command and function is needed"),
    (
        '[[hooks.RunEnd]]\ncommand = "x"\nfunction = "hooks:a"',
        "line 7: hooks.RunEnd[0].function: give only one of command and function",
    ),
    (
        '[[hooks.RunEnd]]\nfunction = "other:a"',
        "line 6: hooks.RunEnd[0].function: there is no other",
    ),
    ('[[hooks.RunEnd]]\ncommand = " "', "line 6: hooks.RunEnd[0].command: is empty"),
    (
        '[[hooks.RunEnd]]\ncommand = "x"\nmatcher = "Bash"',
        "line 7: hooks.RunEnd[0].matcher: is only",
    ),
    (
        '[[hooks.PostToolUse]]\ncommand = "x"\non_failure = "deny"',
        "line 7: hooks.PostToolUse[0].on_failure: is only for PreToolUse",
    ),
    (
        '[[hooks.PreToolUse]]\ncommand = "x"\non_failure = "ask"',
        'line 7: hooks.PreToolUse[0].on_failure: must be "deny" or "continue"',
    ),
    (
        '[[hooks.RunEnd]]\ncommand = "x"\ntimeout = 0',
        "line 7: hooks.RunEnd[0].timeout: must be more",
    ),
    (
        '[[hooks.RunEnd]]\ncommand = "x"\ntimeout = "2h"',
        "line 7: hooks.RunEnd[0].timeout: must be at",
    ),
    ('[[hooks.RunEnd]]\ncommand = "x"\nshell = "sh"', "line 7: hooks.RunEnd[0].shell: unknown key"),
    (
        '[[hooks.RunEnd]]\ncommand = "x"\nrepeatable = 1',
        "line 7: hooks.RunEnd[0].repeatable: must be true or false",
    ),
    (
        '[[hooks.PreToolUse]]\ncommand = "x"\nmatcher = "Bash("',
        "line 7: hooks.PreToolUse[0].matcher: the rule 'Bash(' has no ')'",
    ),
    (
        '[[hooks.PreToolUse]]\ncommand = "x"\nmatcher = ["Edit", "Glob"]',
        "line 7: hooks.PreToolUse[0].matcher: this job has no tool 'Glob'",
    ),
    (
        '[[hooks.PreToolUse]]\ncommand = "x"\nmatcher = "mcp__[a"',
        "line 7: hooks.PreToolUse[0].matcher: 'mcp__[a' is neither a rule nor a regular expression",
    ),
    (
        '[[hooks.PreToolUse]]\ncommand = "x"\nmatcher = "NotebookEdit"',
        "line 7: hooks.PreToolUse[0].matcher: this job has no tool 'NotebookEdit'",
    ),
    ("instructions = 1", 'line 5: instructions: must be true, false or "follow", not 1'),
]


@pytest.mark.parametrize(("more", "expected"), BAD)
def test_a_bad_hook_is_one_problem_with_its_place_and_line(
    problems_of: Problems, more: str, expected: str
) -> None:
    (problem,) = problems_of(f"{JOB}{more}\n")
    assert problem.startswith(expected)


def test_a_function_that_cannot_be_found_is_one_problem_for_all_events(
    problems_of: Problems,
) -> None:
    assert len(problems_of(f'{JOB}hooks = ["other:a", "other:b"]\n')) == 2


def test_instructions_need_a_folder(problems_of: Problems, load_text: Load) -> None:
    assert load_text(f"{JOB}instructions = true\n").spec.instructions
    (problem,) = problems_of('model = "m"\nprompt = "p"\ninstructions = true\n')
    assert problem.startswith("line 3: instructions: needs a folder with AGENTS.md or CLAUDE.md")


def test_a_hook_takes_a_condition_as_claude_code_has_it(load_text: Load) -> None:
    text = f"{JOB}[[hooks.PreToolUse]]\nmatcher = 'Bash'\nif = 'Bash(git *)'\ncommand = 'true'\n"
    (hook,) = load_text(text).spec.hooks
    assert (hook.matcher, hook.condition) == (("Bash",), ("Bash(git *)",))
