"""The command, run in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.store.database import Database
from tests.cli.out.recorded import repository_in
from tests.runner_process import RunnerProcess
from tests.upgraded import Upgraded

VARIABLES = (
    "RUNNER_HOME",
    "RUNNER_DATABASE_URL",
    "RUNNER_REDIS_URL",
    "RUNNER_PRICES",
    "RUNNER_WEB_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the command; nothing else tells it where its state is."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the command in this process."""

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., RunnerProcess]]:
    """Starts the command in a process of its own; none is left behind."""
    started: list[RunnerProcess] = []

    def start_one(*arguments: str, stdin: int = subprocess.DEVNULL) -> RunnerProcess:
        process = RunnerProcess(arguments, folder, os.environ, stdin)
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        process.close()


@pytest.fixture
def database(folder: Path, upgraded: Upgraded) -> Iterator[Database]:
    """The database that the command finds in its folder."""
    url = f"sqlite:///{folder / '.runner' / 'runner.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def home(folder: Path) -> Path:
    """RUNNER_HOME as the command finds it in its folder."""
    return folder / ".runner"


@pytest.fixture
def repository(folder: Path) -> Path:
    """A repository with one commit."""
    return repository_in(folder)
