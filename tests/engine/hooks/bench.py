"""A run with hooks in a folder, worked by real processes over a real database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from runner.core.conversation import ModelRequest
from runner.core.hooks import Hook, HookEvent
from runner.core.run import Lease
from runner.core.spec import Asking
from runner.core.workspace import Workspace
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.store.tables import events, hook_runs
from runner.tools.registry import resolve_tools
from runner.workspace.folders import identify
from tests.core.sendable import faults
from tests.engine.test_asking import DONE, Desk, Listening
from tests.engine.test_attempt import claimed, scripted

TOLD = "told.jsonl"  # what hooks are told, in the order in which they run

ALLOW_ALL = (Rule("allow", "*"),)


class Bench(Desk):
    """``begin`` with hooks, and what became of them."""

    def run_with(
        self,
        hooks: Sequence[Hook],
        *replies: dict[str, Any],
        rules: Sequence[Rule] = ALLOW_ALL,
        **spec: Any,
    ) -> Lease:
        """A new run with these hooks and replies, held."""
        job = replace(
            scripted(*replies, DONE),
            tools=resolve_tools(("Bash", "Read", "Write", "Edit"), self.folder)[0],
            rules=tuple(rules),
            asking=Asking("deny"),
            workspace=Workspace(str(self.folder)),
            hooks=tuple(hooks),
        )
        job = replace(job, **spec)
        self.model = Listening(ScriptedModel(job.script or {}))
        self.ports = replace(self.ports, models=self._model)
        return claimed(self.database, job, identify(self.folder))

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the hooks made by ``telling`` were told."""
        path = self.folder / TOLD
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def heard(self) -> list[str]:
        """The texts that the model was sent last, after the last reply."""
        last = self.model.requests[-1].messages[-1]
        return [block["text"] for block in last.blocks if block["type"] == "text"]

    def rows(self) -> list[Any]:
        """The hooks that have run, in order."""
        query = select(hook_runs).order_by(hook_runs.c.number)
        return list(self.database.read(lambda connection: connection.execute(query).all()))

    def happened(self, kind: str) -> list[dict[str, Any]]:
        """The data of the run's events of a type."""
        query = select(events.c.data).where(events.c.type == kind).order_by(events.c.number)
        return list(
            self.database.read(lambda connection: connection.execute(query).scalars().all())
        )

    def check_requests(self) -> None:
        """All that the model was sent could be sent."""
        for request in self.model.requests:
            assert not faults(request.messages), request


def says(event: HookEvent, answer: dict[str, Any], **hook: Any) -> Hook:
    """A hook that notes what it is told, and prints a JSON answer."""
    return telling(event, then=f"printf %s {shlex.quote(json.dumps(answer))}", **hook)


def telling(event: HookEvent, then: str = "true", **hook: Any) -> Hook:
    """A hook that notes what it is told, and does something more."""
    note = f"tee -a {TOLD} > /dev/null; echo >> {TOLD}"
    return Hook(event, command=f"{note}; {then}", **hook)


def decides(decision: str, reason: str = "because", **more: Any) -> dict[str, Any]:
    """What a PreToolUse hook prints to decide on a call."""
    specific = {"hookEventName": "PreToolUse", "permissionDecision": decision}
    return {"hookSpecificOutput": specific | {"permissionDecisionReason": reason} | more}


def function(folder: Path, event: HookEvent, body: str, **hook: Any) -> Hook:
    """A hook that is a Python function of one argument, ``event``."""
    name = f"hooks_{len(list(folder.glob('hooks_*.py')))}"
    (folder / f"{name}.py").write_text(f"def hook(event):\n    {body}\n")
    return Hook(event, function=f"{name}:hook@{folder}", **hook)


def bash(command: str) -> dict[str, Any]:
    return {"tools": [{"name": "Bash", "input": {"command": command}}]}


def texts(request: ModelRequest) -> str:
    return json.dumps([message.as_api() for message in request.messages])
