"""What became of the sub-agents that a run has started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, and_, func, literal, select

from runner.core.agents.agent import lineage
from runner.core.agents.place import Place, place_of, tree_order
from runner.core.run import ENDED, RunStatus
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.look.family.places import IS_OF_ITEM, ROOT, within
from runner.store.tables import blocks, runs, tool_calls

_ITS_CALL = and_(
    tool_calls.c.run_id == runs.c.parent_run,
    tool_calls.c.message == runs.c.parent_message,
    tool_calls.c.position == runs.c.parent_position,
)


class ChildSummary(Place):
    """A run that another has started. ``call_id`` is the call that asked for it, None for one that no call
    asked for, and ``description`` what that says of it."""

    id: str
    agent_type: str
    description: str
    call_id: str | None
    state: RunStatus
    reason: str
    detail: str
    turns: int
    denials: int
    charged_tokens: int
    created_at: float
    started_at: float | None
    ended_at: float | None


_COLUMNS = (
    *("id", "agent_type", "state", "reason", "detail", "turns", "denials", "charged_tokens"),
    *("created_at", "started_at", "ended_at"),
)


_SUMS = (
    func.count(),
    *(func.coalesce(func.sum(runs.c[name]), 0) for name in ("turns", "charged_tokens", "denials")),
)


@dataclass(frozen=True, slots=True)
class Below:
    """All runs below one, in numbers."""

    runs: int = 0
    turns: int = 0
    tokens: int = 0
    denials: int = 0

    def __add__(self, other: Below) -> Below:
        return Below(
            self.runs + other.runs,
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.denials + other.denials,
        )


def children_of(database: Database, run_id: str) -> list[ChildSummary]:
    """The runs that a run has started itself, in their order."""
    query = (
        select(
            *(runs.c[name] for name in _COLUMNS),
            *(runs.c[name] for name in ("parent_run", "parent_message", "parent_position")),
            tool_calls.c.turn,
        )
        .outerjoin(tool_calls, _ITS_CALL)
        .where(runs.c.parent_run == run_id, runs.c.root_run == lineage(run_id)[0])
    )

    def work(connection: Connection) -> list[ChildSummary]:
        found = sorted(connection.execute(query).all(), key=lambda row: tree_order(row.id))
        inputs = _inputs(connection, run_id, {row.parent_message for row in found})
        before: Counter[tuple[int, int]] = Counter()
        children = []
        for row in found:
            key = row.parent_message, row.parent_position
            children.append(_child(row, _description(inputs.get(key), before[key])))
            before[key] += 1
        return children

    return database.read(work)


def is_over(database: Database, run_id: str, *, whole_tree: bool = False) -> bool:
    """Whether a run has ended, and with ``whole_tree`` all below it, too."""
    condition = within(run_id) if whole_tree else runs.c.id == run_id
    query = select(runs.c.id).where(condition, runs.c.state.not_in(ENDED)).limit(1)
    return database.read(lambda connection: connection.execute(query).first()) is None


def below(database: Database, run_id: str) -> Below:
    """What is below one run."""
    root = lineage(run_id)[0]
    is_below = runs.c.id.startswith(f"{run_id}.", autoescape=True)
    query = select(*_SUMS).where(runs.c.root_run == root, is_below)
    return Below(*database.read(lambda connection: connection.execute(query).one()))


def below_each(
    connection: Connection, condition: ColumnElement[bool], *, of_children: bool
) -> dict[str, Below]:
    """What is below each run that has anything below it, by its id.

    Args:
        condition: on ``runs``: of which trees.
        of_children: also of those that are not of items.
    """
    if not of_children:
        query = select(ROOT, *_SUMS).where(condition, ~IS_OF_ITEM).group_by(ROOT)
        return {row[0]: Below(*row[1:]) for row in connection.execute(query)}
    columns = (runs.c.turns, runs.c.charged_tokens, runs.c.denials)
    each = select(runs.c.id, literal(1), *columns).where(condition, ~IS_OF_ITEM)
    found: dict[str, Below] = {}
    for run_id, *numbers in connection.execute(each):
        for above in lineage(run_id)[:-1]:
            found[above] = found.get(above, Below()) + Below(*numbers)
    return found


def _inputs(
    connection: Connection, run_id: str, messages: Collection[int | None]
) -> dict[tuple[int, int], Any]:
    """What the calls of these replies ask for, by message and by the call's place there."""
    query = (
        select(blocks.c.message, blocks.c.content)
        .where(
            blocks.c.run_id == run_id,
            blocks.c.message.in_([each for each in messages if each is not None]),
            blocks.c.type == "tool_use",
        )
        .order_by(blocks.c.message, blocks.c.position)
    )
    found: dict[tuple[int, int], Any] = {}
    calls: Counter[int] = Counter()
    for row in connection.execute(query):
        found[row.message, calls[row.message]] = row.content.get("input")
        calls[row.message] += 1
    return found


def _description(asked: Any, number: int) -> str:
    """What a call says of the child that it asks for, or of one of the parts that it splits a task into."""
    parts = asked.get("parts") if isinstance(asked, dict) else None
    if isinstance(parts, list):
        asked = parts[number] if number < len(parts) else None
    said = asked.get("description") if isinstance(asked, dict) else None
    return said if isinstance(said, str) else ""


def _child(row: Any, description: str) -> ChildSummary:
    call = row.turn and ids.call_id(row.parent_run, row.turn, row.parent_position)
    child = {name: getattr(row, name) for name in _COLUMNS}
    more = {"description": description, "call_id": call}
    return cast(ChildSummary, {**place_of(row.id), **child, **more})
