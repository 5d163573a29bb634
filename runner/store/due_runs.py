"""Find due runs and claim them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    update,
)

from runner.core.agents import is_within, lineage
from runner.core.conversation import Usage
from runner.core.events import Event
from runner.core.run import BEGUN, ENDED, FRESH, INTERRUPTED, RUNNER, Ended, Lease
from runner.core.shares import NORMAL, JobLoad, Pick, Shares
from runner.ports import Ending
from runner.store.changes import (
    FREED,
    event_rows,
    locked_runs,
    queued_again,
    signed_change,
    store_change,
)
from runner.store.children import IS_ORPHAN, IS_READY
from runner.store.database import Database, writes
from runner.store.depth_first import may_begin_now
from runner.store.statements import Writes, execute
from runner.store.tables import events, job_budgets, job_pauses, job_shares, jobs, runs, workers

NOTIFY_AGAIN_SECONDS = 15.0
STALE_SECONDS = 2.0  # since a queue message was sent: others may be before its run by now
LOST_LEASES_BEFORE_ALONE = 3
LONGEST_LEFT_ALONE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class DueRun:
    """A queued run before a worker claims it."""

    id: str
    job_id: str
    item_key: str
    notified_at: float | None
    attempt: int
    lost_leases: int
    workspace_path: str | None
    workspace_id: str | None
    last_host_id: str | None  # where its last attempt was
    host_faults: Mapping[str, Mapping[str, float]] | None  # as in the table
    of_family: bool  # some run of its tree has started another
    max_concurrency: int | None  # of its job
    limited_workspace: str | None  # the id of its workspace, if that has a limit
    workspace_concurrency: int | None
    begins_on_budget: bool  # its first attempt begins an item of a job with a budget

    @property
    def must_be_alone(self) -> bool:
        """True if workers died on it: it is then the only run in its process."""
        return self.lost_leases >= LOST_LEASES_BEFORE_ALONE

    def is_stale(self, now: float) -> bool:
        """True if the run was chosen so long ago that other runs may come before it now."""
        return self.notified_at is None or abs(now - self.notified_at) > STALE_SECONDS

    def left_alone_until(self, host_id: str) -> float:
        """Return until when a host leaves the run to others, after the host itself failed at it."""
        fault = (self.host_faults or {}).get(host_id)
        return 0.0 if fault is None else fault["at"] + min(2 ** fault["times"], LONGEST_LEFT_ALONE)


_LIMITS = ("max_concurrency", "workspace_id", "workspace_concurrency")
_IS_QUEUED = runs.c.state == "queued"
_FRESH = literal_column(str(FRESH), Integer)
_below = runs.alias("below")
_DUE_RUN = (
    select(
        runs.c.id,
        runs.c.job_id,
        runs.c.item_key,
        runs.c.rung_at,
        runs.c.attempt,
        runs.c.lost_leases,
        runs.c.workspace_path,
        runs.c.workspace_id,
        workers.c.host_id,
        runs.c.host_faults,
        exists()
        .where(_below.c.root_run == func.coalesce(runs.c.root_run, runs.c.id))
        .correlate(runs)
        .label("of_family"),
        *(job_shares.c[name] for name in _LIMITS),
        and_(runs.c.rank == _FRESH, job_budgets.c.job_id.is_not(None)).label("begins_on_budget"),
    )
    .outerjoin(workers, workers.c.id == runs.c.last_worker_id)
    .outerjoin(job_shares, job_shares.c.job_id == runs.c.job_id)
    .outerjoin(job_budgets, job_budgets.c.job_id == runs.c.job_id)
    .where(runs.c.id == bindparam("run"), _IS_QUEUED, runs.c.due_at <= bindparam("now"))
)


def look_at(database: Database, run_id: str, now: float) -> DueRun | None:
    """The run, if it is queued and due."""
    for row in database.find(_DUE_RUN, {"run": run_id, "now": now}):
        return DueRun(*row)
    return None


_JOB = select(runs.c.job_id).where(runs.c.id == bindparam("run"))


def job_of(database: Database, run_id: str) -> str:
    """Return the id of a run's job."""
    ((job_id,),) = database.find(_JOB, {"run": run_id})
    return str(job_id)


