"""The outcomes of runs: sub-agents, results and verifications."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, Select, and_, func, literal, select

from runner.core.agents import lineage, place_of, tree_order
from runner.core.conversation import Usage
from runner.core.run import ENDED, RunStatus
from runner.core.text import visible
from runner.core.workspace import RESULT_TOOL
from runner.store import ids
from runner.store.conditions import (
    CALL_BLOCKS,
    IS_ITEM_RUN,
    IS_OWN_CALL,
    in_tree,
    in_trees,
    superseded_runs,
)
from runner.store.database import Database
from runner.store.tables import blocks, run_items, runs, tool_calls, verifications

# --- Sub-agents

# A run of a sub-agent: its ``Place``, its columns, the ``description`` from the call that asked for it,
# and the ``call_id`` of that call, if any asked.
ChildSummary: TypeAlias = dict[str, Any]
_CHILD_COLUMNS = (
    *("id", "agent_type", "state", "reason", "detail", "turns", "denials", "charged_tokens"),
    *("created_at", "started_at", "ended_at"),
)


class Descendants(NamedTuple):
    runs: int = 0
    turns: int = 0
    tokens: int = 0
    denials: int = 0
    unknown: int = 0  # of the tokens: charged for calls of unknown usage


# The tokens that a run was charged for calls of unknown usage.
UNKNOWN_TOKENS = runs.c.charged_tokens - sum((runs.c[kind] for kind in Usage.__slots__), literal(0))


def children_of(database: Database, run_id: str) -> list[ChildSummary]:
    """The runs of the sub-agents that a run itself has started, in order."""
    its_call = and_(
        tool_calls.c.run_id == runs.c.parent_run,
        tool_calls.c.message == runs.c.parent_message,
        tool_calls.c.position == runs.c.parent_position,
    )
    # The n-th call of a reply is its n-th block that asks for a tool.
    number = func.row_number().over(partition_by=blocks.c.message, order_by=blocks.c.position)
    replies = select(runs.c.parent_message).where(runs.c.parent_run == run_id)
    asked = (
        select(blocks.c.message, blocks.c.content, number.label("number"))
        .where(blocks.c.run_id == run_id, blocks.c.message.in_(replies))
        .where(blocks.c.type == "tool_use")
        .subquery()
    )
    run = runs.c
    asks = and_(asked.c.message == run.parent_message, asked.c.number == run.parent_position + 1)
    names = (*_CHILD_COLUMNS, "parent_message", "parent_position")
    query = (
        select(*(runs.c[name] for name in names), UNKNOWN_TOKENS.label("unknown_tokens"))
        .add_columns(tool_calls.c.turn, asked.c.content)
        .outerjoin(tool_calls, its_call)
        .outerjoin(asked, asks)
        .where(runs.c.parent_run == run_id, runs.c.root_run == lineage(run_id)[0])
    )
    before: Counter[tuple[int, int]] = Counter()
    children = []
    for row in sorted(database.rows(query), key=lambda row: tree_order(row.id)):
        key = row.parent_message, row.parent_position
        more = {
            "description": _description((row.content or {}).get("input"), before[key]),
            "call_id": row.turn and ids.call_id(run_id, row.turn, row.parent_position),
        }
        own = {name: row._mapping[name] for name in (*_CHILD_COLUMNS, "unknown_tokens")}
        children.append({**place_of(row.id), **own, **more})
        before[key] += 1
    return children


def _description(asked: Any, number: int) -> str:
    """Return a call's description of its sub-agent, or of one part of a task."""
    parts = asked.get("parts") if isinstance(asked, dict) else None
    if isinstance(parts, list):
        asked = parts[number] if number < len(parts) else None
    said = asked.get("description") if isinstance(asked, dict) else None
    return said if isinstance(said, str) else ""


def has_ended(database: Database, run_id: str, *, whole_tree: bool = False) -> bool:
    condition = in_tree(run_id) if whole_tree else runs.c.id == run_id
    query = select(runs.c.id).where(condition, runs.c.state.not_in(ENDED)).limit(1)
    return not database.rows(query)


def descendants_of(database: Database, run_id: str) -> Descendants:
    found = database.read(lambda connection: descendants_by_run(connection, in_tree(run_id)))
    return found.get(run_id, Descendants())


