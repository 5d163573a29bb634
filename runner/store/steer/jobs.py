"""Submitting a job: its rows, its runs and their first messages, in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from runner.core.author import UNKNOWN, Author
from runner.core.conversation import Message
from runner.core.journal.events import INPUT_SUMMARY_LENGTH, Event, signed_event
from runner.core.journal.fold import opening
from runner.core.spec import JobSpec, NewRun, Submission
from runner.core.text.plain import shorten
from runner.errors import UsageError
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.job import warming
from runner.store.job.rules import insert_rules
from runner.store.rows.progress import progress_to_json
from runner.store.steer.job_events import add_job_events
from runner.store.tables import blocks, events, jobs, purses, run_items, runs

# The name and the source of the job that imported sessions of Claude Code's are runs of.
SESSIONS = "claude-code"


def submit(
    database: Database,
    submission: Submission,
    now: float,
    key: str | None = None,
    workspace_id: str | None = None,
    author: Author = UNKNOWN,
) -> str:
    """Store a job and its runs, all of them queued, and due at once or (where they share much) once
    the first has sent what they share.

    Args:
        now: seconds since the epoch.
        key: names the job for its caller; a second submit with the same key stores nothing.
        workspace_id: what is written in the root of the job's workspace, if it has one.
        author: who submits it, for the record and as its rules name them.

    Returns:
        The job's id; the first job's when the key was taken.

    Raises:
        UsageError: a text that no database can hold. UnreachableError: the database does not answer.
    """
    _refuse_unstorable(submission, key)
    return database.write(
        lambda connection: _submit(connection, submission, now, key, workspace_id, author)
    )


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The rows of a run that has only been submitted: itself, its item, its prompt and its first
    event."""

    run: dict[str, Any]
    item: dict[str, Any]
    block: dict[str, Any]
    event: dict[str, Any]


def spec_to_go_on(connection: Connection, job_id: str) -> JobSpec:
    """The spec of a job whose runs are to go on, or to begin anew.

    Raises:
        UsageError: they are sessions of Claude Code's, which do that there.
    """
    query = select(jobs.c.spec, jobs.c.name, jobs.c.source).where(jobs.c.id == job_id)
    job = connection.execute(query).one()
    if (job.name, job.source) == (SESSIONS, SESSIONS):
        raise UsageError(
            f"the runs of {job_id} are sessions that were imported from Claude Code: their tools and "
            "system prompt are not here, so they go on there (`claude --resume`)"
        )
    return JobSpec.from_json(job.spec)


def open_run(
    job_id: str,
    new: NewRun,
    spec: JobSpec,
    workspace_id: str | None,
    now: float,
    author: Author,
    *,
    warms: bool = False,
    run_id: str | None = None,
    told: Mapping[str, Any] | None = None,
) -> OpenedRun:
    """A run that is queued and due, as rows.

    Args:
        warms: its siblings wait for its first reply.
        run_id: its id; None: a new one.
        told: what else its first event tells.
    """
    (message,), progress = opening(spec, new.prompt, warms=warms)
    run_id = run_id or ids.new("run", now)
    workspace, limits = spec.workspace, spec.limits
    run = {
        "id": run_id,
        "job_id": job_id,
        "item_key": new.key,
        "fresh_of": None,
        "state": "queued",
        "reason": "",
        "created_at": now,
        "due_at": now,
        "max_turns": limits.max_turns,
        "token_ceiling": limits.token_ceiling,
        "cost_ceiling_usd": limits.cost_ceiling_usd,
        "working_time": limits.working_time,
        # With a remote no folder has to be seen: every host has one of its own.
        "workspace_path": workspace.path if workspace and workspace.remote is None else None,
        "workspace_id": workspace_id,
        "message_count": 1,
        "event_count": 1,
        "progress": progress_to_json(progress),
    }
    (block,) = block_rows(run_id, 0, message, now)
    message_of_commit = new.commit_message or None
    item = {"run_id": run_id, "item": new.item, "commit_message": message_of_commit}
    named = {"job_id": job_id, "item_key": shorten(new.key, INPUT_SUMMARY_LENGTH)}
    event = signed_event("run_submitted", author, named | dict(told or {}))
    return OpenedRun(run, item, block, _first_event(run_id, event, now))


