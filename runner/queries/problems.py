"""What went wrong: errors, and limits that runs have reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, literal_column, select

from runner.core.text import failure_signature, signature, telling_line
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, Filters, at_most, cut, in_batches
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.database import Database
from runner.store.tables import blocks, events, model_calls, runs, tool_calls, verifications

_ERROR_COLUMNS = columns(
    "kind what times:integer runs:integer first_at:time last_at:time last error"
)
_LIMIT_COLUMNS = columns(
    "run_id at:time item job_id limit state raised_at:time raised_by raised_to:json why detail"
)
# How many results of tools are read for what they say, and how much of the end of each.
MOST_RESULTS = 1_000
_READ = 1_500
# Denials are no errors: ``decision_rows`` has them.
_FAILED_OUTCOMES = ("failed", "timed_out", "invalid_input", "unknown_tool", "unknown")
_KINDS = ("run", "model", "tool")


@dataclass(frozen=True, slots=True)
class _Error:
    kind: str
    what: str
    text: str
    at: float
    run_id: str
    where: str  # the id of the run or the tool call


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
    """Errors, grouped when they differ only in numbers, ids, paths and items, as in ``runner report``.

    ``kind`` is ``run`` (it failed or was stopped, and ``what`` is its state and reason), ``model`` (a
    call that failed, by model) or ``tool`` (a call with that outcome, by tool; denials are left out).
    ``last`` names the newest run or tool call. Of tools only the newest results are read.
    """

    def work(connection: Connection) -> tuple[dict[tuple[str, str, str], _Group], bool]:
        of_tools = list(_tool_errors(connection, filters))
        groups: dict[tuple[str, str, str], _Group] = {}
        for error in (
            *_run_errors(connection, filters),
            *_model_errors(connection, filters),
            *of_tools[:MOST_RESULTS],
        ):
            groups.setdefault((error.kind, error.what, error.text), _Group()).add(error)
        return groups, len(of_tools) > MOST_RESULTS

    groups, has_more = database.read(work)
    rows = [
        (kind, what, group.times, len(group.runs), group.first_at, last.at, last.where, text)
        for (kind, what, text), group in groups.items()
        if (last := group.last) is not None
    ]
    rows.sort(key=lambda row: (_KINDS.index(row[0]), -row[2], row[1], row[7]))
    answer = cut(_ERROR_COLUMNS, rows, limit, "the most frequent of each kind")
    if has_more:
        newest = (
            f"of tools, only the newest {MOST_RESULTS:,} errors are counted: narrow with --since"
        )
        answer.note = f"{answer.note}; {newest}" if answer.note else newest
    return answer


def _run_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """The ends of runs that failed or were stopped, worded as the report words them."""
    names = ("id", "state", "reason", "detail", "item_key", "ended_at")
    query = select(*(runs.c[name] for name in names)).where(
        runs.c.state.in_(("failed", "stopped")),
        *filters.of_whole_runs(),
        *filters.of_time(runs.c.ended_at),
    )
    ended = connection.execute(query).all()
    outputs = _last_outputs(connection, [run.id for run in ended if run.reason == "verify"])
    for run in ended:
        text = failure_signature(run.detail, run.item_key, outputs.get(run.id))
        yield _Error("run", f"{run.state} {run.reason}", text, run.ended_at, run.id, run.id)


def _last_outputs(connection: Connection, run_ids: list[str]) -> dict[str, str]:
    """The output of each run's last verification."""
    table = verifications.c
    query = select(table.run_id, table.content).order_by(table.run_id, table.number)
    return {
        row.run_id: row.content or ""
        for some in in_batches(run_ids)
        for row in connection.execute(query.where(table.run_id.in_(some)))
    }


