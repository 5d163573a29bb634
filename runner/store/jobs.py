"""Submit a job in one transaction, and cache what its runs share: the spec and the rules of each
snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection, insert, select, text, update

from runner.core.conversation import Message
from runner.core.events import INPUT_SUMMARY_LENGTH, signed_event
from runner.core.fold import context_of, opening
from runner.core.pauses import BY_PILOT
from runner.core.run import FRESH, UNKNOWN, Author
from runner.core.shares import NORMAL
from runner.core.spec import JobSpec, NewRun, Submission
from runner.core.state import ContextState
from runner.core.text import is_storable, shorten
from runner.errors import UsageError
from runner.store import budgets, ids
from runner.store.blobs import store_media
from runner.store.changes import event_rows, tell_of_job
from runner.store.database import Database, writes
from runner.store.notices import arm
from runner.store.pauses import insert_pilot
from runner.store.rules import insert_rules, lock_rules, standing_for
from runner.store.run_state import progress_to_json
from runner.store.statements import insert_many, insert_or
from runner.store.tables import blocks, events, job_budgets, job_shares, jobs, run_items, runs

# The name and the source of the job whose runs are the imported sessions of Claude Code.
SESSIONS = "claude-code"

# Rows are made, stored and dropped for this many runs at a time: with the rows of 10,000 runs in memory,
# Python's garbage collector would check them several times.
_OPENED_AT_ONCE = 500
# From this many runs on, Postgres updates its statistics at once. By the older ones the job has hardly any
# runs, and Postgres would read all of them to find the next.
_MANY = 1_000


def submit(
    database: Database,
    submission: Submission,
    now: float,
    key: str | None = None,
    workspace_id: str | None = None,
    author: Author = UNKNOWN,
) -> str:
    """Store a job and its runs, all of them queued, and due at once or (where they share much) once
    the first has sent what they share. Returns the job's id.

    Args:
        key: names the job for its caller; a second submit with the same key stores nothing, and
            returns the first job's id.
        workspace_id: what is written in the root of the job's workspace, if it has one.

    Raises:
        UsageError: a text that no database can hold.
    """
    refuse_unstorable("the key", key or "")
    check_storable(submission)
    return database.write(
        lambda connection: insert_job(connection, submission, now, key, workspace_id, author)
    )


def check_storable(submission: Submission) -> None:
    """Raise ``UsageError`` if a text of a job is one that no database can hold."""
    spec = submission.spec
    refuse_unstorable("the job's name", spec.name)
    for rule in spec.rules:
        refuse_unstorable(f"the rule {rule.text!r}", rule.text + rule.why)
    for run in submission.runs:
        refuse_unstorable(f"the item key {run.key!r}", run.key)


def insert_job(
    connection: Connection,
    submission: Submission,
    now: float,
    key: str | None,
    workspace_id: str | None,
    author: Author,
    about: Mapping[str, Any] | None = None,
) -> str:
    """``submit`` in a transaction; ``about`` is what else the job's first event tells."""
    times = submission.spec.times.at_submission(now)
    spec = replace(submission.spec, times=times)
    submission = replace(submission, spec=spec)
    job_id = ids.new("job", now)
    if not _insert_job(connection, job_id, submission, now, key, workspace_id):
        return str(connection.execute(select(jobs.c.id).where(jobs.c.key == key)).scalar_one())
    budget = {"budget_usd": spec.budget.usd, "budget_tokens": spec.budget.tokens}
    texts: dict[str, Any] = {"name": spec.name, "key": key, "source": submission.source}
    told = {name: text and shorten(text, INPUT_SUMMARY_LENGTH) for name, text in texts.items()}
    standing = standing_for(connection, spec)
    told |= {"runs": len(submission.runs), "rules": len(spec.rules), **budget}
    if standing:
        told["standing_rules"] = len(standing)
    tell_of_job(connection, job_id, now, "submitted", author, about, new=told)
    insert_rules(connection, job_id, spec.rules, author, now)
    for row, rules in standing:
        insert_rules(connection, job_id, rules, Author(row.author), row.created_at)
    insert_shares(connection, job_id, spec, workspace_id)
    arm(connection, job_id, spec.notify, now)
    if spec.budget.is_set:
        connection.execute(insert(job_budgets).values(job_id=job_id, **budget))
    if spec.pilot is not None and spec.pilot.items < len(submission.runs):
        insert_pilot(connection, job_id, spec.pilot, len(submission.runs), now)
    store_media(connection, job_id, submission.media, now)
    opened = _open_runs(job_id, submission, workspace_id, now, author)
    while lot := [*islice(opened, _OPENED_AT_ONCE)]:
        insert_runs(connection, lot)
    if len(submission.runs) >= _MANY and connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE runs (job_id, state, rank, due_at, rung_at, worker_id)"))
    return job_id


