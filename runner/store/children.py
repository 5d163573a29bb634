"""What a run sees of its sub-agents: what they may use, and their results; and queueing a parent
again.

A child never touches its parent's row while it holds its own, because runs are locked in the order
of their ids. So the parent is queued in a transaction after the child's end. If that is lost, a
dispatcher finds the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Row,
    Text,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from runner.core.agents import AGENT_TOOL, Child, lineage
from runner.core.budget import Charged, billionths
from runner.core.children import outcome_of
from runner.core.conversation import CUT_REASONS, ToolResult
from runner.core.events import signed_event
from runner.core.run import ENDED, RUNNERS_NAME, STATES, Author, Lease
from runner.core.text import visible
from runner.core.workspace import RESULT_TOOL
from runner.errors import LeaseLost
from runner.store.conditions import in_tree
from runner.store.control import cancel_locked, locked_runs, store_change
from runner.store.database import Database
from runner.store.statements import execute
from runner.store.tables import blocks, model_calls, run_workspaces, runs, tool_calls

# The run of the item is none of them. ``progress`` has what each was charged in money.
_TREE = (
    select(
        runs.c.id,
        runs.c.parent_run,
        runs.c.parent_message,
        runs.c.parent_position,
        runs.c.child_number,
        runs.c.agent_type,
        runs.c.state,
        runs.c.reason,
        runs.c.detail,
        runs.c.token_ceiling,
        runs.c.cost_ceiling_usd,
        runs.c.charged_tokens,
        runs.c.progress,
    )
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
_made_calls = exists().where(
    tool_calls.c.run_id == model_calls.c.run_id, tool_calls.c.turn == model_calls.c.turn
)
# As literals: statements that are run on the driver itself take no lists.
_GOING_ON: list[ColumnElement[str]] = [
    literal_column(f"'{reason}'") for reason in (*sorted(CUT_REASONS), "pause_turn")
]
# After a call the model begins anew, with its result.
_WENT_ON = select(model_calls.c.turn).where(
    model_calls.c.run_id == bindparam("run"),
    model_calls.c.purpose == "turn",
    model_calls.c.stop_reason.in_(_GOING_ON),
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
    run_workspaces.c.run_id == bindparam("run")
)


@dataclass(frozen=True, slots=True)
class _Member:
    """A child as its row, with what it holds: what it was charged with all below it, or may still use.
    ``rests``: it has ended, and so has all below it."""

    row: Any
    reserved: Charged
    rests: bool


@dataclass(frozen=True, slots=True)
class Family:
    """The children of one run. ``tree_size`` is how many the whole tree has, the run's own siblings among
    them."""

    children: Sequence[_Member]
    tree_size: int

    @property
    def reserved(self) -> Charged:
        """What all of them hold."""
        return sum((child.reserved for child in self.children), Charged(0))


def family_of(connection: Connection, run_id: str) -> Family:
    """What there is by now below a run."""
    tree = execute(connection, _TREE, {"root": lineage(run_id)[0]})
    by_parent: dict[str, list[Any]] = {}
    for row in tree:
        by_parent.setdefault(row.parent_run, []).append(row)
    children = by_parent.get(run_id, ())
    members = (
        _Member(child, _reserved(child, by_parent), _rests(child, by_parent)) for child in children
    )
    return Family([*members], len(tree))


def _rests(run: Any, by_parent: Mapping[str, Sequence[Any]]) -> bool:
    below = by_parent.get(run.id, ())
    return run.state in ENDED and all(_rests(child, by_parent) for child in below)


def _reserved(run: Any, by_parent: Mapping[str, Sequence[Any]]) -> Charged:
    """Who has ended may have children that have not: they are about to be cancelled."""
    if run.state not in ENDED:
        ceiling = run.cost_ceiling_usd
        return Charged(run.token_ceiling, 0 if ceiling is None else billionths(ceiling))
    charged = Charged(run.charged_tokens, run.progress["money"]["charged_cost"])
    return sum((_reserved(child, by_parent) for child in by_parent.get(run.id, ())), charged)


def children_waited_for(
    connection: Connection, family: Family, reply: int | None, *, whole: bool
) -> tuple[Child, ...]:
    """The children that calls of the last reply have started, or the one that has the whole task, each
    with its result if it has ended, and nothing below it is under way any more.

    Args:
        reply: the number of the last reply, whose calls have not all a result; None: there is none.
        whole: whether some child has the whole task.
    """
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
    left = [
        (kept.branch, kept.commit_id)
        for kept in execute(connection, _LEFT, {"run": row.id})
        if kept.branch is not None and kept.commit_id is not None
    ]
    return outcome_of(
        row.state,
        row.reason,
        row.detail,
        _said(connection, row.id),
        _submitted(connection, row.id),
        left[0] if left else None,
    )


def _said(connection: Connection, run_id: str) -> str:
    """The text of a run's last message that has any, from where it began: a reply that was cut goes on
    in the next one."""
    went_on = {row.turn for row in execute(connection, _WENT_ON, {"run": run_id})}
    said, began = "", 0
    for _, message in groupby(execute(connection, _SAID, {"run": run_id}), lambda row: row.message):
        rows = list(message)
        if said and not went_on.issuperset(range(rows[0].turn, began)):
            break
        said = "\n\n".join(row.content["text"] for row in rows) + said
        began = rows[0].turn
    return said


def _submitted(connection: Connection, run_id: str) -> Mapping[str, Any] | None:
    for row in execute(connection, _SUBMITTED, {"run": run_id}):
        if visible(row.content["id"]) == row.tool_use_id:
            submitted: Mapping[str, Any] = row.content["input"]
            return submitted
    return None


# As literals: statements that are run on the driver itself take no lists.
_UNENDED: list[ColumnElement[str]] = [
    literal_column(f"'{state}'") for state in STATES if state not in ENDED
]
_ENDED: list[ColumnElement[str]] = [literal_column(f"'{state}'") for state in sorted(ENDED)]


def is_unended(run: FromClause) -> ColumnElement[bool]:
    """Whether a run, as ``runs`` or an alias of it, has not ended."""
    return run.c.state.in_(_UNENDED)


_below = runs.alias("below")


def has_unended_below(run: FromClause) -> ColumnElement[bool]:
    """Whether anything has not ended that a run, as ``runs`` or an alias of it, or one below it has
    started: what an ended child leaves behind may still write in the run's folder."""
    one = literal_column("1", Integer)
    beginning = func.substr(_below.c.id, one, func.length(run.c.id) + one)
    return (
        select(_below.c.id)
        .where(
            _below.c.root_run == func.coalesce(run.c.root_run, run.c.id),
            beginning == run.c.id + literal_column("'.'", Text),
            is_unended(_below),
        )
        .correlate(run)
        .exists()
    )


