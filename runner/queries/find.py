"""Finds jobs, runs and tool calls by id or part of one, and labels calls in their tree."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, eq
from typing import Literal, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, FromClause, and_, false, select

from runner.core.agents import call_label
from runner.errors import NotFoundError
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import jobs, runs, schedules, tool_calls

Kind = Literal["job", "run", "call", "schedule"]

SHORTEST_SUFFIX = 6
_MOST_CANDIDATES = 5
_MOST_VALUES = 500
# The id of a sub-agent's run ends in its numbers below its parents: ``.3.1``.
_NUMBERS = r"((?:\.[0-9]{1,9})*)"
_CALL_SUFFIX = re.compile(rf"([0-9a-z]*){_NUMBERS}_([0-9]{{1,9}})_([0-9]{{1,9}})")
_CALL_PREFIX = re.compile(rf"call_([0-9a-z]+){_NUMBERS}(?:_([0-9]{{1,9}}))?(?:_([0-9]{{1,9}})?)?")
_NAMES = {"job": "job", "run": "run", "call": "tool call", "schedule": "schedule"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    id: str


class CallKey(NamedTuple):
    """The key of a tool call's row, and of the rows of other tables about the call."""

    run_id: str
    message: int
    position: int

    def of(self, table: FromClause) -> ColumnElement[bool]:
        """True for the row of this call in a table that is keyed by call."""
        return and_(*(table.c[name] == value for name, value in self._asdict().items()))


def find(database: Database, text: str, *kinds: Kind) -> Found:
    """The one thing of these kinds with this id, with an id that starts with ``text``, or with an id that
    ends in at least six characters of it. A tool call is also found by the API's ``tool_use`` id. In the
    id of a sub-agent only the part before the first dot can be shortened. Raises ``NotFoundError`` if
    nothing is found, or more than one thing, and says which."""
    found: list[Found] = []
    if text and text.isascii() and text.isprintable():
        found = database.read(lambda connection: _candidates(connection, text, kinds))
    if len(found) == 1:
        return found[0]
    wanted = " or ".join(name for kind, name in _NAMES.items() if kind in kinds)
    if not found:
        look = "runner schedule list" if kinds == ("schedule",) else "runner list"
        raise NotFoundError(f"no {wanted} is named {text[:60]!a}: look with `{look}`")
    names = ", ".join(one.id for one in found[:_MOST_CANDIDATES])
    more = " and more" if len(found) > _MOST_CANDIDATES else ""
    raise NotFoundError(f"{text[:60]!a} could be {names}{more}: give more of it")


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


def _candidates(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    tables: list[tuple[Kind, ColumnElement[str]]] = [("job", jobs.c.id), ("run", runs.c.id)]
    tables.append(("schedule", schedules.c.id))
    asked = [(kind, id_) for kind, id_ in tables if kind in kinds]
    found = [
        Found(kind, text)
        for kind, id_ in asked
        if connection.execute(select(id_).where(id_ == text)).first()
    ]
    if "call" in kinds and call_key(connection, text) is not None:
        found.append(Found("call", text))
    head, dot, numbers = text.lower().partition(".")
    for from_start in (True, False):
        if found or len(head) < (1 if from_start else SHORTEST_SUFFIX):
            continue
        for kind, id_ in asked:
            matches = _is_id(id_, head, dot + numbers, from_start=from_start)
            query = select(id_).where(matches).order_by(id_).limit(_MOST_CANDIDATES + 1)
            found += (Found(kind, each) for each in connection.execute(query).scalars())
        condition = _is_call(text.lower(), from_start=from_start) if "call" in kinds else None
        if condition is not None:
            found += _calls(connection, condition)
    if not found and "call" in kinds and len(text) >= SHORTEST_SUFFIX:
        found += _calls(connection, tool_calls.c.tool_use_id == text)
    return found


def _is_id(
    id_: ColumnElement[str], head: str, numbers: str, *, from_start: bool
) -> ColumnElement[bool]:
    """True for the id of a job or an item's run that starts with or ends in ``head``, followed by the
    numbers of a sub-agent, such as ``.3.1``."""
    if not from_start:
        return id_.endswith(head + numbers, autoescape=True)
    dots = numbers.count(".")
    is_as_deep = id_.like("%" + ".%" * dots) & id_.not_like("%" + ".%" * (dots + 1))
    starts, ends = id_.startswith(head, autoescape=True), id_.endswith(numbers, autoescape=True)
    return starts & ends & is_as_deep


def _is_call(text: str, *, from_start: bool) -> ColumnElement[bool] | None:
    """Calls whose id starts with or ends in a text, or None if no id does. A number counts as whole even
    if a longer one starts with it."""
    parts = (_CALL_PREFIX if from_start else _CALL_SUFFIX).fullmatch(text)
    if parts is None:
        return None
    run, numbers, turn, position = parts.groups()
    head = f"run_{run}" if from_start else run
    condition = _is_id(tool_calls.c.run_id, head, numbers, from_start=from_start)
    if turn is not None:
        condition &= tool_calls.c.turn == int(turn)
    if position is not None:
        condition &= tool_calls.c.position == int(position) - 1
    return condition


def _calls(connection: Connection, condition: ColumnElement[bool]) -> Iterator[Found]:
    key = (tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
    query = select(*key).where(condition).order_by(*key).limit(_MOST_CANDIDATES + 1)
    return (Found("call", ids.call_id(*row)) for row in connection.execute(query))


def descendant_ids(database: Database, run_id: str) -> list[str]:
    query = select(runs.c.id).where(in_tree(run_id), runs.c.id != run_id)
    return [row.id for row in database.rows(query)]


def in_batches(values: Sequence[T], size: int = _MOST_VALUES) -> Iterator[Sequence[T]]:
    """The values in lists that are short enough to be the parameters of a query."""
    return (values[start : start + size] for start in range(0, len(values), size))


Call = tuple[str, int, int]  # run, turn, position


def call_labels(connection: Connection, run_ids: Collection[str]) -> dict[Call, str]:
    """The labels of the tool calls of these runs: ``3.2`` is the second call of the third sub-agent.
    Calls count from a run's first, including the calls that a fork is a copy of."""
    found: dict[Call, str] = {}
    for some in in_batches(sorted(set(run_ids))):
        query = (
            select(tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
            .where(tool_calls.c.run_id.in_(some))
            .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
        )
        for run_id, calls in groupby(connection.execute(query), key=attrgetter("run_id")):
            for number, call in enumerate(calls, 1):
                found[run_id, call.turn, call.position] = call_label(run_id, number)
    return found