def _open_runs(
    job_id: str, submission: Submission, workspace_id: str | None, now: float, author: Author
) -> Iterator[OpenedRun]:
    """Yield the rows of a job's runs, in the order of its items."""
    spec, warms = submission.spec, budgets.is_worth_it(submission)
    shared = context_of(spec, ())
    begins, reason = spec.times.next_start(now) or (now, "")
    if spec.limits.deadline is not None:  # all that is left then is to end
        begins = min(begins, now + spec.limits.deadline)
    count = len(submission.runs)
    worked = range(count) if spec.pilot is None else spec.pilot.chosen(count)
    for number, new in enumerate(submission.runs):
        is_first = number == 0
        opened = open_run(
            job_id, new, spec, workspace_id, now, author, warms=warms and is_first, shared=shared
        )
        opened.run.update(reason=reason, due_at=begins)
        if warms and not is_first:
            due_at = begins + budgets.longest_wait(spec)
            opened.run.update(reason=reason or budgets.WARMING, due_at=due_at)
        if number not in worked:
            opened.run.update(state="waiting", reason="paused", detail=BY_PILOT, due_at=None)
        yield opened


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The rows of a run that has only been submitted."""

    run: dict[str, Any]
    items: list[dict[str, Any]]
    blocks: list[dict[str, Any]]  # the prompt
    events: list[dict[str, Any]]


def is_of_sessions(name: str, source: str) -> bool:
    """True for the name and the source of the job of imported sessions."""
    return (name, source) == (SESSIONS, SESSIONS)


def spec_to_go_on(connection: Connection, job_id: str) -> JobSpec:
    """The spec of a job whose runs should continue. Raises ``UsageError`` for imported sessions."""
    query = select(jobs.c.spec, jobs.c.name, jobs.c.source).where(jobs.c.id == job_id)
    job = connection.execute(query).one()
    if is_of_sessions(job.name, job.source):
        raise UsageError(
            f"the runs of {job_id} are sessions that were imported from Claude Code: their tools and "
            "system prompt are not here, so they go on there (`claude --resume`)"
        )
    return JobSpec.from_json(job.spec)


_RAISED = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time")  # by a person


def open_run(
    job_id: str,
    new: NewRun,
    spec: JobSpec,
    workspace_id: str | None,
    now: float,
    author: Author,
    *,
    warms: bool = False,
    shared: ContextState | None = None,
    run_id: str | None = None,
    told: Mapping[str, Any] | None = None,
) -> OpenedRun:
    """A run that is queued and due, as rows.

    Args:
        warms: its siblings wait for its first reply.
        shared: the context of the spec without messages, if it is known.
        run_id: its id; None: a new one.
        told: what else its first event tells.
    """
    (message,), progress = opening(spec, new.prompt, new.attached, shared, warms_cache=warms)
    run_id = run_id or ids.new("run", now)
    workspace = spec.workspace
    run = {
        "id": run_id,
        "job_id": job_id,
        "item_key": new.key,
        "fresh_of": None,
        "state": "queued",
        "reason": "",
        "detail": "",
        "created_at": now,
        "due_at": now,
        "rank": FRESH,
        **{name: getattr(spec.limits, name) for name in _RAISED},
        # With a remote no folder has to be seen: every host has one of its own.
        "workspace_path": workspace.path if workspace and workspace.remote is None else None,
        "workspace_id": workspace_id,
        "message_count": 1,
        "event_count": 1,
        "progress": progress_to_json(progress),
    }
    item = {"run_id": run_id, "item": new.item, "commit_message": new.commit_message or None}
    named = {"job_id": job_id, "item_key": shorten(new.key, INPUT_SUMMARY_LENGTH)}
    event = signed_event("run_submitted", author, {**named, **(told or {})})
    prompt, happened = block_rows(run_id, 0, message, now), event_rows(run_id, [event], now)
    return OpenedRun(run, [item], prompt, happened)


def block_rows(run_id: str, number: int, message: Message, now: float) -> list[dict[str, Any]]:
    """The blocks of a message that a run begins with; ``number`` is the message's."""
    named = {"run_id": run_id, "message": number, "role": message.role, "turn": 0}
    return [
        {**named, "position": position, "type": block["type"], "content": block, "created_at": now}
        for position, block in enumerate(message.blocks)
    ]


