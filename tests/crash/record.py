"""All that the database holds of one run, as plain rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Table, select

from runner.queries import transcript
from runner.store import tables
from runner.store.database import Database


class Violation(AssertionError):  # noqa: N818 - it is not the sweep that erred
    """A guarantee of Runner's did not hold."""


def hold(condition: object, what: str, *seen: object) -> None:
    """Raise ``Violation`` unless the condition is true; it says what was ``seen``."""
    if not condition:
        raise Violation(": ".join([what, *map(repr, seen)]))


def hold_all(*checks: Callable[[], None]) -> None:
    """Raise one ``Violation`` with the texts of all that the checks raise."""
    found = []
    for check in checks:
        try:
            check()
        except Violation as violation:
            found.append(str(violation))
    if found:
        raise Violation("\n".join(found))


@dataclass(frozen=True)
class Record:
    """A run's rows. Two records are equal when nothing was written between them."""

    run: Row[Any]
    blocks: Sequence[Row[Any]]
    calls: Sequence[Row[Any]]
    outputs: Sequence[Row[Any]]
    model_calls: Sequence[Row[Any]]
    events: Sequence[Row[Any]]
    queued: Sequence[Row[Any]]
    questions: Sequence[Row[Any]]
    rules: Sequence[Row[Any]]
    compactions: Sequence[Row[Any]]
    hooks: Sequence[Row[Any]]
    job_budget: Row[Any] | None
    verifications: Sequence[Row[Any]]
    run_workspace: Row[Any] | None
    messages: list[dict[str, Any]]

    @property
    def own_workspace(self) -> Path:
        """Where the run works, the job's folder or one of its own."""
        row = self.run_workspace
        return Path(self.run.workspace_path if row is None else row.path)

    def result(self, tool_use_id: str) -> dict[str, Any]:
        """The ``tool_result`` block of a call."""
        (found,) = [
            row.content for row in self.blocks if row.content.get("tool_use_id") == tool_use_id
        ]
        return dict(found)


def read(database: Database, run_id: str) -> Record:
    def rows(table: Table) -> Sequence[Row[Any]]:
        column = table.c.id if table is tables.runs else table.c.run_id
        query = select(table).where(column == run_id).order_by(*table.primary_key.columns)
        return database.read(lambda connection: connection.execute(query).all())

    (run,) = rows(tables.runs)
    job_budget = select(tables.job_budgets).where(tables.job_budgets.c.job_id == run.job_id)
    rules = select(tables.permission_rules).where(tables.permission_rules.c.job_id == run.job_id)
    return Record(
        run=run,
        blocks=rows(tables.blocks),
        calls=rows(tables.tool_calls),
        outputs=rows(tables.tool_outputs),
        model_calls=rows(tables.model_calls),
        events=rows(tables.events),
        queued=rows(tables.queued_messages),
        questions=rows(tables.approvals),
        rules=database.read(lambda connection: connection.execute(rules).all()),
        compactions=rows(tables.compactions),
        hooks=rows(tables.hook_runs),
        job_budget=database.read(lambda connection: connection.execute(job_budget).one_or_none()),
        verifications=rows(tables.verifications),
        run_workspace=next(iter(rows(tables.run_workspaces)), None),
        messages=transcript.api_messages(database, run_id),
    )
