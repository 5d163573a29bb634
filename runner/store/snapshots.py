"""The recorded snapshots of a run's files, turn by turn."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, case, literal, or_, select

from runner.errors import NotFoundError
from runner.store.tables import hook_runs, runs, tool_calls

# Of what happened at once.
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


def changes_of_turn(connection: Connection, run_id: str, turn: int) -> tuple[str, str] | None:
    """The snapshots before and after a turn: see ``queries.runs.snapshots_around_turn``."""
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
    """The run that did a turn: for a turn that a fork has a copy of, the original."""
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
