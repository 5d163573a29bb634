"""Submitting a job: its rows, its runs and their first messages, in one transaction."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from runner.core.conversation import content_bytes
from runner.core.events import INPUT_SUMMARY_LENGTH, shorten
from runner.core.journal import Progress, text_block
from runner.core.spec import JobSpec, NewRun, Submission
from runner.errors import UsageError
from runner.store import ids
from runner.store.database import Database
from runner.store.journal import progress_to_json
from runner.store.tables import blocks, events, jobs, permission_rules, runs


def submit(database: Database, submission: Submission, now: float, key: str | None = None) -> str:
    """Store a job and its runs, all of them queued and due at once.

    Args:
        now: seconds since the epoch.
        key: names the job for its caller; a second submit with the same key stores nothing.

    Returns:
        The job's id; the first job's when the key was taken.

    Raises:
        UsageError: a text that no database can hold. UnreachableError: the database does not answer.
    """
    _refuse_unstorable(submission, key)
    return database.write(lambda connection: _submit(connection, submission, now, key))


def shared_bytes(spec: JobSpec) -> int:
    """UTF-8 bytes of what every model call of a job sends beside the messages: with the bytes of
    the first message, an upper bound of the first call's tokens."""
    tools = json.dumps([tool.definition() for tool in spec.tools], ensure_ascii=False)
    return len((tools + (spec.system or "")).encode("utf-8", "surrogatepass"))


def new_run(
    job_id: str, item_key: str, item: Any, spec: JobSpec, first_bytes: int, now: float
) -> dict[str, Any]:
    """The row of a run that has only been submitted: it has a first message and a first event.

    Args:
        first_bytes: bounds the tokens of its first model call.
    """
    return {
        "id": ids.new("run", now),
        "job_id": job_id,
        "item_key": item_key,
        "item": item,
        "state": "queued",
        "created_at": now,
        "due_at": now,
        "max_turns": spec.limits.max_turns,
        "token_ceiling": spec.limits.token_ceiling,
        "message_count": 1,
        "event_count": 1,
        "progress": progress_to_json(Progress(appended_bytes=first_bytes)),
    }


def first_block(run_id: str, content: dict[str, Any], now: float) -> dict[str, Any]:
    """The row of a run's prompt."""
    return {
        "run_id": run_id,
        "message": 0,
        "position": 0,
        "role": "user",
        "type": content["type"],
        "turn": 0,
        "content": content,
        "created_at": now,
    }


def first_event(run: dict[str, Any], now: float) -> dict[str, Any]:
    """The row of a run's first event."""
    return {
        "run_id": run["id"],
        "number": 1,
        "at": now,
        "attempt": 0,
        "type": "run_submitted",
        "data": {
            "job_id": run["job_id"],
            "item_key": shorten(run["item_key"], INPUT_SUMMARY_LENGTH),
        },
    }


def _submit(connection: Connection, submission: Submission, now: float, key: str | None) -> str:
    job_id = ids.new("job", now)
    if not _insert_job(connection, job_id, submission, now, key):
        first: str = connection.execute(select(jobs.c.id).where(jobs.c.key == key)).scalar_one()
        return first
    spec = submission.spec
    rules = [
        {"job_id": job_id, "position": position, "effect": rule.effect, "rule": rule.text}
        for position, rule in enumerate(spec.rules)
    ]
    if rules:
        connection.execute(insert(permission_rules), rules)
    _insert_runs(connection, job_id, spec, submission.runs, now)
    return job_id


def _insert_job(
    connection: Connection, job_id: str, submission: Submission, now: float, key: str | None
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
        "created_at": now,
    }
    statement = (
        dialect.insert(jobs).on_conflict_do_nothing(index_elements=["key"]).returning(jobs.c.id)
    )
    return connection.execute(statement, row).first() is not None


def _insert_runs(
    connection: Connection, job_id: str, spec: JobSpec, new_runs: tuple[NewRun, ...], now: float
) -> None:
    shared = shared_bytes(spec)
    prompts = [text_block(run.prompt) for run in new_runs]
    rows = [
        new_run(job_id, run.key, run.item, spec, shared + content_bytes(prompt), now)
        for run, prompt in zip(new_runs, prompts, strict=True)
    ]
    if not rows:
        return
    connection.execute(insert(runs), rows)
    connection.execute(
        insert(blocks),
        [first_block(row["id"], prompt, now) for row, prompt in zip(rows, prompts, strict=True)],
    )
    connection.execute(insert(events), [first_event(row, now) for row in rows])


def _refuse_unstorable(submission: Submission, key: str | None) -> None:
    """Postgres holds no NUL in a text, and no database holds half a surrogate pair."""
    texts = {"the key": key or "", "the job's name": submission.spec.name}
    texts |= {f"the item key {run.key!r}": run.key for run in submission.runs}
    for what, text in texts.items():
        if not is_storable(text):
            raise UsageError(f"{what} has a character that cannot be stored: leave it out")


def is_storable(text: str) -> bool:
    """Whether both databases can hold a text as it is."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
