"""Notices of a job's events, stored when the event happens, and kept as a record once sent.

At submission an ``armed`` row is stored for each event of the job's ``[notify]``, except
``needs_approval``, which has a notice for each new group of questions. When the event happens, a row for
each channel replaces the armed one. It is ``due`` until it is ``sent``, or ``failed`` after too many tries.
When the job goes on after a retry, a resume or a higher budget, the event is armed again, with the
``subject`` 2, then 3, and so on. A sender owns a notice for two minutes: if the worker dies, another sends
it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from runner.core.budget import billionths, is_near
from runner.core.commands import Question
from runner.core.notices import Channel, NoticeEvent, Notify, about, pause_before
from runner.core.run import ENDED, by_life
from runner.core.spec import JobSpec
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database
from runner.store.statements import insert_or
from runner.store.tables import job_budgets, job_pauses, jobs, notices, runs

_CLAIM_SECONDS = 120.0
_MOST_AT_ONCE = 20
_notice = notices.c
_ASKED = ("id", "run_id", "item_key", "tool", "summary", "asked_again", "asked_at", "expires_at")


@dataclass(frozen=True, slots=True)
class DueNotice:
    """A notice that is to be sent by one channel."""

    job_id: str
    event: NoticeEvent
    subject: str
    channel: Channel
    tries: int  # this one included
    data: Mapping[str, Any]
    notify: Notify

    @property
    def id(self) -> str:
        """The same in each try, so that a receiver can drop what it got twice."""
        return "/".join(filter(None, (self.job_id, self.event, self.subject)))


def arm(
    connection: Connection, job_id: str, notify: Notify | None, now: float, *, raised: bool = False
) -> None:
    """Store an armed row for each event of ``notify``, when a job is submitted or goes on. An event that
    was announced and still holds (the end, a pause, a nearly spent budget unless it was ``raised``) is
    not armed again."""
    wanted = [event for event in (notify.on if notify else ()) if event != "needs_approval"]
    stored = select(_notice.event, _notice.subject, _notice.at.is_(None).label("is_armed"))
    of_job = stored.where(_notice.job_id == job_id, _notice.event.in_(wanted)).distinct()
    found = connection.execute(of_job).all() if wanted else []
    is_armed = {row.event for row in found if row.is_armed}
    told = Counter(row.event for row in found)
    lasting: list[NoticeEvent] = ["done", "breaker", *(() if raised else ("budget",))]
    still = _happened(connection, job_id, {event: None for event in lasting if told[event]})
    armed = {"job_id": job_id, "channel": "", "state": "armed"}
    for event in wanted:
        if event in is_armed or event in still:
            continue
        again = {"subject": str(told[event] + 1), "data": {"since": now}}
        row = {**armed, "event": event, **(again if told[event] else {"subject": ""})}
        connection.execute(insert_or(connection, notices).values(row).on_conflict_do_nothing())


def arm_again(connection: Connection, job_id: str, now: float, *, raised: bool = False) -> None:
    """``arm`` the stored ``[notify]`` of a job that goes on."""
    spec = connection.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
    arm(connection, job_id, JobSpec.from_json(spec).notify, now, raised=raised)


_ARMED = select(_notice.job_id, _notice.event, _notice.subject, _notice.data).where(
    _notice.at.is_(None)  # the same condition as the index
)


def find(database: Database, now: float, job_id: str | None = None) -> None:
    """Store notices of what has happened to all jobs, or to one. Each worker looks in each pass."""
    armed = _ARMED if job_id is None else _ARMED.where(_notice.job_id == job_id)
    by_job: dict[str, list[Any]] = {}
    for row in database.rows(armed.order_by(_notice.job_id)):
        by_job.setdefault(row.job_id, []).append(row)
    for each, rows in by_job.items():
        if any(database.read(partial(_come_up, job_id=each, rows=rows))):
            database.write(partial(_store, job_id=each, rows=rows, now=now))


def _come_up(
    connection: Connection, job_id: str, rows: Sequence[Any]
) -> tuple[list[tuple[Any, str]], bool]:
    """Return the armed rows of a job whose events have happened, each with the notice's text, and whether
    the job has ended."""
    since = {row.event: row.data and row.data["since"] for row in rows}
    events = _happened(connection, job_id, since)
    happened = [(row, events[row.event]) for row in rows if row.event in events]
    return happened, _has_ended(connection, job_id)


def _has_ended(connection: Connection, job_id: str) -> bool:
    is_open = and_(runs.c.job_id == job_id, runs.c.state.not_in(ENDED))
    return connection.execute(select(runs.c.id).where(is_open).limit(1)).first() is None


def _happened(
    connection: Connection, job_id: str, events: Mapping[NoticeEvent, float | None]
) -> dict[NoticeEvent, str]:
    """Return the events that have happened, each with the notice's text. Values of ``events`` are times: a
    failure counts only after its time; None counts all."""
    told: dict[NoticeEvent, str] = {}
    for event in events:
        match event:
            case "done" if _has_ended(connection, job_id):
                told[event] = f"done: {_outcomes(connection, job_id)}"
            case "failed":
                of = runs.c.job_id == job_id, runs.c.state.in_(("failed", "stopped")), IS_ITEM_RUN
                names = (runs.c.item_key, runs.c.state, runs.c.reason, runs.c.detail)
                query, since = select(*names).where(*of), events[event]
                if since is not None:
                    query = query.where(runs.c.ended_at > since)
                for run in connection.execute(query.limit(1)):
                    why = ": ".join(filter(None, (run.reason, run.detail)))
                    first = "the first run has" if since is None else "a run has"
                    told[event] = f"{first} {run.state}: {run.item_key} ({why})"
            case "budget":
                for budget in connection.execute(
                    select(job_budgets).where(job_budgets.c.job_id == job_id)
                ):
                    usd, spent = budget.budget_usd, budget.spent_cost
                    if usd is not None and is_near(spent, billionths(usd)):
                        told[event] = (
                            f"{spent / billionths(usd):.0%} of its budget of ${usd:,.2f} is spent"
                        )
                    elif is_near(budget.spent_tokens, budget.budget_tokens):
                        told[event] = (
                            f"{budget.spent_tokens:,} of its budget of {budget.budget_tokens:,} tokens "
                            "are spent"
                        )
            case "breaker":
                by_runner = job_pauses.c.reason.in_(("breaker", "spend_limit"))
                of_pause = select(job_pauses.c.detail).where(
                    job_pauses.c.job_id == job_id, by_runner
                )
                for pause in connection.execute(of_pause):
                    told[event] = f"paused by Runner: {pause.detail}"
    return told


def _outcomes(connection: Connection, job_id: str) -> str:
    counted = select(runs.c.state, func.count()).where(runs.c.job_id == job_id, IS_ITEM_RUN)
    found: dict[str, int] = dict(connection.execute(counted.group_by(runs.c.state)).all())
    return ", ".join(f"{count} {state}" for state, count in by_life(found))


def _store(connection: Connection, job_id: str, rows: Sequence[Any], now: float) -> None:
    """Store the notices of a job. Checks the events again: the job may have been retried meanwhile."""
    query = select(jobs.c.name, jobs.c.spec).where(jobs.c.id == job_id)
    if (job := connection.execute(query).one_or_none()) is None:
        return  # pruned meanwhile, with its notices
    notify = JobSpec.from_json(job.spec).notify or Notify()
    armed = and_(_notice.job_id == job_id, _notice.at.is_(None))
    happened, has_ended = _come_up(connection, job_id, rows)
    for row, text in happened:
        mine = and_(armed, _notice.event == row.event, _notice.subject == row.subject)
        taken = connection.execute(delete(notices).where(mine))
        if taken.rowcount:  # else another worker was faster
            data = about(row.event, job_id, job.name, text)
            _insert(connection, notify, job_id, row.event, row.subject, data, now)
    if has_ended:
        connection.execute(delete(notices).where(armed))


def _insert(
    connection: Connection,
    notify: Notify,
    job_id: str,
    event: NoticeEvent,
    subject: str,
    data: Mapping[str, Any],
    now: float,
) -> None:
    key = {"job_id": job_id, "event": event, "subject": subject}
    rows = [
        {**key, "channel": channel, "state": "due", "data": data, "at": now, "due_at": now}
        for channel in notify.channels
    ]
    if rows:
        connection.execute(insert(notices), rows)


def of_questions(
    connection: Connection, notify: Notify | None, asked: Sequence[Question], now: float
) -> None:
    """Store the notice of new questions of a job, in the transaction that stamps them."""
    if notify is None or "needs_approval" not in notify.on:
        return
    first, *others = asked
    more = f" (and {len(others)} more)" if others else ""
    text = f"needs an approval: {first.tool} {first.summary} of {first.item_key}{more}"
    questions = [{name: getattr(each, name) for name in _ASKED} for each in asked]
    data = about("needs_approval", first.job_id, first.job_name, text, questions=questions)
    _insert(connection, notify, first.job_id, "needs_approval", first.id, data, now)


def take_due(database: Database, now: float, job_id: str | None = None) -> list[DueNotice]:
    """Take due notices of one job or of all. No other worker gets them for two minutes."""
    is_due: ColumnElement[bool] = _notice.due_at <= now
    if job_id is not None:
        is_due &= _notice.job_id == job_id
    query = select(notices).where(is_due).order_by(_notice.due_at).limit(_MOST_AT_ONCE)
    if not database.rows(query.limit(1)):
        return []

    def work(connection: Connection) -> list[DueNotice]:
        rows = connection.execute(query.with_for_update(skip_locked=True)).all()
        of = {row.job_id for row in rows}
        specs = dict(
            connection.execute(select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(of))).all()
        )
        found = []
        for row in rows:
            claimed = {"due_at": now + _CLAIM_SECONDS, "tries": row.tries + 1}
            connection.execute(update(notices).where(_is(row)).values(**claimed))
            notify = JobSpec.from_json(specs[row.job_id]).notify or Notify()
            key = (row.job_id, row.event, row.subject, row.channel)
            found.append(DueNotice(*key, row.tries + 1, row.data, notify))
        return found

    return database.write(work)


def _is(one: Any) -> ColumnElement[bool]:
    names = ("job_id", "event", "subject", "channel")
    return and_(*(_notice[name] == getattr(one, name) for name in names))


def renew(database: Database, one: DueNotice, now: float) -> bool:
    """Keep a notice for two more minutes. Returns False if another worker has taken it, or it was removed.
    Raises ``UnreachableError``."""
    mine = update(notices).where(_is(one), _notice.tries == one.tries)
    renewed = mine.values(due_at=now + _CLAIM_SECONDS)
    return database.write(lambda connection: connection.execute(renewed).rowcount > 0, alone=True)


def sent(database: Database, one: DueNotice, now: float) -> None:
    values = {"state": "sent", "due_at": None, "sent_at": now, "error": None}
    database.execute(update(notices).where(_is(one)).values(**values))


def not_sent(database: Database, one: DueNotice, why: str, now: float) -> None:
    """Store why a notice could not be sent; it is tried again after a pause, or has failed."""
    pause = pause_before(one.tries)
    due_at = None if pause is None else now + pause
    state = "failed" if pause is None else "due"
    values = {"state": state, "due_at": due_at, "error": why}
    database.execute(update(notices).where(_is(one)).values(**values))


def list_notices(database: Database, job_id: str) -> list[dict[str, Any]]:
    """Return the notices of a job that have come up, the oldest first."""
    query = select(notices).where(_notice.job_id == job_id, _notice.at.is_not(None))
    return database.dicts(query.order_by(_notice.at, _notice.channel))