_ENDED_IN_TREE = select(runs.c.id).where(
    runs.c.root_run == bindparam("root"), runs.c.ended_at.is_not(None)
)


def ended_below(database: Database, run_id: str) -> list[str]:
    """The ids of the ended sub-agents below a run, at any depth."""
    ended = database.find(_ENDED_IN_TREE, {"root": lineage(run_id)[0]})
    return [row.id for row in ended if row.id != run_id and is_within(row.id, run_id)]


# A pause of the whole job that is stored, and has not come to all of its runs (``store.pauses``).
_IS_PAUSING = (
    exists()
    .where(
        job_pauses.c.job_id == runs.c.job_id,
        job_pauses.c.pending == literal_column("'pause'", Text),
    )
    .correlate(runs)
)
_CLAIM = (
    update(runs)
    .where(
        runs.c.id == bindparam("run"),
        _IS_QUEUED,
        runs.c.attempt == bindparam("last_attempt"),
        runs.c.due_at <= bindparam("now"),
        ~_IS_PAUSING,
    )
    .values(
        state="running",
        reason="",
        detail="",
        attempt=bindparam("new_attempt"),
        worker_id=bindparam("worker"),
        last_worker_id=bindparam("worker"),
        due_at=None,
        rung_at=None,
        started_at=func.coalesce(runs.c.started_at, bindparam("now")),
        event_count=runs.c.event_count + 1,
    )
    .returning(runs.c.id, runs.c.event_count, runs.c.attempt)
)
# The claim and its event in one statement, which SQLite does not have.
_claimed = _CLAIM.cte("claimed")
_CLAIM_AND_TELL = (
    insert(events)
    .from_select(
        ["run_id", "number", "attempt", "at", "type", "data"],
        select(
            _claimed,
            bindparam("now", type_=Float),
            literal_column("'attempt_started'"),
            bindparam("started", type_=events.c.data.type),
        ),
    )
    # The commit does not wait for the flush to disk: docs/decisions/0023-claims-and-the-log.md.
    .returning(func.set_config("synchronous_commit", "off", true()).label("synchronous_commit"))
)


_LOCKED_LIMITS = (
    select(job_shares.c.job_id)
    .where(
        or_(
            job_shares.c.job_id == bindparam("job"),
            job_shares.c.workspace_id == bindparam("workspace", type_=Text),
        )
    )
    .order_by(job_shares.c.job_id)
    .with_for_update()
)
# Said twice: the second is the words of the partial index, the first makes Postgres expect few rows.
_IS_RUNNING = (runs.c.state == literal_column("'running'")) & runs.c.worker_id.is_not(None)
_count_running = select(func.count().label("count")).where(_IS_RUNNING)
_RUNNING_OF_JOB = _count_running.where(runs.c.job_id == bindparam("job"))
_RUNNING_IN_WORKSPACE = _count_running.where(runs.c.workspace_id == bindparam("workspace"))


def _has_room(connection: Connection, run: DueRun) -> bool:
    """True if the limits and the budget leave room for the run. Until the transaction ends, nobody else
    can claim runs under them."""
    ids = {"job": run.job_id, "workspace": run.limited_workspace}
    execute(connection, _LOCKED_LIMITS, ids)
    for limit, query in (
        (run.max_concurrency, _RUNNING_OF_JOB),
        (run.workspace_concurrency, _RUNNING_IN_WORKSPACE),
    ):
        if limit is not None and execute(connection, query, ids)[0].count >= limit:
            return False
    concurrency = run.max_concurrency
    return not run.begins_on_budget or may_begin_now(connection, run.job_id, concurrency)


_NOT_NOTIFIED = update(runs).where(runs.c.id == bindparam("run"), _IS_QUEUED).values(rung_at=None)


