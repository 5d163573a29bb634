"""Events of jobs and runs in order, and what each of them means to a reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from runner.core.agents import (
    is_within,
    item_of,
    place_of,
    tree_order,
)
from runner.core.events import SIGNED
from runner.core.prices import PriceList
from runner.errors import NotFoundError
from runner.queries.costs import CallCost, call_costs, usd
from runner.queries.filters import Filters
from runner.queries.find import call_labels
from runner.queries.rows import Column, Rows, cut, labelled
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import events, job_events, model_calls, runs


def events_after(
    database: Database, run_id: str, number: int, limit: int | None = None
) -> list[dict[str, Any]]:
    """The events of a run whose numbers are greater, in order. Each has its place in its tree beside
    the table's columns: ``root``, ``parent``, ``depth``, and ``label``, of an event that tells of a tool
    call that of the call."""
    query = (
        select(events)
        .where(events.c.run_id == run_id, events.c.number > number)
        .order_by(events.c.number)
        .limit(limit)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        return _placed(connection, connection.execute(query).all())

    return database.read(work)


def tree_events_after(
    database: Database, run_id: str, numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The events of a run and of all below it, in order of time; those of one run in their order.

    Args:
        numbers: by run, the last number that is known already.

    Returns:
        As ``events_after`` does.
    """
    known = (and_(runs.c.id == run, events.c.number > last) for run, last in numbers.items())
    query = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(in_tree(run_id), or_(runs.c.id.not_in(list(numbers)), *known))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        return _placed(connection, _by_time(connection.execute(query).all()))

    return database.read(work)