_parent = runs.alias("parent")
IS_ORPHAN = and_(
    runs.c.parent_run.is_not(None),
    is_unended(runs),
    select(_parent.c.id)
    .where(_parent.c.id == runs.c.parent_run, not_(is_unended(_parent)))
    .correlate(runs)
    .exists(),
)

_child = runs.alias("child")
_call = tool_calls.alias("call")
# Of a call of the last reply: whoever takes the run up stores its result first of all, so that a run
# with a child that this finds has not been looked at since that one ended.
_untold_child = (
    select(_child.c.id)
    .join(
        _call,
        and_(
            _call.c.run_id == _child.c.parent_run,
            _call.c.message == _child.c.parent_message,
            _call.c.position == _child.c.parent_position,
        ),
    )
    .where(
        _child.c.parent_run == runs.c.id,
        _child.c.parent_message == runs.c.message_count - 1,
        _child.c.state.in_(_ENDED),
        not_(has_unended_below(_child)),
        _call.c.ended_at.is_(None),
    )
    .correlate(runs)
    .exists()
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

WAITS_FOR_CHILDREN = and_(runs.c.state == "waiting", runs.c.reason == "children")

# All its children have ended, with all below them; or one has so since it began to wait, and another waits
# for its place. (A call that splits a task has several, beside which no other starts.)
IS_READY = and_(
    WAITS_FOR_CHILDREN,
    or_(not_(has_unended_below(runs)), and_(_next_call == AGENT_TOOL, _untold_child)),
)


_MOST_AT_ONCE = 200
_PARENT_ENDED = Author(RUNNERS_NAME, "its parent has ended")
_PARENT_ENDS = Author(RUNNERS_NAME, "its parent is about to end")

_ORPHANS = (
    select(runs.c.id, runs.c.parent_run, runs.c.job_id)
    .where(IS_ORPHAN)
    .order_by(runs.c.job_id, runs.c.id)
    .limit(_MOST_AT_ONCE)
)
_READY = select(runs.c.id).where(IS_READY).order_by(runs.c.id).limit(_MOST_AT_ONCE)

_RESUMED = signed_event(
    "resumed",
    Author(RUNNERS_NAME),
    {"reason": "children"},
    old={"state": "waiting", "reason": "children"},
    new={"state": "queued", "reason": ""},
)


def wake(database: Database, run_id: str, now: float) -> bool:
    """Queue a run again that waits for its sub-agents, if it has something to do by now.

    Args:
        now: seconds since the epoch.

    Returns:
        Whether it did.
    """

    def work(connection: Connection) -> bool:
        # What is looked at has to be newer than the lock: the run may have begun to wait before it.
        locked = locked_runs(connection, [run_id])
        ready = select(runs.c.id).where(runs.c.id == run_id, IS_READY)
        if not locked or connection.execute(ready).first() is None:
            return False
        goes_on = {"state": "queued", "reason": "", "detail": "", "due_at": now, "rung_at": None}
        store_change(connection, locked[0], now, [_RESUMED], **goes_on)
        return True

    return database.write(work)


def attend(database: Database, now: float) -> list[str]:
    """See to sub-agents whose parents have ended, and to parents whose sub-agents have.

    Args:
        now: seconds since the epoch.

    Returns:
        The ids of the runs that are queued again.
    """
    # Those of one job at a time: nobody has the purses of two jobs in the order of their runs.
    for _, orphans in groupby(database.find(_ORPHANS, {}), attrgetter("job_id")):
        database.write(partial(_cancel, orphans=list(orphans), now=now))
    return [row.id for row in database.find(_READY, {}) if wake(database, row.id, now)]


def end_children(database: Database, lease: Lease, now: float) -> None:
    """Cancel all below a run that has not ended: the run is about to end itself.

    Args:
        lease: the run's. now: seconds since the epoch.

    Raises:
        LeaseLost: its attempt no longer holds the run; nothing is cancelled.
    """
    below = select(runs.c.id).where(
        in_tree(lease.run_id), runs.c.id != lease.run_id, is_unended(runs)
    )

    def work(connection: Connection) -> bool:
        held = locked_runs(connection, [lease.run_id])
        if not any(run.state == "running" and run.attempt == lease.attempt for run in held):
            raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
        found = locked_runs(connection, connection.execute(below).scalars().all())
        for run in found:
            cancel_locked(connection, run, now, _PARENT_ENDS)
        return bool(found)

    # Who was not locked yet may have started another.
    while database.write(work):
        pass


def _cancel(connection: Connection, orphans: Sequence[Row[Any]], now: float) -> None:
    """Cancel those whose parent has still ended: it may have been taken up again since they were found,
    and is locked with them so that it is not now."""
    family = {id_ for row in orphans for id_ in (row.id, row.parent_run)}
    locked = {run.id: run for run in locked_runs(connection, sorted(family))}
    for row in orphans:
        if locked[row.parent_run].state in ENDED:
            cancel_locked(connection, locked[row.id], now, _PARENT_ENDED)
