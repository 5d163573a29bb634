"""Keys and labels of tool calls, and lists that are short enough for a query."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, eq
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, FromClause, and_, false, func, select

from runner.core.agents import call_label
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import runs, tool_calls

_MOST_VALUES = 500

T = TypeVar("T")


class CallKey(NamedTuple):
    """The key of a tool call's row, and of the rows of other tables about the call."""

    run_id: str
    message: int
    position: int

    def of(self, table: FromClause) -> ColumnElement[bool]:
        """True for the row of this call in a table that is keyed by call."""
        return and_(*(table.c[name] == value for name, value in self._asdict().items()))


def has_id(call_id: str) -> ColumnElement[bool]:
    """True for the row of the tool call with this whole id."""
    if (parsed := ids.parse_call_id(call_id)) is None:
        return false()
    columns = (tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
    return and_(*map(eq, columns, parsed))


def call_key(connection: Connection, call_id: str) -> CallKey | None:
    key = (tool_calls.c[name] for name in CallKey._fields)
    row = connection.execute(select(*key).where(has_id(call_id))).first()
    return None if row is None else CallKey(*row)


def descendant_ids(database: Database, run_id: str) -> list[str]:
    query = select(runs.c.id).where(in_tree(run_id), runs.c.id != run_id)
    return [row.id for row in database.rows(query)]


def in_batches(values: Sequence[T], size: int = _MOST_VALUES) -> Iterator[Sequence[T]]:
    """The values in lists that are short enough to be the parameters of a query."""
    return (values[start : start + size] for start in range(0, len(values), size))


Call = tuple[str, int, int]  # run, turn, position


def call_labels(
    connection: Connection, run_ids: Collection[str], turns: tuple[int, int] | None = None
) -> dict[Call, str]:
    """The labels of the tool calls of these runs (of one: of the turns from the first number to the
    last): ``3.2`` is the second call of the third sub-agent. Calls count from a run's first, including the
    calls that a fork is a copy of."""
    found: dict[Call, str] = {}
    before = 0
    if turns is not None:
        (run_id,) = run_ids
        earlier = (tool_calls.c.run_id == run_id) & (tool_calls.c.turn < turns[0])
        before = connection.execute(select(func.count()).where(earlier)).scalar_one()
    for some in in_batches(sorted(set(run_ids))):
        query = (
            select(tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
            .where(tool_calls.c.run_id.in_(some))
            .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
        )
        if turns is not None:
            query = query.where(tool_calls.c.turn.between(*turns))
        for run_id, calls in groupby(connection.execute(query), key=attrgetter("run_id")):
            for number, call in enumerate(calls, before + 1):
                found[run_id, call.turn, call.position] = call_label(run_id, number)
    return found
