"""``[permissions]``: what a section becomes, and what is wrong with one that is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.spec import Asking, JobSpec
from runner.jobfile.check import check
from runner.jobfile.load import EFFECTS
from runner.permissions import Rule
from runner.permissions.modes import Mode, rules_of

from .conftest import Load, Problems

TOOLS = ("Bash", "Read", "Edit")
JOB = f"""\
model = "m"
prompt = "Do it."
tools = {json.dumps(TOOLS)}
workspace = {{ path = "." }}
"""


def section_problems(**keys: Any) -> list[str]:
    data = {"model": "m", "prompt": "p", "permissions": keys}
    return [str(problem) for problem in check(data).problems]


def settings(folder: Path, content: Any) -> Path:
    """A settings file beside the job file."""
    path = folder / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_job_without_the_section_has_no_rules_and_denies_the_rest(load_text: Load) -> None:
    spec = load_text(JOB).spec
    assert spec.rules == ()
    assert spec.asking == Asking(default="deny", timeout=None, on_timeout="deny")


def test_every_key_arrives(load_text: Load) -> None:
    text = f"""{JOB}
[permissions]
default = "ask"
ask_timeout = "8h"
on_timeout = "stop"
allow = ["Read(src/**)", {{ rule = "Bash(git diff:*)", why = "it only looks" }}]
ask = ["Bash(git push *)"]

[[permissions.deny]]
rule = "Bash(rm *)"
why = "nothing here needs to be removed"
match = ["rm -rf build", "Bash(rm x)"]
not_match = ["ls"]
"""
    submission = load_text(text)
    assert submission.spec.rules == (
        Rule("deny", "Bash(rm *)", "nothing here needs to be removed"),
        Rule("ask", "Bash(git push *)"),
        Rule("allow", "Read(src/**)"),
        Rule("allow", "Bash(git diff:*)", "it only looks"),
    )
    assert submission.spec.asking == Asking("ask", 28_800.0, "stop")
    assert submission.notes == ()


def test_rules_stand_in_order_job_then_settings_then_mode(load_text: Load, tmp_path: Path) -> None:
    path = settings(tmp_path, {"permissions": {"allow": ["Bash(ls *)"], "deny": ["Read(.env)"]}})
    spec = load_text(
        f"""{JOB}
