"""Jobs and runs: lists of them, and everything about one.

What is returned has the tables' column names, and ``id`` and ``state`` where a table has none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row, Select, case, exists, func, or_, select

from runner.core.agents import place_of, tree_order
from runner.core.conversation import Usage
from runner.core.run import ENDED, STATES, RunStatus
from runner.queries.names import LAST, Kind
from runner.queries.outcomes import UNKNOWN_TOKENS, Descendants, descendants_by_run
from runner.store import tables
from runner.store.conditions import IS_ITEM_RUN, ROOT_RUN, in_trees
from runner.store.database import Database, reads
from runner.store.tables import (
    blocks,
    compactions,
    day_cap,
    job_budgets,
    job_events,
    job_pauses,
    jobs,
    model_calls,
    permission_rules,
    runs,
    sessions,
)

# A job in numbers: its columns, its budget (None without one), its ``state``, its ``pause`` by Runner
# (None: it has none), how many ``runs`` of items are in each state, and the counters of all runs, of
# sub-agents, too. A run that was started afresh counts as its successor in ``state`` and ``runs``.
JobSummary: TypeAlias = dict[str, Any]
# A run in one line: its columns, its ``Place``, ``below`` (how many runs of sub-agents are below it),
# the ``tree_turns``, ``tree_tokens`` and ``tree_denials`` of all of these together, ``fresh_run``,
# which it was started afresh as, and of an imported session its ``title`` and ``session_id``.
RunSummary: TypeAlias = dict[str, Any]

_COUNTERS = (
    *("turns", "denials", "input_tokens", "cache_read_tokens", "cache_creation_tokens"),
    *("output_tokens", "charged_tokens"),
)
_JOB_COLUMNS = ("id", "key", "name", "source", "spec_digest", "workspace_id", "created_at")
_PAUSE_COLUMNS = ("reason", "detail", "at", "pending")
_RUN_COLUMNS = (
    *("id", "job_id", "item_key", "state", "reason", "detail", "created_at", "started_at"),
    *("ended_at", "due_at", "worker_id", "pause_requested", *_COUNTERS, "fresh_of", "agent_type"),
    *("max_turns", "token_ceiling", "cost_ceiling_usd"),
)
_BUDGET_COLUMNS = (
    *("budget_usd", "budget_tokens", "spent_tokens", "spent_cost"),
    *("reserved_tokens", "reserved_cost"),
)
# A job is in the first of these states that any of its runs is in.
_JOB_STATE_ORDER: tuple[RunStatus, ...] = (
    *("running", "queued", "waiting", "failed", "cancelled", "stopped", "succeeded"),
)


def job_state(counts: Mapping[RunStatus, int]) -> RunStatus:
    """Return a job's state from the number of its runs in each state: ``running`` if any run is,
    else ``queued`` if any is, else ``waiting``, else the worst end: failed, cancelled, stopped,
    succeeded."""
    return next((state for state in _JOB_STATE_ORDER if counts.get(state)), "succeeded")


def list_jobs(
    database: Database, state: RunStatus | None = None, among: Collection[str] | None = None
) -> list[JobSummary]:
    """All jobs, or those in a state or ``among`` some ids; the oldest first."""
    found = database.read(lambda connection: _job_summaries(connection, among))
    return [job for job in found if state in (None, job["state"])]


def newest_jobs(database: Database, before: str | None, limit: int) -> list[str]:
    """The ids of the newest jobs, or of the newest ``before`` another one."""
    query = select(jobs.c.id).order_by(jobs.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(jobs.c.id < before)
    return [row.id for row in database.rows(query)]


def with_own_last(database: Database, name: str, kinds: Sequence[Kind]) -> str:
    """Return a name of one of ``kinds``, with the id of the newest job that was not imported in place of
    ``last`` if a newer one was imported."""
    head, slash, item = name.partition("/")
    if head != LAST or not {"job", "run"}.intersection(kinds):
        return name
    event = job_events.c
    imported = exists().where(event.job_id == jobs.c.id, event.type == "imported")
    query = select(jobs.c.id).where(~imported).order_by(jobs.c.id.desc()).limit(1)
    own = [row.id for row in database.rows(query)]
    return f"{own[0]}{slash}{item}" if own and own != newest_jobs(database, None, 1) else name


def item_runs(
    database: Database,
    job_id: str,
    state: RunStatus | None = None,
    *,
    whole_trees: bool = False,
    after: str = "",
    limit: int,
) -> list[str]:
    """The ids of the first runs of items that ``list_runs`` lists after one: ``limit`` of them at most.
    With ``whole_trees`` those with a run in their tree that is in the ``state``."""
    root = ROOT_RUN if whole_trees else runs.c.id
    query = select(root).where(runs.c.job_id == job_id, root > after).order_by(root).limit(limit)
    query = query.distinct() if whole_trees else query.where(IS_ITEM_RUN)
    if state is not None:
        query = query.where(runs.c.state == state)
    return [str(run_id) for (run_id,) in database.rows(query)]


@reads
def list_runs(
    connection: Connection,
    job_id: str,
    state: RunStatus | None = None,
    *,
    whole_trees: bool = False,
    among: Sequence[str] | None = None,
) -> list[RunSummary]:
    """The runs of a job, or those in a state, in the order of its items; with ``whole_trees`` also the
    runs of sub-agents, each after its parent. ``among``: only of the trees of these runs of items."""
    columns = (*(runs.c[name] for name in _RUN_COLUMNS), UNKNOWN_TOKENS.label("unknown_tokens"))
    of_session = sessions.c.title, sessions.c.session_id  # None unless it was imported
    afresh = select(runs.c.fresh_of, runs.c.id)
    if among is None:
        of_trees = runs.c.job_id == job_id
        afresh = afresh.where(of_trees, runs.c.fresh_of.is_not(None))
    else:  # without the job: SQLite would look through all of its runs
        of_trees, afresh = in_trees(among), afresh.where(runs.c.fresh_of.in_(among))
    query = select(*columns, *of_session).outerjoin(sessions, sessions.c.run_id == runs.c.id)
    query = query.where(of_trees).order_by(runs.c.id)
    if not whole_trees:
        query = query.where(IS_ITEM_RUN)
    if state is not None:
        query = query.where(runs.c.state == state)
    successors: dict[str, str] = dict(connection.execute(afresh).all())
    below = descendants_by_run(connection, of_trees)
    found = []
    for row in connection.execute(query).mappings():
        tree = below.get(row["id"], Descendants())
        sums = {
            "below": tree.runs,
            "tree_turns": row["turns"] + tree.turns,
            "tree_tokens": row["charged_tokens"] + tree.tokens,
            "tree_unknown_tokens": row["unknown_tokens"] + tree.unknown,
            "tree_denials": row["denials"] + tree.denials,
            "fresh_run": successors.get(row["id"]),
        }
        found.append({**row, **place_of(row["id"]), **sums})
    return sorted(found, key=lambda run: tree_order(run["id"])) if whole_trees else found


def columns_of_runs(database: Database, job_id: str) -> list[str]:
    """Return ``verified`` if a job's runs are, and ``below`` if any has runs below it."""
    below = select(runs.c.id).where(runs.c.job_id == job_id, ~IS_ITEM_RUN).limit(1)
    ((spec,),) = database.rows(select(jobs.c.spec).where(jobs.c.id == job_id))
    found = {"verified": spec.get("verify"), "below": database.rows(below)}
    return [name for name, has in found.items() if has]


