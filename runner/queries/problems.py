"""Problems: errors, and limits that runs have reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, literal_column, null, select

from runner.core.text import failure_signature, signature, telling_line
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, Filters, answer
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.database import Database, in_lots, reads
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


class _Error(NamedTuple):
    kind: str
    what: str
    text: str
    at: float
    run_id: str
    where: str  # the id of the run or the tool call


def error_rows(database: Database, filters: Filters) -> Rows:
    """Errors, grouped when they differ only in numbers, ids, paths and items, as in ``runner report``.

    ``kind`` is ``run`` (it failed or was stopped, and ``what`` is its state and reason), ``model`` (a
    call that failed, by model) or ``tool`` (a call with that outcome, by tool; denials are left out).
    ``last`` names the newest run or tool call. Of tools only the newest results are read.
    """

    def work(connection: Connection) -> tuple[dict[tuple[str, ...], list[_Error]], bool]:
        of_tools = list(_tool_errors(connection, filters))
        of_runs, of_models = _run_errors(connection, filters), _model_errors(connection, filters)
        groups: dict[tuple[str, ...], list[_Error]] = {}
        for error in chain(of_runs, of_models, of_tools[:MOST_RESULTS]):
            groups.setdefault(error[:3], []).append(error)
        return groups, len(of_tools) > MOST_RESULTS

    groups, has_more = database.read(work)
    found: list[dict[str, Any]] = []
    for (kind, what, text), group in groups.items():
        last = max(reversed(group), key=lambda error: error.at)
        counts = {"times": len(group), "runs": len({error.run_id for error in group})}
        times = {"first_at": min(error.at for error in group), "last_at": last.at}
        words = {"kind": kind, "what": what, "error": text, "last": last.where}
        found.append(words | counts | times)
    found.sort(
        key=lambda row: (_KINDS.index(row["kind"]), -row["times"], row["what"], row["error"])
    )
    rows = answer(database, _ERROR_COLUMNS, found, filters, "the most frequent of each kind")
    newest = f"of tools, only the newest {MOST_RESULTS:,} errors are counted: narrow with --since"
    if has_more:
        rows.note = "; ".join(filter(None, (rows.note, newest)))
    return rows


def _run_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """The ends of runs that failed or were stopped, worded as the report words them."""
    names = ("id", "state", "reason", "detail", "item_key", "ended_at")
    is_wanted = (*filters.of_whole_runs(), *filters.of_time(runs.c.ended_at))
    query = select(*(runs.c[name] for name in names)).where(*is_wanted)
    ended = connection.execute(query.where(runs.c.state.in_(("failed", "stopped")))).all()
    table = verifications.c
    of_runs = select(table.run_id, table.content).order_by(table.run_id, table.number)
    last_outputs = {
        run_id: content or ""
        for some in in_lots([run.id for run in ended if run.reason == "verify"])
        for run_id, content in connection.execute(of_runs.where(table.run_id.in_(some)))
    }
    for run in ended:
        text = failure_signature(run.detail, run.item_key, last_outputs.get(run.id))
        yield _Error("run", f"{run.state} {run.reason}", text, run.ended_at, run.id, run.id)


def _model_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    calls = model_calls.c
    query = (
        select(calls.run_id, calls.model, calls.error, calls.started_at, runs.c.item_key)
        .join(runs, runs.c.id == calls.run_id)
        .where(calls.error.is_not(None), *filters.of_model_calls())
    )
    worded = cache(signature)  # most errors come often
    for call in connection.execute(query):
        text = worded(call.error, call.item_key)
        yield _Error("model", call.model, text, call.started_at, call.run_id, call.run_id)


def _tool_errors(connection: Connection, filters: Filters) -> Iterator[_Error]:
    """The newest, one more than ``MOST_RESULTS`` if there are more."""
    call = tool_calls.c
    columns = (*KEY, CALLED_AT.label("at"), call.turn, call.name, call.outcome, runs.c.item_key)
    calls = (
        filters.tool_calls(*columns)
        .where(call.outcome.in_(_FAILED_OUTCOMES))
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
    for row in connection.execute(query):
        said = row.content.get("content")
        line = telling_line(said[-_READ:]) if isinstance(said, str) else ""
        where = ids.call_id(row.run_id, row.turn, row.position)
        text = signature(line, row.item_key)
        yield _Error("tool", f"{row.name} {row.outcome}", text, row.at, row.run_id, where)


_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")
# Written like the partial index of these events, which would not be used otherwise.
_IS_REACHED = events.c.type == literal_column("'limit_reached'")


def limit_rows(database: Database, filters: Filters) -> Rows:
    """The limits that stopped runs, and the budgets that runs wait for; the newest first. ``state``
    is the run's now. ``raised_by`` let the run continue, with new limits if there is
    ``raised_to``."""
    return answer(database, _LIMIT_COLUMNS, _limits(database, filters), filters, "the newest")


@reads
def _limits(connection: Connection, filters: Filters) -> list[Mapping[str, Any]]:
    run = (runs.c.id.label("run_id"), runs.c.item_key.label("item"), runs.c.job_id, runs.c.state)
    reached = connection.execute(
        select(*run, events.c.number, events.c.at, events.c.data)
        .join(runs, runs.c.id == events.c.run_id)
        .where(_IS_REACHED, *filters.of_whole_runs(), *filters.of_time(events.c.at))
        .order_by(events.c.at.desc(), events.c.run_id, events.c.number.desc())
        .limit(filters.most)
    ).all()
    retries: dict[str, list[Any]] = {}
    retried = (
        select(events.c.run_id, events.c.number, events.c.at, events.c.data)
        .where(events.c.type == "retried")
        .order_by(events.c.run_id, events.c.number)
    )
    for some in in_lots(sorted({row.run_id for row in reached})):
        for row in connection.execute(retried.where(events.c.run_id.in_(some))):
            retries.setdefault(row.run_id, []).append(row)
    # The runs that wait for their job's budget, since the beginning of their last wait.
    began = select(func.max(events.c.at)).where(
        events.c.run_id == runs.c.id, events.c.type == "waiting"
    )
    at = func.coalesce(began.scalar_subquery(), runs.c.created_at)
    raised = (null().label(name) for name in ("raised_at", "raised_by", "raised_to", "why"))
    detail = func.nullif(runs.c.detail, "").label("detail")
    waiting = select(*run, at.label("at"), runs.c.reason.label("limit"), *raised, detail).where(
        *(runs.c.state == "waiting", runs.c.reason == "budget"),
        *(*filters.of_whole_runs(), *filters.of_time(at)),
    )
    rows: list[Any] = [_reached_row(row, retries.get(row.run_id, ())) for row in reached]
    rows += connection.execute(waiting).mappings()
    return sorted(rows, key=lambda row: (-row["at"], row["run_id"]))[: filters.most]


def _reached_row(reached: Any, retries: Sequence[Any]) -> Mapping[str, Any]:
    data = _object(reached.data)
    retry = next((row for row in retries if row.number > reached.number), None)
    raised = {} if retry is None else _object(retry.data)
    old, new = _object(raised.get("old")), _object(raised.get("new"))
    changed = {name: new[name] for name in _LIMITS if name in new and new[name] != old.get(name)}
    return {
        **reached._mapping,
        "limit": data.get("reason"),
        "raised_at": None if retry is None else retry.at,
        "raised_by": raised.get("by"),
        "raised_to": changed or None,
        "why": raised.get("why") or None,
        "detail": data.get("detail") or None,
    }


def _object(value: Any) -> Mapping[str, Any]:
    """The value if it is an object: data of imported events may have any shape."""
    return value if isinstance(value, dict) else {}
