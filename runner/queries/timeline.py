"""Events of jobs and runs: as stored, as a history beside the conversation, and as a timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Row, and_, func, null, or_, select

from runner.core.agents import is_within, item_of, place_of, tree_order
from runner.core.events import SIGNED
from runner.core.prices import PriceList, Spending
from runner.errors import NotFoundError
from runner.queries.costs import call_costs, usd
from runner.queries.filters import Filters, answer, call_labels
from runner.queries.rows import Rows, columns
from runner.store.conditions import in_tree
from runner.store.database import Database, reads
from runner.store.tables import events, job_events, model_calls, runs

# --- Events as stored, each with its place in the tree of runs


@reads
def events_after(
    connection: Connection,
    run_id: str,
    last: Mapping[str, int] | None = None,  # by run, the last event that the caller has
    *,
    whole_tree: bool = False,
) -> list[dict[str, Any]]:
    """Return the events of a run, or of its tree by time; the events of one run stay in order. Each
    has the table's columns, and ``root``, ``parent``, ``depth`` and ``label`` of the run; an event
    about a tool call has the call's ``label``."""
    had = last or {}
    condition = and_(runs.c.id == run_id, events.c.number > had.get(run_id, 0))
    if whole_tree:
        newer = (and_(runs.c.id == run, events.c.number > number) for run, number in had.items())
        condition = and_(in_tree(run_id), or_(runs.c.id.not_in(list(had)), *newer))
    query = select(events).join(runs, runs.c.id == events.c.run_id).where(condition)
    latest: dict[str, float] = {}  # a clock that was set back does not change a run's order
    keyed = []
    ordered = query.order_by(events.c.run_id, events.c.number)
    for row in connection.execute(ordered).mappings():
        run = row["run_id"]
        latest[run] = max(row["at"], latest.get(run, row["at"]))
        keyed.append(((latest[run], tree_order(run), row["number"]), row))
    return _with_places(connection, [row for _, row in sorted(keyed, key=itemgetter(0))])


def newest_events(
    database: Database, run_id: str, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """The newest events of a run, or the newest ``before`` a number, from the newest on."""
    query = select(events).where(events.c.run_id == run_id)
    if before is not None:
        query = query.where(events.c.number < before)
    found = database.rows(query.order_by(events.c.number.desc()).limit(limit))
    return [dict(row._mapping) for row in found]


# The job's own event covers all runs that were submitted with it.
_CHANGES_OF_RUNS = tuple(kind for kind in SIGNED if kind != "run_submitted")


@reads
def changes_of_job(connection: Connection, job_id: str) -> list[dict[str, Any]]:
    """The events of a job, and the events of its runs that name who did something; by time, with the keys
    of ``events_after``. An event of the job has no place, and None as ``run_id`` and ``attempt``."""
    of_job = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.number)
    of_runs = (
        select(events)
        .join(runs, runs.c.id == events.c.run_id)
        .where(runs.c.job_id == job_id, events.c.type.in_(_CHANGES_OF_RUNS))
        .order_by(events.c.run_id, events.c.number)
    )
    found = [
        {"job_id": job_id, "run_id": None, "attempt": None, **row}
        for row in connection.execute(of_job).mappings()
    ]
    found += [{"job_id": job_id, **row} for row in connection.execute(of_runs).mappings()]
    return _with_places(connection, sorted(found, key=lambda event: event["at"]))


def _with_places(connection: Connection, found: Iterable[Any]) -> list[dict[str, Any]]:
    rows = [dict(row) for row in found]
    about = {row["run_id"] for row in rows if _call_of(row["data"])}
    labels: Mapping[Any, str] = call_labels(connection, about)
    for row in rows:
        if (run_id := row["run_id"]) is not None:
            row |= place_of(run_id)
            row["label"] = labels.get((run_id, *_call_of(row["data"])), row["label"])
    return rows


def _call_of(data: Any) -> tuple[Any, ...]:
    """The turn and position of the call in an event's data, which may have any shape."""
    call = (data.get("turn"), data.get("call_index")) if isinstance(data, dict) else ()
    return call if all(isinstance(number, int) for number in call) else ()


# --- Events of a run and its job

# Stages of a turn: after its reply, and after the results of its tool calls.
REPLIED = 1
ENDED = 2


@dataclass(frozen=True, slots=True)
class Position:
    turn: int  # 0 is before turn 1
    stage: int  # REPLIED or ENDED