def insert_runs(connection: Connection, opened: Sequence[OpenedRun]) -> None:
    """Store runs that begin."""
    for table, rows in (
        (runs, [each.run for each in opened]),
        (run_items, [row for each in opened for row in each.items]),
        (blocks, [row for each in opened for row in each.blocks]),
        (events, [row for each in opened for row in each.events]),
    ):
        insert_many(connection, table, rows)


def _insert_job(
    connection: Connection,
    job_id: str,
    submission: Submission,
    now: float,
    key: str | None,
    workspace_id: str | None,
) -> bool:
    """False when another job has the key. Waits for one that is being submitted with it."""
    finish_by = submission.spec.times.finish_by
    row = {
        "id": job_id,
        "key": key,
        "name": submission.spec.name,
        "source": submission.source.encode("utf-8", "backslashreplace").decode(),
        "spec_text": submission.text,
        "spec_digest": hashlib.sha256(submission.text.encode()).hexdigest(),
        "spec": submission.spec.to_json(),
        "workspace_id": workspace_id,
        "created_at": now,
        "finish_by": finish_by and finish_by.at,
        "finish_by_text": finish_by and str(finish_by),
        "lane": submission.spec.lane,
    }
    unless_taken = insert_or(connection, jobs).on_conflict_do_nothing(index_elements=["key"])
    return connection.execute(unless_taken.returning(jobs.c.id), row).first() is not None


def refuse_unstorable(what: str, text: str) -> None:
    """Raise ``UsageError`` if a text has NUL or lone surrogates, which no database stores."""
    if not is_storable(text):
        raise UsageError(f"{what} has a character that cannot be stored: leave it out")


# --- Shares of the workers' slots ---


def insert_shares(
    connection: Connection, job_id: str, spec: JobSpec, workspace_id: str | None
) -> None:
    row = {"job_id": job_id, "weight": spec.priority, "max_concurrency": spec.max_concurrency}
    if spec.workspace is not None and spec.workspace.max_concurrency is not None:
        row |= {
            "workspace_id": workspace_id,
            "workspace_concurrency": spec.workspace.max_concurrency,
        }
    connection.execute(insert(job_shares).values(row))


def priority_of(database: Database, job_id: str) -> float:
    return database.read(lambda connection: _weight(connection, job_id))


@writes
def set_priority(
    connection: Connection, job_id: str, weight: float, now: float, author: Author
) -> None:
    """Change the weight of a job; its next runs are chosen by it. Raises ``NotFoundError``."""
    lock_rules(connection, job_id)
    old = _weight(connection, job_id)
    changed = update(job_shares).where(job_shares.c.job_id == job_id).values(weight=weight)
    if connection.execute(changed).rowcount == 0:  # an older job has no row
        connection.execute(insert(job_shares).values(job_id=job_id, weight=weight))
    before, after = {"priority": old}, {"priority": weight}
    tell_of_job(connection, job_id, now, "priority_changed", author, old=before, new=after)


def _weight(connection: Connection, job_id: str) -> float:
    query = select(job_shares.c.weight).where(job_shares.c.job_id == job_id)
    weight: float | None = connection.execute(query).scalar()
    return NORMAL if weight is None else weight