[permissions]
mode = "read_only"
from = ".claude/settings.json"
allow = ["Edit", "Bash"]
ask = ["Bash(git *)"]
deny = ["Edit(docs/**)", "Read(secrets/**)"]
"""
    ).spec
    written, rest = spec.rules[:5], spec.rules[5:]
    assert [(rule.effect, rule.text, rule.origin) for rule in written] == [
        ("deny", "Edit(docs/**)", "job"),
        ("deny", "Read(secrets/**)", "job"),
        ("ask", "Bash(git *)", "job"),
        ("allow", "Edit", "job"),
        ("allow", "Bash", "job"),
    ]
    taken, of_mode = rest[:2], rest[2:]
    assert {(rule.effect, rule.text) for rule in taken} == {
        ("allow", "Bash(ls *)"),
        ("deny", "Read(.env)"),
    }
    assert {rule.origin for rule in taken} == {str(path)}
    assert of_mode == rules_of("read_only", TOOLS)
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_mode_expands_to_rules_about_the_tools_of_the_job(mode: Mode, load_text: Load) -> None:
    spec = load_text(f'{JOB}[permissions]\nmode = "{mode}"').spec
    assert spec.rules == rules_of(mode, TOOLS)
    assert {rule.origin for rule in spec.rules} == {"mode"}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"alow": []}, "permissions.alow: unknown key 'alow'; did you mean allow?"),
    ({"allow": "Bash"}, "permissions.allow: must be a list of rules, not a string"),
    ({"ask": [3]}, "permissions.ask[0]: must be a rule, a string or a table, not an integer"),
    ({"deny": ["Bash", ""]}, "permissions.deny[1]: the rule '' "),
    ({"deny": ["Bash(a\nb)"]}, "permissions.deny[0]: the rule 'Bash(a\\nb)' "),
    ({"deny": ["Bash(a\u200bb)"]}, "permissions.deny[0]: the rule 'Bash(a\\u200bb)' "),
    ({"deny": ["Bash(git *"]}, "permissions.deny[0]: the rule 'Bash(git *' "),
    ({"allow": [{}]}, "permissions.allow[0]: the key rule is missing"),
    ({"allow": [{"rule": 3}]}, "permissions.allow[0].rule: must be a string, not an integer"),
    ({"allow": [{"rule": "Bash(x"}]}, "permissions.allow[0].rule: the rule 'Bash(x' "),
    (
        {"allow": [{"rule": "Bash", "wy": "x"}]},
        "permissions.allow[0].wy: unknown key 'wy'; did you mean why?",
    ),
    ({"allow": [{"rule": "Bash", "why": "a\nb"}]}, "permissions.allow[0].why: holds a line break"),
    (
        {"allow": [{"rule": "Bash", "match": "ls"}]},
        "permissions.allow[0].match: must be a list of strings, not a string",
    ),
    (
        {"allow": [{"rule": "Bash(npm run *)", "match": ["npm run x", "npm install"]}]},
        "permissions.allow[0].match[1]: the rule 'Bash(npm run *)' does not match the example "
        "'npm install'",
    ),
    (
        {"deny": [{"rule": "Bash(rm *)", "not_match": ["rm -rf /"]}]},
        "permissions.deny[0].not_match[0]: the rule 'Bash(rm *)' matches the example 'rm -rf /'",
    ),
    (
        {"deny": [{"rule": "Read(.env)", "match": ["((("]}]},
        "permissions.deny[0].match[0]: '(((' is not a call: ",
    ),
    (
        {"allow": ["Bash(:unanalyzable)"]},
        "permissions.allow[0]: the rule 'Bash(:unanalyzable)' allows nothing",
    ),
    (
        {"allow": [{"rule": "Bash(:unanalyzable)"}]},
        "permissions.allow[0].rule: the rule 'Bash(:unanalyzable)' allows nothing",
    ),
    ({"default": "allow"}, 'permissions.default: must be "ask" or "deny", not \'allow\''),
    ({"mode": "readonly"}, "not 'readonly'; did you mean read_only?"),
    ({"mode": 3}, 'permissions.mode: must be "read_only" or "workspace_write" or "full_access"'),
    ({"from": 3}, "permissions.from: must be a string, not an integer"),
    ({"from": " "}, "permissions.from: is empty"),
    ({"ask_timeout": "soon"}, "permissions.ask_timeout: must be a number of seconds or a string"),
    ({"ask_timeout": 0}, "permissions.ask_timeout: must be more than 0 seconds, not 0"),
    (
        {"ask_timeout": 1, "on_timeout": "fail"},
        'permissions.on_timeout: must be "deny" or "stop", not \'fail\'',
    ),
    ({"on_timeout": "stop"}, "permissions.on_timeout: does nothing without ask_timeout"),
    (
        {"on_ask": "notify-send 'Runner asks'"},
        "permissions.on_ask: unknown key 'on_ask': write [notify] with on = [\"needs_approval\"] and "
        'command = "…" instead',
    ),
]


@pytest.mark.parametrize(("keys", "expected"), CASES, ids=[case[1][:60] for case in CASES])
def test_a_mistake_is_one_problem_that_says_what_to_write(
    keys: dict[str, Any], expected: str
) -> None:
    problems = section_problems(**keys)
    assert len(problems) == 1
    assert expected in problems[0]


words = st.sampled_from(["Bash", "Read", "(", ")", "*", " ", ":*", "/", "~", "[", "!", "\\", "$"])
scraps = st.lists(words | st.text(max_size=5), max_size=6).map("".join)
entries = scraps | st.fixed_dictionaries(
    {"rule": scraps}, optional={"match": st.lists(scraps), "not_match": st.lists(scraps)}
)


@pytest.mark.slow
@given(st.sampled_from(EFFECTS), st.lists(entries, max_size=3))
def test_check_raises_for_no_rule(effect: str, listed: list[Any]) -> None:
    for problem in section_problems(**{effect: listed}):
        assert problem.isprintable()


def test_an_example_may_have_several_lines() -> None:
    entry = {"rule": "Bash(ls *)", "not_match": ["cd x\nrm y"]}
    assert section_problems(deny=[entry]) == []


def test_every_problem_is_listed_with_its_line(problems_of: Problems) -> None:
    text = f"""{JOB}
[permissions]
default = "no"
allow = [
  "Bash",
  "Grep",
  {{ rule = "Bash(ls)", match = [
    "ls",
    "rm",
  ] }},
]

[[permissions.ask]]
rule = "WebFetch(domain:example.com)"

