"""Jobs and runs: lists, details, sub-agents, results and verifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, cast

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, func, literal, select

from runner.core.agents import Place, lineage, place_of, tree_order
from runner.core.run import ENDED, STATES, RunStatus
from runner.core.text import visible
from runner.core.workspace import RESULT_TOOL
from runner.errors import NotFoundError
from runner.store import ids
from runner.store.conditions import IS_ITEM_RUN, IS_OWN_CALL, ROOT_RUN, in_tree
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
    tool_calls,
    verifications,
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


_COMPUTED = frozenset(
    {"fresh_run", "below", "tree_turns", "tree_tokens", "tree_denials", *Place.__annotations__}
)
_SUMMARY_COLUMNS = tuple(name for name in RunSummary.__annotations__ if name not in _COMPUTED)


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
        query = query.where(IS_ITEM_RUN)
    if state is not None:
        query = query.where(runs.c.state == state)
    afresh = select(runs.c.fresh_of, runs.c.id).where(
        runs.c.job_id == job_id, runs.c.fresh_of.is_not(None)
    )

    def work(connection: Connection) -> list[RunSummary]:
        successors = {row.fresh_of: row.id for row in connection.execute(afresh)}
        under = descendants_by_run(connection, runs.c.job_id == job_id, of_children=whole_trees)
        found = [
            _run_summary(dict(row), successors, under.get(row["id"], Descendants()))
            for row in connection.execute(query).mappings()
        ]
        return sorted(found, key=lambda run: tree_order(run["id"])) if whole_trees else found

    return database.read(work)


def _run_summary(
    row: dict[str, Any], successors: Mapping[str, str], under: Descendants
) -> RunSummary:
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
    query = select(runs.c.id, last.label("content")).where(runs.c.job_id == job_id, IS_ITEM_RUN)
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


def runs_without_workspace(database: Database) -> dict[str, int]:
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


_CHILD_COLUMNS = (
    *("id", "agent_type", "state", "reason", "detail", "turns", "denials", "charged_tokens"),
    *("created_at", "started_at", "ended_at"),
)


_DESCENDANT_SUMS = (
    func.count(),
    *(func.coalesce(func.sum(runs.c[name]), 0) for name in ("turns", "charged_tokens", "denials")),
)


@dataclass(frozen=True, slots=True)
class Descendants:
    """All runs below one, in numbers."""

    runs: int = 0
    turns: int = 0
    tokens: int = 0
    denials: int = 0

    def __add__(self, other: Descendants) -> Descendants:
        return Descendants(
            self.runs + other.runs,
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.denials + other.denials,
        )


def children_of(database: Database, run_id: str) -> list[ChildSummary]:
    """The runs that a run has started itself, in their order."""
    query = (
        select(
            *(runs.c[name] for name in _CHILD_COLUMNS),
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


def has_ended(database: Database, run_id: str, *, whole_tree: bool = False) -> bool:
    """Whether a run has ended, and with ``whole_tree`` all below it, too."""
    condition = in_tree(run_id) if whole_tree else runs.c.id == run_id
    query = select(runs.c.id).where(condition, runs.c.state.not_in(ENDED)).limit(1)
    return database.read(lambda connection: connection.execute(query).first()) is None


def descendants_of(database: Database, run_id: str) -> Descendants:
    """What is below one run."""
    root = lineage(run_id)[0]
    is_below = runs.c.id.startswith(f"{run_id}.", autoescape=True)
    query = select(*_DESCENDANT_SUMS).where(runs.c.root_run == root, is_below)
    return Descendants(*database.read(lambda connection: connection.execute(query).one()))


def descendants_by_run(
    connection: Connection, condition: ColumnElement[bool], *, of_children: bool
) -> dict[str, Descendants]:
    """What is below each run that has anything below it, by its id.

    Args:
        condition: on ``runs``: of which trees.
        of_children: also of those that are not of items.
    """
    if not of_children:
        query = (
            select(ROOT_RUN, *_DESCENDANT_SUMS).where(condition, ~IS_ITEM_RUN).group_by(ROOT_RUN)
        )
        return {row[0]: Descendants(*row[1:]) for row in connection.execute(query)}
    columns = (runs.c.turns, runs.c.charged_tokens, runs.c.denials)
    each = select(runs.c.id, literal(1), *columns).where(condition, ~IS_ITEM_RUN)
    found: dict[str, Descendants] = {}
    for run_id, *numbers in connection.execute(each):
        for above in lineage(run_id)[:-1]:
            found[above] = found.get(above, Descendants()) + Descendants(*numbers)
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
    child = {name: getattr(row, name) for name in _CHILD_COLUMNS}
    more = {"description": description, "call_id": call}
    return cast(ChildSummary, {**place_of(row.id), **child, **more})


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run with the result that it submitted last, None when it has submitted none."""

    run_id: str
    item_key: str
    state: RunStatus
    reason: str
    fork_of: str | None
    result: dict[str, Any] | None