def current_runs(found: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs that were not started afresh: their successors stand for the others."""
    return [run for run in found if run["fresh_run"] is None]


def last_texts(
    database: Database, job_id: str, among: Sequence[str] | None = None
) -> dict[str, str]:
    """The last text that the model wrote, by run: for runs of a job's items, or for the runs ``among``."""
    last = (
        select(blocks.c.content)
        .where(blocks.c.run_id == runs.c.id, blocks.c.role == "assistant", blocks.c.type == "text")
        .order_by(blocks.c.message.desc(), blocks.c.position.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(runs.c.id, last.label("content"))
    if among is None:
        found = database.rows(query.where(runs.c.job_id == job_id, IS_ITEM_RUN))
    else:
        found = database.rows_in(query, runs.c.id, among)
    return {row.id: row.content["text"] for row in found if row.content}


@dataclass(frozen=True, slots=True)
class PrunedTurns:
    """Turns that the model is no longer sent, because no summary could replace them."""

    runs: int  # how many runs have such turns
    why: str | None  # error of their newest call for a summary; None if none failed


def pruned_turns(database: Database, job_id: str, run_id: str | None = None) -> PrunedTurns:
    pruned = (
        select(compactions.c.run_id)
        .join(runs, runs.c.id == compactions.c.run_id)
        .where(runs.c.job_id == job_id, compactions.c.kind == "prune")
    )
    if run_id is not None:
        pruned = pruned.where(compactions.c.run_id == run_id)
    call = model_calls.c
    failed = (
        select(call.error)
        .where(call.run_id.in_(pruned), call.purpose == "summary", call.error.is_not(None))
        .order_by(call.started_at.desc())
        .limit(1)
    )
    why = next((row.error for row in database.rows(failed)), None)
    return PrunedTurns(len(database.rows(pruned.distinct())), why)


def job_of(database: Database, run_id: str) -> str:
    """The job of a run that exists."""
    ((job_id,),) = database.rows(select(runs.c.job_id).where(runs.c.id == run_id))
    return str(job_id)


def times_of(database: Database, job_ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the current ``finish_by``, its text and the ``spec`` of jobs, by id."""
    query = select(jobs.c.id, jobs.c.finish_by, jobs.c.finish_by_text, jobs.c.spec)
    return {row.id: row for row in database.rows_in(query, jobs.c.id, job_ids)}


def that_may_wait(database: Database, job_ids: Collection[str]) -> list[str]:
    """Return the jobs whose items may wait before they begin: for a budget, a time or the cap of a day."""
    has_budget = exists().where(job_budgets.c.job_id == jobs.c.id)
    is_limited = has_budget | exists().where(day_cap.c.usd.is_not(None))
    query = select(jobs.c.id, jobs.c.finish_by, jobs.c.spec, is_limited.label("is_limited"))
    return [
        row.id
        for row in database.rows_in(query, jobs.c.id, job_ids)
        if row.is_limited
        or row.finish_by is not None
        or (row.spec.get("times") or {}).get("window")
    ]


def first_waits(database: Database, job_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each job, state (queued or waiting) and reason of its runs, with the time at which
    the first of them is due, and the detail of one."""
    group = (runs.c.job_id, runs.c.state, runs.c.reason)
    of_runs = func.min(runs.c.due_at).label("due_at"), func.min(runs.c.detail).label("detail")
    query = select(*group, *of_runs).group_by(*group)
    query = query.where(runs.c.state.in_(("queued", "waiting")))
    return [dict(row._mapping) for row in database.rows_in(query, runs.c.job_id, job_ids)]


def pruned_jobs(database: Database) -> list[dict[str, Any]]:
    """The rows of the jobs that were pruned, the last one last."""
    query = select(tables.pruned_jobs).order_by("pruned_at", "job_id")
    return database.dicts(query)


def runs_without_workspace(database: Database) -> dict[str, int]:
    """Return the number of runs that wait for each workspace path that no worker sees."""
    path, waits = runs.c.workspace_path, (runs.c.state == "waiting", runs.c.reason == "workspace")
    query = select(path, func.count()).where(*waits).group_by(path)
    return {str(path): count for path, count in database.rows(query)}


def needed_providers(database: Database) -> set[str]:
    """Return the providers of the jobs with a run that has not ended."""
    provider = jobs.c.spec["provider"].as_string()
    query = select(provider).distinct().join(runs).where(runs.c.state.not_in(ENDED))
    return {row[0] for row in database.rows(query)}


@reads
def show_job(connection: Connection, job_id: str) -> dict[str, Any]:
    """Return a job's row, its summary, the rules that hold for all of its runs now, and its budget
    with spent and reserved amounts (None without a budget)."""
    (summary,) = _job_summaries(connection, [job_id])
    finish_by = jobs.c.finish_by, jobs.c.finish_by_text
    columns = select(jobs.c.spec, jobs.c.spec_text, *finish_by).where(jobs.c.id == job_id)
    rule = permission_rules.c
    rules = (
        select(rule.effect, rule.rule, rule.origin)
        .where(rule.job_id == job_id, rule.run_id.is_(None), rule.revoked_in.is_(None))
        .order_by(rule.position)
    )
    return {
        **summary,
        **connection.execute(columns).mappings().one(),
        "permission_rules": [dict(row) for row in connection.execute(rules).mappings()],
    }


def has_key(database: Database, key: str) -> bool:
    """True if a job was submitted with a key."""
    return bool(database.rows(select(jobs.c.id).where(jobs.c.key == key)))


def item_keys(database: Database, job_id: str) -> set[str]:
    query = select(runs.c.item_key).where(runs.c.job_id == job_id, IS_ITEM_RUN).distinct()
    return {row.item_key for row in database.rows(query)}


def _job_summaries(connection: Connection, among: Collection[str] | None) -> list[JobSummary]:
    of_jobs = () if among is None else (jobs.c.id.in_(among),)
    of_pause = (job_pauses.c[name].label(f"pause_{name}") for name in _PAUSE_COLUMNS)
    of_budget = (job_budgets.c[name] for name in _BUDGET_COLUMNS)
    listed = select(*(jobs.c[name] for name in _JOB_COLUMNS), *of_pause, *of_budget)
    listed = listed.outerjoin(job_pauses, job_pauses.c.job_id == jobs.c.id)
    listed = listed.outerjoin(job_budgets, job_budgets.c.job_id == jobs.c.id)
    listed = listed.where(*of_jobs).order_by(jobs.c.id)
    of_items = func.count(case((IS_ITEM_RUN, 1)))
    sums = (func.sum(runs.c[name]) for name in _COUNTERS)
    summed = select(runs.c.job_id, runs.c.state, of_items, *sums)
    newer = runs.alias()
    superseded = select(runs.c.job_id, runs.c.state, func.count())
    superseded = superseded.join_from(newer, runs, newer.c.fresh_of == runs.c.id)

    counts: defaultdict[str, Counter[RunStatus]] = defaultdict(Counter)
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    queries: tuple[tuple[Select[Any], int], ...] = ((summed, 1), (superseded, -1))
    for query, sign in queries:
        if among is not None:
            query = query.where(runs.c.job_id.in_(among))
        grouped = query.group_by(runs.c.job_id, runs.c.state)
        for job, state, count, *numbers in connection.execute(grouped):
            counts[job][state] += sign * count
            totals[job].update(dict(zip(_COUNTERS, map(int, numbers), strict=False)))
    found = []
    for row in connection.execute(listed).mappings():
        by_state, total = counts[row["id"]], totals[row["id"]]
        some = {state: by_state[state] for state in STATES if by_state[state]}
        counters = {name: total[name] for name in _COUNTERS}
        known = sum(total[kind] for kind in Usage.__slots__)
        counters["unknown_tokens"] = total["charged_tokens"] - known
        values = dict(row)
        pause = {name: values.pop(f"pause_{name}") for name in _PAUSE_COLUMNS}
        is_paused = pause["reason"] is not None and not some.keys() <= ENDED
        told = {"state": job_state(by_state), "runs": some, "pause": pause if is_paused else None}
        found.append({**values, **told, **counters})
    return found


# --- Forecasts ---


def begun_trees(database: Database, job_ids: Sequence[str]) -> list[Row[Any]]:
    """Return a row for each run of an item that has begun, or has ended before it began (``started_at`` is
    None): its job, its own ``state``, ``reason`` and times, and the ``tokens`` of its tree."""
    own = ("state", "reason", "started_at", "ended_at")
    query = (
        select(
            *(runs.c.job_id, ROOT_RUN.label("id")),
            *(func.max(case((IS_ITEM_RUN, runs.c[name]))).label(name) for name in own),
            func.sum(runs.c.charged_tokens).label("tokens"),
        )
        .where(or_(runs.c.started_at.is_not(None), runs.c.ended_at.is_not(None)))
        .group_by(runs.c.job_id, ROOT_RUN)
    )
    return database.rows_in(query.order_by(ROOT_RUN), runs.c.job_id, job_ids)


def superseded(database: Database, job_ids: Sequence[str]) -> set[str]:
    """Return the runs that fresh runs have replaced."""
    query = select(runs.c.fresh_of).where(runs.c.fresh_of.is_not(None))
    return {str(row.fresh_of) for row in database.rows_in(query, runs.c.job_id, job_ids)}
