"""Files of a run: its recorded snapshots, and who read or changed which path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    or_,
    select,
    tuple_,
)

from runner.core.run import RunStatus
from runner.core.spec import JobSpec
from runner.errors import NotFoundError
from runner.permissions.shell import analyse
from runner.queries.calls import (
    Message,
    Pattern,
    Walked,
    candidates,
    newest_few,
    path_pattern,
    walk,
)
from runner.queries.filters import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    Filters,
    between,
    of_calls,
    run_conditions,
    turns_of_model,
)
from runner.queries.rows import Column, Rows, at_most, cut, labelled
from runner.store import ids
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.snapshots import changes_of_turn
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
class RunSnapshots:
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


def snapshots_of_run(database: Database, run_id: str) -> RunSnapshots:
    """The trees of a run. Raises ``NotFoundError`` when there is no such run."""
    query = _snapshot_query().where(runs.c.id == run_id)
    found = database.read(lambda connection: _snapshots(connection, query))
    if not found:
        raise NotFoundError(f"no run is named {run_id}")
    return found[0]


def snapshots_of_job(
    database: Database, job_id: str, *, every_run: bool = False
) -> list[RunSnapshots]:
    """The trees of the runs of a job's items in their order.

    Args:
        every_run: those of runs that were begun afresh, too, which are left out otherwise, as in
            ``queries.current_runs``, and those of sub-agents.
    """
    afresh = select(runs.c.fresh_of).where(runs.c.job_id == job_id, runs.c.fresh_of.is_not(None))
    query = _snapshot_query().where(runs.c.job_id == job_id).order_by(runs.c.id)
    if not every_run:
        query = query.where(runs.c.id.not_in(afresh), IS_ITEM_RUN)
    return database.read(lambda connection: _snapshots(connection, query))


def snapshots_around_turn(database: Database, run_id: str, turn: int) -> tuple[str, str] | None:
    """The snapshots before the first and after the last file change of a turn, by tools and hooks. Hooks
    that ran before the first model call belong to turn 1.

    Args:
        turn: its number, from 1.

    Returns:
        None when nothing in the turn may have changed files.

    Raises:
        NotFoundError: the run has no such turn.
    """
    return database.read(partial(changes_of_turn, run_id=run_id, turn=turn))


def _snapshot_query() -> Select[Any]:
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


def _snapshots(connection: Connection, query: Select[Any]) -> list[RunSnapshots]:
    """What is in JSON is read here: Postgres can take nothing out of a value that has a NUL anywhere."""
    jobs_read = JobCache().on(connection)
    return [
        _run_snapshots(row, jobs_read.spec_of_run(row.job_id, row.run_id))
        for row in connection.execute(query)
    ]


def _run_snapshots(row: Row[Any], spec: JobSpec) -> RunSnapshots:
    found = dict(row._mapping)
    progress, workspace = found.pop("progress"), spec.workspace
    found["model"] = found["model"] or spec.model
    return RunSnapshots(
        **found,
        mode=workspace.mode if workspace else None,
        source=workspace.url or workspace.path if workspace else None,
        remote=workspace.remote if workspace else None,
        tree=progress.get("tree"),
        commit=progress.get("delivered"),
    )


_COLUMNS = (
    Column("call_id"),
    Column("at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("tool"),
    Column("action"),
    Column("known_from"),
    Column("path"),
)
Action = Literal["read", "searched", "created", "changed", "deleted", "written"]

# Calls whose trees are compared, where a pattern leaves out some of what comes of it.
MOST_COMPARED = 1_000

# The argument that names the file; those of Claude Code are there for sessions that were imported.
_FILE_TOOLS: Mapping[str, tuple[str, Action]] = {
    "Read": ("file_path", "read"),
    "Write": ("file_path", "changed"),
    "Edit": ("file_path", "changed"),
    "MultiEdit": ("file_path", "changed"),
    "NotebookEdit": ("notebook_path", "changed"),
    "Grep": ("path", "searched"),
    "Glob": ("path", "searched"),
}
_CREATED = ("Made ", "File created")  # how the results of Write begin, ours and Claude Code's
# What has these outcomes has done nothing to a file.
_NOTHING_DONE = ("denied", "unknown_tool", "invalid_input")


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """The workspace before a call and after it: ids of trees that a run has recorded."""

    run_id: str
    before: str
    after: str


# What lies between trees: what became of each path. Those of which nothing is known are left out.
Differences = Callable[
    [Sequence[SnapshotPair]], Mapping[SnapshotPair, Sequence[tuple[Action, str]]]
]


def file_rows(
    database: Database,
    filters: Filters,
    pattern: str | None = None,
    *,
    differences: Differences | None = None,
    limit: int | None = None,
) -> Rows:
    """What calls and hooks did to files, the newest first, a row for each of them and file.

    ``action`` is ``read``, ``searched`` (what a search was given to look through), ``created``,
    ``changed``, ``deleted``, or ``written`` for what a command says that it writes. ``known_from`` is
    ``input`` (a file tool's), ``command`` (redirects, and what well-known programs are told) or ``trees``
    (the workspace as recorded before and after the call; calls that ran together have the same). A hook
    is known from trees alone, and has its event for its ``tool``. Calls that did nothing, as they were
    denied or an edit failed, are left out.

    Args:
        pattern: only paths that it finds: ``queries.calls.path_pattern``.
        differences: tells what lies between trees. None: only what was asked of tools is known.

    Raises:
        UsageError: the pattern names no path.
    """
    wanted = None if pattern is None else path_pattern(pattern)
    most = at_most(limit)
    among = candidates(database, filters, wanted.terms) if wanted else None
    compared = max(MOST_COMPARED, most) if most is not None else None

    def work(connection: Connection) -> tuple[list[_Row], list[Row[Any]]]:
        told = list(_told(connection, filters, wanted, among, most))
        return told, _changing(connection, filters, compared) if differences is not None else []

    told, changing = database.read(work)
    recorded = (
        list(_from_snapshots(changing, differences, wanted)) if differences is not None else []
    )
    found = _without_doubles(told, recorded)
    found.sort(key=lambda row: (row[1], row[0] or "", *row[2:]), reverse=True)
    answer = labelled(database, cut(_COLUMNS, found, limit, "the newest"))
    if wanted is not None and compared is not None and len(changing) == compared:
        newest = f"the trees of the newest {compared:,} calls were compared: narrow with --since or --run"
        answer.note = f"{answer.note}; {newest}" if answer.note else newest
    return answer


_Row = tuple[Any, ...]


def _told(
    connection: Connection,
    filters: Filters,
    wanted: Pattern | None,
    among: Sequence[Message] | None,
    most: int | None,
) -> Iterator[_Row]:
    """What was asked of tools, the newest ``most``.

    Args:
        among: the replies whose calls may be wanted. None: all.
    """
    needles = wanted.needles if wanted else ()
    conditions = _has_done(tuple(_FILE_TOOLS)), _may_have_done
    count = 0
    for walked in walk(
        connection,
        filters,
        or_(*conditions),
        limit=most,
        needles=needles,
        among=among,
        answers=True,
    ):
        for action, path, known_from in _touched(walked):
            if wanted is None or wanted.matches(path):
                yield _row(walked.row, action, known_from, path)
                count += 1
        if most is not None and count >= most:
            return


def _has_done(names: Sequence[str]) -> ColumnElement[bool]:
    done = tool_calls.c.outcome.is_(None) | tool_calls.c.outcome.not_in((*_NOTHING_DONE, "failed"))
    return and_(tool_calls.c.name.in_(names), tool_calls.c.started_at.is_not(None), done)


_may_have_done = and_(
    tool_calls.c.name == "Bash",
    tool_calls.c.started_at.is_not(None),
    or_(tool_calls.c.outcome.is_(None), tool_calls.c.outcome.not_in(_NOTHING_DONE)),
)


def _touched(walked: Walked) -> Iterator[tuple[Action, str, str]]:
    call, edited = walked.row, walked.row.edited_input
    arguments = walked.asked if edited is None else edited
    if not isinstance(arguments, dict):
        return
    if call.name == "Bash":
        command = arguments.get("command")
        if isinstance(command, str):
            script = analyse(command)
            yield from (("written", path, "command") for path in _named(script.writes))
            yield from (("read", path, "command") for path in _named(script.reads))
        return
    argument, action = _FILE_TOOLS[call.name]
    path = arguments.get(argument) or ("." if action == "searched" else None)
    if isinstance(path, str):
        made = isinstance(walked.answer, str) and walked.answer.startswith(_CREATED)
        yield ("created" if made and call.name == "Write" else action), path, "input"


def _named(paths: Sequence[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if path]


def _changing(connection: Connection, filters: Filters, most: int | None) -> list[Row[Any]]:
    """The newest calls and hooks that files were recorded as changed by, other than calls of the tools
    that say so."""
    query = (
        of_calls(
            filters,
            *KEY,
            CALLED_AT.label("at"),
            tool_calls.c.turn,
            tool_calls.c.name,
            tool_calls.c.tree_before,
            tool_calls.c.tree_after,
            runs.c.item_key,
        )
        .where(
            tool_calls.c.tree_before != tool_calls.c.tree_after,
            tool_calls.c.name.not_in(tuple(_FILE_TOOLS)),
        )
        .order_by(*NEWEST_FIRST)
    )
    if most is not None:
        query = newest_few(connection, query, most)
    calls = list(connection.execute(query))
    hooks = list(connection.execute(_changing_hooks(filters).limit(most)))
    return sorted([*calls, *hooks], key=attrgetter("at"), reverse=True)[:most]


def _changing_hooks(filters: Filters) -> Select[Any]:
    """The hooks that files were recorded as changed by, the newest first."""
    hooks = hook_runs.c
    query = (
        select(
            *(hooks[name] for name in ("run_id", "number", "position", "turn")),
            hooks.started_at.label("at"),
            hooks.event.label("name"),
            hooks.tree_before,
            hooks.tree_after,
            runs.c.item_key,
        )
        .join_from(hook_runs, runs, runs.c.id == hooks.run_id)
        .where(*run_conditions(filters), *between(hooks.started_at, filters))
        .where(hooks.tree_before != hooks.tree_after)
        .order_by(hooks.started_at.desc(), hooks.run_id.desc(), hooks.number.desc())
    )
    if filters.tool is not None:
        query = query.where(hooks.event == filters.tool)
    if filters.model is not None:
        query = query.where(tuple_(hooks.run_id, hooks.turn).in_(turns_of_model(filters.model)))
    return query


def _from_snapshots(
    changing: Sequence[Row[Any]], differences: Differences, wanted: Pattern | None
) -> Iterator[_Row]:
    trees = {
        call: SnapshotPair(call.run_id, call.tree_before, call.tree_after) for call in changing
    }
    known = differences(list(dict.fromkeys(trees.values())))
    for call, pair in trees.items():
        for action, path in known.get(pair, ()):
            if wanted is None or wanted.matches(path):
                yield _row(call, action, "trees", path)


def _without_doubles(told: Sequence[_Row], recorded: Sequence[_Row]) -> list[_Row]:
    """What a command says that it writes is left out where the trees say what it did."""
    known: dict[str, list[str]] = {}
    for row in recorded:
        if row[5] == "Bash":
            known.setdefault(row[0], []).append(row[-1])
    kept = [
        row
        for row in told
        if row[6] != "written"
        or not any(f"/{row[-1]}".endswith(f"/{path}") for path in known.get(row[0], ()))
    ]
    return [*kept, *recorded]


def _row(call: Row[Any], action: Action, known_from: str, path: str) -> _Row:
    return (
        None if call.position is None else ids.call_id(call.run_id, call.turn, call.position),
        call.at,
        call.run_id,
        call.item_key,
        call.turn,
        call.name,
        action,
        known_from,
        path,
    )
