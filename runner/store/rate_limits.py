"""The pools of rate limits that workers share, and what each worker holds of them.

One transaction of a worker locks a pool, takes in what the worker heard, and grants it permits.
``runner.core.rate_limits`` decides; what a worker holds counts while its leases are good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, select

from runner.core.rate_limits import News, Pool, PoolEvent, PoolKey, Report, Shared, share
from runner.store.conditions import is_live
from runner.store.database import Database
from runner.store.statements import insert_or
from runner.store.tables import rate_events, rate_permits, rate_pools, workers

RECENT_SECONDS = 3_600.0  # since its last use, a pool is in use
STALE_SECONDS = 5.0  # without a new report, a worker has no calls that wait
MOST_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class StoredRateLimits:
    """``runner.ports.RateLimits`` over the database."""

    database: Database

    def known(self, now: float) -> dict[PoolKey, Pool]:
        """Return the pools of organizations that were in use lately. Raises ``UnreachableError``."""
        query = select(rate_pools).where(
            rate_pools.c.organisation != "", rate_pools.c.changed_at > now - RECENT_SECONDS
        )
        return {
            PoolKey(row.organisation, row.model_group): Pool.from_json(row.pool)
            for row in self.database.rows(query)
        }

    def exchange(
        self, worker_id: str, key: PoolKey, report: Report, news: News, first: Pool, now: float
    ) -> Shared:
        """Store a worker's report and news, and grant it permits; see the port."""

        def work(connection: Connection) -> Shared:
            pool = _locked(connection, key, first, now)
            others = _other_reports(connection, worker_id, key, now)
            shared = share(pool, report, others, news, now)
            _store(connection, worker_id, key, shared, now)
            _tell(connection, key, shared.events, now)
            return shared

        return self.database.write(work)


def _locked(connection: Connection, key: PoolKey, first: Pool, now: float) -> Pool:
    query = select(rate_pools.c.pool).where(_is_of(rate_pools, key)).with_for_update()
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        new = {**_columns(key), "pool": first.to_json(), "changed_at": now}
        connection.execute(insert_or(connection, rate_pools).values(new).on_conflict_do_nothing())
        found = connection.execute(query).scalar_one()
    return Pool.from_json(found)


def _other_reports(
    connection: Connection, worker_id: str, key: PoolKey, now: float
) -> list[Report]:
    """The reports of the other workers whose leases are good; what the rest held is forgotten."""
    query = select(rate_permits, is_live(now).label("is_live")).outerjoin(
        workers, workers.c.id == rate_permits.c.worker_id
    )
    of_pool = _is_of(rate_permits, key)
    rows = connection.execute(query.where(of_pool, rate_permits.c.worker_id != worker_id)).all()
    if dead := [row.worker_id for row in rows if not row.is_live]:
        connection.execute(delete(rate_permits).where(of_pool, rate_permits.c.worker_id.in_(dead)))
    reports = [
        (Report.from_json(row.report), row.changed_at < now - STALE_SECONDS)
        for row in rows
        if row.is_live
    ]
    return [replace(report, demands=()) if is_old else report for report, is_old in reports]


def _store(
    connection: Connection, worker_id: str, key: PoolKey, shared: Shared, now: float
) -> None:
    for table, row, named in (
        (rate_pools, {"pool": shared.pool.to_json(), "changed_at": now}, _columns(key)),
        (
            rate_permits,
            {"report": shared.report.to_json(), "changed_at": now},
            {**_columns(key), "worker_id": worker_id},
        ),
    ):
        insertion = insert_or(connection, table).values({**named, **row})
        connection.execute(insertion.on_conflict_do_update(index_elements=list(named), set_=row))


def _tell(connection: Connection, key: PoolKey, events: Sequence[PoolEvent], now: float) -> None:
    happened = [{**_columns(key), "at": now, "type": kind, "data": data} for kind, data in events]
    if happened:
        connection.execute(rate_events.insert(), happened)
        newest = select(rate_events.c.id).order_by(rate_events.c.id.desc())
        last_kept = newest.offset(MOST_EVENTS).limit(1).scalar_subquery()
        connection.execute(delete(rate_events).where(rate_events.c.id <= last_kept))


def _is_of(table: Table, key: PoolKey) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in _columns(key).items()))


def _columns(key: PoolKey) -> dict[str, str]:
    return {"organisation": key.organisation, "model_group": key.group}
