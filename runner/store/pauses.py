"""Pauses of whole jobs: for a pilot, by the circuit breaker, at a spend limit of the API, by a person.

A pause is a row of its job, written by whoever is first. Then its runs are paused as by ``runner pause``.
If the worker dies before that is done, the next pass of any dispatcher does it: ``pending`` says what is
left.
A pilot begins with the submission: the other items' runs are stored as paused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, or_, select, update

from runner.core.agents import lineage
from runner.core.budget import BILLIONTHS, billionths
from runner.core.commands import Change, Target
from runner.core.entries import SPEND_LIMIT
from runner.core.pauses import BY_PILOT, FAILED, Breaker, EndedRun, Pilot, PilotResult, tripped
from runner.core.run import ENDED, RUNNER, RUNNERS_NAME, UNKNOWN, Author
from runner.core.spec import JobSpec
from runner.store import control
from runner.store.changes import tell_of_job
from runner.store.conditions import IS_ITEM_RUN, superseded_runs
from runner.store.database import Database, writes
from runner.store.notices import arm_again
from runner.store.rules import lock_rules
from runner.store.run_state import progress_from_row
from runner.store.specs import JobCache
from runner.store.statements import insert_or
from runner.store.tables import job_pauses, jobs, model_calls, runs, verifications

_IS_OPEN = runs.c.state.in_(("queued", "running", "waiting"))
_IS_HELD = and_(runs.c.state == "waiting", runs.c.reason == "paused", runs.c.detail == BY_PILOT)
# A pilot under way gives way to another pause, and goes on after that.
_IS_FREE = or_(job_pauses.c.reason.is_(None), job_pauses.c.pending == "decide")
_PENDING = (
    select(job_pauses.c.job_id, job_pauses.c.detail, job_pauses.c.pending)
    .where(job_pauses.c.pending.is_not(None))
    .order_by(job_pauses.c.job_id)
)


def insert_pilot(connection: Connection, job_id: str, pilot: Pilot, count: int, now: float) -> None:
    """Store the pause of a job that is submitted with a pilot among ``count`` items."""
    detail = f"{pilot.items} of {count:,} items are worked first"
    row = {"job_id": job_id, "reason": "pilot", "detail": detail, "at": now, "pending": "decide"}
    connection.execute(insert(job_pauses).values(row))


def attend(database: Database, now: float) -> None:
    """Do what is left to do about pauses of jobs; each worker's dispatcher looks in each pass."""
    for row in database.find(_PENDING, {}):
        match row.pending:
            case "decide":
                if (passed := _decide(database, row.job_id, now)) is not None:
                    _resume_held(database, row.job_id, passed, now)
            case "pause":
                _pause_runs(database, row.job_id, row.detail, now)
            case "resume":
                _resume_held(database, row.job_id, row.detail, now)