def claim(database: Database, run: DueRun, worker_id: str, now: float) -> Lease | None:
    """Claim a due run for a worker, as a new attempt. Returns None if another worker was faster, if the
    job or the workspace has its most runs at work, or if the job's budget lets no more items begin."""
    lease = Lease(run.id, run.attempt + 1, worker_id)
    started = {"attempt": lease.attempt, "worker": worker_id}
    attempts = {"last_attempt": run.attempt, "new_attempt": lease.attempt}
    values = {"run": run.id, "worker": worker_id, "now": now, **attempts}
    limits = run.max_concurrency, run.workspace_concurrency
    has_limits = limits != (None, None) or run.begins_on_budget

    def work(connection: Connection) -> Lease | None:
        if has_limits and not _has_room(connection, run):
            execute(connection, _NOT_NOTIFIED, {"run": run.id})
            return None
        if connection.dialect.name == "postgresql":
            told = execute(connection, _CLAIM_AND_TELL, {**values, "started": started})
            return lease if told else None
        for claimed in execute(connection, _CLAIM, values):
            before, happened = claimed.event_count - 1, [Event("attempt_started", started)]
            rows = event_rows(run.id, happened, now, after=before, attempt=lease.attempt)
            writes = Writes()
            writes.insert(events, rows)
            writes.run(connection)
            return lease
        return None

    return database.write(work, alone=not has_limits)


def postpone(database: Database, run: DueRun, until: float) -> None:
    """Make a queued run due later, without an attempt."""
    database.execute(
        update(runs)
        .where(runs.c.id == run.id, _IS_QUEUED, runs.c.attempt == run.attempt)
        .values(due_at=until, rung_at=None)
    )


@writes
def wait_for_workspace(connection: Connection, run: DueRun, now: float) -> None:
    """Make a run wait until a worker claims it that can see its workspace."""
    is_due = _IS_QUEUED, runs.c.attempt == run.attempt
    event = Event("waiting", {"reason": "workspace", "path": run.workspace_path})
    for row in locked_runs(connection, [run.id], *is_due):
        changes = {**FREED, "state": "waiting", "reason": "workspace"}
        store_change(connection, row, now, [event], **changes)


_WAITING = (runs.c.state == "waiting") & (runs.c.reason == "workspace")


def missing_workspaces(database: Database, of: str | None = None) -> list[tuple[str, str]]:
    """The path and id of every workspace that runs wait for; with ``of``, a job's or run's id, of
    those runs."""
    query = (
        select(runs.c.workspace_path, runs.c.workspace_id)
        .where(_WAITING, runs.c.workspace_path.is_not(None), runs.c.workspace_id.is_not(None))
        .distinct()
    )
    if of is not None:
        query = query.where(or_(runs.c.job_id == of, runs.c.id == of))
    return [tuple(row) for row in database.rows(query)]


@writes
def workspace_found(
    connection: Connection,
    path: str,
    workspace_id: str,
    most: int,
    now: float,
    job_id: str | None = None,
) -> list[str]:
    """Queue again at most ``most`` runs that wait for a workspace which this worker sees, of one job or of
    all. Returns their ids. The worker takes them without the queue, where one that does not see the
    workspace could be faster."""
    of_it = (runs.c.workspace_path == path) & (runs.c.workspace_id == workspace_id)
    if job_id is not None:
        of_it &= runs.c.job_id == job_id
    waiting = select(runs.c.id).where(_WAITING, of_it).order_by(runs.c.id).limit(most)
    run_ids = connection.execute(waiting).scalars().all()
    found = locked_runs(connection, run_ids, _WAITING)
    for run in found:
        changes = {**queued_again(run, now), "rung_at": now}
        signed_change(connection, run, now, "resumed", RUNNER, changes, {"reason": "workspace"})
    return [run.id for run in found]


# --- The order of work ---

MOST_NOTIFIED = 1_000  # the oldest ones count
_ONE = literal_column("1", Integer)


