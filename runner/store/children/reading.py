"""What a run sees of the runs that it has started: what they may use, and what those that have ended
give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, exists, literal_column, not_, select

from runner.core.agents.agent import Child, lineage
from runner.core.agents.outcome import outcome_of
from runner.core.conversation import CUT_REASONS, ToolResult
from runner.core.ending.result import RESULT_TOOL
from runner.core.money.budget import Charged, billionths
from runner.core.run import ENDED
from runner.core.text.plain import visible
from runner.store.connection.statement import find
from runner.store.tables import blocks, model_calls, run_workspaces, runs, tool_calls

# The run of the item is none of them. ``progress`` has what each was charged in money.
_TREE = (
    select(
        runs.c.id,
        runs.c.parent_run,
        runs.c.parent_message,
        runs.c.parent_position,
        runs.c.child_number,
        runs.c.agent_type,
        runs.c.state,
        runs.c.reason,
        runs.c.detail,
        runs.c.token_ceiling,
        runs.c.cost_ceiling_usd,
        runs.c.charged_tokens,
        runs.c.progress,
    )
    .where(runs.c.root_run == bindparam("root"))
    .order_by(runs.c.parent_run, runs.c.child_number)
)
# Blocks of turn 0 are the prompt, and what was copied of the parent's conversation.
_SAID = (
    select(blocks.c.message, blocks.c.turn, blocks.c.content)
    .where(
        blocks.c.run_id == bindparam("run"),
        blocks.c.role == "assistant",
        blocks.c.type == "text",
        blocks.c.turn > 0,
    )
    .order_by(blocks.c.message.desc(), blocks.c.position)
)
_made_calls = exists().where(
    tool_calls.c.run_id == model_calls.c.run_id, tool_calls.c.turn == model_calls.c.turn
)
# As literals: statements that are run on the driver itself take no lists.
_GOING_ON: list[ColumnElement[str]] = [
    literal_column(f"'{reason}'") for reason in (*sorted(CUT_REASONS), "pause_turn")
]
# After a call the model begins anew, with its result.
_WENT_ON = select(model_calls.c.turn).where(
    model_calls.c.run_id == bindparam("run"),
    model_calls.c.purpose == "turn",
    model_calls.c.stop_reason.in_(_GOING_ON),
    not_(_made_calls),
)
_SUBMITTED = (
    select(tool_calls.c.tool_use_id, blocks.c.content)
    .join_from(
        tool_calls,
        blocks,
        (blocks.c.run_id == tool_calls.c.run_id) & (blocks.c.message == tool_calls.c.message),
    )
    .where(
        tool_calls.c.run_id == bindparam("run"),
        tool_calls.c.name == RESULT_TOOL,
        tool_calls.c.outcome == "succeeded",
        blocks.c.type == "tool_use",
    )
    .order_by(tool_calls.c.message.desc(), tool_calls.c.position.desc())
)
_LEFT = select(run_workspaces.c.branch, run_workspaces.c.commit_id).where(
    run_workspaces.c.run_id == bindparam("run")
)


@dataclass(frozen=True, slots=True)
class _Member:
    """A child as its row, with what it holds: what it was charged with all below it, or may still use.
    ``rests``: it has ended, and so has all below it."""

    row: Any
    held: Charged
    rests: bool


@dataclass(frozen=True, slots=True)
class Family:
    """The children of one run. ``tree_size`` is how many the whole tree has, the run's own siblings among
    them."""

    children: Sequence[_Member]
    tree_size: int

    @property
    def held(self) -> Charged:
        """What all of them hold."""
        return sum((child.held for child in self.children), Charged(0))


def family_of(connection: Connection, run_id: str) -> Family:
    """What there is by now below a run."""
    tree = find(connection, _TREE, {"root": lineage(run_id)[0]})
    by_parent: dict[str, list[Any]] = {}
    for row in tree:
        by_parent.setdefault(row.parent_run, []).append(row)
    children = by_parent.get(run_id, ())
    members = (
        _Member(child, _held(child, by_parent), _rests(child, by_parent)) for child in children
    )
    return Family([*members], len(tree))


def _rests(run: Any, by_parent: Mapping[str, Sequence[Any]]) -> bool:
    below = by_parent.get(run.id, ())
    return run.state in ENDED and all(_rests(child, by_parent) for child in below)


def _held(run: Any, by_parent: Mapping[str, Sequence[Any]]) -> Charged:
    """Who has ended may have children that have not: they are about to be cancelled."""
    if run.state not in ENDED:
        ceiling = run.cost_ceiling_usd
        return Charged(run.token_ceiling, 0 if ceiling is None else billionths(ceiling))
    charged = Charged(run.charged_tokens, run.progress["charged_cost"])
    return sum((_held(child, by_parent) for child in by_parent.get(run.id, ())), charged)


def children_waited_for(
    connection: Connection, family: Family, reply: int | None, *, whole: bool
) -> tuple[Child, ...]:
    """The children that calls of the last reply have started, or the one that has the whole task, each
    with its result if it has ended, and nothing below it is under way any more.

    Args:
        reply: the number of the last reply, whose calls have not all a result; None: there is none.
        whole: whether some child has the whole task.
    """
    return tuple(
        Child(
            number=child.row.child_number,
            index=child.row.parent_position,
            agent_type=child.row.agent_type,
            held=child.held,
            result=_result(connection, child.row) if child.rests else None,
        )
        for child in family.children
        if (whole if child.row.parent_position is None else child.row.parent_message == reply)
    )


def _result(connection: Connection, row: Any) -> ToolResult:
    left = [
        (kept.branch, kept.commit_id)
        for kept in find(connection, _LEFT, {"run": row.id})
        if kept.branch is not None and kept.commit_id is not None
    ]
    return outcome_of(
        row.state,
        row.reason,
        row.detail,
        _said(connection, row.id),
        _submitted(connection, row.id),
        left[0] if left else None,
    )


def _said(connection: Connection, run_id: str) -> str:
    """The text of a run's last message that has any, from where it began: a reply that was cut goes on
    in the next one."""
    went_on = {row.turn for row in find(connection, _WENT_ON, {"run": run_id})}
    said, began = "", 0
    for _, message in groupby(find(connection, _SAID, {"run": run_id}), lambda row: row.message):
        rows = list(message)
        if said and not went_on.issuperset(range(rows[0].turn, began)):
            break
        said = "\n\n".join(row.content["text"] for row in rows) + said
        began = rows[0].turn
    return said


def _submitted(connection: Connection, run_id: str) -> Mapping[str, Any] | None:
    for row in find(connection, _SUBMITTED, {"run": run_id}):
        if visible(row.content["id"]) == row.tool_use_id:
            submitted: Mapping[str, Any] = row.content["input"]
            return submitted
    return None
