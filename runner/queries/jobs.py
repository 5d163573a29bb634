"""Jobs and runs: lists of them, and everything about one.

What is returned has the tables' column names, and ``id`` and ``state`` where a table has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, select

from runner.core.agents import Place, place_of, tree_order
from runner.core.run import STATES, RunStatus
from runner.errors import NotFoundError
from runner.queries.runs import Descendants, descendants_by_run
from runner.store.conditions import IS_ITEM_RUN
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.run_state import progress_from_row
from runner.store.tables import (
    blocks,
    compactions,
    jobs,
    model_calls,
    permission_rules,
    purses,
    queued_messages,
    run_items,
    runs,
)

_COUNTERS = (
    *("turns", "denials", "input_tokens", "cache_read_tokens", "cache_creation_tokens"),
    *("output_tokens", "charged_tokens"),
)
_JOB_COLUMNS = ("id", "key", "name", "source", "spec_digest", "workspace_id", "created_at")
_BUDGET_COLUMNS = (
    *("budget_usd", "budget_tokens", "spent_tokens", "spent_cost"),
    *("reserved_tokens", "reserved_cost"),
)
# A job is in the first of these states that any of its runs is in.
_JOB_STATE_ORDER: tuple[RunStatus, ...] = (
    "running",
    "queued",
    "waiting",
    "failed",
    "cancelled",
    "stopped",
    "succeeded",
)


class JobSummary(TypedDict):
    """A job in numbers. A run that was started afresh counts as its successor in ``state`` and ``runs``;
    the counters from ``turns`` on sum up all runs, of sub-agents, too."""

    id: str
    key: str | None
    name: str
    source: str
    spec_digest: str
    workspace_id: str | None
    created_at: float
    state: RunStatus
    runs: dict[RunStatus, int]  # how many runs of items are in each state
    turns: int
    denials: int
    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    charged_tokens: int


class RunSummary(Place):
    """A run in one line."""

    id: str
    job_id: str
    item_key: str
    state: RunStatus
    reason: str
    detail: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    due_at: float | None
    worker_id: str | None
    pause_requested: bool
    turns: int
    denials: int
    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    charged_tokens: int
    fresh_of: str | None
    agent_type: str | None  # None for the run of an item
    fresh_run: str | None  # the run that it was started afresh as
    below: int  # runs of sub-agents below it
    tree_turns: int  # its own and those of the runs below, as the next two
    tree_tokens: int
    tree_denials: int


_COMPUTED = {"fresh_run", "below", "tree_turns", "tree_tokens", "tree_denials"}
_SUMMARY_COLUMNS = tuple(
    name
    for name in RunSummary.__annotations__
    if name not in _COMPUTED | set(Place.__annotations__)
)


def job_state(counts: Mapping[RunStatus, int]) -> RunStatus:
    """The state of a job: ``running`` if any run is, else ``queued`` if any is, else ``waiting``, else
    the worst end: failed, cancelled, stopped, succeeded.

    Args:
        counts: how many of the job's runs are in each state.
    """
    return next((state for state in _JOB_STATE_ORDER if counts.get(state)), "succeeded")


def list_jobs(database: Database, state: RunStatus | None = None) -> list[JobSummary]:
    """All jobs, or those in a state; the oldest first."""
    found = database.read(lambda connection: _job_summaries(connection))
    return [job for job in found if state is None or job["state"] == state]


def list_runs(
    database: Database, job_id: str, state: RunStatus | None = None, *, whole_trees: bool = False
) -> list[RunSummary]:
    """The runs of a job, or those in a state, in the order of its items.

    Args:
        whole_trees: include the runs of sub-agents, each after its parent.
    """
    columns = (runs.c[name] for name in _SUMMARY_COLUMNS)
    query = select(*columns).where(runs.c.job_id == job_id).order_by(runs.c.id)
    if not whole_trees:
        query = query.where(IS_ITEM_RUN)
    if state is not None:
        query = query.where(runs.c.state == state)
    afresh = select(runs.c.fresh_of, runs.c.id).where(
        runs.c.job_id == job_id, runs.c.fresh_of.is_not(None)
    )

    def work(connection: Connection) -> list[RunSummary]:
        successors = {row.fresh_of: row.id for row in connection.execute(afresh)}
        below = descendants_by_run(connection, runs.c.job_id == job_id, of_children=whole_trees)
        found = [
            _run_summary(dict(row), successors, below.get(row["id"], Descendants()))
            for row in connection.execute(query).mappings()
        ]
        return sorted(found, key=lambda run: tree_order(run["id"])) if whole_trees else found

    return database.read(work)


def _run_summary(
    row: dict[str, Any], successors: Mapping[str, str], below: Descendants
) -> RunSummary:
    sums = {
        "below": below.runs,
        "tree_turns": row["turns"] + below.turns,
        "tree_tokens": row["charged_tokens"] + below.tokens,
        "tree_denials": row["denials"] + below.denials,
    }
    place = place_of(row["id"])
    return cast(RunSummary, {**row, **place, **sums, "fresh_run": successors.get(row["id"])})


def current_runs(found: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs that were not started afresh: their successors stand for the others."""
    return [run for run in found if run["fresh_run"] is None]


