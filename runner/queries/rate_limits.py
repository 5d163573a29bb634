"""The rate limits that workers share: what is left of them, who waits, and how they changed."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import select

from runner.core.rate_limits import PREFETCH, Pool, PoolKey, Report, minute_limit
from runner.store.conditions import is_live
from runner.store.database import Database
from runner.store.tables import rate_events, rate_permits, rate_pools, workers

IN_USE_SECONDS = 600.0  # since it last changed, a pool is in use
MOST_EVENTS = 20

# A pool: its ``organization`` (None: a job's own) and ``group`` (the job's id), ``limits`` by kind (a
# minute's ``limit``, and what is ``left``), ``concurrency``, calls ``under_way`` and ``waiting`` of all
# workers, and until when it is ``held_until``; None for no limit.
PoolSummary: TypeAlias = dict[str, Any]
# An event: ``at``, ``organization``, ``group``, ``type`` and ``data``.
PoolEventRow: TypeAlias = dict[str, Any]


def pools(database: Database, now: float) -> list[PoolSummary]:
    """Return the pools in use that can hold calls back."""
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


def newest_events(database: Database) -> list[PoolEventRow]:
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
