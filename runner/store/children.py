"""A parent's view of its sub-agents (reservations and results), and queueing the parent again.

A child never touches its parent's row while it holds its own, because runs are locked in the order
of their ids. So the parent is queued in a transaction after the child's end. If that is lost, a
dispatcher finds the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, FromClause, bindparam, not_, select

from runner.core.agents import AGENT_TOOL, Child, lineage
from runner.core.budget import Charged, billionths
from runner.core.children import outcome_of
from runner.core.conversation import CUT_REASONS, ToolResult
from runner.core.run import ENDED, RUNNER, RUNNERS_NAME, STATES, Author, Ended, Lease
from runner.core.text import visible
from runner.core.workspace import RESULT_TOOL
from runner.store.changes import held_run, locked_runs, queued, signed_change
from runner.store.conditions import in_tree
from runner.store.control import cancel_locked
from runner.store.database import MOST_AT_ONCE, Database, writes
from runner.store.statements import execute
from runner.store.tables import blocks, model_calls, run_workspaces, runs, tool_calls

_TREE_COLUMNS = (
    *("id", "parent_run", "parent_message", "parent_position", "child_number", "agent_type"),
    *("state", "reason", "detail", "token_ceiling", "cost_ceiling_usd", "charged_tokens"),
    "progress",  # has what each was charged in money
)
# The run of the item is not in it.
_TREE = (
    select(*(runs.c[name] for name in _TREE_COLUMNS))
    .where(runs.c.root_run == bindparam("root"))
    .order_by(runs.c.parent_run, runs.c.child_number)
)
# Blocks of turn 0 are the prompt, and what was copied of the parent's conversation.
_SAID = (
    select(blocks.c.message, blocks.c.turn, blocks.c.content)
    .where(
        blocks.c.run_id == bindparam("run"),
        blocks.c.role == "assistant",
        blocks.c.type == "text",
        blocks.c.turn > 0,
    )
    .order_by(blocks.c.message.desc(), blocks.c.position)
)
_made_calls = sa.exists().where(
    tool_calls.c.run_id == model_calls.c.run_id, tool_calls.c.turn == model_calls.c.turn
)


def _literals(words: Sequence[str]) -> list[ColumnElement[str]]:
    """Return literals: statements run on the driver's cursor take no lists."""
    return [sa.literal_column(f"'{word}'") for word in words]


# After a call the model begins anew, with its result.
_WENT_ON = select(model_calls.c.turn).where(
    model_calls.c.run_id == bindparam("run"),
    model_calls.c.purpose == "turn",
    model_calls.c.stop_reason.in_(_literals([*sorted(CUT_REASONS), "pause_turn"])),
    not_(_made_calls),
)
_SUBMITTED = (
    select(tool_calls.c.tool_use_id, blocks.c.content)
    .join_from(
        tool_calls,
        blocks,
        (blocks.c.run_id == tool_calls.c.run_id) & (blocks.c.message == tool_calls.c.message),
    )
    .where(
        tool_calls.c.run_id == bindparam("run"),
        tool_calls.c.name == RESULT_TOOL,
        tool_calls.c.outcome == "succeeded",
        blocks.c.type == "tool_use",
    )
    .order_by(tool_calls.c.message.desc(), tool_calls.c.position.desc())
)
_LEFT = select(run_workspaces.c.branch, run_workspaces.c.commit_id).where(
    run_workspaces.c.run_id == bindparam("run"),
    run_workspaces.c.branch.is_not(None),
    run_workspaces.c.commit_id.is_not(None),
)


class _Member(NamedTuple):
    row: Any
    reserved: Charged  # what it and all below it were charged, or may still use
    rests: bool  # it has ended, and so has all below it


@dataclass(frozen=True, slots=True)
class Family:
    children: Sequence[_Member]
    tree_size: int  # runs in the whole tree, the run's own siblings among them

    @property
    def reserved(self) -> Charged:
        """Return the charges and reservations of the children."""
        return sum((child.reserved for child in self.children), Charged(0))


