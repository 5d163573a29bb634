"""Runs' workspaces: where each is, what it was made from, and the snapshots of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    case,
    literal,
    or_,
    select,
    update,
)

from runner.core.events import signed_event
from runner.core.run import ENDED, Author, Lease, RunStatus
from runner.core.text import shorten
from runner.core.workspace import Workspace
from runner.errors import NotFoundError
from runner.store.changes import held_run, locked_runs, store_change
from runner.store.conditions import IS_ITEM_RUN, superseded_runs
from runner.store.database import Database, in_lots, reads, writes
from runner.store.specs import JobCache, JobReader
from runner.store.statements import execute, insert_or
from runner.store.tables import (
    hook_runs,
    jobs,
    run_items,
    run_workspaces,
    runs,
    tool_calls,
    workers,
)

SNAPSHOTS = "snap_"  # what the id of a workspace begins with whose snapshots are on one host

_LONGEST_TEXT = 1_000


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """A run's own workspace that was made whole."""

    store_id: str  # of the host where it was prepared last
    path: str
    branch: str | None = None  # this and the next two: of mode "git" only
    start_commit: str | None = None  # what the branch began at
    commit: str | None = None  # the last that the run was delivered in


@dataclass(frozen=True, slots=True)
class RunWorkspace:
    """The place where a run works or worked, and the snapshots of its files. Trees are git's."""

    run_id: str
    job_id: str
    job_name: str
    item_key: str
    state: RunStatus
    reason: str
    attempt: int
    ended_at: float | None
    fork_of: str | None
    fork_turn: int | None
    model: str
    hostname: str | None  # the host that worked on it last
    path: str | None  # where the run works, if known
    commit_message: str | None
    asked: Workspace | None  # [workspace] of the job file
    start_tree: str | None  # recorded before the first turn
    tree: str | None  # the newest
    commit: str | None  # the commit of the ended run; None if it has gone on since
    record: WorkspaceRecord | None  # None until its own workspace is whole

    @property
    def is_recorded(self) -> bool:
        return self.asked is not None and self.asked.is_recorded

    @property
    def branch(self) -> str | None:
        return self.record.branch if self.record else None

    @property
    def start_commit(self) -> str | None:
        return self.record.start_commit if self.record else None


_OF_RUN = (
    *("job_id", "item_key", "state", "reason", "attempt", "ended_at", "fork_of", "fork_turn"),
    *("model", "start_tree"),
)
_RECORD = ("store_id", "path", "branch", "start_commit", "commit_id")
_STORED: Select[Any] = (
    select(
        runs.c.id.label("run_id"),
        *(runs.c[name] for name in _OF_RUN),
        runs.c.workspace_path,
        runs.c.progress,
        jobs.c.name.label("job_name"),
        workers.c.hostname,
        run_items.c.commit_message,
        *(run_workspaces.c[name] for name in _RECORD),
    )
    .join(jobs, jobs.c.id == runs.c.job_id)
    .outerjoin(run_items, run_items.c.run_id == runs.c.id)
    .outerjoin(run_workspaces, run_workspaces.c.run_id == runs.c.id)
    .outerjoin(workers, workers.c.id == runs.c.last_worker_id)
    .order_by(runs.c.id)
)
_ONE = _STORED.where(runs.c.id == bindparam("run"))
_ORIGIN = select(runs.c.fork_of, runs.c.parent_run).where(runs.c.id == bindparam("run"))


def workspace_of(database: Database, run_id: str, cache: JobCache | None = None) -> RunWorkspace:
    """Return the workspace of a run. ``cache`` holds values that the runs of a job share. Raises
    ``NotFoundError``."""

    def work(connection: Connection) -> tuple[list[RunWorkspace], JobReader]:
        jobs_read = (cache or JobCache()).on(connection)
        found = execute(connection, _ONE, {"run": run_id})
        return [_workspace(row, jobs_read) for row in found], jobs_read

    found, jobs_read = database.read(work)
    jobs_read.keep()
    if not found:
        raise NotFoundError(f"no run is named {run_id}")
    return found[0]


