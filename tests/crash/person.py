"""The person who answers what the sweep's run asks, as the scenario has it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from sqlalchemy import select

from runner.core.commands import Question, Reply, Target
from runner.store.approvals import answer
from runner.store.database import Database
from runner.store.questions import waiting
from runner.store.tables import runs
from tests.crash.scenario import ANSWERED, Planned, Scenario

_LOOK_SECONDS = 0.02
_NAME = "the person"


class Person:
    """Answers in a thread of its own, while inside: some questions as soon as they are asked, while
    the worker is busy, the others when the run waits, those that come last first."""

    def __init__(self, database: Database, run_id: str, workspace: Path, variant: Scenario) -> None:
        self._database = database
        self._run_id = run_id
        self._workspace = workspace
        self._plan = {id: one for id, one in variant.answers.items() if one.by == "person"}
        self._answering = threading.Lock()
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._stay, name=_NAME)

    def __enter__(self) -> Person:
        if self._plan:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._gone.set()
        if self._plan:
            self._thread.join()

    def answer_all(self) -> None:
        """Answer whatever is asked now, whoever lives."""
        if self._plan:
            self._answer(early_only=False)

    def _stay(self) -> None:
        while not self._gone.wait(_LOOK_SECONDS):
            self._answer(early_only=not self._run_waits())

    def _answer(self, *, early_only: bool) -> None:
        with self._answering:
            for asked in reversed(waiting(self._database, Target("run", self._run_id))):
                planned = self._plan.get(f"toolu_{asked.turn - 1}_{asked.position}")
                if planned is not None and (planned.early or not early_only):
                    self._give(asked, planned)

    def _give(self, asked: Question, planned: Planned) -> None:
        reply = Reply(
            planned.effect,
            _NAME,
            planned.reason,
            edited={"command": planned.command} if planned.command else None,
            remember="job" if planned.remember else "call",
            rule=planned.remember,
        )
        answer(self._database, [asked.id], reply, time.time())
        if planned.early:
            (self._workspace / ANSWERED).touch()

    def _run_waits(self) -> bool:
        query = select(runs.c.state).where(runs.c.id == self._run_id)
        state = self._database.read(lambda connection: connection.execute(query).scalar_one())
        return bool(state == "waiting")
