"""Message Batches: intents, ids, results, and queueing the runs again whose results have come.

Nothing here locks a run before a batch or its calls, except to queue the run again. A call that ends
otherwise (a cancel) marks its row in its own transaction, so whichever comes first holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from statistics import median
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from runner.core.batches import LOST, WITHDRAWN, ListedBatch, StoredBatch, WaitingCall
from runner.core.run import RUNNER, Author
from runner.core.spec import JobSpec, Lane
from runner.core.state import Rounds
from runner.core.text import shorten, visible
from runner.store import ids
from runner.store.changes import resume, resumed_event, tell_of_job
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database, in_lots, writes
from runner.store.rules import lock_rules
from runner.store.statements import execute, insert_or
from runner.store.tables import (
    batch_calls,
    batch_collectors,
    batches,
    jobs,
    model_calls,
    runs,
    workers,
)

_DETAIL_LENGTH = 300
_LEARNED_FROM = 20  # batches
_WAITS = and_(runs.c.state == "waiting", runs.c.reason == "batch")
_IS_OPEN = batch_calls.c.ended_at.is_(None)
_IS_UNSENT = and_(batch_calls.c.batch_id.is_(None), _IS_OPEN, batch_calls.c.result.is_(None))
# Not by a join: there may be thousands of runs that wait, and few calls like these.
_run_waits = select(runs.c.id).where(runs.c.id == batch_calls.c.run_id, _WAITS).exists()
_WAITING = (
    select(batch_calls.c.run_id, batch_calls.c.number, batch_calls.c.job_id, batch_calls.c.asked_at)
    .where(_IS_UNSENT, _run_waits)
    .order_by(batch_calls.c.asked_at, batch_calls.c.run_id)
)
_FIRST_WAITING = _WAITING.order_by(None).limit(1)
_UNENDED = select(batches.c.account).where(batches.c.ended_at.is_(None)).limit(1)
_READY = (
    select(batch_calls.c.run_id)
    .where(_IS_OPEN, batch_calls.c.result.is_not(None), _run_waits)
    .order_by(batch_calls.c.run_id)
)
_KNOWN = select(batches.c.api_id).where(batches.c.api_id.is_not(None))
_STORED = (
    *("id", "workspace", "count", "asked_at", "api_id", "created_at", "checked_at", "adopted"),
)


def is_there_work(database: Database) -> bool:
    """True if a call waits for a batch, or a batch has not ended."""
    return bool(database.find(_FIRST_WAITING, {}) or database.find(_UNENDED, {}))


def collect(database: Database, account: str, worker_id: str, now: float) -> bool:
    """Let a worker send and read the batches of an organization, unless another one that lives does."""
    row = {"account": account, "worker_id": worker_id}
    holder = select(workers.c.id).where(
        workers.c.id == batch_collectors.c.worker_id,
        workers.c.ended_at.is_(None),
        workers.c.lease_expires_at > now,
    )
    is_free = or_(batch_collectors.c.worker_id == worker_id, ~holder.exists())

    def work(connection: Connection) -> bool:
        taken = insert_or(connection, batch_collectors).values(row)
        taken = taken.on_conflict_do_update(index_elements=["account"], set_=row, where=is_free)
        return connection.execute(taken.returning(batch_collectors.c.account)).first() is not None

    held = select(batch_collectors.c.worker_id).where(batch_collectors.c.account == account)
    if [found.worker_id for found in database.rows(held)] == [worker_id]:
        return True
    return database.write(work)


def leave(database: Database, worker_id: str) -> None:
    """Let any worker collect the batches that this one does."""
    mine = batch_collectors.c.worker_id == worker_id
    database.execute(update(batch_collectors).where(mine).values(worker_id=""))


def waiting_calls(database: Database) -> list[WaitingCall]:
    """Return the calls that no batch has, of runs that wait for one; the oldest first."""
    return [WaitingCall(*row) for row in database.find(_WAITING, {})]


def busy_jobs(database: Database, job_ids: Collection[str]) -> set[str]:
    """Return which of these jobs have runs that are worked on or queued."""
    is_busy = runs.c.job_id.in_(job_ids), runs.c.state.in_(("queued", "running"))
    query = select(runs.c.job_id).where(*is_busy).distinct()
    return {row.job_id for row in database.rows(query)}


def spec_of(database: Database, job_id: str) -> JobSpec:
    (row,) = database.rows(select(jobs.c.spec).where(jobs.c.id == job_id))
    return JobSpec.from_json(row.spec)


def accounts(database: Database) -> list[str]:
    """Return the organizations whose batches were collected so far."""
    return [row.account for row in database.rows(select(batch_collectors.c.account))]


def used_cache(database: Database, job_id: str, since: float) -> bool:
    """True if a call of a job's items got a reply since then, and so wrote or read the hour's cache."""
    of_job = runs.c.job_id == job_id, IS_ITEM_RUN
    replied = model_calls.c.ended_at >= since, model_calls.c.stop_reason.is_not(None)
    query = select(runs.c.id).join(model_calls, model_calls.c.run_id == runs.c.id)
    query = query.where(
        *of_job, *replied, model_calls.c.purpose == "turn", model_calls.c.hour_cache
    )
    return bool(database.rows(query.limit(1)))


def intend(
    database: Database,
    account: str,
    workspace: str,
    bodies: Mapping[WaitingCall, bytes],
    now: float,
) -> tuple[StoredBatch, list[WaitingCall]] | None:
    """Store the intent to make a batch. Returns it with its calls, without those that have ended since
    they were read; None if no call is left."""
    batch_id = ids.new("bat", now)

    def work(connection: Connection) -> list[WaitingCall]:
        row = {"id": batch_id, "account": account, "workspace": workspace, "count": 0}
        row |= {"digest": "", "asked_at": now, "checked_at": now, "not_ours": []}
        connection.execute(insert(batches).values(row))
        kept: list[WaitingCall] = []
        for lot in in_lots(list(bodies)):
            taken = update(batch_calls).where(_are_of(lot), _IS_UNSENT).values(batch_id=batch_id)
            this = batch_calls.c.run_id, batch_calls.c.number
            found = {tuple(row) for row in connection.execute(taken.returning(*this))}
            kept += [call for call in lot if (call.run_id, call.number) in found]
        digest = sha256(b"".join(bodies[call] for call in kept)).hexdigest()
        what = {"count": len(kept), "digest": digest}
        what |= {} if kept else {"ended_at": now, "outcome": "refused"}
        connection.execute(update(batches).where(batches.c.id == batch_id).values(what))
        return kept

    kept = database.write(work)
    if not kept:
        return None
    return StoredBatch(batch_id, workspace, len(kept), now, None, None, now, False, (), False), kept


def _are_of(calls: Sequence[WaitingCall]) -> ColumnElement[bool]:
    """The calls of these runs: each has one that is not sent."""
    return batch_calls.c.run_id.in_([call.run_id for call in calls])


def made(
    database: Database, batch: StoredBatch, found: ListedBatch, now: float, *, adopted: bool = False
) -> None:
    """Store the API's id of a batch; ``adopted``: it was found in the list."""
    times = {"created_at": found.created_at, "expires_at": found.expires_at, "checked_at": now}
    _change(database, batch, api_id=found.id, adopted=adopted, **times)


