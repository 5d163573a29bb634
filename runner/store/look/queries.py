"""Reading jobs, runs and what they did, for people and programs that look on.

What is returned has the tables' column names, and ``id`` and ``state`` where a table has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, select

from runner.core.agents.place import Place, place_of, tree_order
from runner.core.run import STATES, RunStatus
from runner.errors import NotFoundError
from runner.store.connection.database import Database
from runner.store.job.cache import JobCache
from runner.store.look.family.children import Below, below_each
from runner.store.look.family.places import IS_OF_ITEM
from runner.store.rows.progress import progress_from_row
from runner.store.tables import (
    blocks,
    compactions,
    jobs,
    permission_rules,
    purses,
    queued_messages,
    run_items,
    runs,
)

_TOKENS = (
    "input_tokens",
    "cache_read_tokens",
    "cache_creation_tokens",
    "output_tokens",
    "charged_tokens",
)
_BUDGET_COLUMNS = (
    "budget_usd",
    "budget_tokens",
    "spent_tokens",
    "spent_cost",
    "reserved_tokens",
    "reserved_cost",
)
_COUNTERS = ("turns", "denials", *_TOKENS)

# The first state that any of a job's runs has is the job's.
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
    """A job and its runs in numbers. ``runs`` counts those of items by state; those that were begun
    afresh count as their successors, in it and in ``state``. The counters are of all runs, also of those
    that others have started."""

    id: str
    key: str | None
    name: str
    source: str
    spec_digest: str
    workspace_id: str | None
    created_at: float
    state: RunStatus
    runs: dict[RunStatus, int]
    turns: int
    denials: int
    input_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    output_tokens: int
    charged_tokens: int


class RunSummary(Place):
    """A run in a line. ``fresh_run`` is the run that it was begun afresh as. ``agent_type`` is None for
    the run of an item; ``below`` counts the runs that it has started, and that these have, and
    ``tree_turns``, ``tree_tokens`` and ``tree_denials`` are of all of them and the run itself."""

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
    agent_type: str | None
    fresh_run: str | None
    below: int
    tree_turns: int
    tree_tokens: int
    tree_denials: int


_REST = frozenset(
    {"fresh_run", "below", "tree_turns", "tree_tokens", "tree_denials", *Place.__annotations__}
)
_SUMMARY_COLUMNS = tuple(name for name in RunSummary.__annotations__ if name not in _REST)


def job_state(counts: Mapping[RunStatus, int]) -> RunStatus:
    """A job's state: ``running`` if any run is, else ``queued`` if any is, else ``waiting`` if any
    does, else the worst end: failed, cancelled, stopped, succeeded.

    Args:
        counts: how many of the job's runs are in each state.
    """
    return next((state for state in _JOB_STATE_ORDER if counts.get(state)), "succeeded")


def list_jobs(database: Database, state: RunStatus | None = None) -> list[JobSummary]:
    """All jobs, oldest first; with ``state`` only those in it."""
    found = database.read(lambda connection: _job_summaries(connection))
    return [job for job in found if state is None or job["state"] == state]


def list_runs(
    database: Database, job_id: str, state: RunStatus | None = None, *, whole_trees: bool = False
) -> list[RunSummary]:
    """The runs of a job's items in the order of these; with ``state`` only those in it.

    Args:
        whole_trees: also the runs that these have started, each after the one that has.
    """
    columns = (runs.c[name] for name in _SUMMARY_COLUMNS)
    query = select(*columns).where(runs.c.job_id == job_id).order_by(runs.c.id)
    if not whole_trees:
        query = query.where(IS_OF_ITEM)
    if state is not None:
        query = query.where(runs.c.state == state)
    afresh = select(runs.c.fresh_of, runs.c.id).where(
        runs.c.job_id == job_id, runs.c.fresh_of.is_not(None)
    )

    def work(connection: Connection) -> list[RunSummary]:
        successors = {row.fresh_of: row.id for row in connection.execute(afresh)}
        under = below_each(connection, runs.c.job_id == job_id, of_children=whole_trees)
        found = [
            _run_summary(dict(row), successors, under.get(row["id"], Below()))
            for row in connection.execute(query).mappings()
        ]
        return sorted(found, key=lambda run: tree_order(run["id"])) if whole_trees else found

    return database.read(work)


def _run_summary(row: dict[str, Any], successors: Mapping[str, str], under: Below) -> RunSummary:
    sums = {
        "below": under.runs,
        "tree_turns": row["turns"] + under.turns,
        "tree_tokens": row["charged_tokens"] + under.tokens,
        "tree_denials": row["denials"] + under.denials,
    }
    place = place_of(row["id"])
    return cast(RunSummary, {**row, **place, **sums, "fresh_run": successors.get(row["id"])})


def current_runs(found: Sequence[RunSummary]) -> list[RunSummary]:
    """Those that were not begun afresh: their successors stand for the others."""
    return [run for run in found if run["fresh_run"] is None]


def last_texts(database: Database, job_id: str) -> dict[str, str]:
    """The last text that the model wrote, by run of an item; runs without one are left out."""
    last = (
        select(blocks.c.content)
        .where(blocks.c.run_id == runs.c.id, blocks.c.role == "assistant", blocks.c.type == "text")
        .order_by(blocks.c.message.desc(), blocks.c.position.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(runs.c.id, last.label("content")).where(runs.c.job_id == job_id, IS_OF_ITEM)
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row.id: row.content["text"] for row in rows if row.content}


def show_job(database: Database, job_id: str) -> dict[str, Any]:
    """A job as it was submitted, with the rules that now hold for all of its runs, these in numbers,
    and its budget: ``budget_usd`` and ``budget_tokens``, and what is spent and reserved of it (None
    without one)."""

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
    """All that a run's row says, with its job's name, provider and ``context``, its model (the job's,
    unless it has one of its own), how full the run's context is and what was done about it, and its
    undelivered messages.

    Returns:
        ``fullness`` is None for a run that no Runner has taken up which counts it; ``worked`` is in
        seconds, ``charged_cost`` in billionths of a USD, and ``compactions`` counts them by kind.

    Raises:
        NotFoundError: there is no such run.
    """

    def work(connection: Connection) -> dict[str, Any]:
        query = (
            select(runs, run_items.c.item, jobs.c.name.label("job_name"))
            .join(jobs, jobs.c.id == runs.c.job_id)
            .join(run_items, run_items.c.run_id == runs.c.id)
            .where(runs.c.id == run_id)
        )
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"no run is named {run_id}")
        run = dict(row._mapping)
        spec = JobCache().on(connection).spec_of_run(row.job_id, run_id)
        run |= {"model": run["model"] or spec.model, "provider": spec.provider}
        run["context"] = asdict(spec.context)
        run |= _context_of(connection, row)
        successor = select(runs.c.id).where(
            runs.c.job_id == run["job_id"], runs.c.fresh_of == run_id
        )
        run["fresh_run"] = connection.execute(successor).scalar()
        waiting = (
            select(queued_messages.c.id, queued_messages.c.text, queued_messages.c.created_at)
            .where(
                queued_messages.c.run_id == run_id, queued_messages.c.delivered_message.is_(None)
            )
            .order_by(queued_messages.c.id)
        )
        run["queued_messages"] = [dict(each) for each in connection.execute(waiting).mappings()]
        return run

    return database.read(work)


def _context_of(connection: Connection, run: Row[Any]) -> dict[str, Any]:
    progress = progress_from_row(run)
    full = progress.fullness
    counts = (
        select(compactions.c.kind, func.count())
        .where(compactions.c.run_id == run.id)
        .group_by(compactions.c.kind)
        .order_by(compactions.c.kind)
    )
    return {
        "fullness": {
            "tokens": full.tokens,
            "measured": full.measured,
            "correction": full.correction,
            "window": full.window,
        }
        if full.sent
        else None,
        "charged_cost": progress.charged_cost,
        "worked": progress.worked,
        "compactions": {row[0]: row[1] for row in connection.execute(counts)},
    }


def waiting_for_workspaces(database: Database) -> dict[str, int]:
    """How many runs wait for each workspace path that no worker sees."""
    query = (
        select(runs.c.workspace_path, func.count())
        .where(runs.c.state == "waiting", runs.c.reason == "workspace")
        .group_by(runs.c.workspace_path)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {str(path): count for path, count in rows}


def _job_summaries(
    connection: Connection, condition: ColumnElement[bool] | None = None
) -> list[JobSummary]:
    counts = [
        func.coalesce(func.sum(case((and_(IS_OF_ITEM, runs.c.state == state), 1), else_=0)), 0)
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
    afresh = _begun_afresh(connection)
    return [
        _job_summary(dict(row), afresh.get(row["id"], {}))
        for row in connection.execute(query).mappings()
    ]


def _begun_afresh(connection: Connection) -> dict[str, dict[str, int]]:
    """How many runs of each job, by state, have a successor that counts for them."""
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


_JOB_COLUMNS = ("id", "key", "name", "source", "spec_digest", "workspace_id", "created_at")


def _job_summary(row: dict[str, Any], afresh: Mapping[str, int]) -> JobSummary:
    by_state = {state: int(row.pop(f"in_{state}")) - afresh.get(state, 0) for state in STATES}
    counters = {name: int(row.pop(name)) for name in _COUNTERS}
    summary = row | {
        "state": job_state(by_state),
        "runs": {state: count for state, count in by_state.items() if count},
        **counters,
    }
    return cast(JobSummary, summary)
