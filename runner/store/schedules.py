"""Schedules: jobs that are submitted again and again, at the times of a cron expression.

A schedule holds the whole job, read when the schedule was added: the job file's text, prompts,
items with their files, rules, and the commit that runs begin at. So any worker can submit it, without
the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from sqlalchemy import Connection, Row, insert, select, update

from runner.core.conversation import Block
from runner.core.events import signed_event
from runner.core.media import Media, with_bytes, without_bytes
from runner.core.run import Author
from runner.core.spec import JobSpec, NewRun, Submission
from runner.errors import UnreachableError, UsageError
from runner.logs import log_event
from runner.store import ids, jobs
from runner.store.database import Database, writes
from runner.store.tables import schedules

logger = logging.getLogger(__name__)

LATE_SECONDS = 60.0  # a worker that is alive looks each second
_MOST_COUNTED = 1_000  # of the times that were missed
_MOST_MEDIA = 16_000_000  # bytes of its items' files

_SHOWN = (
    *("id", "name", "source", "cron", "zone", "author", "created_at", "next_at", "paused_at"),
    *("removed_at", "fired_at", "fired_job", "detail", "changes"),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, in a time zone. Clocks that are set are treated as Debian's cron
    does: a time that they skip fires when they are set, one that comes twice fires the first time."""

    expression: str
    zone: str  # a name such as ``Europe/Berlin``

    def next_after(self, now: float) -> float:
        """The next time, in seconds since the epoch. Raises ``UsageError`` if there is none."""
        for at in self.times_after(now):
            return at
        raise UsageError(f"the cron expression {self.expression[:100]!a} names no future time")

    def times_after(self, now: float) -> Iterator[float]:
        """Yield all future times. Raises ``UsageError`` for a bad expression."""
        start = datetime.fromtimestamp(now, ZoneInfo(self.zone))
        try:
            if len(self.expression.split()) != 5:
                raise CronSimError("Wrong number of fields")
            yield from (at.timestamp() for at in CronSim(self.expression, start))
        except CronSimError as error:
            raise UsageError(
                f"{self.expression[:100]!a} is not a cron expression ({str(error).lower()}): give minute, "
                'hour, day of month, month and day of week, such as "0 22 * * 1-5"'
            ) from error


def add(
    database: Database,
    submission: Submission,
    cron: Cron,
    workspace_id: str | None,
    now: float,
    author: Author,
) -> str:
    """Store a schedule, and return its id. Raises ``UsageError`` for a bad expression, for a job with a
    time on one day only, and for text that no database can store."""
    jobs.check_storable(submission)
    _check_repeatable(submission)
    submission.spec.times.at_submission(now)
    data = {each.sha256: each.data for each in submission.media}
    attached = [
        [with_bytes(each, data.__getitem__, "name") for each in run.attached]
        for run in submission.runs
    ]
    row = {
        "id": (schedule_id := ids.new("sch", now)),
        "name": submission.spec.name,
        "source": submission.source.encode("utf-8", "backslashreplace").decode(),
        "cron": cron.expression,
        "zone": cron.zone,
        "author": author.name,
        "created_at": now,
        "next_at": cron.next_after(now),
        "changes": [_event("added", author, now)],
        "workspace_id": workspace_id,
        "spec_text": submission.text,
        "spec": submission.spec.to_json(),
        "runs": [
            {**asdict(run), "attached": blocks}
            for run, blocks in zip(submission.runs, attached, strict=True)
        ],
    }
    database.execute(insert(schedules).values(row))
    return schedule_id


def _check_repeatable(submission: Submission) -> None:
    """Raise ``UsageError`` if a job cannot run more than once, or is too large to be stored."""
    times = submission.spec.times
    for name, moment in (("not_before", times.not_before), ("finish_by", times.finish_by)):
        if moment is not None and moment.at is not None:
            raise UsageError(
                f"{name} {moment} is on one day only: give a scheduled job a time of day, such as 07:00"
            )
    sizes = {each.sha256: len(each.data) for each in submission.media}
    size = sum(sizes[each["source"]["sha256"]] for run in submission.runs for each in run.attached)
    if size > _MOST_MEDIA:
        raise UsageError(
            f"a schedule keeps at most {_MOST_MEDIA // 10**6} MB of files, and its items have "
            f"{size // 10**6} MB: leave out `images`, and let the runs Read them"
        )


def listed(database: Database, *, removed: bool = False) -> list[dict[str, Any]]:
    """All schedules, the oldest first; with ``removed`` the removed ones, too."""
    query = select(*(schedules.c[name] for name in _SHOWN)).order_by(schedules.c.id)
    if not removed:
        query = query.where(schedules.c.removed_at.is_(None))
    return database.dicts(query)


def pause(database: Database, schedule_id: str, now: float, author: Author) -> None:
    """Pause a schedule: it submits nothing until it is resumed."""
    _change(database, schedule_id, "paused", author, now, lambda row: {"paused_at": now})


def resume(database: Database, schedule_id: str, now: float, author: Author) -> None:
    """Resume a paused schedule. It skips the times that it missed."""

    def new(row: Row[Any]) -> dict[str, Any]:
        return {"paused_at": None, "next_at": Cron(row.cron, row.zone).next_after(now)}

    _change(database, schedule_id, "resumed", author, now, new)


