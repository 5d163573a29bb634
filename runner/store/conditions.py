"""Conditions on rows of the tables that several modules share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, func, or_, select

from runner.core.agents import lineage
from runner.core.run import ENDED
from runner.store.tables import approvals, blocks, runs, tool_calls, workers

IS_ITEM_RUN = runs.c.parent_run.is_(None)  # the others are runs of sub-agents
ROOT_RUN: ColumnElement[str] = func.coalesce(runs.c.root_run, runs.c.id)
# A fork starts with copies of the calls of another run.
IS_OWN_CALL = or_(runs.c.fork_turn.is_(None), tool_calls.c.turn > runs.c.fork_turn)
# A run waits for answers about its last message only.
IS_OPEN_APPROVAL = and_(
    approvals.c.answer.is_(None),
    runs.c.state.not_in(ENDED),
    approvals.c.message == runs.c.message_count - 1,
)


# The images and documents that an item carries, after the prompt.
IS_ATTACHED = and_(
    blocks.c.message == 0, blocks.c.turn == 0, blocks.c.type.in_(("image", "document"))
)


def of_call(table: Table) -> ColumnElement[bool]:
    """True for the row of a table that is keyed by call and the row of the same call in ``tool_calls``."""
    key = ("run_id", "message", "position")
    return and_(*(table.c[name] == tool_calls.c[name] for name in key))


APPROVAL_OF_CALL = of_call(approvals)
# The blocks of the reply that asks for a call which ask for tools, one for each of its calls.
CALL_BLOCKS = and_(
    blocks.c.run_id == tool_calls.c.run_id,
    blocks.c.message == tool_calls.c.message,
    blocks.c.type == "tool_use",
)


def in_tree(run_id: str) -> ColumnElement[bool]:
    """True for the row in ``runs`` of this run, and for the rows of all runs below it."""
    root = lineage(run_id)[0]
    if run_id == root:
        return or_(runs.c.id == run_id, runs.c.root_run == run_id)
    below = runs.c.id.startswith(f"{run_id}.", autoescape=True)
    return or_(runs.c.id == run_id, and_(runs.c.root_run == root, below))


def in_trees(run_ids: Collection[str]) -> ColumnElement[bool]:
    """True for the rows in ``runs`` of these runs of items, and of all runs below them."""
    return or_(runs.c.id.in_(run_ids), runs.c.root_run.in_(run_ids))


def is_live(now: float) -> ColumnElement[bool]:
    """True for the row in ``workers`` of a worker whose leases are good."""
    return and_(workers.c.ended_at.is_(None), workers.c.lease_expires_at > now)


def superseded_runs(job_id: str) -> Select[Any]:
    """The ids of a job's runs that a fresh run has replaced."""
    return select(runs.c.fresh_of).where(runs.c.job_id == job_id, runs.c.fresh_of.is_not(None))
