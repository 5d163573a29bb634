"""What happened to a run beside what was said in it, and where in the conversation it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, select

from runner.core.agents.place import is_within
from runner.store.connection.database import Database
from runner.store.tables import events, job_events, model_calls, runs

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
class Place:
    """``turn`` and how far it was when something happened: ``REPLIED`` or ``ENDED``. What happened
    before turn 1 began is at the end of turn 0."""

    turn: int
    stage: int


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the run, or of its job while the run was under way (``attempt`` is None)."""

    place: Place
    at: float
    attempt: int | None
    type: str
    data: dict[str, Any]


def happened(database: Database, run_id: str) -> list[Happened]:
    """What people did, what the run waited for, what was tried again, and its end; in order. Events
    stand where the audit record has them, whatever the clocks of two workers say."""
    query = (
        select(events)
        .where(events.c.run_id == run_id, events.c.type.not_in(_TOLD_ELSEWHERE))
        .order_by(events.c.number)
    )

    def work(connection: Connection) -> list[Happened]:
        columns = (runs.c.job_id, runs.c.fork_turn, runs.c.created_at, runs.c.ended_at)
        run = connection.execute(select(*columns).where(runs.c.id == run_id)).one()
        start = Place(run.fork_turn or 0, ENDED)
        of_job = deque(each for each in _of_job(connection, run) if _concerns(each.data, run_id))
        found = list(_placed(connection.execute(query), of_job, start))
        if all(each.place == start for each in found):
            return _by_time(connection, run_id, found)
        return found

    return database.read(work)


def _placed(found: Iterable[Row[Any]], of_job: deque[Row[Any]], place: Place) -> Iterator[Happened]:
    """Both kinds of events, those of the job by their time: no other order of the two is recorded."""
    for event in found:
        while of_job and of_job[0].at <= event.at:
            yield _job_event(of_job.popleft(), place)
        data = event.data
        is_reply = event.type == "model_call_ended" and data.get("stop_reason") is not None
        if event.type == "turn_ended":
            place = Place(data["turn"], ENDED)
        elif is_reply and data.get("purpose") != "summary":
            place = Place(data["turn"], REPLIED)
        elif not is_reply or "error" in data:  # a summary that could not be used
            yield Happened(place, event.at, event.attempt, event.type, data)
    for left in of_job:
        yield _job_event(left, place)


def _by_time(connection: Connection, run_id: str, found: list[Happened]) -> list[Happened]:
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
        replace(each, place=Place(max(turns), ENDED)) if turns else each
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


def _job_event(event: Row[Any], place: Place) -> Happened:
    return Happened(place, event.at, None, event.type, event.data)
