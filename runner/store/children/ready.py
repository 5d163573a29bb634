"""Which runs that wait for their sub-agents have something to do, as the database is asked for them."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Text,
    and_,
    func,
    literal_column,
    not_,
    or_,
    select,
)

from runner.core.agents.agent import AGENT_TOOL
from runner.core.run import ENDED, STATES
from runner.store.tables import runs, tool_calls

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
    or_(
        not_(has_unended_below(runs)),
        and_(_next_call == AGENT_TOOL, _untold_child),
    ),
)
