"""The structured results that runs have submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, select

from runner.core.ending.result import RESULT_TOOL
from runner.core.run import RunStatus
from runner.core.text.plain import visible
from runner.store.connection.database import Database
from runner.store.look.decisions import IS_ITS_OWN
from runner.store.look.family.places import IS_OF_ITEM
from runner.store.tables import blocks, runs, tool_calls


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run with the result that it submitted last, None when it has submitted none."""

    run_id: str
    item_key: str
    state: RunStatus
    reason: str
    fork_of: str | None
    result: dict[str, Any] | None


def results_in(database: Database, job_id: str) -> list[RunResult]:
    """The results of the runs of a job's items in their order; runs that were begun afresh are left out,
    as in ``queries.current_runs``."""
    afresh = select(runs.c.fresh_of).where(runs.c.job_id == job_id, runs.c.fresh_of.is_not(None))
    query = (
        select(runs.c.id, runs.c.item_key, runs.c.state, runs.c.reason, runs.c.fork_of)
        .where(runs.c.job_id == job_id, runs.c.id.not_in(afresh), IS_OF_ITEM)
        .order_by(runs.c.id)
    )
    found = database.read(lambda connection: connection.execute(query).all())
    submitted = _submitted(database, and_(runs.c.job_id == job_id, IS_OF_ITEM))
    return [
        RunResult(
            run_id=row.id,
            item_key=row.item_key,
            state=row.state,
            reason=row.reason,
            fork_of=row.fork_of,
            result=submitted.get(row.id),
        )
        for row in found
    ]


def result_of(database: Database, run_id: str) -> dict[str, Any] | None:
    """The result that a run submitted last, None when it has submitted none."""
    return _submitted(database, runs.c.id == run_id).get(run_id)


def _submitted(database: Database, condition: ColumnElement[bool]) -> dict[str, Any]:
    """By run, the input of the last call of the result tool that was taken."""
    reply = and_(
        blocks.c.run_id == tool_calls.c.run_id,
        blocks.c.message == tool_calls.c.message,
        blocks.c.type == "tool_use",
    )
    query = (
        select(tool_calls.c.run_id, tool_calls.c.tool_use_id, blocks.c.content)
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, reply)
        .where(condition, IS_ITS_OWN, tool_calls.c.name == RESULT_TOOL)
        .where(tool_calls.c.outcome == "succeeded")
        .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {
        row.run_id: row.content["input"]
        for row in rows
        if visible(row.content["id"]) == row.tool_use_id
    }
