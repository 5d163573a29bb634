"""Going through tool calls, the newest first, with what each was asked to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    ScalarSelect,
    Select,
    Text,
    and_,
    cast,
    column,
    exists,
    func,
    literal,
    or_,
    select,
)

from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import CALLED_AT, KEY, NEWEST_FIRST, STATE, TOOK, of_calls
from runner.store.audit.finding.candidates import Message
from runner.store.connection.driver import to_json
from runner.store.look.decisions import IS_ABOUT_CALL
from runner.store.tables import approvals, blocks, hook_runs, runs, tool_calls

Key = tuple[str, int, int]

_BATCH = 250
_LISTED = 5_000
# So many times what the caller takes are looked at one by one before all others are searched.
_MORE = 10
_ASKS = and_(
    blocks.c.run_id == tool_calls.c.run_id,
    blocks.c.message == tool_calls.c.message,
    blocks.c.type == "tool_use",
)
_ANSWERS = blocks.alias()


@dataclass(frozen=True, slots=True)
class Walked:
    """A tool call. ``row`` has its columns, ``at``, ``state``, ``took``, ``item_key``, its approval's
    ``answer`` and ``answered_by``, and ``edited_input``, which a person or a hook had it run with instead.
    ``asked`` is the input that the model gave, and ``answer`` what came of it, where that was asked
    for."""

    row: Row[Any]
    asked: Any
    answer: Any = None


def walk(
    connection: Connection,
    filters: Filters,
    *conditions: ColumnElement[bool],
    limit: int | None,
    needles: Sequence[str] = (),
    among: Sequence[Message] | None = None,
    answers: bool = False,
) -> Iterator[Walked]:
    """Calls with what was said in them, the newest first, as far as the caller goes.

    Args:
        limit: after so many the caller has had enough; it may pass over some.
        needles: the caller passes over calls that do not have all of these in their input, in
            whatever case (``Pattern.needles``).
        among: the caller passes over calls that none of these replies asked for
            (``candidates``). None: any may do.
        answers: with what came of them.
    """
    calls = of_calls(filters, *KEY, CALLED_AT.label("at")).where(*conditions)
    newest = calls.order_by(*NEWEST_FIRST)
    lots: Iterable[Iterable[Any]]
    if among is None:
        lots = map(connection.execute, _lots(connection, newest, limit, needles))
    else:
        lots = [_chosen(connection, calls, among)]
    seen: set[Key] = set()
    for lot in lots:
        keys = [key for key in dict.fromkeys(map(_key, lot)) if key not in seen]
        seen.update(keys)
        for start in range(0, len(keys), _BATCH):
            yield from _read(connection, keys[start : start + _BATCH], answers)


def _lots(
    connection: Connection, newest: Select[Any], limit: int | None, needles: Sequence[str]
) -> Iterator[Select[Any]]:
    """The keys of a few calls, of more, and at last of all, as the caller goes on. All of them are
    searched for the needles where they are, before any is read."""
    if limit is not None:
        if not needles:
            yield newest_few(connection, newest, max(limit, _BATCH))
        yield newest_few(connection, newest, _MORE * limit)
    if needles:
        newest = newest.where(or_(_has(connection, needles), _WAS_EDITED))
    yield newest


def oldest_of_the_newest(count: int) -> ScalarSelect[Any]:
    """The id of the oldest of so many of the newest runs: ids are in the order that they were made in."""
    return select(runs.c.id).order_by(runs.c.id.desc()).offset(count - 1).limit(1).scalar_subquery()


_NEWEST_RUNS = oldest_of_the_newest(200)


def newest_few(connection: Connection, newest: Select[Any], most: int) -> Select[Any]:
    """The newest few calls of a query that has their ``at`` and gives the newest first.

    None is older than the oldest of so many calls of the newest runs, where these have so many. Runs are
    gone through from the oldest on: without that each call is sorted in, as the newest so far, and out
    again.
    """
    of_newest = newest.where(tool_calls.c.run_id >= _NEWEST_RUNS).limit(most)
    times = [row.at for row in connection.execute(of_newest)]
    if len(times) < most:
        return newest.limit(most)
    return newest.where(times[-1] <= CALLED_AT).limit(most)


def _chosen(connection: Connection, calls: Select[Any], among: Sequence[Message]) -> list[Row[Any]]:
    """The keys of the calls that these replies ask for, and of those that a person or a hook changed:
    what they ran with is in no index."""
    was_edited = and_(IS_ABOUT_CALL, approvals.c.edited_input.is_not(None))
    found = list(connection.execute(calls.join(approvals, was_edited)))
    was_updated = and_(_IS_ABOUT_IT, tool_calls.c.updated_input.is_not(None))
    found += connection.execute(calls.join(hook_runs, was_updated))
    wanted = sorted(among)
    for start in range(0, len(wanted), _LISTED):
        listed = _listed(connection, wanted[start : start + _LISTED])
        found += connection.execute(calls.join(listed, _is_in(listed)))
    return sorted(found, key=lambda row: (row.at, *_key(row)), reverse=True)


_WAS_EDITED = or_(
    tool_calls.c.updated_input.is_not(None),
    exists().where(IS_ABOUT_CALL, approvals.c.edited_input.is_not(None)),
)
# Few runs have hooks: all calls need not be looked at for those that one has changed.
_IS_ABOUT_IT = and_(
    hook_runs.c.run_id == tool_calls.c.run_id,
    hook_runs.c.message == tool_calls.c.message,
    hook_runs.c.position == tool_calls.c.position,
    hook_runs.c.event == "PreToolUse",
)
_RAN_WITH: ColumnElement[Any] = func.coalesce(
    approvals.c.edited_input, tool_calls.c.updated_input, type_=JSON
)


def _has(connection: Connection, needles: Sequence[str]) -> ColumnElement[bool]:
    """Whether the reply of a call has the needles among what it asks for, in whatever case: that is
    what LIKE does on SQLite (https://sqlite.org/lang_expr.html#like), and ILIKE on Postgres."""
    stored = cast(blocks.c.content, Text)
    like = stored.like if connection.dialect.name == "sqlite" else stored.ilike
    return exists().where(_ASKS, *(like(f"%{_escaped(each)}%", escape="/") for each in needles))


def _escaped(needle: str) -> str:
    return needle.replace("/", "//").replace("%", "/%").replace("_", "/_")


def _read(connection: Connection, keys: Sequence[Key], answers: bool) -> Iterator[Walked]:
    """These calls with their inputs. A call has the place among its reply's calls that its block has
    among the blocks that ask for tools."""
    found: dict[Key, list[Row[Any]]] = {}
    listed = _listed(connection, [key[:2] for key in keys])
    for row in connection.execute(_details(listed, answers)):
        found.setdefault(_key(row), []).append(row)
    for key in keys:
        rows = found.get(key, [])
        if key[2] < len(rows):
            row = rows[key[2]]
            answer = (row.answered or {}).get("content") if answers else None
            yield Walked(row, row.content.get("input"), answer)


def _details(listed: FromClause, answers: bool) -> Select[Any]:
    query = (
        select(
            tool_calls,
            CALLED_AT.label("at"),
            STATE.label("state"),
            TOOK.label("took"),
            runs.c.item_key,
            approvals.c.answer,
            approvals.c.answered_by,
            _RAN_WITH.label("edited_input"),
            blocks.c.content,
        )
        .select_from(listed)
        .join(tool_calls, _is_in(listed))
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, _ASKS)
        .outerjoin(approvals, IS_ABOUT_CALL)
        .order_by(*KEY, blocks.c.position)
    )
    if not answers:
        return query
    answers_it = and_(
        _ANSWERS.c.run_id == tool_calls.c.run_id,
        _ANSWERS.c.message == tool_calls.c.message + 1,
        _ANSWERS.c.position == tool_calls.c.position,
        _ANSWERS.c.type == "tool_result",
    )
    return query.outerjoin(_ANSWERS, answers_it).add_columns(_ANSWERS.c.content.label("answered"))


def _listed(connection: Connection, messages: Iterable[Message]) -> FromClause:
    """Messages as a table of their runs and numbers, to be joined with.

    Not as pairs in an IN, for which SQLite looks at every row, nor as an OR of IN lists: with what
    ANALYZE tells it, SQLite 3.40 passes over rows then.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    given = literal(to_json([*dict.fromkeys(messages)]), Text)
    each = (
        func.json_each(given) if is_sqlite else func.json_array_elements(cast(given, JSON))
    ).table_valued(column("value", JSON))
    pair = each.c.value
    return select(
        pair[0].as_string().label("run_id"), pair[1].as_integer().label("message")
    ).subquery("listed")


def _is_in(listed: FromClause) -> ColumnElement[bool]:
    return and_(tool_calls.c.run_id == listed.c.run_id, tool_calls.c.message == listed.c.message)


def _key(row: Row[Any]) -> Key:
    return row.run_id, row.message, row.position