def last_texts(database: Database, job_id: str) -> dict[str, str]:
    """The last text that the model wrote, by run of an item that has any."""
    last = (
        select(blocks.c.content)
        .where(blocks.c.run_id == runs.c.id, blocks.c.role == "assistant", blocks.c.type == "text")
        .order_by(blocks.c.message.desc(), blocks.c.position.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(runs.c.id, last.label("content")).where(runs.c.job_id == job_id, IS_ITEM_RUN)
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row.id: row.content["text"] for row in rows if row.content}


@dataclass(frozen=True, slots=True)
class PrunedTurns:
    """Turns that the model is no longer sent, because no summary could replace them."""

    runs: int  # how many runs have such turns
    why: str | None  # error of their newest call for a summary; None if none failed


def pruned_turns(database: Database, job_id: str, run_id: str | None = None) -> PrunedTurns:
    """The pruned turns of a job, or of one of its runs."""
    pruned = (
        select(compactions.c.run_id)
        .join(runs, runs.c.id == compactions.c.run_id)
        .where(runs.c.job_id == job_id, compactions.c.kind == "prune")
    )
    if run_id is not None:
        pruned = pruned.where(compactions.c.run_id == run_id)
    failed = (
        select(model_calls.c.error)
        .where(
            model_calls.c.run_id.in_(pruned),
            model_calls.c.purpose == "summary",
            model_calls.c.error.is_not(None),
        )
        .order_by(model_calls.c.started_at.desc())
        .limit(1)
    )
    count = select(func.count(pruned.subquery().c.run_id.distinct()))
    return database.read(
        lambda connection: PrunedTurns(
            connection.execute(count).scalar_one(), connection.execute(failed).scalar()
        )
    )


def runs_without_workspace(database: Database) -> dict[str, int]:
    """How many runs wait for each workspace path that no worker sees."""
    query = (
        select(runs.c.workspace_path, func.count())
        .where(runs.c.state == "waiting", runs.c.reason == "workspace")
        .group_by(runs.c.workspace_path)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {str(path): count for path, count in rows}


def show_job(database: Database, job_id: str) -> dict[str, Any]:
    """A job as it was submitted, its summary, the rules that hold for all of its runs now, and its budget
    with what is spent and reserved of it (None without a budget)."""

    def work(connection: Connection) -> dict[str, Any]:
        (summary,) = _job_summaries(connection, jobs.c.id == job_id)
        budget = (purses.c[name] for name in _BUDGET_COLUMNS)
        columns = (
            select(jobs.c.spec, jobs.c.spec_text, *budget)
            .outerjoin(purses, purses.c.job_id == jobs.c.id)
            .where(jobs.c.id == job_id)
        )
        rules = (
            select(permission_rules.c.effect, permission_rules.c.rule)
            .where(
                permission_rules.c.job_id == job_id,
                permission_rules.c.run_id.is_(None),
                permission_rules.c.revoked_in.is_(None),
            )
            .order_by(permission_rules.c.position)
        )
        return {
            **summary,
            **connection.execute(columns).mappings().one(),
            "permission_rules": [dict(row) for row in connection.execute(rules).mappings()],
        }

    return database.read(work)


def show_run(database: Database, run_id: str) -> dict[str, Any]:
    """Everything in a run's row, its job's name, provider and ``context``, its model, the size of its
    context, its compactions, and its undelivered messages.

    Returns:
        ``fullness`` is None before the first request; ``worked`` is in seconds, ``charged_cost`` in
        billionths of a USD, and ``compactions`` counts them by kind.

    Raises:
        NotFoundError: there is no such run.
    """
    query = (
        select(runs, run_items.c.item, jobs.c.name.label("job_name"))
        .join(jobs, jobs.c.id == runs.c.job_id)
        .join(run_items, run_items.c.run_id == runs.c.id)
        .where(runs.c.id == run_id)
    )
    messages = queued_messages.c
    undelivered = (
        select(messages.id, messages.text, messages.created_at)
        .where(messages.run_id == run_id, messages.delivered_message.is_(None))
        .order_by(messages.id)
    )

    def work(connection: Connection) -> dict[str, Any]:
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"no run is named {run_id}")
        spec = JobCache().on(connection).spec_of_run(row.job_id, run_id)
        successor = select(runs.c.id).where(runs.c.job_id == row.job_id, runs.c.fresh_of == run_id)
        return {
            **row._mapping,
            "model": row.model or spec.model,
            "provider": spec.provider,
            "context": asdict(spec.context),
            **_context_of(connection, row),
            "fresh_run": connection.execute(successor).scalar(),
            "queued_messages": [dict(each) for each in connection.execute(undelivered).mappings()],
        }

    return database.read(work)


def _context_of(connection: Connection, run: Row[Any]) -> dict[str, Any]:
    progress = progress_from_row(run)
    context = progress.context
    counts = (
        select(compactions.c.kind, func.count())
        .where(compactions.c.run_id == run.id)
        .group_by(compactions.c.kind)
        .order_by(compactions.c.kind)
    )
    return {
        "fullness": {
            "tokens": context.tokens,
            "measured": context.measured,
            "correction": context.correction,
            "window": context.checked_window,
        }
        if context.estimate
        else None,
        "charged_cost": progress.money.charged_cost,
        "worked": progress.worked,
        "compactions": {row[0]: row[1] for row in connection.execute(counts)},
    }


def _job_summaries(
    connection: Connection, condition: ColumnElement[bool] | None = None
) -> list[JobSummary]:
    counts = [
        func.coalesce(func.sum(case((and_(IS_ITEM_RUN, runs.c.state == state), 1), else_=0)), 0)
        for state in STATES
    ]
    sums = [func.coalesce(func.sum(runs.c[name]), 0).label(name) for name in _COUNTERS]
    columns = [jobs.c[name] for name in _JOB_COLUMNS]
    query = (
        select(*columns, *sums, *(c.label(f"in_{s}") for c, s in zip(counts, STATES, strict=True)))
        .outerjoin_from(jobs, runs, runs.c.job_id == jobs.c.id)
        .group_by(*columns)
        .order_by(jobs.c.id)
    )
    if condition is not None:
        query = query.where(condition)
    superseded = _superseded_counts(connection)
    return [
        _job_summary(dict(row), superseded.get(row["id"], {}))
        for row in connection.execute(query).mappings()
    ]


def _superseded_counts(connection: Connection) -> dict[str, dict[str, int]]:
    """Superseded runs per job and state."""
    newer = runs.alias()
    query = (
        select(runs.c.job_id, runs.c.state, func.count())
        .join_from(newer, runs, newer.c.fresh_of == runs.c.id)
        .group_by(runs.c.job_id, runs.c.state)
    )
    found: dict[str, dict[str, int]] = {}
    for job_id, state, count in connection.execute(query):
        found.setdefault(job_id, {})[state] = count
    return found


def _job_summary(row: dict[str, Any], superseded: Mapping[str, int]) -> JobSummary:
    by_state = {state: int(row.pop(f"in_{state}")) - superseded.get(state, 0) for state in STATES}
    counters = {name: int(row.pop(name)) for name in _COUNTERS}
    summary = row | {
        "state": job_state(by_state),
        "runs": {state: count for state, count in by_state.items() if count},
        **counters,
    }
    return cast(JobSummary, summary)