def with_places(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with their places; those of a job as a whole (``run_id`` is None) have none."""
    told = {row["run_id"] for row in rows if _call_of(row["data"]) is not None}
    labels = call_labels(connection, told)
    return [_with_place(row, labels) for row in rows]


def _placed(connection: Connection, rows: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    return with_places(connection, [dict(row._mapping) for row in rows])


def _with_place(row: dict[str, Any], labels: Mapping[Any, str]) -> dict[str, Any]:
    if row["run_id"] is None:
        return row
    placed = {**row, **place_of(row["run_id"])}
    call = _call_of(row["data"])
    if call is not None:
        placed["label"] = labels.get((row["run_id"], *call), placed["label"])
    return placed


def _call_of(data: Any) -> tuple[int, int] | None:
    """The turn and the place of the tool call that an event tells of. What an imported one holds is of
    any kind."""
    if not isinstance(data, dict):
        return None
    turn, index = data.get("turn"), data.get("call_index")
    return (turn, index) if isinstance(turn, int) and isinstance(index, int) else None


def _by_time(rows: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Rows of several runs, each run's together and in its order, as they followed one another. A clock
    that was set back does not change the order of one run."""
    latest: dict[str, float] = {}
    keyed = []
    for row in rows:
        latest[row.run_id] = max(row.at, latest.get(row.run_id, row.at))
        keyed.append(((latest[row.run_id], tree_order(row.run_id), row.number), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]


# The job's own event tells of all the runs that were submitted with it.
_OF_RUNS = tuple(kind for kind in SIGNED if kind != "run_submitted")


def changes_of_job(database: Database, job_id: str) -> list[dict[str, Any]]:
    """The events of a job, and those of its runs that say who did something; in order of time.

    Returns:
        ``job_id`` and ``run_id`` (None: of the job), then ``events``' columns; those of a run with its
        place in its tree, as ``events_after`` has them.
    """
    of_job = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.number)
    of_runs = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(runs.c.job_id == job_id, events.c.type.in_(_OF_RUNS))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        found = [
            {"job_id": job_id, "run_id": None, "attempt": None, **row}
            for row in connection.execute(of_job).mappings()
        ]
        found += [{"job_id": job_id, **row} for row in connection.execute(of_runs).mappings()]
        return with_places(connection, sorted(found, key=lambda event: event["at"]))

    return database.read(work)


# The order within a turn: its reply, the results of what that asked for, what came after.
REPLIED = 1
ENDED = 2

# Told by the conversation itself, its calls, verifications and compactions, or of no one's interest.
_TOLD_ELSEWHERE = (
    "context_compacted",
    "limit_reached",
    "message_added",
    "model_call_started",
    "permission_decided",
    "tool_done",
    "tool_started",
    "tree_recorded",
    "turn_started",
    "verification_started",
    "verified",
)


@dataclass(frozen=True, slots=True)
class Position:
    """``turn`` and how far it was when something happened: ``REPLIED`` or ``ENDED``. What happened
    before turn 1 began is at the end of turn 0."""

    turn: int
    stage: int


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of the run, or of its job while the run was under way (``attempt`` is None)."""

    place: Position
    at: float
    attempt: int | None
    type: str
    data: dict[str, Any]


def history_of_run(database: Database, run_id: str) -> list[HistoryEvent]:
    """What people did, what the run waited for, what was tried again, and its end; in order. Events
    stand where the audit record has them, whatever the clocks of two workers say."""
    query = (
        select(events)
        .where(events.c.run_id == run_id, events.c.type.not_in(_TOLD_ELSEWHERE))
        .order_by(events.c.number)
    )

    def work(connection: Connection) -> list[HistoryEvent]:
        columns = (runs.c.job_id, runs.c.fork_turn, runs.c.created_at, runs.c.ended_at)
        run = connection.execute(select(*columns).where(runs.c.id == run_id)).one()
        start = Position(run.fork_turn or 0, ENDED)
        of_job = deque(each for each in _of_job(connection, run) if _concerns(each.data, run_id))
        found = list(_positioned(connection.execute(query), of_job, start))
        if all(each.place == start for each in found):
            return _position_by_time(connection, run_id, found)
        return found

    return database.read(work)


def _positioned(
    found: Iterable[Row[Any]], of_job: deque[Row[Any]], place: Position
) -> Iterator[HistoryEvent]:
    """Both kinds of events, those of the job by their time: no other order of the two is recorded."""
    for event in found:
        while of_job and of_job[0].at <= event.at:
            yield _job_event(of_job.popleft(), place)
        data = event.data
        is_reply = event.type == "model_call_ended" and data.get("stop_reason") is not None
        if event.type == "turn_ended":
            place = Position(data["turn"], ENDED)
        elif is_reply and data.get("purpose") != "summary":
            place = Position(data["turn"], REPLIED)
        elif not is_reply or "error" in data:  # a summary that could not be used
            yield HistoryEvent(place, event.at, event.attempt, event.type, data)
    for left in of_job:
        yield _job_event(left, place)


def _position_by_time(
    connection: Connection, run_id: str, found: list[HistoryEvent]
) -> list[HistoryEvent]:
    """What happened to a run whose record has no turns, as it was brought in from elsewhere: each after
    the last reply that had ended by then."""
    query = (
        select(model_calls.c.turn, model_calls.c.ended_at)
        .where(
            model_calls.c.run_id == run_id,
            model_calls.c.purpose == "turn",
            model_calls.c.stop_reason.is_not(None),
        )
        .order_by(model_calls.c.number)
    )
    replies = connection.execute(query).all()
    ended = ([reply.turn for reply in replies if reply.ended_at <= each.at] for each in found)
    return [
        replace(each, place=Position(max(turns), ENDED)) if turns else each
        for each, turns in zip(found, ended, strict=True)
    ]


def _of_job(connection: Connection, run: Any) -> deque[Row[Any]]:
    """The events of its job from the beginning of a run to its end; its own says that the job was
    submitted."""
    query = select(job_events).where(
        job_events.c.job_id == run.job_id,
        job_events.c.at >= run.created_at,
        job_events.c.type != "submitted",
    )
    if run.ended_at is not None:
        query = query.where(job_events.c.at <= run.ended_at)
    return deque(connection.execute(query.order_by(job_events.c.number)))


def _concerns(data: Any, run_id: str) -> bool:
    """Whether an event of a job is of all of its runs, or of this one: a rule that is remembered for a run
    holds for that and all below it. What an imported one holds is of any kind."""
    values = [data.get(name) for name in ("new", "old")] if isinstance(data, dict) else []
    rules = [value for value in values if isinstance(value, dict)]
    of = {rule["run_id"] for rule in rules if isinstance(rule.get("run_id"), str)}
    return not of or any(is_within(run_id, each) for each in of)


def _job_event(event: Row[Any], place: Position) -> HistoryEvent:
    return HistoryEvent(place, event.at, None, event.type, event.data)


_COLUMNS = (
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
class _Event:
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

    events: Sequence[_Event]
    models: Mapping[float, str]


def timeline_rows(
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
    spent: dict[float, CallCost] = {
        each.number: each for each in call_costs(database, prices, run_id)
    }
    lasted = _lasted(record.events)
    rows = [
        _row(run_id, each, record.models, spent, lasted.get(number))
        for number, each in enumerate(record.events)
        if _is_meant(each, record.models, filters)
    ]
    return labelled(database, cut(_COLUMNS, rows, limit, "the first"))


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


def _all(rows: Sequence[Row[float, str, Any]]) -> list[_Event]:
    return [
        _Event(row.at, row.type, row.data if isinstance(row.data, dict) else {}) for row in rows
    ]


def _merged(own: Sequence[_Event], of_job: list[_Event]) -> Iterator[_Event]:
    """Both: a run's own in their order, whatever the clocks of two workers say, the others by time."""
    for event in own:
        while of_job and of_job[0].at <= event.at:
            yield of_job.pop(0)
        yield event
    yield from of_job


def _lasted(happened: Sequence[_Event]) -> dict[int, float]:
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


def _is_meant(event: _Event, models: Mapping[float, str], filters: Filters) -> bool:
    if filters.since is not None and event.at < filters.since:
        return False
    if filters.until is not None and event.at >= filters.until:
        return False
    if filters.tool is not None and event.text("name") != filters.tool:
        return False
    return filters.model is None or models.get(event.call) == filters.model


def _row(
    run_id: str,
    event: _Event,
    models: Mapping[float, str],
    spent: Mapping[float, CallCost],
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


def _cost(call: CallCost | None) -> float | None:
    known = call is not None and not call.spending.unknown and not call.spending.unpriced
    return usd(call.spending.usd) if call is not None and known else None


def _what(event: _Event) -> str:
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
