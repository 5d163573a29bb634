"""The jobs that come with Runner."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.core.conversation import Tool
from runner.jobfile.load import load
from runner.llm.script import check_script
from runner.tools.registry import resolve

JOBS = Path(__file__).parents[2] / "jobs"
SPECS = sorted(path for path in JOBS.glob("*.toml") if not path.name.endswith(".script.toml"))
SCRIPT = tomllib.loads((JOBS / "quickstart.script.toml").read_text())


def resolve_really(
    names: Sequence[str], folder: Path
) -> tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]:
    return resolve(names, folder), ()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_job_file_loads(path: Path) -> None:
    submission = load(path, resolve_tools=resolve_really, check_script=check_script)
    assert submission.runs


def test_the_quickstart_says_on_its_first_line_that_it_costs_nothing() -> None:
    first = (JOBS / "quickstart.toml").read_text().splitlines()[0]
    assert "no API key" in first
    assert "costs nothing" in first


def passes(folder: Path, *arguments: str) -> bool:
    command = [sys.executable, "-m", "unittest", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def mend(folder: Path, key: str) -> None:
    """Do what the scripted model asks for that changes files."""
    for call in (call for reply in SCRIPT[key] for call in reply.get("tools", [])):
        asked = call["input"]
        if call["name"] == "Write":
            (folder / asked["file_path"]).write_text(asked["content"])
        if call["name"] == "Edit":
            path = folder / asked["file_path"]
            text, old = path.read_text(), asked["old_string"]
            assert text.count(old) == 1 or (asked.get("replace_all") and old in text)
            path.write_text(text.replace(old, asked["new_string"]))


@pytest.mark.parametrize("key", SCRIPT)
def test_the_quickstart_mends_a_module_that_is_broken(key: str, tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(JOBS / "quickstart", folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert not passes(folder, f"tests.test_{key}")
    mend(folder, key)
    assert passes(folder, f"tests.test_{key}")


def test_all_that_the_quickstart_mends_is_all_that_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(JOBS / "quickstart", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for key in SCRIPT:
        mend(folder, key)
    assert passes(folder)