_START = Position(0, ENDED)


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of a run, or of its job during the run."""

    at: float
    type: str
    data: Mapping[str, Any]  # empty if an imported event has no object here
    attempt: int | None  # None for an event of the job
    place: Position = _START

    @classmethod
    def of(cls, row: Any) -> HistoryEvent:
        data = row.data if isinstance(row.data, dict) else {}
        return cls(row.at, row.type, data, row.attempt)

    def number(self, name: str) -> float | None:
        value = self.data.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if isfinite(value) else None

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        return value if isinstance(value, str) else None


def _events_of_run(
    connection: Connection,
    run: Row[Any],
    *,
    without: Sequence[str] = (),
    only_its_own: bool = False,
    since: float | None = None,
    until: float | None = None,
) -> Iterator[HistoryEvent]:
    """The events of a run (``without`` some types) in the order of the record, whatever the clocks of two
    workers say, merged by time with the events of its job while the run existed (``only_its_own``: without
    the job's events about other runs). ``since`` and ``until``: only of this time."""
    own = (
        select(events.c.at, events.c.type, events.c.data, events.c.attempt)
        .where(events.c.run_id == run.id, events.c.type.not_in(without))
        .order_by(events.c.number)
    )
    event = job_events.c
    # The run has an event of its own for "submitted".
    of_job = (
        select(event.at, event.type, event.data, null().label("attempt"))
        .where(event.job_id == run.job_id, event.at >= run.created_at, event.type != "submitted")
        .order_by(event.number)
    )
    if run.ended_at is not None:
        of_job = of_job.where(event.at <= run.ended_at)
    if since is not None:
        own, of_job = own.where(events.c.at >= since), of_job.where(event.at >= since)
    if until is not None:
        own, of_job = own.where(events.c.at <= until), of_job.where(event.at <= until)
    found = map(HistoryEvent.of, connection.execute(of_job))
    jobs = deque(each for each in found if not only_its_own or _concerns(each.data, run.id))
    for each in map(HistoryEvent.of, connection.execute(own)):
        while jobs and jobs[0].at <= each.at:
            yield jobs.popleft()
        yield each
    yield from jobs


def _concerns(data: Mapping[str, Any], run_id: str) -> bool:
    """True if an event of a job is about all runs or about this one. A rule that is remembered for a run
    holds for all runs below it."""
    rules = [data[name] for name in ("new", "old") if isinstance(data.get(name), dict)]
    of = {rule["run_id"] for rule in rules if isinstance(rule.get("run_id"), str)}
    return not of or any(is_within(run_id, each) for each in of)


# --- History: what happened beside the conversation

# Told by the conversation, its calls, verifications and compactions, or of no interest to anyone.
_TOLD_ELSEWHERE = (
    *("context_compacted", "limit_reached", "message_added", "model_call_started"),
    *("permission_decided", "tool_done", "tool_started", "tree_recorded", "turn_started"),
    *("verification_started", "verified"),
)


@reads
def history_of_run(
    connection: Connection, run_id: str, turns: tuple[int, int] | None = None
) -> list[HistoryEvent]:
    """Return people's actions, waits, retries and the end of a run, in order; with ``turns`` at least those
    from the first number to the last."""
    names = ("id", "job_id", "fork_turn", "created_at", "ended_at")
    query = select(*(runs.c[name] for name in names)).where(runs.c.id == run_id)
    run = connection.execute(query).one()
    start = Position(run.fork_turn or 0, ENDED)
    since = until = None
    if turns is not None:
        since, until = _times_of(connection, run_id, turns)
    if turns is not None and since is not None:
        start = Position(turns[0] - 1, ENDED)
    of_run = _events_of_run(
        connection, run, without=_TOLD_ELSEWHERE, only_its_own=True, since=since, until=until
    )
    found = list(_history(of_run, start))
    is_unplaced = all(each.place == start for each in found)
    return _placed_by_time(connection, run_id, found) if is_unplaced else found


def _times_of(
    connection: Connection, run_id: str, turns: tuple[int, int]
) -> tuple[float | None, float | None]:
    """Return when the calls for the first of the turns began, and when the reply of the turn after the
    last came: what happened in these turns lies between them. None: from the start, or until the end."""
    call, (first, last) = model_calls.c, turns
    began = select(func.min(call.started_at)).where(call.run_id == run_id, call.turn == first)
    replied = select(func.max(call.ended_at)).where(call.run_id == run_id, call.turn == last + 1)
    replied = replied.where(call.stop_reason.is_not(None))
    is_from_start = first <= 1
    since = None if is_from_start else connection.execute(began).scalar()
    return since, connection.execute(replied).scalar()


def _history(found: Iterable[HistoryEvent], place: Position) -> Iterator[HistoryEvent]:
    for event in found:
        data = event.data
        is_reply = event.type == "model_call_ended" and data.get("stop_reason") is not None
        if event.type == "turn_ended":
            place = Position(data["turn"], ENDED)
        elif is_reply and data.get("purpose") != "summary":
            place = Position(data["turn"], REPLIED)
        elif not is_reply or "error" in data:  # a summary that could not be used
            yield replace(event, place=place)


def _placed_by_time(
    connection: Connection, run_id: str, found: list[HistoryEvent]
) -> list[HistoryEvent]:
    """Place the events of a run without turns in its record, such as an imported one, each after the last
    reply that had ended by then."""
    call = model_calls.c
    query = select(call.turn, call.ended_at).where(call.run_id == run_id, call.purpose == "turn")
    replies = connection.execute(query.where(call.stop_reason.is_not(None))).all()
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
    "connection": ("outcome", "host", "port", "why"),
    "verified": ("outcome", "command", "output"),
    "error": ("state", "reason", "detail"),
    "done": ("state", "reason", "detail"),
}