def results_of_job(database: Database, job_id: str) -> list[RunResult]:
    """The results of the runs of a job's items in their order; runs that were begun afresh are left out,
    as in ``queries.current_runs``."""
    afresh = select(runs.c.fresh_of).where(runs.c.job_id == job_id, runs.c.fresh_of.is_not(None))
    query = (
        select(runs.c.id, runs.c.item_key, runs.c.state, runs.c.reason, runs.c.fork_of)
        .where(runs.c.job_id == job_id, runs.c.id.not_in(afresh), IS_ITEM_RUN)
        .order_by(runs.c.id)
    )
    found = database.read(lambda connection: connection.execute(query).all())
    submitted = _submitted(database, and_(runs.c.job_id == job_id, IS_ITEM_RUN))
    return [
        RunResult(
            run_id=row.id,
            item_key=row.item_key,
            state=row.state,
            reason=row.reason,
            fork_of=row.fork_of,
            result=submitted.get(row.id),
        )
        for row in found
    ]


def result_of_run(database: Database, run_id: str) -> dict[str, Any] | None:
    """The result that a run submitted last, None when it has submitted none."""
    return _submitted(database, runs.c.id == run_id).get(run_id)


def _submitted(database: Database, condition: ColumnElement[bool]) -> dict[str, Any]:
    """By run, the input of the last call of the result tool that was taken."""
    reply = and_(
        blocks.c.run_id == tool_calls.c.run_id,
        blocks.c.message == tool_calls.c.message,
        blocks.c.type == "tool_use",
    )
    query = (
        select(tool_calls.c.run_id, tool_calls.c.tool_use_id, blocks.c.content)
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .join(blocks, reply)
        .where(condition, IS_OWN_CALL, tool_calls.c.name == RESULT_TOOL)
        .where(tool_calls.c.outcome == "succeeded")
        .order_by(tool_calls.c.run_id, tool_calls.c.message, tool_calls.c.position)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {
        row.run_id: row.content["input"]
        for row in rows
        if visible(row.content["id"]) == row.tool_use_id
    }


class Verification(TypedDict):
    """A verification. It began after ``turn`` and has ended once it has an ``outcome``: how its last
    command did, which is ``command``; ``succeeded`` when all have passed. ``output`` is what the model
    is shown of it, ``duration`` is in seconds."""

    run_id: str
    number: int
    turn: int
    tree: str | None
    attempt: int
    started_at: float
    ended_at: float | None
    duration: float | None
    outcome: str | None
    command: str | None
    output: str | None
    size: int | None


_VERIFICATION_COLUMNS = tuple(name for name in Verification.__annotations__ if name != "output")


def verifications_of_run(database: Database, run_id: str) -> list[Verification]:
    """All verifications of a run, in order."""
    return _verifications(database, _verification_query(verifications.c.run_id == run_id))


def last_verifications(database: Database, job_id: str) -> dict[str, Verification]:
    """The newest verification of each run of a job by the run's id; runs without one are left out."""
    of_job = verifications.c.run_id.in_(select(runs.c.id).where(runs.c.job_id == job_id))
    return {each["run_id"]: each for each in _verifications(database, _verification_query(of_job))}


def _verification_query(condition: ColumnElement[bool]) -> Select[tuple[object, ...]]:
    columns = (verifications.c[name] for name in _VERIFICATION_COLUMNS)
    return (
        select(*columns, verifications.c.content.label("output"))
        .where(condition)
        .order_by(verifications.c.run_id, verifications.c.number)
    )


def _verifications(database: Database, query: Select[tuple[object, ...]]) -> list[Verification]:
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [Verification(**row) for row in rows]  # type: ignore[typeddict-item]


@dataclass(frozen=True, slots=True)
class PrunedTurns:
    """In how many runs turns were left out, and how the newest call for a summary in them failed
    (None: none was made, for want of room or money)."""

    runs: int
    why: str | None


def pruned_turns(database: Database, job_id: str, run_id: str | None = None) -> PrunedTurns:
    """Where turns were left out.

    Args:
        job_id: the job whose runs are looked at. run_id: only this one of them.
    """
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


def items_of_runs(database: Database, run_ids: Sequence[str]) -> dict[str, Any]:
    """The items of runs by the runs' ids."""
    query = select(run_items.c.run_id, run_items.c.item)
    found: dict[str, Any] = {}
    for start in range(0, len(run_ids), 500):
        some = query.where(run_items.c.run_id.in_(run_ids[start : start + 500]))
        rows = database.read(lambda connection, some=some: connection.execute(some).all())  # type: ignore[misc]
        found |= {row.run_id: row.item for row in rows}
    return found
