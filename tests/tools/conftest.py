"""A run's folders, the tools at work in them, and waiting for what processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from runner.core.conversation import Tool, ToolResult
from runner.permissions import Answer, Decision, Default, Effect, Rule, digest_of
from runner.permissions.decisions import Authorization, Policy
from runner.ports import Interrupt, Surroundings, ToolCall
from runner.settings import Secrets
from runner.tools.registry import BUILTIN
from runner.tools.toolbox import LocalTools

SECRET = "postgresql://me:hunter2@db/runner"
PATIENCE = 120.0  # seconds


EVERYTHING = Policy(tuple(Rule("allow", name) for name in BUILTIN))


def policy(*lines: str, default: Default = "deny") -> Policy:
    """Rules as people say them: ``allow Read(src/**)``."""
    rules = []
    for line in lines:
        effect, _, text = line.partition(" ")
        assert effect in ("allow", "ask", "deny")
        rules.append(Rule(cast(Effect, effect), text))
    return Policy(tuple(rules), default)


def approved(call: ToolCall, places: Sequence[Path | str]) -> ToolCall:
    """The call, asked about and approved for these places."""
    digest = digest_of(call.input)
    answer = Answer("approved", digest, "me", places=tuple(map(str, places)))
    return replace(
        call,
        authorization=Authorization(Decision("ask"), answer, digest, call.authorization.policy),
    )


@dataclass
class Workbench:
    """One run's folders and the tools at work in them."""

    workspace: Path
    home: Path
    outputs: Path
    lock_dir: Path
    tools: LocalTools
    stored: dict[str, bytes]
    policy: Policy = EVERYTHING

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(self.workspace, self.outputs)

    def call(self, tool: Tool | str, seconds: float = PATIENCE, **given: Any) -> ToolCall:
        known = BUILTIN[tool] if isinstance(tool, str) else tool
        authorization = Authorization(Decision("allow"), None, digest_of(given), self.policy)
        return ToolCall("call_1", "run_1", known, given, authorization, self.surroundings, seconds)

    def under(self, *lines: str, default: Default = "deny") -> Workbench:
        """The same bench, under these rules; the calls are allowed whatever they say."""
        return replace(self, policy=policy(*lines, default=default))

    def run(self, tool: Tool | str, seconds: float = PATIENCE, **given: Any) -> ToolResult:
        return self.tools.run(self.call(tool, seconds, **given), Interrupt())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    monkeypatch.setenv("RUNNER_DATABASE_URL", SECRET)
    monkeypatch.setenv("RUNNER_HOME", "/somewhere")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    monkeypatch.setenv("HARMLESS_COPY", f"see {SECRET}")
    monkeypatch.setenv("HARMLESS", "yes")
    workspace = tmp_path / "workspace"
    home = workspace / ".runner"
    outputs = home / "outputs" / "run_1"
    home.mkdir(parents=True)
    stored: dict[str, bytes] = {}
    secrets = Secrets(urls=[SECRET])
    # Nobody tells this host that the worker is alive: its watchdog waits longer than any test takes.
    tools = LocalTools(
        home, home / "locks", secrets, lambda run_id, name: stored.get(name), watchdog_seconds=300
    )
    yield Workbench(workspace.resolve(), home, outputs, home / "locks", tools, stored)
    tools.close()


@pytest.fixture
def patient(bench: Workbench) -> Workbench:
    """The bench, whose watchdog does not bark."""
    return bench


@pytest.fixture
def patient_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions with MCP servers that wait long for a starved server or thread."""
    for name in ("_ANSWER_PATIENCE", "_LIST_PATIENCE", "_EXIT_PATIENCE"):
        monkeypatch.setattr(f"runner.tools.mcp_session.{name}", 60.0)


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that processes do; fails when it does not come."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what}: did not happen"
        pause.wait(0.005)


def process_ids(path: Path, count: int) -> list[int]:
    """The process ids that ``count`` processes wrote to a file, a line each."""
    wait_until(
        lambda: path.exists() and path.read_text().count("\n") >= count, f"{count} in {path}"
    )
    return [int(line) for line in path.read_text().split()]


def running(pids: list[int]) -> list[int]:
    """Those of the processes that still run."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found