def remove(database: Database, schedule_id: str, now: float, author: Author) -> None:
    """Remove a schedule: it submits nothing more. Its row and its jobs stay."""
    _change(database, schedule_id, "removed", author, now, lambda row: {"removed_at": now})


@writes
def _change(
    connection: Connection,
    schedule_id: str,
    kind: str,
    author: Author,
    now: float,
    new: Callable[[Row[Any]], dict[str, Any]],
) -> None:
    """Change a schedule and record who did it. Do nothing if it is removed, or has the new state
    already."""
    is_there = schedules.c.id == schedule_id, schedules.c.removed_at.is_(None)
    query = select(schedules).where(*is_there).with_for_update()
    for row in connection.execute(query):
        if kind == ("resumed" if row.paused_at is None else "paused"):
            return
        changes = [*row.changes, _event(kind, author, now)]
        _set(connection, schedule_id, changes=changes, **new(row))


def _event(kind: str, author: Author, now: float) -> dict[str, Any]:
    return {"at": now, "type": kind, **signed_event(kind, author).data}


def fire_due(database: Database, now: float) -> list[str]:
    """Submit the jobs of the schedules that are due, and return their ids. Of workers that do this at
    once, one submits; what it stores is one transaction. Raises ``UnreachableError``."""
    query = select(schedules.c.id).where(_is_due(now)).order_by(schedules.c.next_at)
    return [
        job_id for row in database.rows(query) if (job_id := _fire_or_say(database, row.id, now))
    ]


def _is_due(now: float) -> Any:
    is_on = schedules.c.paused_at.is_(None) & schedules.c.removed_at.is_(None)
    return (schedules.c.next_at <= now) & is_on


def _fire_or_say(database: Database, schedule_id: str, now: float) -> str | None:
    """Fire a schedule; one that cannot be submitted says why, and waits for its next time."""
    try:
        job_id, detail = database.write(partial(_fire, schedule_id=schedule_id, now=now))
    except UnreachableError:
        raise
    except Exception as error:  # of any kind: it must not keep the worker from its runs
        logger.warning("%s could not submit its job: %s", schedule_id, error)
        database.write(partial(_skip, schedule_id=schedule_id, now=now, why=str(error)))
        return None
    if job_id is not None:
        log_event(logger, "schedule fired", schedule=schedule_id, job=job_id)
    if detail:
        logger.warning("%s submitted %s: %s", schedule_id, job_id, detail)
    return job_id


def _locked(connection: Connection, schedule_id: str, now: float) -> Row[Any] | None:
    """The schedule, locked, if it is still due, and nobody else is submitting its job."""
    query = select(schedules).where(schedules.c.id == schedule_id, _is_due(now))
    return connection.execute(query.with_for_update(skip_locked=True)).one_or_none()


def _fire(connection: Connection, schedule_id: str, now: float) -> tuple[str | None, str]:
    """Submit a due schedule's job. Returns its id, None if it is no longer due, and what was missed."""
    row = _locked(connection, schedule_id, now)
    if row is None:
        return None, ""
    cron, left_out = Cron(row.cron, row.zone), 0
    for at in cron.times_after(row.next_at):
        if at > now or left_out == _MOST_COUNTED:
            break
        left_out += 1
    detail = _missed(row.next_at, now, left_out)
    due = datetime.fromtimestamp(row.next_at, UTC)
    about = {"schedule": schedule_id, "due_at": row.next_at, "missed": detail or None}
    spec, (runs, media) = JobSpec.from_json(row.spec), _runs_of(row)
    job_id = jobs.insert_job(
        connection,
        Submission(row.source, row.spec_text, spec, runs, media=media),
        now,
        f"{schedule_id} {due:%Y-%m-%dT%H:%MZ}",
        row.workspace_id,
        Author(row.author, f"schedule {schedule_id}"),
        about,
    )
    fired = {"fired_at": now, "fired_job": job_id, "detail": detail}
    _set(connection, schedule_id, next_at=cron.next_after(now), **fired)
    return job_id, detail


def _skip(connection: Connection, schedule_id: str, now: float, why: str) -> None:
    if (row := _locked(connection, schedule_id, now)) is not None:
        next_at = Cron(row.cron, row.zone).next_after(now)
        detail = f"could not submit its job: {why}".replace("\0", "")
        _set(connection, schedule_id, next_at=next_at, detail=detail)


def _set(connection: Connection, schedule_id: str, **columns: Any) -> None:
    connection.execute(update(schedules).where(schedules.c.id == schedule_id).values(columns))


def _missed(due_at: float, now: float, left_out: int) -> str:
    """Return the message of a schedule that fires late; empty if a worker was there in time."""
    if now - due_at < LATE_SECONDS and not left_out:
        return ""
    due, until = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC" for at in (due_at, now))
    most = "at least " if left_out == _MOST_COUNTED else ""
    others = f"; later times left out: {most}{left_out}" if left_out else ""
    return f"due at {due}, and no worker was there until {until}{others}"


def _runs_of(row: Row[Any]) -> tuple[tuple[NewRun, ...], tuple[Media, ...]]:
    runs, found = list[NewRun](), list[Media]()
    for run in row.runs:
        blocks = list[Block]()
        for each in run.get("attached", ()):
            block, media = without_bytes(each)
            blocks.append(block)
            found += media
        runs.append(NewRun(**{**run, "attached": blocks}))
    return tuple(runs), tuple(found)