def _model_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    calls = model_calls.c
    query = (
        select(calls.run_id, calls.model, calls.error, calls.started_at, runs.c.item_key)
        .join(runs, runs.c.id == calls.run_id)
        .where(calls.error.is_not(None), *filters.of_model_calls())
    )
    known: dict[tuple[str, str], str] = {}
    for call in connection.execute(query):
        key = (call.error, call.item_key)
        text = known.get(key) or known.setdefault(key, signature(*key))
        yield _Error("model", call.model, text, call.started_at, call.run_id, call.run_id)


def _tool_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """The newest, one more than ``MOST_RESULTS`` if there are more."""
    calls = (
        filters.tool_calls(
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


_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")
# Written like the partial index of these events, which would not be used otherwise.
_IS_REACHED = events.c.type == literal_column("'limit_reached'")


def limit_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The limits that stopped runs, and the budgets that runs wait for now; the newest first.

    ``limit`` is its name, such as ``max_turns``, ``token_ceiling`` or ``budget``, and ``state`` the
    run's state now. ``raised_by`` let the run continue, with new limits if there is ``raised_to``.
    """
    found = database.read(partial(_limits, filters=filters, limit=limit))
    return cut(_LIMIT_COLUMNS, found, limit, "the newest")


def _limits(connection: Connection, filters: Filters, limit: int | None) -> list[tuple[Any, ...]]:
    reached = connection.execute(_reached(filters, limit)).all()
    retries = _retries(connection, {row.run_id for row in reached})
    rows = [_reached_row(row, retries.get(row.run_id, ())) for row in reached]
    rows += [
        (
            *(run.run_id, run.at, run.item_key, run.job_id, run.reason, run.state),
            *(None, None, None, None),
            run.detail or None,
        )
        for run in connection.execute(_waiting_for_budget(filters))
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return rows[: at_most(limit)]


def _reached(filters: Filters, limit: int | None) -> Select[Any]:
    return (
        select(
            *(events.c[name] for name in ("run_id", "number", "at", "data")),
            *(runs.c[name] for name in ("item_key", "job_id", "state")),
        )
        .join(runs, runs.c.id == events.c.run_id)
        .where(_IS_REACHED, *filters.of_whole_runs(), *filters.of_time(events.c.at))
        .order_by(events.c.at.desc(), events.c.run_id, events.c.number.desc())
        .limit(at_most(limit))
    )


def _waiting_for_budget(filters: Filters) -> Select[Any]:
    """Runs that wait for their job's budget, ``at`` the beginning of their last wait."""
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
        *filters.of_whole_runs(),
        *filters.of_time(at),
    )


def _retries(connection: Connection, run_ids: Iterable[str]) -> Mapping[str, Sequence[Row[Any]]]:
    """The events with which each run was let continue, in order."""
    query = (
        select(*(events.c[name] for name in ("run_id", "number", "at", "data")))
        .where(events.c.type == "retried")
        .order_by(events.c.run_id, events.c.number)
    )
    found: dict[str, list[Row[Any]]] = {}
    for some in in_batches(sorted(run_ids)):
        for row in connection.execute(query.where(events.c.run_id.in_(some))):
            found.setdefault(row.run_id, []).append(row)
    return found


def _reached_row(reached: Row[Any], retries: Iterable[Row[Any]]) -> tuple[Any, ...]:
    data = _object(reached.data)
    retry = next((row for row in retries if row.number > reached.number), None)
    raised = {} if retry is None else _object(retry.data)
    old, new = _object(raised.get("old")), _object(raised.get("new"))
    changed = {name: new[name] for name in _LIMITS if name in new and new[name] != old.get(name)}
    return (
        reached.run_id,
        reached.at,
        reached.item_key,
        reached.job_id,
        data.get("reason"),
        reached.state,
        None if retry is None else retry.at,
        raised.get("by"),
        changed or None,
        raised.get("why") or None,
        data.get("detail") or None,
    )


def _object(value: Any) -> Mapping[str, Any]:
    """The value if it is an object: data of imported events may have any shape."""
    return value if isinstance(value, dict) else {}
