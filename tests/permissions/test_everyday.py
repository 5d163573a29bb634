"""Everyday lines under their usual prefixes are allowed, and what an attacker makes of them is not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath

import pytest

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate

FILE = Path(__file__).with_name("everyday.toml")


def cases() -> Iterator[object]:
    for group in tomllib.loads(FILE.read_text(encoding="utf-8"))["group"]:
        yield pytest.param(
            group["allow"], group["allowed"], "allow", id=f"{group['about']}, allowed"
        )
        yield pytest.param(
            group["allow"], group["refused"], "deny", id=f"{group['about']}, refused"
        )


@pytest.mark.parametrize(("rules", "commands", "expected"), list(cases()))
def test_lines_are_decided_as_written(rules: list[str], commands: list[str], expected: str) -> None:
    policy = Policy(tuple(Rule("allow", text) for text in rules), "deny")
    wrong = []
    for command in commands:
        arguments = {"command": command}
        paths = {path: normpath(f"/ws/{path}") for path in paths_of("Bash", arguments)}
        places = {path: ResolvedPath(place, place) for path, place in paths.items()}
        context = ToolContext("/ws", "/out", "/home/dev", places)
        decision = evaluate(policy, Request("Bash", arguments, context))
        if decision.effect != expected:
            wrong.append(f"{command!r} was {decision.explain()}")
    assert wrong == []


FOUND = [
    ("find secrets -type f -exec cat {} +", "Read(secrets/**)"),
    ("find -L secrets -exec env cat {} ';'", "Read(secrets/**)"),
    ("find .git/hooks -exec cp evil {} ';'", "Edit(.git/**)"),
    ("find evil -name pre-commit -exec cp {} .git/hooks ';'", "Edit(.git/hooks/pre-commit)"),
    ("find . -exec rm {} +", "Edit(.git/**)"),
    ("find src -exec touch .git/config ';'", "Edit(.git/**)"),
    ("find src -exec cp {} {}.bak ';'", "Edit(src/a.bak)"),
]


@pytest.mark.parametrize(("command", "denied"), FOUND)
def test_files_that_find_hands_to_a_program_are_looked_at_below_where_it_starts(
    command: str, denied: str
) -> None:
    arguments = {"command": command}
    paths = {path: normpath(f"/ws/{path}") for path in paths_of("Bash", arguments)}
    places = {path: ResolvedPath(place, place) for path, place in paths.items()}
    request = Request("Bash", arguments, ToolContext("/ws", "/out", "/home/dev", places))
    allows = (Rule("allow", "Bash(**)"), Rule("allow", "Edit"), Rule("allow", "Read"))
    assert evaluate(Policy((Rule("deny", denied), *allows)), request).effect == "deny"
    elsewhere = Rule("deny", denied.replace("(", "(other/"))
    if "find . " not in command:
        assert evaluate(Policy((elsewhere, *allows)), request).effect == "allow"


@pytest.mark.parametrize(
    ("name", "denied", "effect"),
    [
        ("*.py", ".env.*", "allow"),
        ("*_spec.rb", ".env*", "allow"),
        ("*.local", ".env.*", "ask"),
        ("*", ".env.*", "ask"),
        ("*.py", ".env.py", "ask"),
        ("*.py", ".*", "ask"),
        (".e*.py", ".env.*", "ask"),
    ],
)
def test_a_denial_of_settings_by_a_glob_is_about_no_source_code(
    name: str, denied: str, effect: str
) -> None:
    arguments = {"command": f"find . -name '{name}' -exec grep -l x {{}} +"}
    paths = {path: normpath(f"/ws/{path}") for path in paths_of("Bash", arguments)}
    places = {path: ResolvedPath(place, place) for path, place in paths.items()}
    request = Request("Bash", arguments, ToolContext("/ws", "/out", "/home/dev", places))
    rules = (Rule("deny", f"Read({denied})"), Rule("allow", "Bash(**)"))
    assert evaluate(Policy(rules, "ask"), request).effect == effect


@pytest.mark.parametrize("command", ["git checkout -- .", "git restore .", "git clean -fd"])
@pytest.mark.parametrize(("denied", "effect"), [(".git/**", "allow"), (".env", "ask")])
def test_git_restores_files_of_the_working_tree_and_none_of_its_own(
    command: str, denied: str, effect: str
) -> None:
    places = {path: ResolvedPath("/ws", "/ws") for path in (".", "./")}
    request = Request("Bash", {"command": command}, ToolContext("/ws", "/out", "/home/dev", places))
    rules = (Rule("deny", f"Edit({denied})"), Rule("allow", "Bash(git *)"))
    assert evaluate(Policy(rules, "ask"), request).effect == effect