@reads
def workspaces_of_job(
    connection: Connection, job_id: str, *, among: Sequence[str] | None = None
) -> list[RunWorkspace]:
    """The workspaces of the runs of a job's items, in order, without runs that fresh runs have replaced
    (see ``jobs.current_runs``). ``among``: the workspaces of these runs instead."""
    asked: tuple[ColumnElement[bool], ...] = (runs.c.id.in_(among or ()),)
    if among is None:
        is_current = runs.c.id.not_in(superseded_runs(job_id))
        asked = (runs.c.job_id == job_id, is_current, IS_ITEM_RUN)
    jobs_read = JobCache().on(connection)
    return [_workspace(row, jobs_read) for row in connection.execute(_STORED.where(*asked))]


def _workspace(row: Any, jobs_read: JobReader) -> RunWorkspace:
    spec, progress = jobs_read.spec_of_run(row.job_id, row.run_id), row.progress
    names = ("run_id", *_OF_RUN, "job_name", "hostname", "commit_message")
    values = {name: getattr(row, name) for name in names}
    values |= {"model": row.model or spec.model, "path": row.workspace_path}
    record = WorkspaceRecord(*(getattr(row, name) for name in _RECORD))
    return RunWorkspace(
        **values,
        asked=spec.workspace,
        tree=progress["files"]["tree"],
        commit=progress["ending"]["delivered"],
        record=None if row.store_id is None else record,
    )


@writes
def save_record(
    connection: Connection,
    lease: Lease,
    record: WorkspaceRecord,
    workspace_id: str | None,
    now: float,
) -> None:
    """Store that a run's own workspace is whole, and where: a worker must see ``workspace_id``
    (None: any has it). Raises ``LeaseLost``, with nothing stored."""
    row = {**asdict(record), "run_id": lease.run_id, "created_at": now}
    row["commit_id"] = row.pop("commit")
    place = {"workspace_path": record.path if workspace_id else None, "workspace_id": workspace_id}
    held_run(connection, lease)
    connection.execute(update(runs).where(runs.c.id == lease.run_id).values(place))
    placed = insert_or(connection, run_workspaces).values(row)
    connection.execute(placed.on_conflict_do_update(index_elements=["run_id"], set_=row))


@writes
def save_delivery(connection: Connection, lease: Lease, commit: str) -> None:
    """Store the commit that a run ends with. Raises ``LeaseLost``."""
    held_run(connection, lease)
    own = run_workspaces.c.run_id == lease.run_id
    connection.execute(update(run_workspaces).where(own).values(commit_id=commit))


@writes
def record_removal(
    connection: Connection, run_id: str, lost: Mapping[str, str], author: Author, now: float
) -> bool:
    """Record that a run's own workspace is about to be removed, and what is ``lost``. False if the
    run has not ended: the workspace must stay."""
    old = {name: shorten(text, _LONGEST_TEXT) for name, text in lost.items()}
    event = signed_event("workspace_pruned", author, old=old)
    ended = locked_runs(connection, [run_id], runs.c.state.in_(ENDED))
    for run in ended:
        store_change(connection, run, now, [event])
    return bool(ended)


def is_branch_of_another(database: Database, run_id: str, branch: str) -> bool:
    """Return True if the branch of another run has that name, in whatever repository."""
    query = select(run_workspaces.c.run_id).where(
        run_workspaces.c.branch == branch, run_workspaces.c.run_id != run_id
    )
    return bool(database.rows(query))


def origins(database: Database, run_id: str) -> list[str]:
    """Return the run that a run's files came from (fork, sub-agent), then that run's, and so on."""
    found: list[str] = []
    while rows := database.find(_ORIGIN, {"run": found[-1] if found else run_id}):
        origin = rows[0].fork_of or rows[0].parent_run
        if origin is None:
            break
        found.append(origin)
    return found


