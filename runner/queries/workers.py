"""Workers: which are alive and what they have in hand, what is due, and runs that no worker works."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
)

from runner.core.run import LEASE_SECONDS
from runner.store.conditions import IS_ITEM_RUN, is_live
from runner.store.database import Database, reads
from runner.store.host_locks import gone_from_here
from runner.store.tables import jobs, rate_events, rate_permits, rate_pools, runs, workers

# ``dead``: its lease has expired or its process is gone, and nobody has taken its runs yet. ``faulty``:
# its host is.
WorkerState = Literal["alive", "draining", "faulty", "dead", "ended"]
# A worker: its columns, its ``state``, the ids of the ``runs`` that it has in hand, and ``heartbeat_at``.
WorkerSummary: TypeAlias = dict[str, Any]
_COLUMNS = (
    *("id", "hostname", "host_id", "pid", "version", "slots", "started_at", "lease_expires_at"),
    *("draining_at", "fault", "fault_at", "ended_at", "job_id"),
)

_MAY_BE_UNWORKED = runs.c.state.in_(("queued", "running"))
INTERRUPTED, NO_WORKER = "interrupted", "no worker alive"


@reads
def list_workers(connection: Connection, now: float, *, ended: bool = False) -> list[WorkerSummary]:
    """Return the live workers, the oldest first; with ``ended`` also dead and ended ones."""
    query = select(*(workers.c[name] for name in _COLUMNS)).order_by(
        workers.c.started_at, workers.c.id
    )
    if not ended:
        query = query.where(_is_live(connection, now))
    held = select(runs.c.worker_id, runs.c.id).where(runs.c.worker_id.is_not(None))
    in_hand: defaultdict[str, list[str]] = defaultdict(list)
    for worker_id, run_id in connection.execute(held.order_by(runs.c.id)):
        in_hand[worker_id].append(run_id)
    gone = _gone(connection, now)
    return [
        {
            **row,
            "state": "dead" if row["id"] in gone else _state(dict(row), now),
            "runs": in_hand[row["id"]],
            "heartbeat_at": row["lease_expires_at"] - LEASE_SECONDS,
        }
        for row in connection.execute(query).mappings()
    ]


@reads
def live_workers(connection: Connection, now: float, job_id: str | None = None) -> int:
    """Return the number of live workers; of a job, only those that work it."""
    works = () if job_id is None else (_works(job_id),)
    query = select(func.count()).where(_is_live(connection, now), *works)
    return int(connection.execute(query).scalar_one())


def _gone(connection: Connection, now: float) -> list[str]:
    """Return the workers whose leases are good, but whose processes are gone from this host."""
    query = select(workers.c.id, workers.c.host_id).where(is_live(now))
    return gone_from_here((row.id, row.host_id) for row in connection.execute(query))


def _is_live(connection: Connection, now: float) -> ColumnElement[bool]:
    """True for the row in ``workers`` of a worker that is alive, as far as this host can tell."""
    return and_(is_live(now), workers.c.id.not_in(_gone(connection, now)))


def _works(job_id: str | ColumnElement[str]) -> ColumnElement[bool]:
    return or_(workers.c.job_id.is_(None), workers.c.job_id == job_id)


def _state(worker: Mapping[str, Any], now: float) -> WorkerState:
    if worker["ended_at"] is not None:
        return "ended"
    if worker["lease_expires_at"] <= now:
        return "dead"
    if worker["draining_at"] is not None:
        return "draining"
    return "alive" if worker["fault"] is None else "faulty"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The queued runs that are due."""

    runs: int
    oldest_due_at: float | None  # None if no run is due


def backlog(database: Database, now: float) -> Backlog:
    """Return how many runs are due, and since when."""
    query = select(func.count().label("runs"), func.min(runs.c.due_at).label("oldest_due_at"))
    (row,) = database.read(lambda connection: connection.execute(query.where(*_is_due(now))).all())
    return Backlog(*row)


MOST_JOBS = 100
MOST_COUNTED = 100_000
_UNENDED = ("queued", "running", "waiting")


def queue_depths(database: Database) -> list[tuple[str, str, str, int]]:
    """The number of runs in each state of the newest jobs that have not ended: the job's id and name, the
    state, the number. Reads at most so many entries of an index for each: many ask for it often."""

    def count(state: str) -> ColumnElement[int]:
        of_job = (runs.c.job_id == jobs.c.id) & (runs.c.state == literal_column(f"'{state}'"))
        found = select(runs.c.state).where(of_job).limit(MOST_COUNTED).correlate(jobs).subquery()
        return select(func.count()).select_from(found).scalar_subquery().label(state)

    is_unended = exists().where(runs.c.job_id == jobs.c.id, runs.c.state.in_(_UNENDED))
    query = select(jobs.c.id, jobs.c.name, *map(count, _UNENDED)).where(is_unended)
    found = database.rows(query.order_by(jobs.c.id.desc()).limit(MOST_JOBS))
    return [
        (job_id, name, state, number)
        for job_id, name, *numbers in found
        for state, number in zip(_UNENDED, numbers, strict=True)
    ]


