"""``init`` writes a job file that fits the repository and passes the check of a submission."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.settings import Settings
from runner.wiring import load_prices
from tests.cli.conftest import Result
from tests.cli.out.recorded import git, put
from tests.cli.person import PATIENCE, at_terminal
from tests.messages_api.rules import MODELS

Command = Callable[..., Result]

PACKAGE = {"scripts": {"test": "node --test"}, "dependencies": {"left-pad": "1"}}
REPOSITORIES: Mapping[str, dict[str, str]] = {
    "python": {"shop/a.py": "", "shop/b.py": "", "tests/test_a.py": "", "setup.py": ""},
    "pytest": {"pyproject.toml": "[tool.pytest]", "src/shop/a.py": "", "uv.lock": ""},
    "node": {
        "package.json": json.dumps(PACKAGE),
        "package-lock.json": "",
        "lib/a.js": "",
        "lib/b.js": "",
        "test/a.test.js": "",
    },
    "rust": {"Cargo.toml": "", "src/main.rs": "", "src/lib.rs": ""},
    "go": {"go.mod": "", "main.go": "", "main_test.go": ""},
    "java": {
        "pom.xml": "",
        "mvnw": "",
        "src/main/java/shop/A.java": "",
        "src/test/java/T.java": "",
    },
    "venv": {".gitignore": ".venv", "setup.py": "", "requirements.txt": "pytest", "shop/a.py": ""},
    "none": {"README.md": "", 'docs/it\'s "here".md': "", "docs/b.md": ""},
}
EXPECTED = {
    "python": ("shop/**/[!_]*.py", "python3 -m unittest discover -s tests"),
    "pytest": ("src/shop/**/[!_]*.py", "uv run python3 -m pytest -q"),
    "node": ("lib/**/*.js", "npm test"),
    "rust": ("src/**/*.rs", "cargo test --quiet"),
    "go": ("*.go", "go test ./..."),
    "java": ("src/main/java/shop/**/*.java", "./mvnw -q test"),
    "venv": ("shop/**/[!_]*.py", "python3 -m pytest -q"),
    "none": ("docs/**/*.md", "git diff --check HEAD"),
}


def repository(folder: Path, kind: str) -> None:
    git(folder, "init", "-q", "-b", "main")
    put(folder, {name: text.encode() for name, text in REPOSITORIES[kind].items()})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "begin")


def read(folder: Path, name: str = "refactor.toml") -> dict[str, Any]:
    return tomllib.loads((folder / name).read_text())


def test_the_proposed_model_is_one_that_the_api_and_the_price_list_know(
    command: Command, folder: Path
) -> None:
    repository(folder, "python")
    assert command("init").code == 0
    model = read(folder)["model"]
    assert model in MODELS
    assert load_prices(Settings.load()).price(model) is not None


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_items_and_the_test_command_are_found(command: Command, folder: Path, kind: str) -> None:
    repository(folder, kind)
    written = command("init")
    assert written.code == 0, written.err
    assert written.out.startswith("refactor.toml is written\n")
    assert written.out.endswith("next: runner run refactor.toml --dry-run\n")
    job = read(folder)
    assert (job["items"]["glob"], job["verify"][0]) == EXPECTED[kind]
    assert (job["workspace"]["mode"], job["workspace"]["repo"]) == ("git", ".")


def test_an_ignored_environment_of_python_is_made_anew_in_each_worktree(
    command: Command, folder: Path
) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").write_text("")
    repository(folder, "venv")
    assert command("init").code == 0
    job = read(folder)
    assert job["workspace"]["setup"] == [
        "python3 -m venv .venv",
        ".venv/bin/python -m pip install --quiet -e . -r requirements.txt pytest",
    ]
    assert job["verify"] == [".venv/bin/python -m pytest -q"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPOSITORIES)
@pytest.mark.parametrize("template", ["refactor", "review", "migrate", "audit"])
def test_what_is_written_passes_every_check(
    command: Command, folder: Path, kind: str, template: str
) -> None:
    repository(folder, kind)
    assert command("init", "--template", template).code == 0
    checked = command("rules", "check", f"{template}.toml", "Bash(git push)", "Edit(lib/a.js)")
    assert [line.split()[0] for line in checked.out.splitlines()] == [
        "deny",
        "allow" if template in ("refactor", "migrate") else "deny",
    ]
    dry = command("run", f"{template}.toml", "--dry-run")
    assert (dry.code, dry.err.splitlines()[:-2]) == (
        0,
        [
            "warning: provider: no API key is in the environment: set ANTHROPIC_API_KEY before the job runs"
        ],
    )


def test_tests_may_not_be_changed_by_a_refactoring(command: Command, folder: Path) -> None:
    repository(folder, "python")
    command("init")
    test = "Bash(python3 -m unittest discover -s tests -v)"
    decided = command(
        "rules", "check", "refactor.toml", "Edit(tests/test_a.py)", "Edit(setup.py)", test
    )
    assert [line.split()[0] for line in decided.out.splitlines()] == ["deny", "allow", "allow"]


def test_without_a_repository_runs_work_in_copies(command: Command, folder: Path) -> None:
    (folder / "notes.txt").write_text("")
    assert command("init").code == 0
    job = read(folder)
    assert (job["workspace"]["mode"], job["items"]["glob"]) == ("copy", "*.txt")
    assert "verify" not in job


def test_an_empty_folder_gives_one_run(command: Command, folder: Path) -> None:
    written = command("init", "--template", "audit", "-o", "jobs/job.toml")
    assert (written.code, read(folder, "jobs/job.toml").get("items")) == (0, None)
    assert "1 run; next: runner run jobs/job.toml --dry-run" in written.out


def test_a_file_that_is_there_stays(command: Command, folder: Path) -> None:
    (folder / "refactor.toml").write_text("mine")
    refused = command("init")
    assert (refused.code, (folder / "refactor.toml").read_text()) == (2, "mine")
    assert "refactor.toml exists already: name another one with -o FILE" in refused.err


def test_a_person_is_asked_three_questions(folder: Path) -> None:
    repository(folder, "python")
    with at_terminal(folder, "init") as (process, person):
        for words, answer in (
            ("What should be done [", 'Say "hi"\\n in {{ item }}.\n'),
            ("To which files (a pattern) [shop/**/[!_]*.py]", "lib/*.py\n"),
            ("no file matches", ""),
            ("To which files (a pattern) [lib/*.py]", "shop/a.*\n"),
            ("Which command checks the work [", "make a && sh -c 'b; c'\n"),
        ):
            person.wait_for(words)
            person.type(answer)
        assert process.wait(PATIENCE) == 0
    job = read(folder)
    assert 'Say "hi"\\n in {{ item }}.' in job["prompt"]
    assert (job["items"]["glob"], job["verify"]) == ("shop/a.*", ["make a && sh -c 'b; c'"])
    allowed = [rule["rule"] for rule in job["permissions"]["allow"]]
    assert [rule for rule in allowed if "git" not in rule] == ["Edit(/**)", "Bash(make a *)"]