def block_rows(run_id: str, number: int, message: Message, now: float) -> list[dict[str, Any]]:
    """The blocks of a message that a run begins with; ``number`` is the message's."""
    return [
        {
            "run_id": run_id,
            "message": number,
            "position": position,
            "role": message.role,
            "type": block["type"],
            "turn": 0,
            "content": block,
            "created_at": now,
        }
        for position, block in enumerate(message.blocks)
    ]


def _first_event(run_id: str, event: Event, now: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "number": 1,
        "at": now,
        "attempt": 0,
        "type": event.type,
        "data": event.data,
    }


def insert_runs(connection: Connection, opened: Sequence[OpenedRun]) -> None:
    """Store runs that begin."""
    if opened:
        connection.execute(insert(runs), [each.run for each in opened])
        connection.execute(insert(run_items), [each.item for each in opened])
        connection.execute(insert(blocks), [each.block for each in opened])
        connection.execute(insert(events), [each.event for each in opened])


def _submit(
    connection: Connection,
    submission: Submission,
    now: float,
    key: str | None,
    workspace_id: str | None,
    author: Author,
) -> str:
    job_id = ids.new("job", now)
    if not _insert_job(connection, job_id, submission, now, key, workspace_id):
        first: str = connection.execute(select(jobs.c.id).where(jobs.c.key == key)).scalar_one()
        return first
    spec = submission.spec
    add_job_events(connection, job_id, [_submitted(submission, key, author)], now)
    insert_rules(connection, job_id, spec.rules, author, now)
    if spec.budget.is_set:
        budget = {"budget_usd": spec.budget.usd, "budget_tokens": spec.budget.tokens}
        connection.execute(insert(purses).values(job_id=job_id, **budget))
    warms = warming.is_worth_it(submission)
    opened = [
        open_run(job_id, new, spec, workspace_id, now, author, warms=warms and number == 0)
        for number, new in enumerate(submission.runs)
    ]
    if warms:
        for sibling in opened[1:]:
            sibling.run.update(reason=warming.WARMING, due_at=now + warming.MOST_SECONDS)
    insert_runs(connection, opened)
    return job_id


def _submitted(submission: Submission, key: str | None, author: Author) -> Event:
    """A job's first event."""
    spec, limit = submission.spec, INPUT_SUMMARY_LENGTH
    new = {
        "name": shorten(spec.name, limit),
        "key": None if key is None else shorten(key, limit),
        "source": shorten(submission.source, limit),
        "runs": len(submission.runs),
        "rules": len(spec.rules),
        "budget_usd": spec.budget.usd,
        "budget_tokens": spec.budget.tokens,
    }
    return signed_event("submitted", author, new=new)


def _insert_job(
    connection: Connection,
    job_id: str,
    submission: Submission,
    now: float,
    key: str | None,
    workspace_id: str | None,
) -> bool:
    """False when another job has the key. Waits for one that is being submitted with it."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
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
    }
    statement = (
        dialect.insert(jobs).on_conflict_do_nothing(index_elements=["key"]).returning(jobs.c.id)
    )
    return connection.execute(statement, row).first() is not None


def _refuse_unstorable(submission: Submission, key: str | None) -> None:
    """Postgres holds no NUL in a text, and no database holds half a surrogate pair."""
    texts = {"the key": key or "", "the job's name": submission.spec.name}
    texts |= {f"the rule {rule.text!r}": rule.text + rule.why for rule in submission.spec.rules}
    texts |= {f"the item key {run.key!r}": run.key for run in submission.runs}
    for what, text in texts.items():
        if not is_storable(text):
            raise UsageError(f"{what} has a character that cannot be stored: leave it out")


def is_storable(text: str) -> bool:
    """Whether both databases can hold a text as it is."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
