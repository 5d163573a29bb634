"""Events of jobs and runs: as stored, as a history beside the conversation, and as a timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, and_, null, or_, select

from runner.core.agents import is_within, item_of, place_of, tree_order
from runner.core.events import SIGNED
from runner.core.prices import PriceList
from runner.errors import NotFoundError
from runner.queries.costs import CallCost, call_costs, usd
from runner.queries.filters import Filters, cut, with_labels
from runner.queries.find import call_labels
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.database import Database
from runner.store.tables import events, job_events, model_calls, runs

# --- Events as stored, each with its place in the tree of runs


def events_after(
    database: Database, run_id: str, number: int, limit: int | None = None
) -> list[dict[str, Any]]:
    """The events of a run after this number, in order.

    Returns:
        The table's columns, and ``root``, ``parent``, ``depth`` and ``label`` of the run; an event about
        a tool call has the call's ``label``.
    """
    query = (
        select(events)
        .where(events.c.run_id == run_id, events.c.number > number)
        .order_by(events.c.number)
        .limit(limit)
    )
    return database.read(
        lambda connection: _with_places(connection, connection.execute(query).mappings())
    )


def tree_events_after(
    database: Database, run_id: str, numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The events of a run and all runs below it by time; the events of one run stay in their order.

    Args:
        numbers: by run, the number of the last event that the caller has.

    Returns:
        See ``events_after``.
    """
    known = (and_(runs.c.id == run, events.c.number > last) for run, last in numbers.items())
    query = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(in_tree(run_id), or_(runs.c.id.not_in(list(numbers)), *known))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        latest: dict[str, float] = {}  # a clock that was set back does not change a run's order
        keyed = []
        for row in connection.execute(query).mappings():
            run = row["run_id"]
            latest[run] = max(row["at"], latest.get(run, row["at"]))
            keyed.append(((latest[run], tree_order(run), row["number"]), row))
        return _with_places(connection, [row for _, row in sorted(keyed, key=lambda pair: pair[0])])

    return database.read(work)


# The job's own event covers all runs that were submitted with it.
_CHANGES_OF_RUNS = tuple(kind for kind in SIGNED if kind != "run_submitted")


def changes_of_job(database: Database, job_id: str) -> list[dict[str, Any]]:
    """The events of a job, and the events of its runs that name who did something; by time.

    Returns:
        See ``events_after``. An event of the job has no place, and None as ``run_id`` and ``attempt``.
    """
    of_job = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.number)
    of_runs = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(runs.c.job_id == job_id, events.c.type.in_(_CHANGES_OF_RUNS))
        .order_by(events.c.run_id, events.c.number)
    )

    def work(connection: Connection) -> list[dict[str, Any]]:
        found = [
            {"job_id": job_id, "run_id": None, "attempt": None, **row}
            for row in connection.execute(of_job).mappings()
        ]
        found += [{"job_id": job_id, **row} for row in connection.execute(of_runs).mappings()]
        return _with_places(connection, sorted(found, key=lambda event: event["at"]))

    return database.read(work)


def _with_places(connection: Connection, found: Iterable[Any]) -> list[dict[str, Any]]:
    rows = [dict(row) for row in found]
    calls = {number: _call_of(row["data"]) for number, row in enumerate(rows)}
    labels = call_labels(connection, {rows[n]["run_id"] for n, call in calls.items() if call})
    for number, row in enumerate(rows):
        if row["run_id"] is None:
            continue
        row |= place_of(row["run_id"])
        if (call := calls[number]) is not None:
            row["label"] = labels.get((row["run_id"], *call), row["label"])
    return rows


def _call_of(data: Any) -> tuple[int, int] | None:
    """The turn and position of the tool call that an event is about. Data of imported events may have
    any shape."""
    if not isinstance(data, dict):
        return None
    turn, index = data.get("turn"), data.get("call_index")
    return (turn, index) if isinstance(turn, int) and isinstance(index, int) else None


# --- A run's events together with those of its job


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    type: str
    data: Mapping[str, Any]  # empty if an imported event has no object here
    attempt: int | None = None  # None for an event of the job

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
        """The number of the model call that the event is about, 0 for none."""
        return self.number("call") or 0


