"""The cap on what all calls of the database that begin on a day cost together.

It is kept as a job's budget is: reserved in the transaction in which a call begins, spent in the one in
which it ends, each with the row locked, after all other rows (order of locks: ``store.budgets``). A
call counts for the day on which it begins, also if it ends on a later one. A run whose call does not
fit any more is queued for the day's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from runner.core.budget import DayCap, JobBudget, Reservation, billionths
from runner.core.commands import Change
from runner.core.events import signed_event
from runner.core.run import Author
from runner.core.times import bounds_of, day_of
from runner.errors import UsageError
from runner.store.changes import resume
from runner.store.database import Database
from runner.store.statements import Writes, execute, insert_or
from runner.store.tables import capped_days, day_cap, runs

_SUMS = ("spent_cost", "reserved_cost")
_CAP = select(day_cap)
_LOCKED_CAP = _CAP.with_for_update()
# For another query: the cap in USD, NULL if none is set.
CAP_USD = select(day_cap.c.usd).scalar_subquery().label("day_cap")
_WAITS = (runs.c.state == "queued") & (runs.c.reason == "cap")
_MOST_DAYS = 7


def lock_cap(connection: Connection, now: float) -> DayCap | None:
    """Lock the cap until the transaction ends, and let its day begin if it is a new one."""
    for row in execute(connection, _LOCKED_CAP, {}):
        day = _today(row, now)
        if day != row.day:
            _turn_to(connection, row, day)
        return _cap_of(row, day)
    return None


def _today(row: Row[Any], now: float) -> str:
    """The day of the cap. It never goes back, though clocks differ."""
    return max(str(row.day), day_of(now, row.zone))


def _cap_of(row: Row[Any], day: str) -> DayCap:
    spent, reserved = (row.spent_cost, row.reserved_cost) if day == row.day else (0, 0)
    most = None if row.usd is None else billionths(row.usd)
    budget = JobBudget(most_cost=most, spent_cost=spent, reserved_cost=reserved)
    return DayCap(day, bounds_of(day)[1], budget)


def _turn_to(connection: Connection, row: Row[Any], day: str) -> None:
    """Store the sums of the locked cap's day, and begin another day, with its old sums if there are any: a
    zone can change there and back."""
    kept = {"usd": row.usd, **{name: getattr(row, name) for name in _SUMS}}
    keep = insert_or(connection, capped_days).values(day=row.day, **kept)
    connection.execute(keep.on_conflict_do_update(index_elements=["day"], set_=kept))
    columns = (capped_days.c[name] for name in _SUMS)
    before = connection.execute(select(*columns).where(capped_days.c.day == day)).first()
    sums = dict(zip(_SUMS, before or (0, 0), strict=True))
    connection.execute(update(day_cap).values(day=day, **sums))


def store_cap(connection: Connection, writes: Writes, cap: DayCap) -> None:
    """Store a locked cap after calls began or ended; its row is written with the other ``writes``."""
    writes.change(day_cap, {name: getattr(cap.budget, name) for name in _SUMS}, id=1)
    if cap.late is not None:
        day, reserved, cost = cap.late
        columns = capped_days.c
        connection.execute(
            update(capped_days)
            .where(columns.day == day)
            .values(
                spent_cost=columns.spent_cost + cost, reserved_cost=columns.reserved_cost - reserved
            )
        )


def charge(connection: Connection, call: Reservation, cost: int, now: float) -> None:
    """Charge an ended call to the day on which it began, and release what it had reserved."""
    cap = lock_cap(connection, now) if call.day else None
    if cap is not None:
        writes = Writes()
        store_cap(connection, writes, cap.with_spent(call, cost))
        writes.run(connection)


def write_off(connection: Connection, costs: Mapping[str, int], now: float) -> None:
    """Take costs by day, in billionths of a USD, off what the days were charged."""
    if not costs or (cap := lock_cap(connection, now)) is None:
        return
    for day, cost in costs.items():
        table = day_cap if day == cap.day else capped_days
        spent = {"spent_cost": table.c.spent_cost - cost}
        connection.execute(update(table).where(table.c.day == day).values(spent))


def set_cap(
    database: Database, now: float, usd: float | None, zone: str, spent: int, *, author: Author
) -> list[Change]:
    """Set the cap of each day, or remove it (None), and queue the runs at once that wait for it.

    Args:
        zone: of the days.
        spent: what the calls of today have cost so far, in billionths of a USD, for a cap that is
            new: calls are not counted while there is none.

    Returns:
        The runs that go on. They wait again if the cap still does not cover their next call.
    """

    def work(connection: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
        day = day_of(now, zone)
        first = insert_or(connection, day_cap).values(id=1, zone=zone, day=day, changes=[])
        connection.execute(first.on_conflict_do_nothing())
        row = connection.execute(_LOCKED_CAP).one()
        if row.usd is None and usd is None:
            raise UsageError("no cap is set: see `runner budget --all`")
        is_new = row.usd is None or row.zone != zone
        day = day if row.zone != zone else _today(row, now)
        if day != row.day:
            _turn_to(connection, row, day)
            row_spent = connection.execute(select(day_cap.c.spent_cost)).scalar_one()
        else:
            row_spent = row.spent_cost
        old, new = {"usd": row.usd, "zone": row.zone}, {"usd": usd, "zone": zone}
        change = signed_event("budget_changed", author, old=old, new=new)
        changes = [*row.changes, {"at": now, **change.data}]
        values = {**new, "changes": changes, "spent_cost": max(row_spent, spent if is_new else 0)}
        connection.execute(update(day_cap).values(values))
        return old, new

    old, new = database.write(work)
    # An attempt that saw the old cap is queued by now; a later one sees the new one.
    return wake(database, author, now, {"cap": old}, {"cap": new})


def wake(
    database: Database, author: Author, now: float, old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Change]:
    """Queue all runs that wait for the cap, after the cap or its spent part has changed."""
    event = signed_event("resumed", author, {"reason": "cap"}, old=old, new=new)
    waiting = [run.id for run in database.rows(select(runs.c.id).where(_WAITS).order_by(runs.c.id))]

    def due(run: Row[Any], now: float) -> dict[str, Any]:
        return {"reason": "", "due_at": now, "rung_at": None}

    return resume(database, waiting, _WAITS, event, now, due)


def cap_row(database: Database) -> Row[Any] | None:
    """The row of the cap; None if nobody ever set one."""
    return next(iter(database.rows(_CAP)), None)


def cap_at(row: Row[Any], now: float) -> DayCap:
    """The cap of a row as it stands now."""
    return _cap_of(row, _today(row, now))


def left_today(database: Database, now: float) -> int | None:
    """Return what ended calls leave of the cap, in billionths of a USD; None: no cap is set."""
    row = cap_row(database)
    if row is None or row.usd is None:
        return None
    return max(0, billionths(row.usd) - cap_at(row, now).budget.spent_cost)


def waiting_for_cap(database: Database, now: float) -> tuple[int, float | None]:
    """Return how many runs wait for the next day, and when the first goes on."""
    waits = select(func.count(), func.min(runs.c.due_at)).where(_WAITS, runs.c.due_at > now)
    count, first = database.read(lambda connection: connection.execute(waits).one())
    return count, first


def days_before(database: Database, today: str) -> list[dict[str, Any]]:
    """The rows of the last capped days before today, the newest first."""
    query = select(capped_days).where(capped_days.c.day != today)
    query = query.order_by(capped_days.c.day.desc()).limit(_MOST_DAYS)
    return database.dicts(query)