def family_of(connection: Connection, run_id: str) -> Family:
    tree = execute(connection, _TREE, {"root": lineage(run_id)[0]})
    by_parent: dict[str, list[Any]] = {}
    for row in tree:
        by_parent.setdefault(row.parent_run, []).append(row)

    def member(row: Any) -> _Member:
        """An ended run may have children that have not ended: they are about to be cancelled."""
        below = [member(child) for child in by_parent.get(row.id, ())]
        if row.state not in ENDED:
            cost = 0 if row.cost_ceiling_usd is None else billionths(row.cost_ceiling_usd)
            return _Member(row, Charged(row.token_ceiling, cost), False)
        charged = Charged(row.charged_tokens, row.progress["money"]["charged_cost"])
        reserved = sum((child.reserved for child in below), charged)
        return _Member(row, reserved, all(child.rests for child in below))

    return Family([member(row) for row in by_parent.get(run_id, ())], len(tree))


def children_waited_for(
    connection: Connection, family: Family, reply: int | None, *, whole: bool
) -> tuple[Child, ...]:
    """Return the children that calls of the last reply wait for (``reply`` is its message; None if all
    have results), or the one with the ``whole`` task. A child has its result when no run below it is at
    work."""
    return tuple(
        Child(
            number=child.row.child_number,
            index=child.row.parent_position,
            agent_type=child.row.agent_type,
            reserved=child.reserved,
            result=_result(connection, child.row) if child.rests else None,
        )
        for child in family.children
        if (whole if child.row.parent_position is None else child.row.parent_message == reply)
    )


def _result(connection: Connection, row: Any) -> ToolResult:
    this = {"run": row.id}
    left = next(((kept.branch, kept.commit_id) for kept in execute(connection, _LEFT, this)), None)
    submitted: Mapping[str, Any] | None = next(
        (
            each.content["input"]
            for each in execute(connection, _SUBMITTED, this)
            if visible(each.content["id"]) == each.tool_use_id
        ),
        None,
    )
    said = _said(connection, row.id)
    return outcome_of(Ended(row.state, row.reason, row.detail), said, submitted, left)


def _said(connection: Connection, run_id: str) -> str:
    """The text of a run's last message that has any, with the replies before it that were cut."""
    went_on = {row.turn for row in execute(connection, _WENT_ON, {"run": run_id})}
    said, began = "", 0
    texts = execute(connection, _SAID, {"run": run_id})
    for _, message in groupby(texts, attrgetter("message")):
        rows = list(message)
        if said and not went_on.issuperset(range(rows[0].turn, began)):
            break
        said = "\n\n".join(row.content["text"] for row in rows) + said
        began = rows[0].turn
    return said


_UNENDED = _literals([state for state in STATES if state not in ENDED])


def _is_unended(run: FromClause) -> ColumnElement[bool]:
    """True if a run has not ended; ``run`` is ``runs`` or an alias of it."""
    return run.c.state.in_(_UNENDED)


def _has_unended_below(run: FromClause) -> ColumnElement[bool]:
    """True if a run below ``run`` has not ended, at any depth: what an ended child leaves behind may
    still write in the folder. ``run`` is ``runs`` or an alias of it."""
    below = runs.alias("below")
    one = sa.literal_column("1", sa.Integer)
    beginning = sa.func.substr(below.c.id, one, sa.func.length(run.c.id) + one)
    found = select(below.c.id).where(
        below.c.root_run == sa.func.coalesce(run.c.root_run, run.c.id),
        beginning == run.c.id + sa.literal_column("'.'", sa.Text),
        _is_unended(below),
    )
    return found.correlate(run).exists()


_parent = runs.alias("parent")
_ended_parent = select(_parent.c.id).where(
    _parent.c.id == runs.c.parent_run, not_(_is_unended(_parent))
)
IS_ORPHAN = sa.and_(
    runs.c.parent_run.is_not(None), _is_unended(runs), _ended_parent.correlate(runs).exists()
)