# What waits to be chosen, in the words of the partial index: only queued runs have a ``due_at``. With the
# state SQLite would take the index of all queued runs. All looks are in the order of their index, so that
# Postgres takes it too, whatever its statistics say.
def _in_line(run: FromClause) -> ColumnElement[bool]:
    return run.c.due_at.is_not(None) & run.c.rung_at.is_(None)


def _order(run: FromClause) -> tuple[ColumnElement[Any], ...]:
    return run.c.job_id, run.c.rank, run.c.due_at, run.c.id


# The jobs with queued runs, one look into the index for each: a query for the distinct ones would read
# all queued runs (https://wiki.postgresql.org/wiki/Loose_indexscan).
_behind = runs.alias("behind")
_first = select(runs.c.job_id).where(_in_line(runs)).order_by(*_order(runs)).limit(_ONE)
_lines = select(_first.scalar_subquery().label("job_id")).cte("lines", recursive=True)
_next = (
    select(_behind.c.job_id)
    .where(_in_line(_behind), _behind.c.job_id > _lines.c.job_id)
    .order_by(*_order(_behind))
    .limit(_ONE)
    .correlate(_lines)
)
_LINES = _lines.union_all(
    select(_next.scalar_subquery()).select_from(_lines).where(_lines.c.job_id.is_not(None))
)


def _count_due(rank: int) -> ColumnElement[int]:
    """Return how many runs of a rank are due in a line, counted up to ``most``."""
    run = runs.alias(f"rank_{rank}")
    found = (
        select(run.c.id)
        .where(
            run.c.job_id == _LINES.c.job_id,
            run.c.rank == literal_column(str(rank)),
            run.c.due_at <= bindparam("now", type_=Float),
            _in_line(run),
        )
        .order_by(*_order(run))
        .limit(bindparam("most", type_=Integer))
        .correlate(_LINES)
        .subquery(f"due_{rank}")
    )
    return select(func.count()).select_from(found).scalar_subquery()


_WAITING_BY_JOB = (
    select(
        _LINES.c.job_id,
        job_shares.c.weight,
        jobs.c.finish_by,
        *(job_shares.c[name] for name in _LIMITS),
        _count_due(INTERRUPTED).label("interrupted"),
        _count_due(BEGUN).label("begun"),
        _count_due(FRESH).label("fresh"),
    )
    .join(jobs, jobs.c.id == _LINES.c.job_id)
    .outerjoin(job_shares, job_shares.c.job_id == _LINES.c.job_id)
    .where(_LINES.c.job_id.is_not(None))
)
_running = select(runs.c.job_id, runs.c.workspace_id, _ONE.label("running")).where(_IS_RUNNING)
_notified = (
    select(runs.c.job_id, runs.c.workspace_id)
    .where(runs.c.rung_at.is_not(None))
    .order_by(runs.c.rung_at)
    .limit(literal_column(str(MOST_NOTIFIED), Integer))
    .subquery("notified")
)
_in_hand = _running.union_all(select(_notified, literal_column("0", Integer))).subquery("in_hand")
_IN_HAND_BY_JOB = (
    select(
        _in_hand.c.job_id,
        _in_hand.c.workspace_id,
        job_shares.c.weight,
        func.sum(_in_hand.c.running).label("running"),
        func.count().label("count"),
    )
    .outerjoin(job_shares, job_shares.c.job_id == _in_hand.c.job_id)
    .group_by(_in_hand.c.job_id, _in_hand.c.workspace_id, job_shares.c.weight)
)


