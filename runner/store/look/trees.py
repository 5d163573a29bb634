"""Which trees of a run's workspace are recorded, and where its commit and its objects are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from runner.core.run import RunState
from runner.core.spec import JobSpec
from runner.errors import NotFoundError
from runner.store.database import Database
from runner.store.job_cache import JobCache
from runner.store.look.family.places import IS_OF_ITEM
from runner.store.tables import jobs, run_items, run_workspaces, runs, tool_calls, workers


@dataclass(frozen=True, slots=True)
class RunTrees:
    """A run as far as its files go. ``mode`` and ``source`` are of its job's workspace (None without
    one), ``remote`` is where its snapshots are pushed to. ``store_id`` names the folder of snapshots
    that holds its objects, and ``hostname`` the host that it was worked on last.

    ``start_tree`` is recorded before the first turn and ``tree`` last; ``commit`` is what it was
    delivered in, None until it has ended so. ``model`` is the one that it was worked by."""

    run_id: str
    job_id: str
    job_name: str
    item_key: str
    state: RunState
    reason: str
    model: str
    ended_at: float | None
    fork_of: str | None
    fork_turn: int | None
    mode: str | None
    source: str | None
    remote: str | None
    store_id: str | None
    hostname: str | None
    path: str | None
    branch: str | None
    start_commit: str | None
    start_tree: str | None
    tree: str | None
    commit: str | None
    commit_message: str | None

    @property
    def is_recorded(self) -> bool:
        """Whether trees are recorded of its workspace."""
        return self.mode in ("git", "copy")


def trees_of(database: Database, run_id: str) -> RunTrees:
    """The trees of a run. Raises ``NotFoundError`` when there is no such run."""
    query = _query().where(runs.c.id == run_id)
    found = database.read(lambda connection: _found(connection, query))
    if not found:
        raise NotFoundError(f"no run is named {run_id}")
    return found[0]


def trees_in(database: Database, job_id: str, *, every_run: bool = False) -> list[RunTrees]:
    """The trees of the runs of a job's items in their order.

    Args:
        every_run: those of runs that were begun afresh, too, which are left out otherwise, as in
            ``queries.current_runs``, and those of sub-agents.
    """
    afresh = select(runs.c.fresh_of).where(runs.c.job_id == job_id, runs.c.fresh_of.is_not(None))
    query = _query().where(runs.c.job_id == job_id).order_by(runs.c.id)
    if not every_run:
        query = query.where(runs.c.id.not_in(afresh), IS_OF_ITEM)
    return database.read(lambda connection: _found(connection, query))


def turn_trees(database: Database, run_id: str, turn: int) -> tuple[str, str] | None:
    """The trees before the first and after the last call of a turn that may have changed files.

    Args:
        turn: its number, from 1.

    Returns:
        None when no call of the turn may have changed any.

    Raises:
        NotFoundError: the run has no such turn.
    """
    columns = ("position", "started_at", "ended_at", "tree_before", "tree_after")
    calls = select(*(tool_calls.c[name] for name in columns)).where(
        tool_calls.c.run_id == run_id, tool_calls.c.turn == turn
    )

    def work(connection: Connection) -> Sequence[Row[Any]]:
        turns = connection.execute(select(runs.c.turns).where(runs.c.id == run_id)).scalar_one()
        if turn > turns:
            there = f"its last is {turns}" if turns else "it has none yet"
            raise NotFoundError(f"{run_id} has no turn {turn}: {there}")
        return connection.execute(calls).all()

    found = database.read(work)
    before = [row for row in found if row.tree_before is not None]
    if not before:
        return None
    first = min(before, key=lambda row: (row.started_at, row.position))
    after = [row for row in found if row.tree_after is not None]
    last = max(after, key=lambda row: (row.ended_at, row.position), default=None)
    return first.tree_before, first.tree_before if last is None else last.tree_after


def items_of(database: Database, run_ids: Sequence[str]) -> dict[str, Any]:
    """The items of runs by the runs' ids."""
    query = select(run_items.c.run_id, run_items.c.item)
    found: dict[str, Any] = {}
    for start in range(0, len(run_ids), 500):
        some = query.where(run_items.c.run_id.in_(run_ids[start : start + 500]))
        rows = database.read(lambda connection, some=some: connection.execute(some).all())  # type: ignore[misc]
        found |= {row.run_id: row.item for row in rows}
    return found


def _query() -> Select[Any]:
    return (
        select(
            runs.c.id.label("run_id"),
            *(runs.c[name] for name in ("job_id", "item_key", "state", "reason", "ended_at")),
            *(runs.c[name] for name in ("fork_of", "fork_turn", "start_tree", "model", "progress")),
            jobs.c.name.label("job_name"),
            *(run_workspaces.c[name] for name in ("store_id", "path", "branch", "start_commit")),
            workers.c.hostname,
            run_items.c.commit_message,
        )
        .join_from(runs, jobs, jobs.c.id == runs.c.job_id)
        .join(run_items, run_items.c.run_id == runs.c.id)
        .outerjoin(run_workspaces, run_workspaces.c.run_id == runs.c.id)
        .outerjoin(workers, workers.c.id == runs.c.last_worker_id)
    )


def _found(connection: Connection, query: Select[Any]) -> list[RunTrees]:
    """What is in JSON is read here: Postgres can take nothing out of a value that has a NUL anywhere."""
    jobs_read = JobCache().on(connection)
    return [
        _run_trees(row, jobs_read.spec_of_run(row.job_id, row.run_id))
        for row in connection.execute(query)
    ]


def _run_trees(row: Row[Any], spec: JobSpec) -> RunTrees:
    found = dict(row._mapping)
    progress, workspace = found.pop("progress"), spec.workspace
    found["model"] = found["model"] or spec.model
    return RunTrees(
        **found,
        mode=workspace.mode if workspace else None,
        source=workspace.url or workspace.path if workspace else None,
        remote=workspace.remote if workspace else None,
        tree=progress.get("tree"),
        commit=progress.get("delivered"),
    )
