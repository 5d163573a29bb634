"""Reads and changes of files, and requests for hosts, with the runs that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import Connection, and_, column, or_, select, table

from runner.permissions.shell import analyse
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, Filters, answer
from runner.queries.rows import Rows, columns
from runner.queries.tool_calls import Call, candidates, newest_few, path_pattern, walk
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
_OUTCOME = tool_calls.c.outcome
_MAY_HAVE_TOUCHED = and_(
    tool_calls.c.name.in_((*_FILE_TOOLS, "Bash")),
    tool_calls.c.started_at.is_not(None),
    or_(_OUTCOME.is_(None), _OUTCOME.not_in(("denied", "unknown_tool", "invalid_input"))),
    or_(_OUTCOME.is_(None), _OUTCOME != "failed", tool_calls.c.name == "Bash"),
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


def file_rows(
    database: Database,
    filters: Filters,
    pattern: str | None = None,
    *,
    differences: Differences | None = None,  # None: only what tools were asked to do is known
) -> Rows:
    """Return the file accesses of tool calls and hooks (only paths that match
    ``path_pattern(pattern)``), the newest first: a row for each call and file.

    ``action`` is ``read``, ``searched`` (a search was told to look there), ``created``, ``changed``,
    ``deleted``, or ``written`` for what a command says that it writes. ``known_from`` is ``input`` (a
    file tool's), ``command`` (redirects, and the arguments of well-known programs) or ``trees`` (the
    snapshots before and after the call; calls that ran together share them). Hooks are known from
    snapshots only, and have their event as ``tool``. Calls that did nothing, because they were denied
    or an edit failed, are left out.
    """
    wanted = None if pattern is None else path_pattern(pattern)
    most = filters.most
    among = candidates(database, filters, wanted.terms) if wanted else None
    compared = None if most is None else max(MOST_COMPARED, most)

    def matching(found: Iterator[Call]) -> Iterator[Call]:
        return (row for row in found if wanted is None or wanted.matches(row["path"]))

    def work(connection: Connection) -> tuple[list[Call], list[Call]]:
        needles = wanted.needles if wanted else ()
        options: Any = {"limit": most, "needles": needles, "among": among, "results": True}
        told: list[Call] = []
        for call in walk(connection, filters, _MAY_HAVE_TOUCHED, **options):
            told += matching(_told(call))
            if most is not None and len(told) >= most:
                break
        return told, _changing(connection, filters, compared) if differences is not None else []

    told, changing = database.read(work)
    recorded = list(matching(_recorded(changing, differences))) if differences else []
    found = [*_without_doubles(told, recorded), *recorded]
    found.sort(key=lambda row: tuple(-1 if row[name] is None else row[name] for name in _ORDER))
    found.reverse()
    rows = answer(database, _COLUMNS, found, filters, "the newest")
    if wanted is not None and compared is not None and len(changing) == compared:
        newest = f"the trees of the newest {compared:,} calls were compared: narrow with --since or --run"
        rows.note = "; ".join(filter(None, (rows.note, newest)))
    return rows


_ORDER = ("at", "run_id", "turn", "position", "tool", "action", "known_from", "path")


def _told(call: Call) -> Iterator[Call]:
    arguments = call["asked"] if call["edited"] is None else call["edited"]
    if not isinstance(arguments, dict):
        return
    if call["tool"] == "Bash":
        command = arguments.get("command")
        script = analyse(command if isinstance(command, str) else "")
        for action, paths in (("written", script.writes), ("read", script.reads)):
            for path in filter(None, dict.fromkeys(paths)):
                yield call | {"action": action, "known_from": "command", "path": path}
        return
    argument, action = _FILE_TOOLS[call["tool"]]
    named = arguments.get(argument) or ("." if action == "searched" else None)
    if isinstance(named, str):
        result = call["result"]
        if call["tool"] == "Write" and isinstance(result, str) and result.startswith(_CREATED):
            action = "created"
        yield call | {"action": action, "known_from": "input", "path": named}


def _changing(connection: Connection, filters: Filters, most: int | None) -> list[Call]:
    """The newest calls and hooks with a change between their snapshots, without file tools, which name
    the file themselves."""
    call, hook = tool_calls.c, hook_runs.c
    item = runs.c.item_key.label("item")
    calls = (
        filters.tool_calls(
            *(*KEY, CALLED_AT.label("at"), call.turn, call.name.label("tool"), item),
            *(call.tree_before, call.tree_after),
        )
        .where(call.tree_before != call.tree_after, call.name.not_in(tuple(_FILE_TOOLS)))
        .order_by(*NEWEST_FIRST)
    )
    if most is not None:
        calls = newest_few(connection, calls, most)
    hooks = (
        select(
            *(hook.run_id, hook.position, hook.started_at.label("at"), hook.turn),
            *(hook.event.label("tool"), item, hook.tree_before, hook.tree_after),
        )
        .join_from(hook_runs, runs, runs.c.id == hook.run_id)
        .where(hook.tree_before != hook.tree_after, *filters.of_runs())
        .where(*filters.of_calls(hook_runs, hook.event, hook.started_at))
        .order_by(hook.started_at.desc(), hook.run_id.desc(), hook.number.desc())
        .limit(most)
    )
    found = [dict(row) for query in (calls, hooks) for row in connection.execute(query).mappings()]
    return sorted(found, key=itemgetter("at"), reverse=True)[:most]


def _recorded(changing: Sequence[Call], differences: Differences) -> Iterator[Call]:
    names = ("run_id", "tree_before", "tree_after")
    pairs = [SnapshotPair(*(call[name] for name in names)) for call in changing]
    known = differences(list(dict.fromkeys(pairs)))
    for call, pair in zip(changing, pairs, strict=True):
        for action, path in known.get(pair, ()):
            yield call | {"action": action, "known_from": "trees", "path": path}


def _without_doubles(told: Sequence[Call], recorded: Sequence[Call]) -> list[Call]:
    """Leave out what a command says that it writes where the snapshots say what it did."""
    key = itemgetter("run_id", "turn", "position")
    known: dict[Any, list[str]] = {}
    for row in recorded:
        if row["tool"] == "Bash":
            known.setdefault(key(row), []).append(row["path"])
    return [
        row
        for row in told
        if row["action"] != "written"
        or not any(f"/{row['path']}".endswith(f"/{path}") for path in known.get(key(row), ()))
    ]


# --- Connections over the proxy of a sandbox

_CONNECTION_COLUMNS = columns(
    "at:time run_id item turn:integer call_id label made_by tool host port:integer outcome why "
    "connections:integer sent_bytes:integer received_bytes:integer"
)
_CONNECTIONS = table(
    "v_connections",
    *(column(each.name) for each in _CONNECTION_COLUMNS if each.name != "label"),
    column("number"),
)


def connection_rows(database: Database, filters: Filters, pattern: str | None = None) -> Rows:
    """Return the connections that were made or asked for, the newest first.

    ``made_by`` is ``call``, ``verify`` or ``hook``, ``outcome`` is ``allowed``, ``refused`` or
    ``failed``, and ``why`` says why it was not made. Equal connections of one call are one row, which
    counts them in ``connections``.

    Args:
        pattern: a host, or a host with a port, in which ``*`` stands for anything.
    """
    made = _CONNECTIONS.c
    query = (
        select(*made)
        .join(runs, runs.c.id == made.run_id)
        .where(*filters.of_runs(), *filters.of_calls(_CONNECTIONS, made.tool, made.at))
        .order_by(made.at.desc(), made.run_id.desc(), made.number.desc())
    )
    wanted = (
        {**row._mapping, "position": _position(row.call_id)}
        for row in database.rows(query)
        if pattern is None or _matches(row, pattern.lower())
    )
    found = list(islice(wanted, filters.most))
    return answer(database, _CONNECTION_COLUMNS, found, filters, "the newest")


def _position(call_id: str | None) -> int | None:
    parsed = None if call_id is None else ids.parse_call_id(call_id)
    return None if parsed is None else parsed[2]


def _matches(made: Any, pattern: str) -> bool:
    host = made.host or ""
    return fnmatchcase(host, pattern) or fnmatchcase(f"{host}:{made.port}", pattern)
