"""The table of keys: the reference and the JSON Schema follow from it, and its defaults are the core's."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from docs.tables import MAIN, SCHEMA, pages, with_tables
from runner.core.agents import AgentType, Coordinator
from runner.core.budget import Limits
from runner.core.context import Context
from runner.core.hooks import Hook
from runner.core.sandbox import Sandbox
from runner.core.spec import Asking, JobSpec, Patience
from runner.core.workspace import TOOL_CACHES, Verify, Workspace
from runner.jobfile.check import check
from runner.jobfile.keys import RESERVED_OPTIONS, TABLES, json_schema
from runner.jobfile.table import Key, Node, Section
from runner.jobfile.values import RESERVED_HEADERS
from runner.permissions import Rule
from runner.permissions.examples import matches
from runner.permissions.rules import problem

PAGES = pages()
REFERENCE = PAGES[MAIN]
JOBS = sorted(path for path in SCHEMA.parent.glob("*.toml") if ".script" not in path.suffixes)
KEYS = [key for table in TABLES for key in table.keys]


def test_the_tables_in_the_reference_are_current() -> None:
    assert with_tables(PAGES) == PAGES, "run `make docs`"


def test_the_schema_of_the_jobs_is_current() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema(), "run `make docs`"


def test_the_schema_is_one_of_draft_4() -> None:
    Draft4Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_job_names_the_schema_and_fits_it(path: Path) -> None:
    text = path.read_text()
    named = re.match(r"#:schema (\S+)\n", text)
    assert named is not None
    assert path.parent / named[1] == SCHEMA
    assert wrong(tomllib.loads(text)) == []


def wrong(job: dict[str, Any]) -> list[str]:
    """The places of a job that do not fit the schema."""
    errors = Draft4Validator(json_schema()).iter_errors(job)
    return sorted(".".join(map(str, error.absolute_path)) for error in errors)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"nme": "x"}, ""),
        ({"prompt_file": "p"}, ""),
        ({"prompt": " "}, "prompt"),
        ({"limits": {"max_turns": 0}}, "limits.max_turns"),
        ({"limits": {"max_agent_depth": 11}}, "limits.max_agent_depth"),
        ({"limits": {"deadline": "soon"}}, "limits.deadline"),
        ({"limits": {"deadline": 0}}, "limits.deadline"),
        ({"limits": {"tool_timeout": 86_401}}, "limits.tool_timeout"),
        ({"limits": {"budget_usd": "40"}}, "limits.budget_usd"),
        ({"verify_rounds": 2}, ""),
        ({"tools": "Bash"}, "tools"),
        ({"permissions": {"allow": [3]}}, "permissions.allow.0"),
        ({"permissions": {"allow": [{"why": "x"}]}}, "permissions.allow.0"),
        ({"agents": {"a": {}}}, "agents.a"),
        ({"hooks": {"Stop": []}}, "hooks"),
        ({"sandbox": {"mode": "on"}}, "sandbox.mode"),
        ({"sandbox": {"network": True}}, "sandbox.network"),
        ({"sandbox": {"memory": "4 apples"}}, "sandbox.memory"),
        ({"model_options": {"stream": True}}, "model_options.stream"),
    ],
)
def test_a_mistake_does_not_fit_the_schema(keys: dict[str, Any], place: str) -> None:
    assert wrong({"model": "m", "prompt": "Do it.", **keys}) == [place]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_key_has_one_line_of_documentation_and_a_default_that_it_accepts(key: Key) -> None:
    assert key.doc
    assert "\n" not in key.doc
    for value in (key.default, key.example):
        at = Node((key.name,), [], {})
        if value not in (None, [], {}):
            key.type.read(value, at)
        assert at.problems == []


def test_defaults_are_those_of_the_core() -> None:
    top = check(
        {"workspace": {}, "coordinator": {}, "hooks": {"RunEnd": [{}]}, "agents": {"a": {}}}
    )
    ((_, hook),) = top["hooks"]["RunEnd"]
    agent = top["agents"]["a"]
    parts: list[tuple[Any, Any]] = [
        (top["limits"], Limits()),
        (top["context"], Context()),
        (top["retry"], Patience()),
        (top["permissions"], Asking()),
        (
            top["workspace"],
            Workspace(ignore=TOOL_CACHES),
        ),  # a job stored before the key ignores none
        (top["coordinator"], Coordinator("")),
        (top["sandbox"], Sandbox()),
        (hook, Hook("RunEnd")),
        (agent, AgentType("a", "")),
        (agent["limits"], AgentType("a", "")),
        (top, JobSpec("", "")),
    ]
    compared = 0
    for section, core in parts:
        names = {field.name for field in fields(core)} & section.values.keys()
        for name in names - {"name", "model", "agent", "description", "base", "verify"}:
            value = section[name]
            if not isinstance(value, Section | dict):
                assert getattr(core, name) == value, name
                compared += 1
    assert compared > 45
    assert (top["limits"]["budget_usd"], top["limits"]["budget_tokens"]) == (None, None)
    verify = Verify((), top["on_failure"], top["verify_rounds"], top["verify_timeout"])
    assert verify == Verify(())
    assert (top["sandbox"]["network"], top["permissions"]["trust"]) == ((), None)
    assert top["permissions"]["ask_timeout"] is None


def test_the_reference_names_the_options_that_runner_sets() -> None:
    in_one_line = " ".join(REFERENCE.split())
    sentence = in_one_line.split("those that Runner sets itself: ")[1].split(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(RESERVED_OPTIONS)
    sentence = in_one_line.split("joins the headers, except")[1].split(". ")[0]
    assert set(re.findall(r"`([\w-]+)`", sentence)) == set(RESERVED_HEADERS)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_example_in_the_reference_is_valid(page: str) -> None:
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        data = tomllib.loads(example)
        if "src/a.py" in data or "models" in data:  # a script, a price list
            continue
        job = {"model": "m", "prompt": "p", **data}
        assert check(job).problems == []
        assert wrong(job) == []


def test_every_rule_in_the_reference_is_valid() -> None:
    table = REFERENCE.split("| rule | matches |")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    rules = [rule for cell in cells for rule in re.findall(r"`([^`]+)`", cell) if "…" not in rule]
    assert len(rules) > 15
    assert {rule: problem(rule) for rule in rules} == dict.fromkeys(rules)


@pytest.mark.parametrize(
    ("rule", "matched", "unmatched"),
    [
        ("Bash", ["anything > x"], []),
        ("Bash(npm run build)", ["npm run build"], ["npm run build x"]),
        ("Bash(npm run *)", ["npm run", "npm run x"], ["npm runaway"]),
        ("Bash(npm run:*)", ["npm run", "npm run x"], ["npm runaway"]),
        ("Bash(ls*)", ["ls -l", "lsof"], ["als"]),
        ("Agent", ["Agent(reviewer)"], ["Read(a)"]),
        ("Agent(reviewer)", ["Agent(reviewer)"], ["Agent(tester)"]),
        ("Read", ["Read(a)", "Grep(a)", "Glob"], ["Edit(a)"]),
        ("Read(src/**)", ["Read(src/a/b)", "Grep(src)"], ["Read(x/src/a)", "Read(a)"]),
        ("Read(/src/**)", ["Read(src/a)"], ["Read(/src/a)"]),
        ("Read(.env*)", ["Read(.env)", "Read(a/b/.envrc)"], ["Read(a.env)"]),
        ("Read(~/notes/*.md)", ["Read(~/notes/a.md)"], ["Read(notes/a.md)"]),
        ("Read(//etc/**)", ["Read(/etc/hosts)"], ["Read(etc/hosts)"]),
        ("Edit(docs/*.md)", ["Edit(docs/a.md)", "Write(docs/a.md)"], ["Read(docs/a.md)"]),
    ],
)
def test_a_rule_matches_what_the_reference_says(
    rule: str, matched: list[str], unmatched: list[str]
) -> None:
    assert f"`{rule}`" in REFERENCE
    for example in (*matched, *unmatched):
        assert matches(Rule("deny", rule), example) == (example in matched), example