@reads
def list_of_host(
    connection: Connection, store_id: str, run_ids: Sequence[str], job_id: str | None = None
) -> list[RunWorkspace]:
    """Return the workspaces that the host with this ``store_id`` prepared last and those of
    ``run_ids`` (possibly no ids), by run id; with ``job_id`` only that job's."""
    query = _STORED if job_id is None else _STORED.where(runs.c.job_id == job_id)
    conditions = [run_workspaces.c.store_id == store_id]
    conditions += [runs.c.id.in_(lot) for lot in in_lots(run_ids)]
    jobs_read = JobCache().on(connection)
    found: dict[str, RunWorkspace] = {}
    for condition in conditions:
        for row in connection.execute(query.where(condition)):
            found[row.run_id] = _workspace(row, jobs_read)
    return [found[run_id] for run_id in sorted(found)]


# --- Snapshots, turn by turn ---


# The order of what happened at the same time.
_ORDER = {"RunStart": 0, "PreToolUse": 1, "call": 2, "PostToolUse": 3, "TurnEnd": 4, "RunEnd": 5}
_COLUMNS = ("started_at", "ended_at", "tree_before", "tree_after")


def snapshot_after_turn(connection: Connection, run_id: str, turn: int) -> str | None:
    """The snapshot of a run's files after a turn and its hooks, or None if none was recorded. Turn 0 is
    before the first turn and any hook."""
    run = _run_of_turn(connection, _run(connection, run_id), turn)
    _, snapshot = _around(connection, run, 1 + (run.fork_turn or 0), turn)
    if snapshot is None and run.fork_of is not None:
        return snapshot_after_turn(connection, run.fork_of, run.fork_turn)
    return snapshot or run.start_tree


@reads
def snapshots_around_turn(connection: Connection, run_id: str, turn: int) -> tuple[str, str] | None:
    """The snapshots before the first and after the last file change of a turn (from 1), by tools and
    hooks, or None when nothing may have changed files. Hooks that ran before the first model call belong
    to turn 1. Raises ``NotFoundError``: the run has no such turn."""
    run = _run(connection, run_id)
    if turn > run.turns:
        there = f"its last is {run.turns}" if run.turns else "it has none yet"
        raise NotFoundError(f"{run_id} has no turn {turn}: {there}")
    first, last = _around(connection, _run_of_turn(connection, run, turn), turn, turn)
    return None if first is None else (first, last or first)


def _run(connection: Connection, run_id: str) -> Row[Any]:
    names = ("id", "turns", "fork_of", "fork_turn", "start_tree")
    query = select(*(runs.c[name] for name in names)).where(runs.c.id == run_id)
    return connection.execute(query).one()


def _run_of_turn(connection: Connection, run: Row[Any], turn: int) -> Row[Any]:
    """The run that did a turn: the original if the run is a fork that copied the turn."""
    while run.fork_of is not None and turn <= run.fork_turn:
        run = _run(connection, run.fork_of)
    return run


def _around(
    connection: Connection, run: Row[Any], first: int, last: int
) -> tuple[str | None, str | None]:
    """The snapshots before the first and after the last call or hook that may have changed files in a
    run's own turns from ``first`` to ``last``."""
    calls = select(
        tool_calls.c.turn,
        literal("call").label("what"),
        tool_calls.c.position.label("place"),
        *(tool_calls.c[name] for name in _COLUMNS),
    ).where(
        tool_calls.c.run_id == run.id,
        tool_calls.c.turn.between(first, last),
        or_(tool_calls.c.tree_before.is_not(None), tool_calls.c.tree_after.is_not(None)),
    )
    turn = hook_runs.c.turn + case((hook_runs.c.event == "RunStart", 1), else_=0)
    hooks = select(
        turn.label("turn"),
        hook_runs.c.event.label("what"),
        hook_runs.c.number.label("place"),
        *(hook_runs.c[name] for name in _COLUMNS),
    ).where(
        hook_runs.c.run_id == run.id, turn.between(first, last), hook_runs.c.tree_after.is_not(None)
    )
    before: list[tuple[Any, ...]] = []
    after: list[tuple[Any, ...]] = []
    for row in (row for query in (calls, hooks) for row in connection.execute(query)):
        place = _ORDER[row.what], row.place
        if row.tree_before:
            before.append((row.turn, row.started_at or 0.0, *place, row.tree_before))
        if row.tree_after:
            after.append((row.turn, row.ended_at or 0.0, *place, row.tree_after))
    return min(before, default=(None,))[-1], max(after, default=(None,))[-1]