def not_made(database: Database, batch: StoredBatch, why: str, now: float) -> None:
    """The API did not take a batch: its calls wait for the next one."""
    _end(database, batch, "refused", why, now, batch_id=None)


def refused(
    database: Database, batch: StoredBatch, result: Mapping[str, Any], why: str, now: float
) -> None:
    """The API refused a batch: each of its calls has the error as its result."""
    _end(database, batch, "refused", why, now, result=result)


def lost(database: Database, batch: StoredBatch, why: str, now: float) -> None:
    """The outcome of a batch is unknown: its calls are charged, and made again."""
    _end(database, batch, "lost", why, now, result=LOST)


def not_ours(database: Database, batch: StoredBatch, why: str) -> None:
    """The adopted batch is not ours: search for ours again."""
    others = [*batch.not_ours, batch.api_id]
    unknown = {"api_id": None, "adopted": False, "created_at": None, "expires_at": None}
    _change(database, batch, not_ours=others, detail=_line(why), **unknown)


def checked(database: Database, batch: StoredBatch, now: float, why: str = "") -> None:
    """Note when the API was asked about a batch, and ``why`` it gave no answer."""
    _change(database, batch, checked_at=now, detail=_line(why))


def cancelled(database: Database, batch: StoredBatch, now: float) -> None:
    """Note that the API was told to cancel a batch."""
    _change(database, batch, cancelled_at=now)


def ended(database: Database, batch: StoredBatch, now: float) -> None:
    """All results of a batch are stored: calls without one are lost."""
    _end(database, batch, "ended", "", now, result=LOST)


def members(database: Database, batch: StoredBatch) -> list[tuple[str, int]]:
    """Return the run and number of each call of a batch."""
    query = select(batch_calls.c.run_id, batch_calls.c.number)
    return [tuple(row) for row in database.rows(query.where(batch_calls.c.batch_id == batch.id))]


def store_results(
    database: Database,
    batch: StoredBatch,
    results: Sequence[tuple[tuple[str, int], Mapping[str, Any]]],
    seconds: float,
) -> None:
    """Store results of calls that have none, also of calls that their runs gave up: for their cost."""
    this = batch_calls.c.run_id == bindparam("run"), batch_calls.c.number == bindparam("call")
    change = (
        update(batch_calls)
        .where(*this, batch_calls.c.batch_id == batch.id, batch_calls.c.seconds.is_(None))
        .values(result=bindparam("given"), seconds=seconds)
    )
    rows = [{"run": run, "call": call, "given": given} for (run, call), given in results]
    if rows:
        database.write(lambda connection: connection.execute(change, rows))