def _events_of_run(
    connection: Connection,
    run: Row[Any],
    *,
    without: Sequence[str] = (),
    only_its_own: bool = False,
) -> Iterator[_Event]:
    """The events of a run in the order of the record, whatever the clocks of two workers say, merged by
    time with the events of its job while the run existed.

    Args:
        without: leave out the run's events of these types.
        only_its_own: leave out the job's events about other runs.
    """
    own = (
        select(events.c.at, events.c.type, events.c.data, events.c.attempt)
        .where(events.c.run_id == run.id, events.c.type.not_in(without))
        .order_by(events.c.number)
    )
    of_job = (
        select(job_events.c.at, job_events.c.type, job_events.c.data, null().label("attempt"))
        .where(
            job_events.c.job_id == run.job_id,
            job_events.c.at >= run.created_at,
            job_events.c.type != "submitted",  # the run has an event of its own for it
        )
        .order_by(job_events.c.number)
    )
    if run.ended_at is not None:
        of_job = of_job.where(job_events.c.at <= run.ended_at)
    jobs = deque(map(_event, connection.execute(of_job)))
    if only_its_own:
        jobs = deque(each for each in jobs if _concerns(each.data, run.id))
    for event in map(_event, connection.execute(own)):
        while jobs and jobs[0].at <= event.at:
            yield jobs.popleft()
        yield event
    yield from jobs


def _event(row: Any) -> _Event:
    data = row.data if isinstance(row.data, dict) else {}
    return _Event(row.at, row.type, data, row.attempt)


def _concerns(data: Mapping[str, Any], run_id: str) -> bool:
    """True if an event of a job is about all runs or about this one. A rule that is remembered for a run
    holds for all runs below it."""
    rules = [data[name] for name in ("new", "old") if isinstance(data.get(name), dict)]
    of = {rule["run_id"] for rule in rules if isinstance(rule.get("run_id"), str)}
    return not of or any(is_within(run_id, each) for each in of)


# --- History: what happened beside the conversation

# Stages of a turn: after its reply, and after the results of its tool calls.
REPLIED = 1
ENDED = 2