def oldest_due_at(database: Database) -> float | None:
    """Return the time at which the first queued run is or will be due; None if no run is queued."""
    ((oldest,),) = database.rows(select(func.min(runs.c.due_at)).where(runs.c.state == "queued"))
    return None if oldest is None else float(oldest)


def shown_states(database: Database, now: float, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the states to show, by id, of runs that no worker works although one should:
    ``interrupted`` instead of ``running`` if the worker is dead, and a note if none is alive."""
    shown = _shown(database, now)
    query = select(runs.c.id, shown.label("shown")).where(shown != runs.c.state)
    return {row.id: row.shown for row in database.rows_in(query, runs.c.id, run_ids)}


def with_shown_states(
    database: Database, now: float, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows of runs, each with its ``shown_state`` (see ``shown_states``)."""
    shown = shown_states(database, now, [row["id"] for row in rows])
    return [{**row, "shown_state": shown.get(row["id"], row["state"])} for row in rows]


def shown_states_by_job(
    database: Database, now: float, among: Collection[str] | None = None
) -> Mapping[str, Counter[tuple[str, str]]]:
    """Count items' runs by job, stored state and shown state, where the two differ; with ``among``
    only runs of these jobs."""
    shown = _shown(database, now)
    of_jobs = () if among is None else (runs.c.job_id.in_(among),)
    query = (
        select(runs.c.job_id, runs.c.state, shown.label("shown"), func.count())
        .where(*of_jobs, _MAY_BE_UNWORKED, IS_ITEM_RUN)
        .group_by(runs.c.job_id, runs.c.state, "shown")
    )
    found: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for job, stored, state, count in database.rows(query):
        if stored != state:
            found[job][stored, state] = count
    return found


def _is_due(now: float) -> tuple[ColumnElement[bool], ...]:
    return runs.c.state == "queued", runs.c.due_at <= now


def _shown(database: Database, now: float) -> ColumnElement[str]:
    """Return a run's real state: its worker may be dead or missing."""
    is_alive = database.read(lambda connection: _is_live(connection, now))
    is_any = exists().where(is_alive, _works(runs.c.job_id)).correlate(runs)
    is_held = exists().where(workers.c.id == runs.c.worker_id, is_alive)
    is_lost = and_(runs.c.state == "running", ~is_held)
    return case(
        (and_(is_lost, ~is_any), f"{INTERRUPTED} ({NO_WORKER})"),
        (is_lost, INTERRUPTED),
        (and_(*_is_due(now), ~is_any), f"queued ({NO_WORKER})"),
        else_=runs.c.state,
    )


# --- Rate limits ---


IN_USE_SECONDS = 600.0  # a pool is in use so long after its last change
MOST_EVENTS = 20

# A pool: its ``organization`` (None for a job's own pool) and ``group`` (then the job's id), ``limits`` by
# kind (the ``limit`` of a minute, and what is ``left``), ``concurrency``, the calls ``under_way`` and
# ``waiting`` of all workers, and ``held_until``. None: no limit.
PoolSummary: TypeAlias = dict[str, Any]
# An event: ``at``, ``organization``, ``group``, ``type`` and ``data``.
PoolEventRow: TypeAlias = dict[str, Any]


def pools(database: Database, now: float) -> list[PoolSummary]:
    """Return the pools in use that can hold calls back."""
    # Late: lists need the rest of this module.
    from runner.core.rate_limits import PREFETCH, Pool, PoolKey, Report, minute_limit

    used = rate_pools.c.changed_at > now - IN_USE_SECONDS
    names = ("organisation", "model_group")
    held = (
        select(*(rate_permits.c[name] for name in names), rate_permits.c.report)
        .join(workers, workers.c.id == rate_permits.c.worker_id)
        .where(is_live(now))
    )
    reports: dict[tuple[str, str], list[Report]] = {}
    for row in database.rows(held):
        reports.setdefault((row[0], row[1]), []).append(Report.from_json(row.report))
    query = select(rate_pools).where(used).order_by(*(rate_pools.c[name] for name in names))
    found = []
    for row in database.rows(query):
        key, pool = PoolKey(row.organisation, row.model_group), Pool.from_json(row.pool)
        mine = reports.get((row.organisation, row.model_group), [])
        demands = [demand for report in mine for demand in report.demands]
        if pool.is_limited:
            found.append(
                {
                    "organization": row.organisation or None,
                    "group": row.model_group,
                    "limits": {
                        kind: {
                            "limit": minute_limit(key, bucket),
                            "left": max(0.0, bucket.level(now)),
                        }
                        for kind, bucket in pool.buckets.items()
                    },
                    "concurrency": pool.concurrency,
                    "under_way": sum(report.busy for report in mine),
                    "waiting": sum(each.calls for each in demands if each.urgency != PREFETCH),
                    "held_until": pool.held_until if pool.held_until > now else None,
                }
            )
    return found


def newest_pool_events(database: Database) -> list[PoolEventRow]:
    """Return the newest changes of pools, the oldest first."""
    newest = select(rate_events).order_by(rate_events.c.id.desc()).limit(MOST_EVENTS)
    return [
        {
            "at": row.at,
            "organization": row.organisation or None,
            "group": row.model_group,
            "type": row.type,
            "data": row.data,
        }
        for row in reversed(database.rows(newest))
    ]