def descendants_by_run(
    connection: Connection, condition: ColumnElement[bool]
) -> Mapping[str, Descendants]:
    """The descendants of each run that has any, in trees that meet a condition on ``runs``."""
    sums = (func.sum(runs.c[name]) for name in ("turns", "charged_tokens", "denials"))
    unknown = func.sum(UNKNOWN_TOKENS)
    children = select(runs.c.parent_run, func.count(), *sums, unknown)
    children = children.where(condition, ~IS_ITEM_RUN)
    found: defaultdict[str, Descendants] = defaultdict(Descendants)
    for parent, *numbers in connection.execute(children.group_by(runs.c.parent_run)):
        for above in lineage(parent):
            found[above] = Descendants(*map(add, found[above], map(int, numbers)))
    return found


def charged_costs(database: Database, run_ids: Sequence[str]) -> Counter[str]:
    """Return what runs were charged with all below them, in billionths of a USD."""
    roots = {lineage(run_id)[0] for run_id in run_ids}
    found = Counter[str]()
    # Read whole: Postgres can take nothing out of JSON that has a NUL anywhere.
    for row in database.rows(select(runs.c.id, runs.c.progress).where(in_trees(roots))):
        for above in lineage(row.id):
            found[above] += row.progress["money"]["charged_cost"]
    return found


# --- Results and verifications


@dataclass(frozen=True, slots=True)
class RunResult:
    run_id: str
    item_key: str
    state: RunStatus
    reason: str
    fork_of: str | None
    result: dict[str, Any] | None  # None if it has submitted none


def results_of_job(database: Database, job_id: str) -> list[RunResult]:
    """The results of the current runs (``jobs.current_runs``) of a job's items, in order."""
    names = ("item_key", "state", "reason", "fork_of")
    query = (
        select(runs.c.id.label("run_id"), *(runs.c[name] for name in names))
        .where(runs.c.job_id == job_id, runs.c.id.not_in(superseded_runs(job_id)), IS_ITEM_RUN)
        .order_by(runs.c.id)
    )
    submitted = _submitted(database, and_(runs.c.job_id == job_id, IS_ITEM_RUN))
    return [
        RunResult(**row._mapping, result=submitted.get(row.run_id)) for row in database.rows(query)
    ]


def result_of_run(database: Database, run_id: str) -> dict[str, Any] | None:
    return _submitted(database, runs.c.id == run_id).get(run_id)


def _submitted(database: Database, condition: ColumnElement[bool]) -> dict[str, Any]:
    """By run, the input of its last accepted call of the result tool."""
    query = (
        select(tool_calls.c.run_id, tool_calls.c.tool_use_id, blocks.c.content)
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, CALL_BLOCKS)
        .where(condition, IS_OWN_CALL, tool_calls.c.name == RESULT_TOOL)
        .where(tool_calls.c.outcome == "succeeded")
        .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
    )
    return {
        row.run_id: row.content["input"]
        for row in database.rows(query)
        if visible(row.content["id"]) == row.tool_use_id
    }


# A verification of a run: its columns, ``output`` (what the model is shown of the last command's) in
# place of ``content``. Its ``turn`` ended before it started, and its ``outcome``, of the last command,
# is None until it has ended.
Verification: TypeAlias = dict[str, Any]
_VERIFICATION_COLUMNS = (
    *("run_id", "number", "turn", "tree", "attempt", "started_at", "ended_at", "duration"),
    *("outcome", "command"),
)


def verifications_of_run(database: Database, run_id: str) -> list[Verification]:
    return _verifications(database, verifications.c.run_id == run_id)


def last_verifications(
    database: Database, job_id: str, among: Sequence[str] | None = None
) -> dict[str, Verification]:
    """The newest verification of each run of a job, or of the runs ``among`` them, that has any."""
    of_job: Select[Any] = select(runs.c.id).where(runs.c.job_id == job_id)
    condition = verifications.c.run_id.in_(of_job if among is None else among)
    return {each["run_id"]: each for each in _verifications(database, condition)}


def _verifications(database: Database, condition: ColumnElement[bool]) -> list[Verification]:
    table = verifications.c
    columns = (table[name] for name in _VERIFICATION_COLUMNS)
    query = select(*columns, table.content.label("output"), table.size).where(condition)
    rows = database.rows(query.order_by(table.run_id, table.number))
    return [dict(row._mapping) for row in rows]


# --- Items


def items_of_runs(database: Database, run_ids: Sequence[str]) -> dict[str, Any]:
    query = select(run_items.c.run_id, run_items.c.item)
    return dict(database.rows_in(query, run_items.c.run_id, run_ids))
