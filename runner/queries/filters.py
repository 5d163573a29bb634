"""Filters that every question about the record takes, and the parts of queries that questions share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter, eq
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    case,
    false,
    func,
    or_,
    select,
    tuple_,
)

from runner.core.agents import call_label
from runner.queries.rows import Column, Rows
from runner.store import ids
from runner.store.conditions import IS_OWN_CALL, in_tree
from runner.store.database import Database, in_lots
from runner.store.tables import blocks, model_calls, runs, tool_calls

_ASKED_AT = (
    select(func.min(blocks.c.created_at))
    .where(blocks.c.run_id == tool_calls.c.run_id, blocks.c.message == tool_calls.c.message)
    .correlate(tool_calls)
    .scalar_subquery()
)
# When a call started; if it did not, when it was answered or else when the model asked for it, which
# is looked up only where it is needed.
CALLED_AT: ColumnElement[float] = func.coalesce(
    tool_calls.c.started_at, tool_calls.c.ended_at, _ASKED_AT
)
# The outcome of a call that has one.
STATE: ColumnElement[str] = func.coalesce(
    tool_calls.c.outcome,
    case(
        (tool_calls.c.interrupted, "interrupted"),
        (tool_calls.c.started_at.is_(None), "pending"),
        else_="started",
    ),
)
# None for a call that did not run.
TOOK: ColumnElement[float] = case((tool_calls.c.started_at.is_not(None), tool_calls.c.duration))
KEY = (tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
NEWEST_FIRST = (CALLED_AT.desc(), *(column.desc() for column in KEY))
_ITEM_RUN = runs.alias()


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a question. All given filters must hold."""

    job_id: str | None = None
    run_id: str | None = None  # includes the runs of its sub-agents
    item: str | None = None  # an item's key; includes the runs of sub-agents
    since: float | None = None  # seconds since the epoch
    until: float | None = None  # exclusive
    tool: str | None = None
    model: str | None = None  # as the API names it
    state: str | None = None  # of the run itself, also of a sub-agent
    limit: int | None = None  # the most rows of the answer

    @property
    def most(self) -> int | None:
        """The number of rows to query: one more than ``limit`` for ``answer``."""
        return None if self.limit is None else self.limit + 1

    def of_runs(self) -> Iterator[ColumnElement[bool]]:
        """Conditions on ``runs``: job, run, item and state."""
        if self.job_id is not None:
            yield runs.c.job_id == self.job_id
        if self.run_id is not None:
            yield in_tree(self.run_id)
        if self.state is not None:
            yield runs.c.state == self.state
        if self.item is not None:
            root = _ITEM_RUN.c
            roots = select(root.id).where(root.parent_run.is_(None), root.item_key == self.item)
            yield or_(runs.c.item_key == self.item, runs.c.root_run.in_(roots))

    def of_whole_runs(self) -> Iterator[ColumnElement[bool]]:
        """Conditions on ``runs``, including that a run called the tool and the model at all."""
        yield from self.of_runs()
        if self.tool is not None:
            using = select(tool_calls.c.run_id).where(tool_calls.c.name == self.tool, IS_OWN_CALL)
            yield runs.c.id.in_(using)
        if self.model is not None:
            calling = select(model_calls.c.run_id).where(model_calls.c.model == self.model)
            yield runs.c.id.in_(calling)

    def of_time(self, at: ColumnElement[Any]) -> Iterator[ColumnElement[bool]]:
        if self.since is not None:
            yield at >= self.since
        if self.until is not None:
            yield at < self.until

    def of_calls(
        self, table: FromClause, tool: ColumnElement[str], at: ColumnElement[float]
    ) -> Iterator[ColumnElement[bool]]:
        """Conditions on a table about tool calls or the like, with columns ``run_id`` and ``turn``: tool,
        time, and the model that replied in that turn."""
        yield from self.of_time(at)
        if self.tool is not None:
            yield tool == self.tool
        if self.model is not None:
            calls = model_calls.c
            replied = select(calls.run_id, calls.turn).where(
                calls.model == self.model, calls.purpose == "turn", calls.stop_reason.is_not(None)
            )
            yield tuple_(table.c.run_id, table.c.turn).in_(replied)

    def of_tool_calls(self) -> Iterator[ColumnElement[bool]]:
        """Conditions on ``tool_calls``. The calls that a fork is a copy of are left out."""
        yield IS_OWN_CALL
        yield from self.of_calls(tool_calls, tool_calls.c.name, CALLED_AT)

    def of_model_calls(self) -> Iterator[ColumnElement[bool]]:
        """Conditions on ``model_calls`` and ``runs``, by the start of the call. A tool stands for the
        calls of the turns in which it was called."""
        calls = model_calls.c
        yield from self.of_runs()
        yield from self.of_time(calls.started_at)
        if self.model is not None:
            yield calls.model == self.model
        if self.tool is not None:
            turns = select(tool_calls.c.run_id, tool_calls.c.turn)
            turns = turns.where(tool_calls.c.name == self.tool)
            yield tuple_(calls.run_id, calls.turn).in_(turns)

    def tool_calls(self, *columns: Any) -> Select[Any]:
        query = select(*columns).select_from(tool_calls)
        query = query.join(runs, runs.c.id == tool_calls.c.run_id)
        return query.where(*self.of_runs(), *self.of_tool_calls())


def answer(
    database: Database,
    columns: Sequence[Column],
    found: Sequence[Mapping[str, Any]],  # values by the names of the columns
    filters: Filters,
    which: str,  # the rows that these are, for the note: "the newest"
) -> Rows:
    """The rows up to the limit, with a note if there are more. A column ``call_id`` comes with a ``label``:
    both are computed from ``run_id``, ``turn`` and ``position``, which is None where there is no call."""
    names = [column.name for column in columns]
    shown: Sequence[Mapping[str, Any]] = found[: filters.limit]
    if "label" in names:
        about = {row["run_id"] for row in shown if row["position"] is not None}
        labels = database.read(partial(call_labels, run_ids=about))
        keys = ((row["run_id"], row["turn"], row["position"]) for row in shown)
        calls = [None if key[2] is None else (key[0], int(key[1]), int(key[2])) for key in keys]
        shown = [
            {**row, "call_id": call and ids.call_id(*call), "label": call and labels.get(call)}
            for row, call in zip(shown, calls, strict=True)
        ]
    is_cut = len(shown) < len(found)
    note = f"only {which} {filters.limit:,}: there are more (--limit 0 gives all)" if is_cut else ""
    return Rows(columns, [[row[name] for name in names] for row in shown], note)


# --- Tool calls by their ids ---


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


Call = tuple[str, int, int]  # run, turn, position


def call_labels(
    connection: Connection, run_ids: Collection[str], turns: tuple[int, int] | None = None
) -> dict[Call, str]:
    """The labels of the tool calls of runs: ``3.2`` is the second call of the third sub-agent. Calls are
    numbered from a run's first, and include the calls that a fork has copied. ``turns`` (the first and
    the last) limits the labels, for a single run."""
    found: dict[Call, str] = {}
    before = 0
    if turns is not None:
        (run_id,) = run_ids
        earlier = (tool_calls.c.run_id == run_id) & (tool_calls.c.turn < turns[0])
        before = connection.execute(select(func.count()).where(earlier)).scalar_one()
    for some in in_lots(sorted(set(run_ids))):
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
