"""Who read or changed which file, and in which turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, and_, or_, select

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
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, Filters, at_most, cut, with_labels
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.database import Database
from runner.store.tables import hook_runs, runs, tool_calls

_COLUMNS = columns("call_id label at:time run_id item turn:integer tool action known_from path")
Action = Literal["read", "searched", "created", "changed", "deleted", "written"]

# How many calls' snapshots are compared where a pattern drops some of the result.
MOST_COMPARED = 1_000

# The argument that names the file. Imported sessions have the tools of Claude Code.
_FILE_TOOLS: Mapping[str, tuple[str, Action]] = {
    "Read": ("file_path", "read"),
    "Write": ("file_path", "changed"),
    "Edit": ("file_path", "changed"),
    "MultiEdit": ("file_path", "changed"),
    "NotebookEdit": ("notebook_path", "changed"),
    "Grep": ("path", "searched"),
    "Glob": ("path", "searched"),
}
_CREATED = ("Made ", "File created")  # how results of Write begin, Runner's and Claude Code's
_NOT_RUN = ("denied", "unknown_tool", "invalid_input")
_MAY_HAVE_TOUCHED = or_(
    and_(
        tool_calls.c.name.in_(tuple(_FILE_TOOLS)),
        tool_calls.c.started_at.is_not(None),
        or_(tool_calls.c.outcome.is_(None), tool_calls.c.outcome.not_in((*_NOT_RUN, "failed"))),
    ),
    and_(
        tool_calls.c.name == "Bash",
        tool_calls.c.started_at.is_not(None),
        or_(tool_calls.c.outcome.is_(None), tool_calls.c.outcome.not_in(_NOT_RUN)),
    ),
)


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """The workspace before and after a call, as git's tree ids."""

    run_id: str
    before: str
    after: str


# What became of each path between two snapshots. Pairs that cannot be compared are left out.
Differences = Callable[
    [Sequence[SnapshotPair]], Mapping[SnapshotPair, Sequence[tuple[Action, str]]]
]
_Row = tuple[Any, ...]


def file_rows(
    database: Database,
    filters: Filters,
    pattern: str | None = None,
    *,
    differences: Differences | None = None,
    limit: int | None = None,
) -> Rows:
    """What tool calls and hooks did to files, the newest first: a row for each call and file.

    ``action`` is ``read``, ``searched`` (a search was told to look there), ``created``, ``changed``,
    ``deleted``, or ``written`` for what a command says that it writes. ``known_from`` is ``input`` (a
    file tool's), ``command`` (redirects, and the arguments of well-known programs) or ``trees`` (the
    snapshots before and after the call; calls that ran together share them). Hooks are known from
    snapshots only, and have their event as ``tool``. Calls that did nothing, because they were denied
    or an edit failed, are left out.

    Args:
        pattern: only paths that match ``path_pattern(pattern)``.
        differences: compares snapshots. None: only what tools were asked to do is known.

    Raises:
        UsageError: the pattern names no path.
    """
    wanted = None if pattern is None else path_pattern(pattern)
    most = at_most(limit)
    among = candidates(database, filters, wanted.terms) if wanted else None
    compared = max(MOST_COMPARED, most) if most is not None else None

    def work(connection: Connection) -> tuple[list[_Row], list[Row[Any]]]:
        told = list(_from_inputs(connection, filters, wanted, among, most))
        return told, _changing(connection, filters, compared) if differences is not None else []

    told, changing = database.read(work)
    recorded = list(_from_snapshots(changing, differences, wanted)) if differences else []
    found = _without_doubles(told, recorded)
    found.sort(key=lambda row: (row[1], row[0] or "", *row[2:]), reverse=True)
    answer = cut(_COLUMNS, with_labels(database, found), limit, "the newest")
    if wanted is not None and compared is not None and len(changing) == compared:
        newest = f"the trees of the newest {compared:,} calls were compared: narrow with --since or --run"
        answer.note = f"{answer.note}; {newest}" if answer.note else newest
    return answer


def _from_inputs(
    connection: Connection,
    filters: Filters,
    wanted: Pattern | None,
    among: Sequence[Message] | None,
    most: int | None,
) -> Iterator[_Row]:
    """What tools were asked to do, the newest ``most``."""
    calls = walk(
        connection,
        filters,
        _MAY_HAVE_TOUCHED,
        limit=most,
        needles=wanted.needles if wanted else (),
        among=among,
        answers=True,
    )
    count = 0
    for walked in calls:
        for action, path, known_from in _touched(walked):
            if wanted is None or wanted.matches(path):
                yield _row(walked.row, action, known_from, path)
                count += 1
        if most is not None and count >= most:
            return


def _touched(walked: Walked) -> Iterator[tuple[Action, str, str]]:
    call, edited = walked.row, walked.row.edited_input
    arguments = walked.asked if edited is None else edited
    if not isinstance(arguments, dict):
        return
    if call.name == "Bash":
        command = arguments.get("command")
        if isinstance(command, str):
            script = analyse(command)
            yield from (
                ("written", path, "command") for path in dict.fromkeys(script.writes) if path
            )
            yield from (("read", path, "command") for path in dict.fromkeys(script.reads) if path)
        return
    argument, action = _FILE_TOOLS[call.name]
    path = arguments.get(argument) or ("." if action == "searched" else None)
    if isinstance(path, str):
        made = isinstance(walked.answer, str) and walked.answer.startswith(_CREATED)
        yield ("created" if made and call.name == "Write" else action), path, "input"


def _changing(connection: Connection, filters: Filters, most: int | None) -> list[Row[Any]]:
    """The newest calls and hooks with a change between their snapshots, without file tools, which name
    the file themselves."""
    query = (
        filters.tool_calls(
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
    hooks = hook_runs.c
    of_tool = () if filters.tool is None else (hooks.event == filters.tool,)
    return (
        select(
            *(hooks[name] for name in ("run_id", "number", "position", "turn")),
            hooks.started_at.label("at"),
            hooks.event.label("name"),
            hooks.tree_before,
            hooks.tree_after,
            runs.c.item_key,
        )
        .join_from(hook_runs, runs, runs.c.id == hooks.run_id)
        .where(hooks.tree_before != hooks.tree_after, *of_tool)
        .where(*filters.of_runs(), *filters.of_time(hooks.started_at))
        .where(*filters.of_turns(hooks.run_id, hooks.turn))
        .order_by(hooks.started_at.desc(), hooks.run_id.desc(), hooks.number.desc())
    )


def _from_snapshots(
    changing: Sequence[Row[Any]], differences: Differences, wanted: Pattern | None
) -> Iterator[_Row]:
    pairs = {
        call: SnapshotPair(call.run_id, call.tree_before, call.tree_after) for call in changing
    }
    known = differences(list(dict.fromkeys(pairs.values())))
    for call, pair in pairs.items():
        for action, path in known.get(pair, ()):
            if wanted is None or wanted.matches(path):
                yield _row(call, action, "trees", path)


def _without_doubles(told: Sequence[_Row], recorded: Sequence[_Row]) -> list[_Row]:
    """Leave out what a command says that it writes where the snapshots say what it did."""
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
