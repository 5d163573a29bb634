"""Which runs that wait for their sub-agents have something to do, as the database is asked for them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, FromClause, and_, func, literal_column, or_, select

from runner.core.agents.agent import AGENT_TOOL, MOST_AT_ONCE
from runner.core.run import ENDED, STATES
from runner.store.tables import runs, tool_calls

# As literals: statements that are run on the driver itself take no lists.
_UNENDED: list[ColumnElement[str]] = [
    literal_column(f"'{state}'") for state in STATES if state not in ENDED
]


def is_unended(run: FromClause) -> ColumnElement[bool]:
    """Whether a run, as ``runs`` or an alias of it, has not ended."""
    return run.c.state.in_(_UNENDED)


_child = runs.alias("child")
_unended_children = (
    select(func.count())
    .select_from(_child)
    .where(_child.c.parent_run == runs.c.id, is_unended(_child))
    .correlate(runs)
    .scalar_subquery()
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

# All its children have ended, or another one may be started beside those that have not.
IS_READY = and_(
    WAITS_FOR_CHILDREN,
    or_(
        _unended_children == 0,
        and_(_unended_children < MOST_AT_ONCE, _next_call == AGENT_TOOL),
    ),
)
