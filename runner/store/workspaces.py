"""Runs' own workspaces: where each is, what it was made from, and which host has its snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from runner.core.events import signed_event
from runner.core.run import ENDED, Author, Lease
from runner.core.text import shorten
from runner.core.workspace import Workspace
from runner.store.changes import held_run, in_lots, locked_runs, store_change
from runner.store.database import Database
from runner.store.specs import JobCache, JobReader
from runner.store.statements import execute, insert_or
from runner.store.tables import jobs, run_items, run_workspaces, runs

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
class StoredWorkspace:
    run_id: str
    job_id: str
    job_name: str
    item_key: str
    state: str
    attempt: int
    path: str | None  # where the run works, if known
    commit_message: str | None
    model: str
    asked: Workspace | None  # [workspace] of the job file
    snapshot: str | None  # the last
    delivered: str | None  # the commit that the run has ended with; None if it went on since
    record: WorkspaceRecord | None  # None until its own workspace is whole


_STORED = (
    select(
        runs.c.id,
        runs.c.job_id,
        jobs.c.name,
        runs.c.item_key,
        runs.c.state,
        runs.c.attempt,
        runs.c.workspace_path,
        run_items.c.commit_message,
        runs.c.model,
        runs.c.progress,
        run_workspaces.c.store_id,
        run_workspaces.c.path,
        run_workspaces.c.branch,
        run_workspaces.c.start_commit,
        run_workspaces.c.commit_id.label("commit"),
    )
    .join(jobs, jobs.c.id == runs.c.job_id)
    .outerjoin(run_items, run_items.c.run_id == runs.c.id)
    .outerjoin(run_workspaces, run_workspaces.c.run_id == runs.c.id)
    .order_by(runs.c.id)
)
_OF_RUN = _STORED.where(runs.c.id == bindparam("run"))
_ORIGIN = select(runs.c.fork_of, runs.c.parent_run).where(runs.c.id == bindparam("run"))


def workspace_of(database: Database, run_id: str, cache: JobCache | None = None) -> StoredWorkspace:
    """Return the stored workspace of a run. ``cache`` holds values that the runs of a job share."""

    def work(connection: Connection) -> tuple[StoredWorkspace, JobReader]:
        (row,) = execute(connection, _OF_RUN, {"run": run_id})
        jobs_read = (cache or JobCache()).on(connection)
        return _stored(row, jobs_read), jobs_read

    stored, jobs_read = database.read(work)
    jobs_read.keep()
    return stored


def _stored(row: Any, jobs_read: JobReader) -> StoredWorkspace:
    spec, progress = jobs_read.spec_of_run(row.job_id, row.id), row.progress
    record = WorkspaceRecord(*(getattr(row, name) for name in WorkspaceRecord.__slots__))
    return StoredWorkspace(
        run_id=row.id,
        job_id=row.job_id,
        job_name=row.name,
        item_key=row.item_key,
        state=row.state,
        attempt=row.attempt,
        path=row.workspace_path,
        commit_message=row.commit_message,
        model=row.model or spec.model,
        asked=spec.workspace,
        snapshot=progress["files"]["tree"],
        delivered=progress["ending"]["delivered"],
        record=None if row.store_id is None else record,
    )


def save_record(
    database: Database, lease: Lease, record: WorkspaceRecord, workspace_id: str | None, now: float
) -> None:
    """Store that a run's own workspace is whole, and where: a worker must see ``workspace_id``
    (None: any has it). Raises ``LeaseLost``, with nothing stored."""
    row = {**asdict(record), "run_id": lease.run_id, "created_at": now}
    row["commit_id"] = row.pop("commit")
    place = {"workspace_path": record.path if workspace_id else None, "workspace_id": workspace_id}

    def work(connection: Connection) -> None:
        held_run(connection, lease)
        connection.execute(update(runs).where(runs.c.id == lease.run_id).values(place))
        placed = insert_or(connection, run_workspaces).values(row)
        connection.execute(placed.on_conflict_do_update(index_elements=["run_id"], set_=row))

    database.write(work)


def save_delivery(database: Database, lease: Lease, commit: str) -> None:
    """Store the commit that a run ends with. Raises ``LeaseLost``."""

    def work(connection: Connection) -> None:
        held_run(connection, lease)
        own = run_workspaces.c.run_id == lease.run_id
        connection.execute(update(run_workspaces).where(own).values(commit_id=commit))

    database.write(work)


def record_removal(
    database: Database, run_id: str, lost: Mapping[str, str], author: Author, now: float
) -> bool:
    """Record that a run's own workspace is about to be removed, and what is ``lost``. False if the
    run has not ended: the workspace must stay."""
    old = {name: shorten(text, _LONGEST_TEXT) for name, text in lost.items()}
    event = signed_event("workspace_pruned", author, old=old)

    def work(connection: Connection) -> bool:
        ended = locked_runs(connection, [run_id], runs.c.state.in_(ENDED))
        for run in ended:
            store_change(connection, run, now, [event])
        return bool(ended)

    return database.write(work)


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


def list_of_host(
    database: Database, store_id: str, run_ids: Sequence[str], job_id: str | None = None
) -> list[StoredWorkspace]:
    """Return the workspaces that the host with this ``store_id`` prepared last and those of
    ``run_ids`` (possibly no ids), by run id; with ``job_id`` only that job's."""
    query = _STORED if job_id is None else _STORED.where(runs.c.job_id == job_id)
    found: dict[str, StoredWorkspace] = {}

    def work(connection: Connection) -> None:
        conditions = [run_workspaces.c.store_id == store_id]
        conditions += [runs.c.id.in_(lot) for lot in in_lots(run_ids)]
        jobs_read = JobCache().on(connection)
        for condition in conditions:
            for row in connection.execute(query.where(condition)):
                found[row.id] = _stored(row, jobs_read)

    database.read(work)
    return [found[run_id] for run_id in sorted(found)]