# Told by the conversation, its calls, verifications and compactions, or of no interest to anyone.
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
    """Where in the conversation something happened."""

    turn: int  # 0 is before turn 1
    stage: int  # REPLIED or ENDED


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of a run, or of its job during the run."""

    place: Position
    at: float
    attempt: int | None  # None for an event of the job
    type: str
    data: Mapping[str, Any]


def history_of_run(database: Database, run_id: str) -> list[HistoryEvent]:
    """What people did, what the run waited for, what was retried, and its end; in order."""

    def work(connection: Connection) -> list[HistoryEvent]:
        columns = ("id", "job_id", "fork_turn", "created_at", "ended_at")
        query = select(*(runs.c[name] for name in columns)).where(runs.c.id == run_id)
        run = connection.execute(query).one()
        start = Position(run.fork_turn or 0, ENDED)
        of_run = _events_of_run(connection, run, without=_TOLD_ELSEWHERE, only_its_own=True)
        found = list(_history(of_run, start))
        if all(each.place == start for each in found):
            return _placed_by_time(connection, run_id, found)
        return found

    return database.read(work)


def _history(found: Iterable[_Event], place: Position) -> Iterator[HistoryEvent]:
    for event in found:
        data = event.data
        is_reply = event.type == "model_call_ended" and data.get("stop_reason") is not None
        if event.type == "turn_ended":
            place = Position(data["turn"], ENDED)
        elif is_reply and data.get("purpose") != "summary":
            place = Position(data["turn"], REPLIED)
        elif not is_reply or "error" in data:  # a summary that could not be used
            yield HistoryEvent(place, event.at, event.attempt, event.type, data)


def _placed_by_time(
    connection: Connection, run_id: str, found: list[HistoryEvent]
) -> list[HistoryEvent]:
    """Place the events of a run without turns in its record, such as an imported one, each after the last
    reply that had ended by then."""
    query = select(model_calls.c.turn, model_calls.c.ended_at).where(
        model_calls.c.run_id == run_id,
        model_calls.c.purpose == "turn",
        model_calls.c.stop_reason.is_not(None),
    )
    replies = connection.execute(query).all()
    ended = ([reply.turn for reply in replies if reply.ended_at <= each.at] for each in found)
    return [
        replace(each, place=Position(max(turns), ENDED)) if turns else each
        for each, turns in zip(found, ended, strict=True)
    ]


# --- Timeline: every event of a run as a row

_COLUMNS = columns(
    "at:time event turn:integer by call_id label tool model seconds:seconds cost_usd:usd what"
)
_WAITS = ("waiting", "paused", "attempt_ended")
_IN_COLUMNS = ("turn", "call_index", "tool_use_id", "name", "by", "call", "call_id")
# What ``what`` says of an event, in this order; of other types all that is not in another column.
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


def timeline_rows(
    database: Database,
    filters: Filters,
    run_id: str,
    prices: PriceList,
    *,
    limit: int | None = None,
) -> Rows:
    """The events of a run and of its job while the run existed, in the order of the record.

    ``event`` is the event's type (docs/concepts.md), ``by`` who did it, ``seconds`` how long a call or
    a wait took, and ``cost_usd`` what a model call cost, None if unknown.

    Args:
        filters: a tool stands for the events of its calls, a model for the events of calls of it.

    Raises:
        NotFoundError: there is no such run.
    """

    def work(connection: Connection) -> tuple[list[_Event], dict[float, str]]:
        run = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
        if run is None:
            raise NotFoundError(f"no run is named {run_id}")
        if not _is_included(run, filters):
            return [], {}
        models = select(model_calls.c.number, model_calls.c.model)
        models = models.where(model_calls.c.run_id == run_id)
        return list(_events_of_run(connection, run)), dict(connection.execute(models).all())

    found, models = database.read(work)
    costs: dict[float, CallCost] = {
        each.number: each for each in call_costs(database, prices, run_id)
    }
    waits = _waits(found)
    rows = [
        _row(run_id, event, models.get(event.call), costs.get(event.call), waits.get(number))
        for number, event in enumerate(found)
        if _is_wanted(event, models.get(event.call), filters)
    ]
    return cut(_COLUMNS, with_labels(database, rows, at=4), limit, "the first")


def _is_included(run: Row[Any], filters: Filters) -> bool:
    return (
        (filters.run_id is None or is_within(run.id, filters.run_id))
        and filters.job_id in (None, run.job_id)
        and filters.item in (None, item_of(run.id, run.item_key), run.item_key)
    )


def _is_wanted(event: _Event, model: str | None, filters: Filters) -> bool:
    return (
        (filters.since is None or event.at >= filters.since)
        and (filters.until is None or event.at < filters.until)
        and filters.tool in (None, event.text("name"))
        and filters.model in (None, model)
    )


def _waits(found: Sequence[_Event]) -> dict[int, float]:
    """The seconds from each wait to the next attempt, by the index of the event."""
    waited: dict[int, float] = {}
    waiting: int | None = None
    for number, event in enumerate(found):
        if event.type == "attempt_started" and waiting is not None:
            waited[waiting] = max(event.at - found[waiting].at, 0.0)
            waiting = None
        elif event.type in _WAITS and event.data.get("why") != "run ended":
            waiting = number
        elif event.type == "done":
            waiting = None
    return waited


def _row(
    run_id: str, event: _Event, model: str | None, cost: CallCost | None, waited: float | None
) -> tuple[Any, ...]:
    turn, index = event.number("turn"), event.number("call_index")
    took = (event.number("duration"), event.number("latency"), waited)
    spent = cost.spending if cost is not None and event.type == "model_call_ended" else None
    is_known = spent is not None and not spent.unknown and not spent.unpriced
    return (
        event.at,
        event.type,
        turn,
        event.text("by"),
        None if turn is None or index is None else ids.call_id(run_id, int(turn), int(index)),
        event.text("name"),
        model,
        next((seconds for seconds in took if seconds is not None), None),
        usd(spent.usd) if spent is not None and is_known else None,
        _what(event),
    )


def _what(event: _Event) -> str:
    """What else an event says, in one line."""
    data = event.data
    if event.type in _TOLD:
        told = [str(data[name]) for name in _TOLD[event.type] if data.get(name) not in (None, "")]
        return ": ".join(told)
    parts = (
        f"{name} {value}"
        for name, value in data.items()
        if name not in _IN_COLUMNS and value not in (None, "", {}, [])
    )
    return ", ".join(parts)
