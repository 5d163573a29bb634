"""The jobs that come with Runner."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.conversation import ToolOutcome
from runner.core.permissions import Permit, Policy, Request, digest_of, evaluate, paths_of
from runner.engine.ports import Interrupt, Surroundings, ToolCall
from runner.settings import Settings
from runner.tools.builtin import BUILTIN
from runner.tools.toolbox import LocalTools
from runner.wiring import load_submission
from runner.workspace.copy import copy

JOBS = Path(__file__).parents[2] / "jobs"
SPECS = sorted(path for path in JOBS.glob("*.toml") if not path.name.endswith(".script.toml"))
SCRIPT = tomllib.loads((JOBS / "quickstart.script.toml").read_text())


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_job_file_loads(path: Path) -> None:
    assert load_submission(path, Settings.load({})).runs


def test_the_quickstart_says_on_its_first_line_that_it_costs_nothing() -> None:
    first = (JOBS / "quickstart.toml").read_text().splitlines()[0]
    assert "no API key" in first
    assert "costs nothing" in first


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the quickstart's package, as a run of it gets."""
    copy(JOBS / "quickstart", tmp_path / "package", [])
    return tmp_path / "package"


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[LocalTools]:
    tools = LocalTools(tmp_path / "home", tmp_path / "locks")
    yield tools
    tools.close()


def play(key: str, package: Path, tools: LocalTools) -> list[tuple[str, ToolOutcome]]:
    """Make an item's tool calls for real, under the job's rules; gives each one's tool and what
    became of it."""
    policy = Policy(load_submission(JOBS / "quickstart.toml", Settings.load({})).spec.rules)
    outcomes = []
    for call in (call for reply in SCRIPT[key] for call in reply.get("tools", [])):
        tool = BUILTIN[call["name"]]
        surroundings = Surroundings(package, package.parent / "outputs")
        given = call["input"]
        setting = tools.locate(paths_of(tool.name, given), surroundings)
        decision = evaluate(policy, Request(tool.name, given, setting))
        permit = Permit(decision, None, digest_of(given), policy)
        asked = ToolCall("call_1", f"run_{key}", tool, given, permit, surroundings, 60.0)
        outcomes.append((tool.name, tools.run(asked, Interrupt()).outcome))
    return outcomes


def test_the_quickstart_mends_module_by_module_all_that_is_broken(
    package: Path, tools: LocalTools
) -> None:
    assert len(SCRIPT) == 8
    for key in SCRIPT:
        before, *between, after = play(key, package, tools)
        assert (key, before) == (key, ("Bash", "failed"))
        assert (key, {outcome for _, outcome in between}) == (key, {"succeeded"})
        assert {"Edit", "Write"} & {tool for tool, _ in between}
        assert (key, after) == (key, ("Bash", "succeeded"))
    command = [sys.executable, "-m", "unittest"]
    tested = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