_child = runs.alias("child")
_call = tool_calls.alias("call")
# An ended child of a call of the last reply whose result is not stored. An attempt stores results first,
# so no attempt of the parent has begun since that child ended.
_untold_child = select(_child.c.id).where(
    _call.c.run_id == _child.c.parent_run,
    _call.c.message == _child.c.parent_message,
    _call.c.position == _child.c.parent_position,
    _child.c.parent_run == runs.c.id,
    _child.c.parent_message == runs.c.message_count - 1,
    _child.c.state.in_(_literals(sorted(ENDED))),
    not_(_has_unended_below(_child)),
    _call.c.ended_at.is_(None),
)
_next_call = (
    select(tool_calls.c.name)
    .where(
        tool_calls.c.run_id == runs.c.id,
        tool_calls.c.message == runs.c.message_count - 1,
        tool_calls.c.started_attempt.is_(None),
        tool_calls.c.ended_at.is_(None),
    )
    .order_by(tool_calls.c.position)
    .limit(1)
    .correlate(runs)
    .scalar_subquery()
)
_has_untold_child = _untold_child.correlate(runs).exists()

# A run that waits for sub-agents and can continue: all have ended, with all runs below them; or one has,
# and another call waits to start in its place. (No other call starts beside one that splits a task.)
IS_READY = sa.and_(
    runs.c.state == "waiting",
    runs.c.reason == "children",
    sa.or_(not_(_has_unended_below(runs)), sa.and_(_next_call == AGENT_TOOL, _has_untold_child)),
)

_PARENT_ENDED = Author(RUNNERS_NAME, "its parent has ended")
_PARENT_ENDS = Author(RUNNERS_NAME, "its parent is about to end")

_ORPHANS = (
    select(runs.c.id, runs.c.parent_run, runs.c.job_id)
    .where(IS_ORPHAN)
    .order_by(runs.c.job_id, runs.c.id)
    .limit(MOST_AT_ONCE)
)
_READY = select(runs.c.id).where(IS_READY).order_by(runs.c.id).limit(MOST_AT_ONCE)


@writes
def wake(connection: Connection, run_id: str, now: float) -> bool:
    """Queue a run that waits for its sub-agents, if it can continue now. True if queued."""
    # Read after the lock is taken: the run may have begun to wait just before.
    locked = locked_runs(connection, [run_id])
    ready = select(runs.c.id).where(runs.c.id == run_id, IS_READY)
    if not locked or connection.execute(ready).first() is None:
        return False
    why = {"reason": "children"}
    signed_change(connection, locked[0], now, "resumed", RUNNER, queued(now), why)
    return True


def attend(database: Database, now: float) -> list[str]:
    """Cancel sub-agents whose parents have ended, and queue parents whose sub-agents have. Returns the
    ids of the runs that are queued again."""

    def cancel(connection: Connection) -> None:
        """Cancel sub-agents whose parent is still ended; its lock keeps it from being resumed."""
        family = {id_ for row in orphans for id_ in (row.id, row.parent_run)}
        locked = {run.id: run for run in locked_runs(connection, sorted(family))}
        for row in orphans:
            if locked[row.parent_run].state in ENDED:
                cancel_locked(connection, locked[row.id], now, _PARENT_ENDED)

    # One job at a time: the order of locks says nothing about the budgets of two jobs.
    for _, of_job in groupby(database.find(_ORPHANS, {}), attrgetter("job_id")):
        orphans = list(of_job)
        database.write(cancel)
    return [row.id for row in database.find(_READY, {}) if wake(database, row.id, now)]


def end_children(database: Database, lease: Lease, now: float) -> None:
    """Cancel the sub-agents of a run that is about to end. Raises ``LeaseLost``, with nothing
    changed."""
    is_below = in_tree(lease.run_id), runs.c.id != lease.run_id, _is_unended(runs)

    def work(connection: Connection) -> bool:
        held_run(connection, lease)
        below = connection.execute(select(runs.c.id).where(*is_below)).scalars().all()
        found = locked_runs(connection, below)
        for run in found:
            cancel_locked(connection, run, now, _PARENT_ENDS)
        return bool(found)

    # A run that was not locked yet may have started another.
    while database.write(work):
        pass