def withdraw(database: Database, call: WaitingCall, result: Mapping[str, Any] = WITHDRAWN) -> None:
    """Give a call that is in no batch back to its run, which decides again."""
    unsent = update(batch_calls).where(_are_of([call]), _IS_UNSENT)
    database.execute(unsent.values(result=result))


def open_batches(database: Database, account: str) -> list[StoredBatch]:
    """Return an organization's batches that have not ended, the oldest first."""
    others = batches.c.not_ours.label("others")
    query = select(*(batches.c[name] for name in _STORED), others, batches.c.cancelled_at)
    query = query.where(batches.c.account == account, batches.c.ended_at.is_(None))
    found = database.rows(query.order_by(batches.c.asked_at, batches.c.id))
    return [
        StoredBatch(
            **{name: getattr(row, name) for name in _STORED},
            not_ours=tuple(row.others),
            cancelled=row.cancelled_at is not None,
        )
        for row in found
    ]


def known_ids(database: Database) -> set[str]:
    """Return the API's ids of all batches that are stored."""
    return {row.api_id for row in database.rows(_KNOWN)}


def abandoned(database: Database, batch: StoredBatch) -> bool:
    """True if no run waits for a call of a batch any more."""
    open_call = select(batch_calls.c.run_id).where(batch_calls.c.batch_id == batch.id, _IS_OPEN)
    return not database.rows(open_call.limit(1))


_newest = (
    select((batches.c.ended_at - batches.c.asked_at).label("seconds"))
    .where(batches.c.outcome == "ended")
    .order_by(batches.c.id.desc())
    .limit(literal_column(str(_LEARNED_FROM), Integer))
    .subquery("newest")
)
_ROUNDS = select(_newest.c.seconds)
_TURNS = select(func.avg(runs.c.turns).label("turns")).where(
    runs.c.job_id == bindparam("job"), runs.c.state == literal_column("'succeeded'"), IS_ITEM_RUN
)


def rounds_of(connection: Connection, job_id: str) -> Rounds:
    """Return what the newest batches took, and how many turns the job's items needed."""
    found = [row.seconds for row in execute(connection, _ROUNDS, {})]
    rounds = Rounds(seconds=median(found)) if found else Rounds()
    for row in execute(connection, _TURNS, {"job": job_id}):
        rounds = replace(rounds, turns=None if row.turns is None else float(row.turns))
    return rounds


@writes
def set_lane(connection: Connection, job_id: str, lane: Lane, now: float, *, author: Author) -> int:
    """Let the next calls of a job take a lane. Calls that no batch has yet decide again. Returns how many
    calls stay in batches. Raises ``NotFoundError``."""
    of_job = batch_calls.c.job_id == job_id
    lock_rules(connection, job_id)
    query = select(jobs.c.lane).where(jobs.c.id == job_id)
    old = connection.execute(query).scalar() or "realtime"
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(lane=lane))
    before, after = {"lane": old}, {"lane": lane}
    tell_of_job(connection, job_id, now, "lane_changed", author, old=before, new=after)
    if lane != "batch":
        unsent = update(batch_calls).where(of_job, _IS_UNSENT)
        connection.execute(unsent.values(result=WITHDRAWN))
    sent = select(func.count()).where(of_job, _IS_OPEN, batch_calls.c.result.is_(None))
    return int(connection.execute(sent).scalar_one())


def wake(database: Database, now: float) -> list[str]:
    """Queue runs again whose results have come, and return their ids."""

    found = [row.run_id for row in database.find(_READY, {})]
    event = resumed_event(RUNNER, "batch")
    return [each.id for each in resume(database, found, _WAITS, event, now)]


def _change(database: Database, batch: StoredBatch, **values: Any) -> None:
    database.execute(update(batches).where(batches.c.id == batch.id).values(values))


@writes
def _end(
    connection: Connection,
    /,
    batch: StoredBatch,
    outcome: str,
    why: str,
    now: float,
    **of_calls: Any,
) -> None:
    """End a batch, and change its calls without a result."""
    without = batch_calls.c.batch_id == batch.id, batch_calls.c.seconds.is_(None)
    calls = update(batch_calls).where(*without, batch_calls.c.result.is_(None))
    given_up = of_calls.get("result", WITHDRAWN)  # their full reservation was charged
    end = {"ended_at": now, "outcome": outcome, "detail": _line(why)}
    connection.execute(update(batches).where(batches.c.id == batch.id).values(end))
    connection.execute(calls.where(~_IS_OPEN).values(result=given_up))
    connection.execute(calls.where(_IS_OPEN).values(of_calls))


def _line(text: str) -> str:
    return shorten(visible(text), _DETAIL_LENGTH)
