"""A folder with job files and a RUNNER_HOME, and real ``runner`` processes in it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from runner import wiring
from runner.queries.jobs import list_runs
from runner.queue.embedded import EmbeddedServer
from runner.settings import Settings
from runner.store import migrate
from runner.store.database import Database
from tests.runner_process import RunnerProcess
from tests.upgraded import Upgraded

PATIENCE = 120.0


def wait_until(holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of ``holds``, which is asked again and again."""
    pause = threading.Event()
    deadline = time.monotonic() + patience
    while not (value := holds()):
        assert time.monotonic() < deadline, f"waited {patience:g} s for: {what}"
        pause.wait(0.05)
    return value


class Site:
    """Args: folder: where everything lies. upgraded: makes its database, which goes through all
    migrations without it. settings: more of the environment (database, queue)."""

    def __init__(self, folder: Path, upgraded: Upgraded | None = None, **settings: str) -> None:
        self.folder = folder
        self.upgraded = upgraded
        self.home = folder / "home"
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True)
        self.environment = {**os.environ, "RUNNER_HOME": str(self.home), **settings}
        self.processes: list[RunnerProcess] = []

    def job(
        self,
        script: Mapping[str, Any],
        name: str = "job",
        tools: Sequence[str] = ("Bash", "Read", "Write"),
        allow: Sequence[str] = ("Bash", "Read", "Write"),
        **permissions: Any,
    ) -> Path:
        """A scripted job of one run for each key of ``script``, working in the site's workspace.
        ``permissions``: more of that section."""
        (self.folder / f"{name}.json").write_text(json.dumps(script))
        lines = [
            f'name = "{name}"',
            'provider = "scripted"',
            'model = "scripted"',
            f'script = "{name}.json"',
            'prompt = "Do {{ item }}."',
            f"tools = {json.dumps(tools)}",
            f"[items]\nlist = {json.dumps(list(script))}",
            '[workspace]\npath = "workspace"',
            f"[permissions]\nallow = {json.dumps(allow)}",
            *(f"{key} = {json.dumps(value)}" for key, value in permissions.items()),
        ]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    def live_job(
        self,
        items: Sequence[str],
        name: str = "job",
        options: Mapping[str, Any] | None = None,
        **sections: Mapping[str, Any],
    ) -> Path:
        """A job of one run for each item, which may call Bash and talks to the API that the site's
        environment names.

        Args:
            options: more keys at the top of the file. sections: its other sections, by name.
        """
        top = {
            "name": name,
            "model": "claude-sonnet-5",
            "prompt": "Do {{ item }}.",
            "tools": ["Bash"],
            **(options or {}),
        }
        tables: dict[str, Mapping[str, Any]] = {
            "items": {"list": items},
            "workspace": {"path": "workspace"},
            "permissions": {"allow": ["Bash"]},
            **sections,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        for section, table in tables.items():
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    def start(self, *arguments: str, **environment: str) -> RunnerProcess:
        """A ``runner`` process that goes on beside the test."""
        process = RunnerProcess(arguments, self.folder, self.environment | environment)
        self.processes.append(process)
        return process

    def run(self, *arguments: str, expect: int = 0) -> str:
        """What a ``runner`` command prints; its exit code must be ``expect``."""
        done = RunnerProcess(arguments, self.folder, self.environment)
        try:
            out, err = done.communicate(2 * PATIENCE)
        finally:
            if done.poll() is None:
                done.kill()
                done.communicate()
        assert done.returncode == expect, (arguments, done.returncode, out, err)
        return out

    def json(self, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", expect=expect))

    def submit(self, path: Path) -> str:
        """Submit a job file (into a database that is up to date). Returns the job's id."""
        self._make_database()
        return self.run("submit", str(path)).strip()

    def runs(self, job: str) -> dict[str, dict[str, Any]]:
        """The runs of a job, by item (read without a process: tests wait for them)."""
        with closing(wiring.open_database(self._settings())) as database:
            return {run["item_key"]: dict(run) for run in list_runs(database, job)}

    def wait_for(
        self, job: str, item: str, *states: str, patience: float = PATIENCE
    ) -> dict[str, Any]:
        """The run of an item, once it is in one of these states."""

        def reached() -> dict[str, Any] | None:
            run = self.runs(job)[item]
            return run if run["state"] in states else None

        return wait_until(reached, f"{item} to be {' or '.join(states)}", patience)  # type: ignore[no-any-return]

    def wait_for_file(self, name: str, patience: float = PATIENCE) -> str:
        """The content of a file in the workspace, once a tool has written it."""
        path = self.workspace / name
        return wait_until(  # type: ignore[no-any-return]
            lambda: path.exists() and path.read_text(), f"{name} to be written", patience
        )

    def wait_for_file_made(self, name: str, patience: float = PATIENCE) -> None:
        """Wait for a file in the workspace that may be empty."""
        wait_until((self.workspace / name).exists, f"{name} to be made", patience)

    def _make_database(self) -> None:
        if self.upgraded is None:
            wiring.open_database(self._settings(), upgrade=True).close()
            return
        url = self._settings().database_url
        with closing(Database(url)) as database:
            is_empty = migrate.check(database).state == "empty"
        if is_empty:
            self.upgraded.copy_to(url)

    def _settings(self) -> Settings:
        return Settings.load(self.environment)

    def embedded_url(self) -> str:
        """The URL of the queue's embedded server, for a process with other temporary folders."""
        return EmbeddedServer(self.home).url

    def tool_results(self, run_id: str) -> list[str]:
        """The texts of all tool results of a run, in order."""
        messages = self.json("transcript", run_id)
        return [
            block["content"]
            for message in messages
            for block in message["content"]
            if block["type"] == "tool_result"
        ]

    def freeze(self, process: RunnerProcess) -> None:
        """Stop a process that writes nothing at this moment (on SQLite): one that is stopped while it
        writes keeps all others from writing."""
        path = self.home / "runner.db"
        with closing(sqlite3.connect(path, PATIENCE, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            process.send_signal(signal.SIGSTOP)
            status = psutil.Process(process.pid).status
            wait_until(lambda: status() == psutil.STATUS_STOPPED, "it to be frozen")

    def stop_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def bash(command: str, text: str = "On it.", **more: Any) -> dict[str, Any]:
    """A scripted reply that calls Bash."""
    return {"text": text, "tools": [{"name": "Bash", "input": {"command": command}}], **more}


def done(text: str = "Done.") -> dict[str, Any]:
    return {"text": text}


def replies(*given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return given
