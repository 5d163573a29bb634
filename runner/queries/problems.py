"""What went wrong: errors, and limits that runs have reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, literal_column, select

from runner.core.text import failure_signature, signature, telling_line
from runner.queries.filters import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    Filters,
    between,
    of_calls,
    of_model_calls,
    of_runs,
)
from runner.queries.rows import Column, Rows, at_most, cut
from runner.store import ids
from runner.store.database import Database
from runner.store.tables import blocks, events, model_calls, runs, tool_calls, verifications

_ERROR_COLUMNS = (
    Column("kind"),
    Column("what"),
    Column("times", "integer"),
    Column("runs", "integer"),
    Column("first_at", "time"),
    Column("last_at", "time"),
    Column("last"),
    Column("error"),
)
# Results that are read for what they say, and how much of the end of each.
MOST_RESULTS = 1_000
_READ = 1_500
_FAILED_STATES = ("failed", "stopped")
# A denial is no error: it is in the answer to ``decisions``.
_FAILED_OUTCOMES = ("failed", "timed_out", "invalid_input", "unknown_tool", "unknown")
_KINDS = ("run", "model", "tool")


@dataclass(frozen=True, slots=True)
class _Error:
    """``where`` names the run or the call."""

    kind: str
    what: str
    text: str
    at: float
    run_id: str
    where: str


@dataclass(slots=True)
class _Group:
    times: int = 0
    runs: set[str] = field(default_factory=set)
    first_at: float | None = None
    last: _Error | None = None

    def add(self, error: _Error) -> None:
        self.times += 1
        self.runs.add(error.run_id)
        self.first_at = error.at if self.first_at is None else min(self.first_at, error.at)
        if self.last is None or error.at >= self.last.at:
            self.last = error


def error_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """Errors that are the same but for numbers, ids, paths and items, as in ``runner report``.

    ``kind`` is ``run`` (it has failed or was stopped, and ``what`` is its state and reason), ``model`` (a
    call that failed, by the model) or ``tool`` (a call with that outcome, a denial left out, by the
    tool). ``last`` names the newest, a run or a tool call. Of tools the newest results are read.
    """

    def work(connection: Connection) -> tuple[dict[tuple[str, str, str], _Group], bool]:
        tools = list(_tool_errors(connection, filters))
        found = [*_run_errors(connection, filters), *_model_errors(connection, filters)]
        return _grouped([*found, *tools[:MOST_RESULTS]]), len(tools) > MOST_RESULTS

    groups, is_more = database.read(work)
    rows = [
        (kind, what, group.times, len(group.runs), group.first_at, last.at, last.where, text)
        for (kind, what, text), group in groups.items()
        if (last := group.last) is not None
    ]
    rows.sort(key=lambda row: (_KINDS.index(row[0]), -row[2], row[1], row[7]))
    answer = cut(_ERROR_COLUMNS, rows, limit, "the most frequent of each kind")
    if is_more:
        newest = (
            f"of tools, only the newest {MOST_RESULTS:,} errors are counted: narrow with --since"
        )
        answer.note = f"{answer.note}; {newest}" if answer.note else newest
    return answer


def _grouped(found: Iterable[_Error]) -> dict[tuple[str, str, str], _Group]:
    groups: dict[tuple[str, str, str], _Group] = {}
    for error in found:
        groups.setdefault((error.kind, error.what, error.text), _Group()).add(error)
    return groups


def _run_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """The ends of runs that failed or were stopped, told as the report tells them."""
    query = select(
        runs.c.id, runs.c.state, runs.c.reason, runs.c.detail, runs.c.item_key, runs.c.ended_at
    ).where(
        runs.c.state.in_(_FAILED_STATES),
        *of_runs(filters),
        *between(runs.c.ended_at, filters),
    )
    ended = connection.execute(query).all()
    outputs = _outputs(connection, [run.id for run in ended if run.reason == "verify"])
    for run in ended:
        text = failure_signature(run.detail, run.item_key, outputs.get(run.id))
        yield _Error("run", f"{run.state} {run.reason}", text, run.ended_at, run.id, run.id)


def _outputs(connection: Connection, run_ids: list[str]) -> dict[str, str]:
    """What the last verification of each run said."""
    table = verifications.c
    found: dict[str, str] = {}
    for start in range(0, len(run_ids), 500):
        query = (
            select(table.run_id, table.content)
            .where(table.run_id.in_(run_ids[start : start + 500]))
            .order_by(table.run_id, table.number)
        )
        found |= {row.run_id: row.content or "" for row in connection.execute(query)}
    return found


def _model_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    calls = model_calls.c
    query = (
        select(calls.run_id, calls.model, calls.error, calls.started_at, runs.c.item_key)
        .join(runs, runs.c.id == calls.run_id)
        .where(calls.error.is_not(None), *of_model_calls(filters))
    )
    known: dict[tuple[str, str], str] = {}
    for call in connection.execute(query):
        key = (call.error, call.item_key)
        text = known.get(key) or known.setdefault(key, signature(*key))
        yield _Error("model", call.model, text, call.started_at, call.run_id, call.run_id)


def _tool_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """One more than are read, where there are more."""
    calls = (
        of_calls(
            filters,
            *KEY,
            CALLED_AT.label("at"),
            tool_calls.c.turn,
            tool_calls.c.name,
            tool_calls.c.outcome,
            runs.c.item_key,
        )
        .where(tool_calls.c.outcome.in_(_FAILED_OUTCOMES))
        .order_by(*NEWEST_FIRST)
        .limit(MOST_RESULTS + 1)
        .subquery()
    )
    its_result = and_(
        blocks.c.run_id == calls.c.run_id,
        blocks.c.message == calls.c.message + 1,
        blocks.c.position == calls.c.position,
        blocks.c.type == "tool_result",
    )
    query = select(calls, blocks.c.content).join(blocks, its_result).order_by(calls.c.at.desc())
    for call in connection.execute(query):
        said = call.content.get("content")
        line = telling_line(said[-_READ:]) if isinstance(said, str) else ""
        where = ids.call_id(call.run_id, call.turn, call.position)
        text = signature(line, call.item_key)
        yield _Error("tool", f"{call.name} {call.outcome}", text, call.at, call.run_id, where)


_LIMIT_COLUMNS = (
    Column("run_id"),
    Column("at", "time"),
    Column("item"),
    Column("job_id"),
    Column("limit"),
    Column("state"),
    Column("raised_at", "time"),
    Column("raised_by"),
    Column("raised_to", "json"),
    Column("why"),
    Column("detail"),
)
_MOST_RUNS = 500
# To the letter as in the index of the events of that type, which else would not be used.
_IS_REACHED = events.c.type == literal_column("'limit_reached'")


def limit_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The limits that runs were stopped by, and the budgets that runs wait for now; the newest first.

    ``limit`` is its name, as ``max_turns``, ``token_ceiling`` or ``budget``, and ``state`` what the run
    is now. ``raised_by`` let the run go on, with other limits where there is ``raised_to``.
    """
    found = database.read(partial(_limits, filters=filters, limit=limit))
    return cut(_LIMIT_COLUMNS, found, limit, "the newest")


