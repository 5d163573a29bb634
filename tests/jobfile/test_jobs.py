"""The jobs that come with Runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.conversation import ToolOutcome
from runner.permissions import Request, digest_of
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Authorization, Policy, evaluate
from runner.ports import Interrupt, Surroundings, ToolCall
from runner.settings import Settings
from runner.tools.registry import BUILTIN
from runner.tools.toolbox import LocalTools
from runner.wiring import load_submission
from runner.workspace.folders import copy_folder
from tests.runner_process import RunnerProcess
from tests.workspace.repository.made import Made

JOBS = Path(__file__).parents[2] / "jobs"
SPECS = sorted(path.name for path in JOBS.glob("*.toml") if ".script" not in path.suffixes)
SCRIPT = tomllib.loads((JOBS / "quickstart.script.toml").read_text())


@pytest.fixture
def repository(tmp_path: Path) -> Made:
    """The job files in a repository that holds what they are about."""
    made = Made(tmp_path / "project", {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    shutil.copytree(JOBS, made.path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(JOBS.parent / "runner/core", made.path / "runner/core")
    shutil.copy(JOBS.parent / ".gitignore", made.path)
    made.commit()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_every_job_file_loads(name: str, repository: Made) -> None:
    submission = load_submission(repository.path / "jobs" / name, Settings.load({}))
    assert submission.runs
    assert submission.notes == ()


def test_the_quickstart_says_above_all_keys_that_it_costs_nothing() -> None:
    first = (JOBS / "quickstart.toml").read_text().splitlines()[1]
    assert "no API key" in first
    assert "costs nothing" in first


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the quickstart's package, as a run of it gets."""
    copy_folder(JOBS / "quickstart", tmp_path / "package", [])
    return tmp_path / "package"


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[LocalTools]:
    # Nobody tells its host that the worker is alive.
    tools = LocalTools(tmp_path / "home", tmp_path / "locks", watchdog_seconds=300)
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
        tool_context = tools.locate(paths_of(tool.name, given), surroundings)
        decision = evaluate(policy, Request(tool.name, given, tool_context))
        authorization = Authorization(decision, None, digest_of(given), policy)
        asked = ToolCall("call_1", f"run_{key}", tool, given, authorization, surroundings, 60.0)
        outcomes.append((tool.name, tools.run(asked, Interrupt()).outcome))
    return outcomes


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_patches_are_verified_delivered_and_have_results(
    repository: Made, tmp_path: Path
) -> None:
    before = repository.state()
    environment = {**repository.environment, "RUNNER_HOME": str(tmp_path / "home")}

    def runner(*arguments: str) -> str:
        return _runner(repository, environment, *arguments)

    ended = json.loads(runner("run", "patches.toml", "--json"))
    found = [json.loads(line) for line in runner("results", ended["id"]).splitlines()]
    assert {each["item_key"]: each["result"]["risk"] for each in found} == {
        "pages": "low",
        "weights": "high",
    }
    assert "1 run succeeded only when verified again" in runner("report", ended["id"])
    for key in ("pages", "weights"):
        branch = f"runner/patches/{key}"
        changed = repository.git("diff", "--name-only", f"main...{branch}")
        assert changed == f"jobs/quickstart/stockroom/{key}.py"
        assert repository.git("log", "-1", "--format=%s", branch).startswith(f"Mend {key}: ")
        repository.git("update-ref", "-d", f"refs/heads/{branch}")
    after = repository.state()
    assert {**after, "git": None} == {**before, "git": None}


@pytest.mark.slow
def test_the_team_is_a_writer_with_a_reviewer_and_a_tester_each(
    repository: Made, tmp_path: Path
) -> None:
    environment = {**repository.environment, "RUNNER_HOME": str(tmp_path / "home")}
    ended = json.loads(_runner(repository, environment, "run", "team.toml", "--json"))
    listed = _runner(repository, environment, "list", ended["id"], "--tree", "--json")
    runs = json.loads(listed)
    told = [(run["depth"], run["agent_type"], run["state"]) for run in runs]
    writer, reviewer, tester = (0, None), (1, "reviewer"), (1, "tester")
    assert told == [(*who, "succeeded") for who in (writer, reviewer, tester)] * 2
    said = _runner(repository, environment, "transcript", runs[0]["id"])
    assert "decimals hold every price" in said
    assert "PostToolUse" in _runner(repository, environment, "events", runs[0]["id"])


def _runner(repository: Made, environment: dict[str, str], *arguments: str) -> str:
    done = RunnerProcess(arguments, repository.path / "jobs", environment)
    out, err = done.communicate()
    assert done.returncode == 0, err
    return out
