"""Which trees of a run's workspace are recorded, and where its commit and its objects are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, Select, case, literal, or_, select

from runner.core.run import RunStatus
from runner.core.spec import JobSpec
from runner.errors import NotFoundError
from runner.store.connection.database import Database
from runner.store.job.cache import JobCache
from runner.store.look.family.places import IS_OF_ITEM
from runner.store.tables import (
    hook_runs,
    jobs,
    run_items,
    run_workspaces,
    runs,
    tool_calls,
    workers,
)


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
    state: RunStatus
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
    """The trees before the first and after the last of what may have changed files in a turn: its calls,
    and the hooks around them. Hooks that ran before the first model call are of the first turn.

    Args:
        turn: its number, from 1.

    Returns:
        None when nothing in the turn may have changed any.

    Raises:
        NotFoundError: the run has no such turn.
    """

    def work(connection: Connection) -> Sequence[_Change]:
        run = _run(connection, run_id)
        if turn > run.turns:
            there = f"its last is {run.turns}" if run.turns else "it has none yet"
            raise NotFoundError(f"{run_id} has no turn {turn}: {there}")
        return _changes(connection, _whose_turn(connection, run, turn), turn, turn)

    found = database.read(work)
    first = min((each for each in found if each.before), key=_began, default=None)
    if first is None or first.before is None:
        return None
    return first.before, _last_tree(found) or first.before


def tree_after(connection: Connection, run_id: str, turn: int) -> str | None:
    """The tree of a run's workspace when a turn had ended, with what hooks had changed; None when none
    was recorded.

    Args:
        turn: 0 is before the first, and before any hook.
    """
    run = _whose_turn(connection, _run(connection, run_id), turn)
    own = _changes(connection, run, 1 + (run.fork_turn or 0), turn)
    if (tree := _last_tree(own)) is not None:
        return tree
    if run.fork_of is not None:
        return tree_after(connection, run.fork_of, run.fork_turn)
    start: str | None = run.start_tree
    return start


@dataclass(frozen=True, slots=True)
class _Change:
    """A call or a hook that may have changed files. ``began`` and ``ended`` put it in order: its turn,
    seconds since the epoch, and what tells apart what was stored at once. ``after`` is None while it is
    not known what it did."""

    began: tuple[float, ...]
    ended: tuple[float, ...]
    before: str | None
    after: str | None


_began, _ended = attrgetter("began"), attrgetter("ended")
_ORDER = {"RunStart": 0, "PreToolUse": 1, "call": 2, "PostToolUse": 3, "TurnEnd": 4, "RunEnd": 5}


def _last_tree(changes: Sequence[_Change]) -> str | None:
    last = max((each for each in changes if each.after), key=_ended, default=None)
    return None if last is None else last.after


def _run(connection: Connection, run_id: str) -> Row[Any]:
    names = ("id", "turns", "fork_of", "fork_turn", "start_tree")
    query = select(*(runs.c[name] for name in names)).where(runs.c.id == run_id)
    return connection.execute(query).one()


def _whose_turn(connection: Connection, run: Row[Any], turn: int) -> Row[Any]:
    """The run that a turn is of: of a turn that was copied, the other one."""
    while run.fork_of is not None and turn <= run.fork_turn:
        run = _run(connection, run.fork_of)
    return run


def _changes(connection: Connection, run: Row[Any], first: int, last: int) -> list[_Change]:
    """What may have changed files in turns of a run's own, from ``first`` to ``last``."""
    calls = select(
        tool_calls.c.turn,
        literal("call").label("what"),
        tool_calls.c.position.label("place"),
        *(tool_calls.c[name] for name in _TREES),
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
        *(hook_runs.c[name] for name in _TREES),
    ).where(
        hook_runs.c.run_id == run.id,
        turn.between(first, last),
        hook_runs.c.tree_after.is_not(None),
    )
    return [_change(row) for query in (calls, hooks) for row in connection.execute(query)]


_TREES = ("started_at", "ended_at", "tree_before", "tree_after")


def _change(row: Row[Any]) -> _Change:
    began, ended = row.started_at or 0.0, row.ended_at or 0.0
    place = (_ORDER[row.what], row.place)
    return _Change(
        (row.turn, began, *place), (row.turn, ended, *place), row.tree_before, row.tree_after
    )


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