def job_loads(database: Database, most: int, now: float) -> list[JobLoad]:
    """Return the load of each job with due or running runs; empty if none is due. Due runs are
    counted up to ``most`` of a rank."""
    waiting = database.find(_WAITING_BY_JOB, {"most": most, "now": now})
    if not any(row.interrupted or row.begun or row.fresh for row in waiting):
        return []
    running: Counter[str] = Counter()
    notified: Counter[str] = Counter()
    in_workspace: Counter[str] = Counter()
    weights = {row.job_id: row.weight for row in waiting}
    for row in database.find(_IN_HAND_BY_JOB, {}):
        running[row.job_id] += row.running
        notified[row.job_id] += row.count - row.running
        in_workspace[row.workspace_id] += row.count
        weights[row.job_id] = row.weight
    rows = {row.job_id: row for row in waiting}

    def load(job_id: str) -> JobLoad:
        weight, count = weights[job_id] or NORMAL, (running[job_id], notified[job_id])
        if (row := rows.get(job_id)) is None:
            return JobLoad(job_id, weight, *count)
        limits = (
            (row.max_concurrency, sum(count)),
            (row.workspace_concurrency, in_workspace[row.workspace_id]),
        )
        rooms = [max(0, limit - used) for limit, used in limits if limit is not None]
        due, room = row.begun + row.fresh, min(rooms, default=None)
        return JobLoad(job_id, weight, *count, row.interrupted, due, room, row.fresh, row.finish_by)

    return [load(job_id) for job_id in weights]


_IS_FIRST = (
    (runs.c.job_id == bindparam("job"))
    & _in_line(runs)
    & (runs.c.rank == bindparam("rank", type_=Integer))
    & (runs.c.due_at <= bindparam("now", type_=Float))
)
FIRST = (
    select(runs.c.id)
    .where(_IS_FIRST)
    .order_by(*_order(runs))
    .limit(bindparam("most", type_=Integer))
)
# A statement of its own: inside the update, Postgres may run the query again for each row and so take
# more than ``most`` (https://www.postgresql.org/docs/current/queries-with.html).
_TAKEN = FIRST.with_for_update(skip_locked=True).cte("taken")
_TAKE = (
    update(runs)
    .where(runs.c.id.in_(select(_TAKEN.c.id)))
    .values(rung_at=bindparam("now"))
    .returning(runs.c.id, runs.c.due_at)
)


def take(database: Database, picks: Sequence[Pick], now: float) -> list[str]:
    """The ids of the next runs, in the order of the picks; fewer if other workers were faster. Each is
    stamped as notified."""

    def work(connection: Connection) -> dict[Pick, deque[str]]:
        return {
            pick: _take(connection, pick, most, now)
            for pick, most in sorted(Counter(picks).items(), key=str)
        }

    found = database.write(work) if picks else {}
    return [found[pick].popleft() for pick in picks if found[pick]]


def _take(connection: Connection, pick: Pick, most: int, now: float) -> deque[str]:
    found: deque[str] = deque()
    for rank in (INTERRUPTED,) if pick.interrupted else (BEGUN, FRESH):
        if len(found) < most:
            values = {"job": pick.job_id, "rank": rank, "now": now, "most": most - len(found)}
            rows = execute(connection, _TAKE, values)
            found += [row.id for row in sorted(rows, key=lambda row: (row.due_at, row.id))]
    return found


def due_to_notify(
    database: Database,
    most: int,
    now: float,
    shares: Shares | None = None,
    close: Callable[[Sequence[JobLoad], float], bool] = lambda loads, now: False,
    hold: Callable[[Sequence[JobLoad], float], Sequence[JobLoad]] = lambda loads, now: loads,
) -> list[str]:
    """The ids of at most ``most`` due runs to notify of, the next one first; each is stamped as notified.

    Args:
        shares: chooses among the jobs; None: all jobs start equal.
        close: makes due runs wait that may not begin now; true if it did (``times.close_windows``).
        hold: leaves out items that may not begin (``depth.hold``).
    """
    loads = job_loads(database, most, now)
    if close(loads, now):
        loads = job_loads(database, most, now)
    return take(database, (shares or Shares()).choose(hold(loads, now), most), now)


_LOST = select(runs.c.id).where(
    runs.c.rung_at.is_not(None),
    # A time to come is of a clock that was set back since.
    or_(runs.c.rung_at < bindparam("before", type_=Float), runs.c.rung_at > bindparam("now")),
)


