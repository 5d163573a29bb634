"""Finds jobs, runs and tool calls by id or part of one, and labels calls in their tree."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, select

from runner.core.agents import call_label
from runner.errors import NotFoundError
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import jobs, runs, tool_calls

Kind = Literal["job", "run", "call"]

SHORTEST_SUFFIX = 6
_MOST_CANDIDATES = 5
_MOST_RUNS = 200
# The id of a sub-agent's run ends in its numbers below its parents: ``.3.1``.
_NUMBERS = r"((?:\.[0-9]{1,9})*)"
_CALL_SUFFIX = re.compile(rf"([0-9a-z]*){_NUMBERS}_([0-9]{{1,9}})_([0-9]{{1,9}})")
_CALL_PREFIX = re.compile(rf"call_([0-9a-z]+){_NUMBERS}(?:_([0-9]{{1,9}}))?(?:_([0-9]{{1,9}})?)?")
_NAMES = {"job": "job", "run": "run", "call": "tool call"}


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    id: str


@dataclass(frozen=True, slots=True)
class CallKey:
    """The key of a tool call's row."""

    run_id: str
    message: int
    position: int


def find(database: Database, text: str, *kinds: Kind) -> Found:
    """The one thing of these kinds with this id, with an id that starts with ``text``, or with an id that
    ends in at least six characters of it. A tool call is also found by the API's ``tool_use`` id. In the
    id of a sub-agent only the part before the first dot can be shortened.

    Raises:
        NotFoundError: nothing is found, or more than one thing; says which.
    """
    found: list[Found] = []
    if text and text.isascii() and text.isprintable():
        found = database.read(lambda connection: _candidates(connection, text, kinds))
    if len(found) == 1:
        return found[0]
    wanted = " or ".join(name for kind, name in _NAMES.items() if kind in kinds)
    if not found:
        raise NotFoundError(f"no {wanted} is named {text[:60]!a}: look with `runner list`")
    names = ", ".join(one.id for one in found[:_MOST_CANDIDATES])
    more = " and more" if len(found) > _MOST_CANDIDATES else ""
    raise NotFoundError(f"{text[:60]!a} could be {names}{more}: give more of it")


def call_key(connection: Connection, call_id: str) -> CallKey | None:
    """The key of the call with this whole id."""
    parsed = ids.parse_call_id(call_id)
    if parsed is None:
        return None
    run_id, turn, position = parsed
    query = select(tool_calls.c.message).where(
        tool_calls.c.run_id == run_id, tool_calls.c.turn == turn, tool_calls.c.position == position
    )
    message = connection.execute(query).scalar()
    return None if message is None else CallKey(run_id, message, position)


def _candidates(connection: Connection, text: str, kinds: Collection[Kind]) -> list[Found]:
    exact = list(_exact(connection, text, kinds))
    if exact:
        return exact
    shortened = text.lower()
    head = shortened.partition(".")[0]
    found: list[Found] = []
    if head:
        found = list(_shortened(connection, shortened, kinds, from_start=True))
    if not found and len(head) >= SHORTEST_SUFFIX:
        found = list(_shortened(connection, shortened, kinds, from_start=False))
    if not found and "call" in kinds and len(text) >= SHORTEST_SUFFIX:
        found = list(_calls(connection, tool_calls.c.tool_use_id == text))
    return found


def _exact(connection: Connection, text: str, kinds: Collection[Kind]) -> Iterator[Found]:
    if "job" in kinds and connection.execute(select(jobs.c.id).where(jobs.c.id == text)).first():
        yield Found("job", text)
    if "run" in kinds and connection.execute(select(runs.c.id).where(runs.c.id == text)).first():
        yield Found("run", text)
    if "call" in kinds and call_key(connection, text) is not None:
        yield Found("call", text)


def _shortened(
    connection: Connection, text: str, kinds: Collection[Kind], *, from_start: bool
) -> Iterator[Found]:
    head, dot, numbers = text.partition(".")
    tables: tuple[tuple[Kind, ColumnElement[str]], ...] = (("job", jobs.c.id), ("run", runs.c.id))
    for kind, id_ in tables:
        if kind in kinds:
            matches = _is_id(id_, head, dot + numbers, from_start=from_start)
            query = select(id_).where(matches).order_by(id_).limit(_MOST_CANDIDATES + 1)
            yield from (Found(kind, each) for each in connection.execute(query).scalars())
    if "call" in kinds:
        condition = _call_prefix(text) if from_start else _call_suffix(text)
        if condition is not None:
            yield from _calls(connection, condition)


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


def _call_prefix(text: str) -> ColumnElement[bool] | None:
    """Calls whose id starts so. A number counts as whole even if a longer one starts with it."""
    parts = _CALL_PREFIX.fullmatch(text)
    if parts is None:
        return None
    run, numbers, turn, position = parts.groups()
    condition = _is_id(tool_calls.c.run_id, f"run_{run}", numbers, from_start=True)
    if turn is not None:
        condition &= tool_calls.c.turn == int(turn)
    if position is not None:
        condition &= tool_calls.c.position == int(position) - 1
    return condition


def _call_suffix(text: str) -> ColumnElement[bool] | None:
    parts = _CALL_SUFFIX.fullmatch(text)
    if parts is None:
        return None
    run, numbers, turn, position = parts.groups()
    return (
        _is_id(tool_calls.c.run_id, run, numbers, from_start=False)
        & (tool_calls.c.turn == int(turn))
        & (tool_calls.c.position == int(position) - 1)
    )


def _calls(connection: Connection, condition: ColumnElement[bool]) -> Iterator[Found]:
    columns = (tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
    query = select(*columns).where(condition).order_by(*columns).limit(_MOST_CANDIDATES + 1)
    for row in connection.execute(query):
        yield Found("call", ids.call_id(row.run_id, row.turn, row.position))


def descendant_ids(database: Database, run_id: str) -> list[str]:
    """The runs below one."""
    query = select(runs.c.id).where(in_tree(run_id), runs.c.id != run_id)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


Call = tuple[str, int, int]  # run, turn, position


def call_labels(connection: Connection, run_ids: Collection[str]) -> dict[Call, str]:
    """The labels of the tool calls of these runs: ``3.2`` is the second call of the third sub-agent.
    Calls count from a run's first, including the calls that a fork is a copy of."""
    found: dict[Call, str] = {}
    wanted = sorted(set(run_ids))
    for start in range(0, len(wanted), _MOST_RUNS):
        query = (
            select(tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
            .where(tool_calls.c.run_id.in_(wanted[start : start + _MOST_RUNS]))
            .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
        )
        run_id, number = "", 0
        for call in connection.execute(query):
            number = number + 1 if call.run_id == run_id else 1
            run_id = call.run_id
            found[run_id, call.turn, call.position] = call_label(run_id, number)
    return found