def timeline_rows(database: Database, filters: Filters, run_id: str, prices: PriceList) -> Rows:
    """The events of a run and of its job while the run existed, in the order of the record.

    ``event`` is the event's type (docs/events.md), ``by`` who did it, ``seconds`` how long a call or
    a wait took, and ``cost_usd`` what a model call cost, None if unknown. In the filters, a tool stands for
    the events of its calls, a model for the events of calls of it. Raises ``NotFoundError``.
    """

    def work(connection: Connection) -> tuple[list[HistoryEvent], dict[float, str]]:
        run = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
        if run is None:
            raise NotFoundError(f"no run is named {run_id}")
        is_included = (
            (filters.run_id is None or is_within(run.id, filters.run_id))
            and filters.job_id in (None, run.job_id)
            and filters.item in (None, item_of(run.id, run.item_key), run.item_key)
        )
        if not is_included:
            return [], {}
        call = model_calls.c
        models = select(call.number, call.model).where(call.run_id == run_id)
        return list(_events_of_run(connection, run)), dict(connection.execute(models).all())

    found, models = database.read(work)
    spending = ((each.number, each.spending) for each in call_costs(database, prices, run_id))
    costs: dict[float, Spending] = dict(spending)
    waits = _waits(found)
    rows = []
    for number, event in enumerate(found):
        call = event.number("call") or 0
        is_wanted = (
            (filters.since is None or event.at >= filters.since)
            and (filters.until is None or event.at < filters.until)
            and filters.tool in (None, event.text("name"))
            and filters.model in (None, models.get(call))
        )
        if is_wanted:
            more: dict[str, Any] = {"run_id": run_id, "model": models.get(call), "cost_usd": None}
            spent = costs.get(call) if event.type == "model_call_ended" else None
            if spent is not None and not (spent.unknown or spent.unpriced):
                more["cost_usd"] = usd(spent.usd)
            rows.append(_row(event, waits.get(number)) | more)
    return answer(database, _COLUMNS, rows, filters, "the first")


def _waits(found: Sequence[HistoryEvent]) -> dict[int, float]:
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


def _row(event: HistoryEvent, waited: float | None) -> dict[str, Any]:
    turn, index = event.number("turn"), event.number("call_index")
    took = (event.number("duration"), event.number("latency"), waited)
    data = event.data
    if names := _TOLD.get(event.type):
        what = ": ".join(str(data[name]) for name in names if data.get(name) not in (None, ""))
    else:
        others = {name: value for name, value in data.items() if name not in _IN_COLUMNS}
        nothing: tuple[Any, ...] = (None, "", {}, [])
        what = ", ".join(f"{name} {each}" for name, each in others.items() if each not in nothing)
    return {
        "at": event.at,
        "event": event.type,
        "turn": turn,
        "by": event.text("by"),
        "position": None if turn is None else index,
        "tool": event.text("name"),
        "seconds": next((seconds for seconds in took if seconds is not None), None),
        "what": what,
    }