def _limits(connection: Connection, filters: Filters, limit: int | None) -> list[tuple[Any, ...]]:
    reached = connection.execute(_reached(filters, limit)).all()
    retried = _retried(connection, {row.run_id for row in reached})
    rows = [_limit_row(row, retried.get(row.run_id, ())) for row in reached]
    waiting = connection.execute(_waiting(filters)).all()
    rows += [_limit_row(row, ()) for row in waiting]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return rows[: at_most(limit)]


def _reached(filters: Filters, limit: int | None) -> Select[Any]:
    return (
        select(
            *(events.c[name] for name in ("run_id", "number", "at", "data")),
            *(runs.c[name] for name in ("item_key", "job_id", "state")),
        )
        .join(runs, runs.c.id == events.c.run_id)
        .where(_IS_REACHED, *of_runs(filters), *between(events.c.at, filters))
        .order_by(events.c.at.desc(), events.c.run_id, events.c.number.desc())
        .limit(at_most(limit))
    )


def _waiting(filters: Filters) -> Select[Any]:
    """Runs that wait for their job's budget, since when their last wait began."""
    began = (
        select(func.max(events.c.at))
        .where(events.c.run_id == runs.c.id, events.c.type == "waiting")
        .scalar_subquery()
    )
    at = func.coalesce(began, runs.c.created_at)
    return select(
        runs.c.id.label("run_id"),
        *(runs.c[name] for name in ("item_key", "job_id", "state", "reason", "detail")),
        at.label("at"),
    ).where(
        runs.c.state == "waiting",
        runs.c.reason == "budget",
        *of_runs(filters),
        *between(at, filters),
    )


def _retried(connection: Connection, run_ids: Iterable[str]) -> Mapping[str, list[Row[Any]]]:
    """When each run was let go on, in order."""
    found: dict[str, list[Row[Any]]] = {}
    wanted = sorted(run_ids)
    for start in range(0, len(wanted), _MOST_RUNS):
        query = (
            select(*(events.c[name] for name in ("run_id", "number", "at", "data")))
            .where(
                events.c.run_id.in_(wanted[start : start + _MOST_RUNS]),
                events.c.type == "retried",
            )
            .order_by(events.c.run_id, events.c.number)
        )
        for row in connection.execute(query):
            found.setdefault(row.run_id, []).append(row)
    return found


def _limit_row(reached: Row[Any], retried: Iterable[Row[Any]]) -> tuple[Any, ...]:
    told = reached._mapping
    data = _object(told["data"]) if "data" in told else told
    after = next((row for row in retried if row.number > reached.number), None)
    raised = {} if after is None else _object(after.data)
    return (
        reached.run_id,
        reached.at,
        reached.item_key,
        reached.job_id,
        data.get("reason"),
        reached.state,
        None if after is None else after.at,
        raised.get("by"),
        _raised_to(raised),
        raised.get("why") or None,
        data.get("detail") or None,
    )


_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")


def _raised_to(retried: Mapping[str, Any]) -> dict[str, Any] | None:
    """The limits that a retry changed."""
    old, new = _object(retried.get("old")), _object(retried.get("new"))
    changed = {name: new[name] for name in _LIMITS if name in new and new[name] != old.get(name)}
    return changed or None


def _object(value: Any) -> Mapping[str, Any]:
    """What an event holds, which in an imported one is of any kind."""
    return value if isinstance(value, dict) else {}
