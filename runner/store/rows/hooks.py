"""Hooks that ran for a run, and the instructions that it read, as rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, select

from runner.core.files.instructions import Instructions, with_instructions
from runner.core.hooks.lookup import name_of
from runner.core.hooks.run import HookAnswer, HookRun
from runner.core.journal.entries import HookFinished, HookStarted, InstructionsRead
from runner.core.journal.events import INPUT_SUMMARY_LENGTH
from runner.core.journal.view import RunView
from runner.core.spec import JobSpec
from runner.core.text.plain import shorten
from runner.store.connection.statement import Writes, find
from runner.store.tables import hook_runs, run_instructions

_HOOK_RUNS = (
    select(hook_runs)
    .where(hook_runs.c.run_id == bindparam("run"), hook_runs.c.number > bindparam("past"))
    .order_by(hook_runs.c.number)
)
_INSTRUCTIONS = (
    select(run_instructions)
    .where(run_instructions.c.run_id == bindparam("run"))
    .order_by(run_instructions.c.position)
)


class HookRows:
    """The rows of hooks of one transaction.

    Args:
        attempt: who writes. now: seconds since the epoch.
    """

    def __init__(self, run_id: str, attempt: int, now: float) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self._now = now
        self._new: dict[int, dict[str, Any]] = {}
        self._changed: dict[int, dict[str, Any]] = {}
        self._instructions: list[dict[str, Any]] = []

    def start(self, view: RunView, entry: HookStarted) -> None:
        """A hook begins, or begins again: ``view`` is before it."""
        begun = {
            "attempt": self._attempt,
            "started_at": self._now,
            "tree_before": view.progress.tree,
        }
        if any(run.number == entry.number for run in view.hook_runs):
            self._change(entry.number, begun)
            return
        self._new[entry.number] = begun | {
            "run_id": self._run_id,
            "number": entry.number,
            "hook": entry.hook,
            "event": entry.event,
            "name": shorten(name_of(view.spec.hooks[entry.hook]), INPUT_SUMMARY_LENGTH),
            "turn": view.progress.turns,
            "message": None if entry.index is None else len(view.messages) - 1,
            "position": entry.index,
        }

    def finish(self, entry: HookFinished) -> None:
        """A hook has ended."""
        result, answer = entry.result, entry.result.answer
        self._change(
            entry.number,
            {
                "ended_at": self._now,
                "duration": result.duration,
                "outcome": answer.outcome,
                "exit_code": result.exit_code,
                "decision": answer.decision,
                "reason": answer.reason,
                "context": answer.context,
                "stops": answer.stops,
                "output": result.output,
                "errors": result.errors,
                "tree_after": entry.tree,
            },
        )

    def instruct(self, entry: InstructionsRead) -> None:
        """The instructions of the workspace have been read."""
        self._instructions += [
            {
                "run_id": self._run_id,
                "position": position,
                "path": file.path,
                "sha256": file.sha256,
                "size": len(file.text.encode()),
                "text": file.text,
            }
            for position, file in enumerate(entry.files)
        ]

    def add_to(self, writes: Writes) -> None:
        """Have all of it written with the rest."""
        writes.insert(hook_runs, [*self._new.values()])
        writes.insert(run_instructions, self._instructions)
        for number, changes in self._changed.items():
            writes.change(hook_runs, changes, run_id=self._run_id, number=number)

    def _change(self, number: int, changes: dict[str, Any]) -> None:
        rows = self._new if number in self._new else self._changed
        rows.setdefault(number, {}).update(changes)


def load_hook_runs(connection: Connection, run_id: str, past: int) -> tuple[HookRun, ...]:
    """The hooks that have run for a run after number ``past``."""
    return tuple(
        HookRun(
            number=row.number,
            hook=row.hook,
            event=row.event,
            index=row.position,
            started_by=row.attempt,
            answer=_answer(row),
        )
        for row in find(connection, _HOOK_RUNS, {"run": run_id, "past": past})
    )


def _answer(row: Any) -> HookAnswer | None:
    if row.outcome is None:
        return None
    return HookAnswer(row.outcome, row.decision, row.reason, row.context, row.stops)


def with_instructions_of(connection: Connection, run_id: str, spec: JobSpec) -> JobSpec:
    """The spec with the instructions that a run has read in its system prompt."""
    rows = find(connection, _INSTRUCTIONS, {"run": run_id})
    files = [Instructions(row.path, row.sha256, row.text) for row in rows]
    return replace(spec, system=with_instructions(spec.system, files))