[[permissions.ask]]
rule = "Bash(git *)"
not_match = ["git push"]
"""
    found = [problem.split(": ")[:2] for problem in problems_of(text)]
    assert found == [
        ["line 7", "permissions.default"],
        ["line 10", "permissions.allow[1]"],
        ["line 13", "permissions.allow[2].match[1]"],
        ["line 17", "permissions.ask[0]"],
        ["line 22", "permissions.ask[1].not_match[0]"],
    ]


def test_a_rule_names_a_tool_of_the_job(problems_of: Problems) -> None:
    text = (
        'model = "m"\nprompt = "p"\ntools = ["own:look"]\n'
        '[permissions]\nallow = ["look", "Lo*"]\ndeny = ["Look", "Bash(rm *)"]'
    )
    assert problems_of(text) == [
        "line 5: permissions.allow[1]: this job has no tool 'Lo*'; it has look",
        "line 6: permissions.deny[0]: this job has no tool 'Look'; it has look",
        "line 6: permissions.deny[1]: this job has no tool 'Bash'; it has look",
    ]


def test_an_unknown_tool_and_a_rule_for_it_are_one_problem(problems_of: Problems) -> None:
    text = 'model = "m"\nprompt = "p"\ntools = ["Lok"]\n[permissions]\nallow = ["Lok"]'
    assert problems_of(text) == ["line 3: tools[0]: there is no tool 'Lok'"]


def test_rules_about_files_are_useful_with_bash_alone(load_text: Load) -> None:
    job = JOB.replace(json.dumps(TOOLS), '["Bash"]')
    text = f'{job}[permissions]\nallow = ["Bash(ls *)", "Edit(out/**)"]\ndeny = ["Read(.env)"]'
    assert len(load_text(text).spec.rules) == 3


def test_rules_of_a_settings_file_for_other_tools_are_left_out_and_reported(
    load_text: Load, tmp_path: Path
) -> None:
    path = settings(
        tmp_path, {"permissions": {"allow": ["Bash(ls *)", "WebFetch(domain:example.com)"]}}
    )
    submission = load_text(f'{JOB}[permissions]\nfrom = ".claude/settings.json"')
    assert submission.spec.rules == (Rule("allow", "Bash(ls *)", "", str(path)),)
    (note,) = submission.notes
    assert note.startswith(f"left out: {path}: ")
    assert "WebFetch" in note


def test_a_settings_file_cannot_pass_for_a_persons_answer(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "remembered").write_text('{"permissions": {"allow": ["Bash(ls *)"]}}')
    (rule,) = load_text(f'{JOB}[permissions]\nfrom = "remembered"').spec.rules
    assert rule.origin == str(tmp_path / "remembered")


def test_a_rule_that_no_database_can_hold_is_left_out_and_reported(
    load_text: Load, tmp_path: Path
) -> None:
    settings(tmp_path, '{"permissions": {"allow": ["Bash(ls \\u0000)", "Bash(\\ud800)"]}}')
    submission = load_text(f'{JOB}[permissions]\nfrom = ".claude/settings.json"')
    assert submission.spec.rules == ()
    assert len(submission.notes) == 2


def test_a_settings_file_whose_denials_cannot_be_read_refuses_the_job(
    problems_of: Problems, tmp_path: Path
) -> None:
    path = settings(
        tmp_path, {"permissions": {"allow": ["Bash"], "ask": "Bash", "deny": ["Read(!x)", 3]}}
    )
    assert problems_of(f'{JOB}[permissions]\nfrom = ".claude/settings.json"') == [
        f"line 6: permissions.from: {path}: permissions.deny: the rule 'Read(!x)' begins with '!', "
        "which no rule understands: write a deny rule",
        f"line 6: permissions.from: {path}: permissions.deny: '3' is not a text",
        f"line 6: permissions.from: {path}: permissions.ask is not a list",
    ]


def test_rules_about_absolute_paths_hold_in_copies_of_the_workspace(
    load_text: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "link").symlink_to(tree)
    settings(tmp_path, {"permissions": {"ask": [f"Edit(/{tree}/asked/**)"]}})
    text = f"""
model = "m"
prompt = "p"
tools = ["Edit"]
workspace = {{ path = "link", mode = "MODE" }}
[permissions]
from = ".claude/settings.json"
deny = [{{ rule = "Edit(~/tree/deny/**)", why = "no" }}, "Edit(/{tmp_path}/link/by-link)"]
allow = ["Edit(/{tree}/src/**)"]
"""
    shared = load_text(text.replace("MODE", "shared")).spec.rules
    copied = load_text(text.replace("MODE", "copy")).spec.rules
    assert [rule for rule in copied if rule in shared] == list(shared)
    origin = str(tmp_path / ".claude" / "settings.json")
    assert [rule for rule in copied if rule not in shared] == [
        Rule("deny", "Edit(/deny/**)", "no"),
        Rule("deny", "Edit(/by-link)"),
        Rule("allow", "Edit(/src/**)"),
        Rule("ask", "Edit(/asked/**)", "", origin),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            '{"permissions": {"deny": ["Bash"], "deny": []}}',
            "settings.json has the key 'deny' twice in one object: leave one",
        ),
        (None, "settings.json cannot be read: No such file or directory"),
        ("{", "settings.json is not JSON in UTF-8: "),
        ("[]", "settings.json must hold an object, not a list"),
        ("[" * 100_000, "settings.json is not JSON that can be read: nested too deeply"),
    ],
)
def test_an_unusable_settings_file_is_a_problem(
    content: str | None, expected: str, problems_of: Problems, tmp_path: Path
) -> None:
    if content is not None:
        settings(tmp_path, content)
    (problem,) = problems_of(f'{JOB}[permissions]\nfrom = ".claude/settings.json"')
    assert problem.startswith(f"line 6: permissions.from: {tmp_path}")
    assert expected in problem


def test_a_pipe_in_place_of_a_settings_file_is_a_problem(
    problems_of: Problems, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (problem,) = problems_of(f'{JOB}[permissions]\nfrom = "pipe"')
    assert problem.endswith("it is not a regular file")