def pause(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """Let runs wait until they are resumed. A whole job is paused then, and its event says by whom."""
    is_open = select(runs.c.id).where(runs.c.job_id == target.id, _IS_OPEN).limit(1)
    if target.kind == "run" or not database.rows(is_open):
        return control.pause(database, target, now, author=author)
    detail = ": ".join(filter(None, (author.name or "somebody", author.why)))
    is_new = _store_pause(database, target.id, "person", detail, now, author=author)
    changes = control.pause(database, target, now, author=author)
    if is_new:
        _done(database, target.id, "pause", pending=None)
    return changes


def cancel(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """End runs. A whole job is then no longer paused: a retry goes on, and its breaker counts anew."""
    changes = control.cancel(database, target, now, author=author)
    if target.kind == "job":
        is_done = job_pauses.c.job_id == target.id, job_pauses.c.pending.is_(None)
        database.execute(update(job_pauses).where(*is_done).values(reason=None, counted_from=now))
    return changes


def is_paused(database: Database, job_id: str) -> bool:
    """True if a whole job is paused, but for a pilot."""
    reason = select(job_pauses.c.reason).where(job_pauses.c.job_id == job_id)
    return any(row.reason not in (None, "pilot") for row in database.rows(reason))


def resume(
    database: Database, target: Target, now: float, *, author: Author = UNKNOWN
) -> list[Change]:
    """Resume paused runs. With a whole job, the pause of the job ends and its breaker counts from zero; a
    pilot that another pause interrupted continues first, without the other items."""
    if target.kind == "run":
        return control.resume(database, target, now, author=author)

    def work(connection: Connection) -> bool:
        lock_rules(connection, target.id)
        of_job = job_pauses.c.job_id == target.id
        paused = connection.execute(select(job_pauses).where(of_job)).first()
        if paused is None or paused.reason is None:
            return False
        count = select(func.count()).where(runs.c.job_id == target.id, _IS_HELD)
        held = connection.execute(count).scalar_one()
        is_cut = paused.reason != "pilot" and held > 0
        after: dict[str, str | None] = dict(_NO_PAUSE)
        if is_cut:
            detail = f"its items are worked first, and others wait ({held:,})"
            after = {"reason": "pilot", "pending": "decide", "detail": detail}
        connection.execute(update(job_pauses).where(of_job).values(**after, counted_from=now))
        old = {"reason": paused.reason, "detail": paused.detail}
        new = {"reason": after["reason"]}
        tell_of_job(connection, target.id, now, "resumed", author, old=old, new=new)
        arm_again(connection, target.id, now)
        return is_cut

    act = control.resume_others if database.write(work) else control.resume
    return act(database, target, now, author=author)


_NO_PAUSE = {"reason": None, "pending": None}


def _stop(
    database: Database,
    job_id: str,
    reason: str,
    detail: str,
    now: float,
    only_if: ColumnElement[bool] | None = None,
) -> bool:
    """Pause a job and its runs unless it is paused. True if it was not."""
    is_new = _store_pause(database, job_id, reason, detail, now, only_if)
    if is_new:
        _pause_runs(database, job_id, detail, now)
    return is_new


@writes
def _store_pause(
    connection: Connection,
    job_id: str,
    reason: str,
    detail: str,
    now: float,
    only_if: ColumnElement[bool] | None = None,
    author: Author = RUNNER,
) -> bool:
    """Store that a job pauses unless it is paused. True if it was not."""
    lock_rules(connection, job_id)
    new = {"reason": reason, "detail": detail, "at": now, "pending": "pause"}
    insertion = insert_or(connection, job_pauses).values(job_id=job_id, **new)
    is_free = _IS_FREE if only_if is None else and_(_IS_FREE, only_if)
    stored = insertion.on_conflict_do_update(
        index_elements=["job_id"], set_=new, where=is_free
    ).returning(job_pauses.c.job_id)
    if connection.execute(stored).first() is None:
        return False
    told = {"reason": reason, "detail": detail}
    tell_of_job(connection, job_id, now, "paused", author, old={"reason": None}, new=told)
    return True


def _pause_runs(database: Database, job_id: str, why: str, now: float) -> None:
    control.pause(database, Target("job", job_id), now, author=Author(RUNNERS_NAME, why))
    _done(database, job_id, "pause", pending=None)


def _resume_held(database: Database, job_id: str, why: str, now: float) -> None:
    control.resume_held(database, Target("job", job_id), now, author=Author(RUNNERS_NAME, why))
    _done(database, job_id, "resume", **_NO_PAUSE)


def _done(database: Database, job_id: str, what: str, **changes: str | None) -> None:
    was = job_pauses.c.job_id == job_id, job_pauses.c.pending == what
    database.execute(update(job_pauses).where(*was).values(**changes))


# --- The circuit breaker ---


class Breakers:
    """Pauses jobs whose breaker trips. Remembers for one worker which jobs have a breaker: a run of another
    job costs nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs = JobCache()

    def look(self, job_id: str, now: float) -> str | None:
        """Pause a job if its breaker trips, after one of its runs ended. Returns why, if this call paused
        it. The next call makes up for a missed one."""
        breaker = self._jobs.specs(self._database, [job_id])[job_id].breaker
        if breaker is None:
            return None
        return _look(self._database, job_id, breaker, now)


def _look(database: Database, job_id: str, breaker: Breaker, now: float) -> str | None:
    paused = select(job_pauses.c.counted_from, _IS_FREE).where(job_pauses.c.job_id == job_id)

    def work(connection: Connection) -> tuple[float, str | None]:
        # NULL for a pause that is done: nothing is pending.
        counted_from, is_free = connection.execute(paused).one_or_none() or (0.0, True)
        left = select(runs.c.id).where(runs.c.job_id == job_id, _IS_OPEN).limit(1)
        if not is_free or connection.execute(left).first() is None:
            return counted_from, None
        newest = _newest_ended(connection, job_id, counted_from, breaker.window)
        return counted_from, tripped(breaker, newest)

    counted_from, why = database.read(work)
    same_count = job_pauses.c.counted_from == counted_from
    if why is None or not _stop(database, job_id, "breaker", why, now, only_if=same_count):
        return None
    return why


def _newest_ended(connection: Connection, job_id: str, after: float, most: int) -> list[EndedRun]:
    names = ("id", "item_key", "state", "reason", "detail", "denials")
    query = (
        select(*(runs.c[name] for name in names))
        .where(runs.c.job_id == job_id, runs.c.ended_at > after, IS_ITEM_RUN)
        .where(runs.c.state.in_(("succeeded", *FAILED)))
        .order_by(runs.c.ended_at.desc(), runs.c.id.desc())
        .limit(most)
    )
    found = connection.execute(query).all()
    by_verify = [run.id for run in found if run.reason == "verify"]
    said = select(verifications.c.run_id, verifications.c.content).order_by(verifications.c.number)
    outputs = dict(connection.execute(said.where(verifications.c.run_id.in_(by_verify))).all())
    return [EndedRun(**run._mapping, output=outputs.get(run.id)) for run in found]


# --- A spend limit of the API ---


def stop_spending(database: Database, run_id: str, now: float) -> dict[str, str]:
    """Pause all unended jobs that call the API, which has refused a call of this run. Returns why, by job
    that this call paused. Why all of them: docs/decisions/0022-spend-limits.md."""
    call = model_calls.c
    last = select(call.error).where(call.run_id == run_id, call.error.is_not(None))
    ((error,),) = database.rows(last.order_by(call.number.desc()).limit(1))
    why = f"a spend limit is reached: {error.removeprefix(f'{SPEND_LIMIT}: ')}"
    unended = select(runs.c.job_id).where(_IS_OPEN).distinct()
    query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(unended)).order_by(jobs.c.id)
    calling = [job.id for job in database.rows(query) if job.spec["provider"] == "anthropic"]
    return {job_id: why for job_id in calling if _stop(database, job_id, "spend_limit", why, now)}


# --- The pilot ---


@writes
def _decide(connection: Connection, job_id: str, now: float) -> str | None:
    """Decide on a pilot whose items have all ended. Returns the reason if the other items follow, by this
    decision or by that of another worker."""
    result = pilot_result(connection, job_id)
    if result is None:
        return None
    spec = connection.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
    pilot = JobSpec.from_json(spec).pilot or Pilot(0)
    why = pilot.why_wait(result) if result.held else None
    detail = why or f"the pilot has passed: {result}"
    lock_rules(connection, job_id)
    decided = (
        update(job_pauses)
        .where(job_pauses.c.job_id == job_id, job_pauses.c.pending == "decide")
        .values(detail=detail, at=now, pending=None if why else "resume")
    )
    if connection.execute(decided).rowcount == 0:
        to_follow = job_pauses.c.job_id == job_id, job_pauses.c.pending == "resume"
        return connection.execute(select(job_pauses.c.detail).where(*to_follow)).scalar()
    told = {"detail": detail, "goes_on": why is None}
    tell_of_job(connection, job_id, now, "pilot_ended", RUNNER, old={"detail": None}, new=told)
    return None if why else detail


def pilot_result(connection: Connection, job_id: str) -> PilotResult | None:
    """Return what the worked items of a job came to; None while one of them has not ended."""
    of_job = runs.c.job_id == job_id
    is_worked = or_(
        runs.c.state.in_(("queued", "running")), and_(runs.c.state == "waiting", ~_IS_HELD)
    )
    if connection.execute(select(runs.c.id).where(of_job, is_worked).limit(1)).first() is not None:
        return None
    held = connection.execute(select(func.count()).where(of_job, _IS_HELD)).scalar_one()
    ended = connection.execute(select(runs).where(of_job, runs.c.state.in_(sorted(ENDED)))).all()
    afresh = set(connection.execute(superseded_runs(job_id)).scalars())
    items = [run for run in ended if run.parent_run is None and run.id not in afresh]
    expected = _expected_cost(job_id, ended, [run for run in items if run.started_at], held)
    return PilotResult(tuple(run.state for run in items), held, expected)


def _expected_cost(
    job_id: str, ended: Sequence[Row[Any]], items: Sequence[Row[Any]], held: int
) -> int | None:
    """Return the forecast of the cost of all items, in billionths of a USD, from those that have ended."""
    from runner.core.forecast import Item, forecast  # late: it slows the start of other commands

    usd = defaultdict[str, float](float)
    for run in ended:
        usd[lineage(run.id)[0]] += progress_from_row(run).money.charged_cost / BILLIONTHS
    finished = [
        Item(usd.pop(run.id), 0, 0, run.started_at) for run in items if run.state != "cancelled"
    ]
    others = [Item(each, 0, 0, 0) for each in usd.values()]
    found = forecast(job_id, finished, [], held, others)
    return None if found is None else billionths(found.usd.expected)
