"""All that happened to a run, in order: turns, calls, decisions, waits, people, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, select

from runner.core.agents.place import is_within, item_of
from runner.core.money.prices import PriceList
from runner.core.rows import Column, Rows
from runner.errors import NotFoundError
from runner.store import ids
from runner.store.audit.costs import usd
from runner.store.audit.filters import Filters
from runner.store.audit.finding.shown import cut, labelled
from runner.store.connection.database import Database
from runner.store.look.reading.turn_costs import CallSpent, spent_in_calls
from runner.store.tables import events, job_events, model_calls, runs

COLUMNS = (
    Column("at", "time"),
    Column("event"),
    Column("turn", "integer"),
    Column("by"),
    Column("call_id"),
    Column("tool"),
    Column("model"),
    Column("seconds", "seconds"),
    Column("cost_usd", "usd"),
    Column("what"),
)
_WAITS = ("waiting", "paused", "attempt_ended")
_SHARED = ("turn", "call_index", "tool_use_id", "name", "by", "call", "call_id")
# What an event tells beside the columns, in this order; of others all that they have.
_TOLD: Mapping[str, tuple[str, ...]] = {
    "permission_decided": ("decision", "rule", "reason"),
    "approval_answered": ("answer", "via", "rule", "reason"),
    "tool_started": ("input",),
    "tool_done": ("outcome", "output"),
    "model_call_started": ("purpose",),
    "model_call_ended": ("purpose", "stop_reason", "kind", "message", "error"),
    "verified": ("outcome", "command", "output"),
    "error": ("state", "reason", "detail"),
    "done": ("state", "reason", "detail"),
}


@dataclass(frozen=True, slots=True)
class _Happened:
    """An event. What an imported one holds is of any kind."""

    at: float
    type: str
    data: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        value = self.data.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if isfinite(value) else None

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        return value if isinstance(value, str) else None

    @property
    def call(self) -> float:
        """The number of the model call that it tells of, 0 for none."""
        return self.number("call") or 0


@dataclass(frozen=True, slots=True)
class _Record:
    """What is stored of a run: its events and its job's, and the models of its calls by number."""

    events: Sequence[_Happened]
    models: Mapping[float, str]


def timeline(
    database: Database,
    filters: Filters,
    run_id: str,
    prices: PriceList,
    *,
    limit: int | None = None,
) -> Rows:
    """The events of a run, and those of its job while it was there, in the order of the record.

    ``event`` is the event's type (docs/concepts.md), ``by`` who did it, ``seconds`` how long a call
    took or a wait lasted, and ``cost_usd`` what a model call cost, None where nobody knows.

    Args:
        filters: of a tool: the events of its calls; of a model: those of the calls of it.

    Raises:
        NotFoundError: there is no such run.
    """
    record = database.read(partial(_record, run_id=run_id, filters=filters))
    spent: dict[float, CallSpent] = {
        each.number: each for each in spent_in_calls(database, prices, run_id)
    }
    lasted = _lasted(record.events)
    rows = [
        _row(run_id, each, record.models, spent, lasted.get(number))
        for number, each in enumerate(record.events)
        if _is_meant(each, record.models, filters)
    ]
    return labelled(database, cut(COLUMNS, rows, limit, "the first"))


def _record(connection: Connection, run_id: str, filters: Filters) -> _Record:
    run = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
    if run is None:
        raise NotFoundError(f"no run is named {run_id}")
    if not _agree(run, filters):
        return _Record((), {})
    own = select(events.c.at, events.c.type, events.c.data).where(events.c.run_id == run_id)
    of_job = select(job_events.c.at, job_events.c.type, job_events.c.data).where(
        job_events.c.job_id == run.job_id,
        job_events.c.at >= run.created_at,
        job_events.c.type != "submitted",  # its own says so
    )
    if run.ended_at is not None:
        of_job = of_job.where(job_events.c.at <= run.ended_at)
    models = select(model_calls.c.number, model_calls.c.model).where(model_calls.c.run_id == run_id)
    return _Record(
        list(
            _merged(
                _all(connection.execute(own.order_by(events.c.number)).all()),
                _all(connection.execute(of_job.order_by(job_events.c.number)).all()),
            )
        ),
        {row.number: row.model for row in connection.execute(models)},
    )


def _agree(run: Row[Any], filters: Filters) -> bool:
    return (
        (filters.run_id is None or is_within(run.id, filters.run_id))
        and filters.job_id in (None, run.job_id)
        and filters.item in (None, item_of(run.id, run.item_key), run.item_key)
    )


def _all(rows: Sequence[Row[float, str, Any]]) -> list[_Happened]:
    return [
        _Happened(row.at, row.type, row.data if isinstance(row.data, dict) else {}) for row in rows
    ]


def _merged(own: Sequence[_Happened], of_job: list[_Happened]) -> Iterator[_Happened]:
    """Both: a run's own in their order, whatever the clocks of two workers say, the others by time."""
    for event in own:
        while of_job and of_job[0].at <= event.at:
            yield of_job.pop(0)
        yield event
    yield from of_job


def _lasted(happened: Sequence[_Happened]) -> dict[int, float]:
    """How long each wait lasted: until the next attempt began. A run that ended waits for nothing."""
    found: dict[int, float] = {}
    waits: int | None = None
    for number, event in enumerate(happened):
        if event.type == "attempt_started" and waits is not None:
            found[waits] = max(event.at - happened[waits].at, 0.0)
            waits = None
        elif event.type in _WAITS and event.data.get("why") != "run ended":
            waits = number
        elif event.type == "done":
            waits = None
    return found


def _is_meant(event: _Happened, models: Mapping[float, str], filters: Filters) -> bool:
    if filters.since is not None and event.at < filters.since:
        return False
    if filters.until is not None and event.at >= filters.until:
        return False
    if filters.tool is not None and event.text("name") != filters.tool:
        return False
    return filters.model is None or models.get(event.call) == filters.model


def _row(
    run_id: str,
    event: _Happened,
    models: Mapping[float, str],
    spent: Mapping[float, CallSpent],
    lasted: float | None,
) -> tuple[Any, ...]:
    turn, index = event.number("turn"), event.number("call_index")
    call = None if turn is None or index is None else ids.call_id(run_id, int(turn), int(index))
    took = event.number("duration"), event.number("latency"), lasted
    cost = spent.get(event.call) if event.type == "model_call_ended" else None
    return (
        event.at,
        event.type,
        turn,
        event.text("by"),
        call,
        event.text("name"),
        models.get(event.call),
        next((seconds for seconds in took if seconds is not None), None),
        _cost(cost),
        _what(event),
    )


def _cost(call: CallSpent | None) -> float | None:
    known = call is not None and not call.spending.unknown and not call.spending.unpriced
    return usd(call.spending.usd) if call is not None and known else None


def _what(event: _Happened) -> str:
    """What else an event tells, in a line."""
    data = event.data
    if event.type in _TOLD:
        told = [str(data[name]) for name in _TOLD[event.type] if data.get(name) not in (None, "")]
        return ": ".join(told)
    parts = (
        f"{name} {value}"
        for name, value in data.items()
        if name not in _SHARED and value not in (None, "", {}, [])
    )
    return ", ".join(parts)