def _forget(notified: Select[Any]) -> Update:
    """Forget queue messages, except of locked runs: another worker claims these, or forgets them in
    another order of rows (order of locks: ``store.budgets``)."""
    free = notified.with_for_update(skip_locked=True)
    return update(runs).where(runs.c.id.in_(free)).values(rung_at=None)


_FORGET_LOST = _forget(_LOST)


def forget_lost_messages(database: Database, now: float) -> None:
    """Forget queue messages that no worker has taken for long, so that their runs are notified again."""
    times = {"before": now - NOTIFY_AGAIN_SECONDS, "now": now}
    if database.find(_LOST, times):
        database.write(lambda connection: execute(connection, _FORGET_LOST, times))


def not_notified(database: Database, run_ids: Sequence[str]) -> None:
    """Forget the queue messages of these runs, so that the next pass may choose the runs again."""
    database.execute(_forget(select(runs.c.id).where(runs.c.id.in_(run_ids), _IS_QUEUED)))


# Runs that wait in the queue only for a moment: for another run of their job (budget, cache warm-up), or
# because this host leaves them to other hosts after a fault.
_GOES_ON = or_(
    runs.c.due_at <= bindparam("now"),
    *(runs.c.reason == reason for reason in ("budget", "warming", "host_fault")),
)
_UNFINISHED = (
    select(runs.c.id)
    .where(
        or_(
            runs.c.state == "running",
            _IS_QUEUED & _GOES_ON,
            (runs.c.state == "waiting") & (runs.c.reason == "batch"),
            IS_READY,
            IS_ORPHAN,
        )
    )
    .limit(1)
)


def unfinished(database: Database, now: float) -> bool:
    """True if a run is being worked, is due, is in a batch, or waits for a moment: for its siblings, or
    until a pass sees that its sub-agents or its parent have ended."""
    return bool(database.find(_UNFINISHED, {"now": now}))


_IN_HAND = select(runs.c.job_id).where(or_(_IS_RUNNING, runs.c.rung_at.is_not(None)))
_CALLS_API = (
    select(_ONE.label("calls"))
    .select_from(jobs)
    .where(
        or_(jobs.c.id.in_(select(_LINES.c.job_id)), jobs.c.id.in_(_IN_HAND)),
        jobs.c.spec["provider"].as_string() != "scripted",
        jobs.c.id == func.coalesce(bindparam("job", type_=Text), jobs.c.id),
    )
    .limit(_ONE)
)


def calls_api(database: Database, job_id: str | None = None) -> bool:
    """True if a queued or running run, of one job or of all, will call the Messages API."""
    return bool(database.find(_CALLS_API, {"job": job_id}))


_HELD_BY = select(runs.c.id, runs.c.attempt).where(runs.c.worker_id == bindparam("worker"))


def held_by(database: Database, worker_id: str) -> dict[str, int]:
    """The ids of the runs that a worker holds, with their attempts."""
    return {row.id: row.attempt for row in database.find(_HELD_BY, {"worker": worker_id})}


_HELD_BY_JOB = (
    select(runs.c.job_id, func.count().label("count"))
    .where(runs.c.worker_id == bindparam("worker"))
    .group_by(runs.c.job_id)
)


def held_by_job(database: Database, worker_id: str) -> dict[str, int]:
    """Return how many runs of each job a worker holds."""
    return {row.job_id: row.count for row in database.find(_HELD_BY_JOB, {"worker": worker_id})}


def endings(database: Database, run_ids: Sequence[str]) -> list[Ending]:
    """Return the ends of the runs that have ended. Raises ``UnreachableError``."""
    names = ("id", "last_worker_id", "state", "reason", "detail", "ended_at", *Usage.__slots__)
    query = select(*(runs.c[name] for name in names))
    query = query.where(runs.c.id.in_(run_ids), runs.c.state.in_(sorted(ENDED)))
    return [
        Ending(run_id, worker_id, Ended(state, reason, detail), at, Usage(*tokens))
        for run_id, worker_id, state, reason, detail, at, *tokens in database.rows(query)
    ]
