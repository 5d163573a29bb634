"""docs/job-file.md lists what a job file may hold, no more and no less."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from runner.core.agents import AgentType, Coordinator
from runner.core.budget import Budget, Limits
from runner.core.context import Context
from runner.core.hooks import Hook
from runner.core.spec import Patience
from runner.core.workspace import Verify
from runner.jobfile.check import KEYS, check
from runner.jobfile.section import seconds_in
from runner.jobfile.sections.bounds import LEAST_CHARACTERS, MOST_CHARACTERS, MOST_TOOL_SECONDS
from runner.jobfile.sections.options import RESERVED_HEADERS, RESERVED_OPTIONS
from runner.jobfile.sections.permissions import RULE_KEYS
from runner.jobfile.sections.workspace import WorkspaceDraft
from runner.permissions import Rule
from runner.permissions.examples import matches
from runner.permissions.rules import problem

REFERENCE = (Path(__file__).parents[2] / "docs/job-file.md").read_text()

# What the reference says of keys that have none.
NO_DEFAULT = (
    "none",
    "see below",
    "the model's",
    "the job's model",
    "the job's",
    "all of the job's",
    "the branch checked out",
    "needed in `shared` and `copy",
    "needed in `git",
    "needed",
)


def tables() -> dict[str, dict[str, str]]:
    """The keys of each section's table, each with its default as it is written."""
    found: dict[str, dict[str, str]] = {}
    section = None
    for line in REFERENCE.splitlines():
        if line.startswith("#"):
            named = re.fullmatch(r"##+ `\[+([\w.]+)\]+`", line)
            section = named[1] if named else "" if line == "## The top of the file" else None
        elif line.startswith("| key of a rule |"):
            section = "rule"
        elif section is not None and (row := re.match(r"\| `(\w+)` \|[^|]*\|([^|]*)\|", line)):
            found.setdefault(section, {})[row[1]] = row[2].strip().strip("`")
    return found


def test_the_reference_has_every_key_and_no_other() -> None:
    assert {section: set(keys) for section, keys in tables().items()} == {
        **{section: set(keys) for section, keys in KEYS.items()},
        "rule": set(RULE_KEYS),
    }


def is_written(default: str, value: object) -> bool:
    """Whether a default stands in a table as it is."""
    if default in NO_DEFAULT:
        return value is None
    if default in ("[]", "false"):
        return value is False if default == "false" else value in ((), frozenset())
    if default.startswith('"'):
        return value in (default.strip('"'), seconds_in(default.strip('"')))
    return float(default) == value


def test_the_defaults_in_the_reference_are_the_real_ones() -> None:
    written = tables()
    draft, _ = check({})
    assert (draft.budget, draft.context) == (Budget(), Context())
    defaults = {
        "limits": {**asdict(Limits()), "budget_usd": None, "budget_tokens": None},
        "context": asdict(Context()),
        "retry": asdict(Patience()),
        "agents.NAME.limits": asdict(AgentType("", "")),
        "coordinator": asdict(Coordinator("")) | {"agent": None},
        "workspace": asdict(WorkspaceDraft()) | {"accept": WorkspaceDraft().accepted},
    }
    for section, real in defaults.items():
        for key, default in written[section].items():
            assert is_written(default, real[key]), (section, key)
    for key in ("timeout", "on_failure", "repeatable"):
        assert is_written(written["hooks.EVENT"][key], getattr(Hook("PreToolUse"), key))
    agent = AgentType("", "")
    for key in ("system", "model", "tools", "workspace", "snapshot"):
        assert is_written(written["agents.NAME"][key], getattr(agent, key))
    verify = Verify(commands=())
    assert written[""]["on_failure"] == f'"{verify.on_failure}"'
    assert int(written[""]["verify_rounds"]) == verify.rounds
    assert seconds_in(written[""]["verify_timeout"].strip('"')) == verify.timeout
    for key in ("provider", "parallel_tools"):
        assert written[""][key] == f'"{getattr(draft, key)}"'
    for key in ("default", "on_timeout"):
        assert written["permissions"][key] == f'"{getattr(draft.permissions.asking, key)}"'
    assert draft.permissions.asking.timeout is None


def test_the_reference_names_the_options_that_runner_sets() -> None:
    sentence = REFERENCE.split("Not those that it sets itself: ")[1].split(".\n")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(RESERVED_OPTIONS)
    sentence = REFERENCE.split("not these headers: ")[1].split(".\n")[0]
    assert set(re.findall(r"`([\w-]+)`", sentence)) == set(RESERVED_HEADERS)
    assert f"at most {MOST_TOOL_SECONDS:.0f} seconds" in REFERENCE
    assert f"a number from {LEAST_CHARACTERS:.0f} to {MOST_CHARACTERS:.0f}" in REFERENCE


def test_every_example_in_the_reference_is_valid() -> None:
    examples = re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)
    assert examples
    for example in examples:
        data = tomllib.loads(example)
        if "src/a.py" in data:
            continue
        _, problems = check({"model": "m", "prompt": "p", **data})
        assert problems == []


def test_every_rule_in_the_reference_is_one() -> None:
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
