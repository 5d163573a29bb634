"""Pruning: finds jobs that ended long ago, and deletes their rows in small transactions.

A job is deleted whole: forks, sub-agents and runs that were begun afresh need others of their job and
of no other. The newest runs go first, so that what is left after a kill needs nothing that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    update,
)

from runner.core.run import ENDED, Author
from runner.store.blobs import delete_unused
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database, reads, writes
from runner.store.specs import JobCache
from runner.store.statements import insert_or
from runner.store.tables import (
    batch_calls,
    batches,
    jobs,
    metadata,
    pruned_jobs,
    rate_events,
    rate_permits,
    rate_pools,
    run_workspaces,
    runs,
    workers,
)

_RUNS_AT_ONCE = 20
_has_calls = select(batch_calls.c.run_id).where(batch_calls.c.batch_id == batches.c.id).exists()
_ENDED_AT: ColumnElement[float] = func.coalesce(runs.c.ended_at, runs.c.created_at)


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job whose runs have all ended before a time."""

    id: str
    name: str
    ended_at: float
    runs: int  # those of sub-agents included
    messages: int
    source: str | None  # what its runs' own workspaces were made from; None if they had none
    run_ids: Sequence[str]
    elsewhere: int  # runs whose workspace was last on another host
    undelivered: int  # runs in mode ``git`` with changes that no commit on their branch holds


def old_jobs(database: Database, before: float, store_id: str) -> Iterator[OldJob]:
    """Yield this host's (``store_id``) jobs whose runs all ended before a time, oldest first."""
    lasts = func.max(_ENDED_AT)
    query = (
        select(jobs.c.id, jobs.c.name, lasts, func.count(), func.sum(runs.c.message_count))
        .join(runs, runs.c.job_id == jobs.c.id)
        .where(jobs.c.created_at < before)
        .group_by(jobs.c.id, jobs.c.name)
        .having(lasts < before, func.sum(case((runs.c.state.in_(ENDED), 0), else_=1)) == 0)
        .order_by(jobs.c.id)
    )

    for job_id, name, ended_at, count, messages in database.rows(query):
        files = _files(database, job_id, store_id)
        yield OldJob(job_id, name, ended_at, count, int(messages), *files)


@reads
def _files(
    connection: Connection, job_id: str, store_id: str
) -> tuple[str | None, Sequence[str], int, int]:
    """The last four fields of ``OldJob``."""
    spec = JobCache().on(connection).spec(job_id)
    workspace = spec.workspace if spec.is_recorded else None
    of_job = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    run_ids = list(connection.execute(of_job).scalars())
    others = (
        select(func.count())
        .join_from(run_workspaces, runs, runs.c.id == run_workspaces.c.run_id)
        .where(runs.c.job_id == job_id, run_workspaces.c.store_id != store_id)
    )
    undelivered = 0
    if workspace is not None and workspace.mode == "git":
        query = select(runs.c.start_tree, runs.c.progress).where(runs.c.job_id == job_id)
        for start_tree, progress in connection.execute(query.where(IS_ITEM_RUN)):
            tree, delivered = progress["files"]["tree"], progress["ending"]["delivered"]
            undelivered += delivered is None and tree not in (None, start_tree)
    elsewhere = connection.execute(others).scalar_one()
    source = workspace.source if workspace is not None else None
    return source, run_ids, elsewhere, undelivered


def forget_workspaces(database: Database, job_id: str, store_id: str) -> None:
    """Note that a host has nothing more of the files of a job."""
    of_job = select(runs.c.id).where(runs.c.job_id == job_id)
    mine = and_(run_workspaces.c.run_id.in_(of_job), run_workspaces.c.store_id == store_id)
    database.execute(delete(run_workspaces).where(mine))


def erase(database: Database, job: OldJob, before: float, author: Author, now: float) -> bool:
    """Delete all rows of a job, and store who did it. False if one of its runs goes on."""
    left = True
    while left:
        goes_on, left = _erase_some(database, job, before, author, now)
        if goes_on:
            return False
    return True


@writes
def _erase_some(
    connection: Connection, job: OldJob, before: float, author: Author, now: float
) -> tuple[bool, bool]:
    """Delete some runs of a job, at last the job, under its lock, for which forks and retries wait.
    Returns whether a run goes on, and whether any is left."""
    connection.execute(select(jobs.c.id).where(jobs.c.id == job.id).with_for_update())
    of_job = runs.c.job_id == job.id
    goes_on = select(runs.c.id).where(of_job, or_(runs.c.state.not_in(ENDED), before <= _ENDED_AT))
    if connection.execute(goes_on.limit(1)).first() is not None:
        return True, True
    newest = select(runs.c.id).where(of_job).order_by(runs.c.id.desc()).limit(_RUNS_AT_ONCE)
    ids = list(connection.execute(newest).scalars())
    if not ids:
        _delete(connection, jobs, [job.id])
        for table in (rate_pools, rate_permits, rate_events):
            mine = table.c.organisation == "", table.c.model_group == job.id
            connection.execute(delete(table).where(*mine))
        connection.execute(delete(batches).where(batches.c.ended_at < before, ~_has_calls))
        delete_unused(connection, before)
        return False, False
    row = {"job_id": job.id, "name": job.name, "runs": job.runs, "ended_at": job.ended_at}
    row |= {"pruned_at": now, "pruned_by": author.name or "", "why": author.why}
    connection.execute(insert_or(connection, pruned_jobs).values(row).on_conflict_do_nothing())
    fresh = update(runs).where(runs.c.fresh_of.in_(ids)).values(fresh_of=None)
    connection.execute(fresh)
    _delete(connection, runs, ids)
    return False, True


def _delete(connection: Connection, parent: Table, ids: Sequence[str]) -> None:
    """Delete rows, and before them the rows of all tables that refer to them."""
    for table in reversed(metadata.sorted_tables):
        for column in table.columns:
            if table is not parent and column.references(parent.c.id):
                connection.execute(delete(table).where(column.in_(ids)))
    connection.execute(delete(parent).where(parent.c.id.in_(ids)))


def forget_workers(database: Database, before: float) -> None:
    """Delete workers that ended before a time and that no run names."""
    named: Any = select(runs.c.last_worker_id).where(runs.c.last_worker_id == workers.c.id)
    gone = and_(workers.c.ended_at < before, ~named.exists())
    database.execute(delete(workers).where(gone))
