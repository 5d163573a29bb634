"""Bringing sessions of Claude Code's into the database, as runs of one job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Table, insert, select, update

from runner.core.author import UNKNOWN, Author
from runner.core.journal.events import INPUT_SUMMARY_LENGTH, Event, signed_event
from runner.core.journal.view import Progress
from runner.core.spec import JobSpec
from runner.core.text.plain import shorten
from runner.errors import UsageError
from runner.exchange.sessions.happened import Happened, happened_in, what_it_tells_of
from runner.exchange.sessions.runs import SessionFile, SessionRun
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.connection.statement import Writes
from runner.store.exchange.bringing import alone
from runner.store.rows.progress import progress_to_json
from runner.store.search.catching_up import look_again
from runner.store.steer.job_events import add_job_events
from runner.store.steer.jobs import SESSIONS
from runner.store.tables import (
    blocks,
    compactions,
    events,
    jobs,
    model_calls,
    run_items,
    runs,
    tool_calls,
    tool_outputs,
)

# What a session that goes on may change of what it was; all else it can only add to.
_CHANGING = (tool_calls, model_calls, compactions)
_TABLES = (blocks, tool_calls, tool_outputs, model_calls, compactions)

What = Literal["imported", "there", "continued"]


@dataclass(frozen=True, slots=True)
class BroughtSession:
    """What became of a session, or of an agent's part of one: it was brought in, was there already, or
    was there and has gone on since."""

    run_id: str
    job_id: str
    what: What
    state: str
    project: str


def bring_in_sessions(
    database: Database, session: SessionFile, source: str, author: Author, now: float
) -> list[BroughtSession]:
    """Store the runs of a session file, in one transaction. What is there already stays; of a session
    that has gone on since, what is new is added.

    Args:
        source: what the file is called in errors.
        author: who brings it in. now: seconds since the epoch.

    Raises:
        UsageError: a session is there, and says something else; nothing was stored.
        UnreachableError: the database does not answer.
    """

    def work(connection: Connection) -> list[BroughtSession]:
        job_id = _job(connection, author, now)
        brought = []
        for run in session.runs:
            what = _store(connection, job_id, run, source)
            brought.append(BroughtSession(run.id, job_id, what, run.state, run.project))
        stored = [each.run_id for each in brought if each.what != "there"]
        if stored:
            new = {"source": shorten(source, 200), "runs": len(stored)}
            event = signed_event("imported", author, new=new)
            add_job_events(connection, job_id, [event], now)
        return brought

    with alone(source):
        return database.write(work)


def _job(connection: Connection, author: Author, now: float) -> str:
    """The id of the job that sessions are runs of, which is made for the first."""
    query = select(jobs.c.id, jobs.c.name, jobs.c.source).where(jobs.c.key == SESSIONS)
    found = connection.execute(query.with_for_update()).one_or_none()
    if found is not None:
        if (found.name, found.source) != (SESSIONS, SESSIONS):
            raise UsageError(
                f"{found.id} has the key {SESSIONS!a}, which sessions of Claude Code's are kept "
                "under: import them into another database"
            )
        return str(found.id)
    job_id = ids.new("job", now)
    row = {
        "id": job_id,
        "key": SESSIONS,
        "name": SESSIONS,
        "source": SESSIONS,
        "spec_text": "",
        "spec_digest": hashlib.sha256(b"").hexdigest(),
        "spec": JobSpec(name=SESSIONS, model=SESSIONS).to_json(),
        "created_at": now,
    }
    connection.execute(insert(jobs).values(row))
    made = signed_event("submitted", author, new={"name": SESSIONS, "runs": 0})
    add_job_events(connection, job_id, [made], now)
    return job_id


def _store(connection: Connection, job_id: str, run: SessionRun, source: str) -> What:
    query = select(runs).where(runs.c.id == run.id).with_for_update()
    there = connection.execute(query).one_or_none()
    if there is None:
        _insert_run(connection, job_id, run)
        return "imported"
    if there.job_id != job_id:
        raise UsageError(f"{source}: {run.id} is here already, as a run of {there.job_id}")
    added = sum(_add_to(connection, table, run, source) for table in _TABLES)
    if not added:
        return "there"
    query = select(events.c.type, events.c.data).where(events.c.run_id == run.id)
    told = {what_it_tells_of(Event(row.type, row.data)) for row in connection.execute(query)}
    happened = [
        Happened(run.ended_at, Event("session_continued", {"rows": added})),
        *(each for each in happened_in(run) if what_it_tells_of(each.event) not in told),
        _done(run),
    ]
    count = there.event_count + len(happened)
    row = {**_row(run), "event_count": count, "revision": there.revision + 1}
    connection.execute(update(runs).where(runs.c.id == run.id).values(row))
    look_again(connection, run.id)
    _insert_events(connection, run, there.event_count + 1, happened)
    return "continued"


def _insert_run(connection: Connection, job_id: str, run: SessionRun) -> None:
    data = {"job_id": job_id, "item_key": shorten(run.project, INPUT_SUMMARY_LENGTH)}
    submitted = Happened(run.started_at, signed_event("run_submitted", UNKNOWN, data))
    happened = [submitted, *happened_in(run), _done(run)]
    row = {
        **_row(run),
        "id": run.id,
        "job_id": job_id,
        "item_key": run.project,
        "created_at": run.started_at,
        "started_at": run.started_at,
        "attempt": 1,
        "revision": 1,
        "event_count": len(happened),
    }
    connection.execute(insert(runs).values(row))
    connection.execute(insert(run_items).values(run_id=run.id, item=run.item))
    writes = Writes()
    for table in _TABLES:
        writes.insert(table, run.rows[table.name])
    writes.run(connection)
    _insert_events(connection, run, 1, happened)


def _row(run: SessionRun) -> dict[str, Any]:
    """What of a run's row a session that goes on changes. Its limits are used up: nothing of it is
    taken up again by mistake."""
    usage, calls = run.usage, run.rows[model_calls.name]
    progress = Progress(
        turns=run.turns, usage=usage, charged_tokens=usage.total, model_calls=len(calls)
    )
    return {
        "state": run.state,
        "reason": run.reason,
        "ended_at": run.ended_at,
        "max_turns": max(run.turns, 1),
        "token_ceiling": max(usage.total, 1),
        "message_count": run.message_count,
        "turns": run.turns,
        "denials": sum(call.get("outcome") == "denied" for call in run.rows[tool_calls.name]),
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_creation_tokens": usage.cache_creation_tokens,
        "output_tokens": usage.output_tokens,
        "charged_tokens": usage.total,
        "compaction_count": len(run.rows[compactions.name]),
        "progress": progress_to_json(progress),
        "model": run.model,
    }


def _done(run: SessionRun) -> Happened:
    data = {"state": run.state, "reason": run.reason, "detail": ""}
    return Happened(run.ended_at, Event("done", data))


def _insert_events(
    connection: Connection, run: SessionRun, first: int, happened: Sequence[Happened]
) -> None:
    rows = [
        {
            "run_id": run.id,
            "number": number,
            "at": at,
            "attempt": 1,
            "type": event.type,
            "data": event.data,
        }
        for number, (at, event) in enumerate(happened, first)
    ]
    connection.execute(insert(events), rows)


def _add_to(connection: Connection, table: Table, run: SessionRun, source: str) -> int:
    """Bring a table's rows of a session up to date; how many were added or changed.

    Raises:
        UsageError: what is there is not what the session was.
    """
    key = [column.name for column in table.primary_key]
    query = select(table).where(table.c.run_id == run.id)
    there = {
        tuple(row[name] for name in key): dict(row) for row in connection.execute(query).mappings()
    }
    changed = 0
    for row in run.rows[table.name]:
        place = tuple(row[name] for name in key)
        old = there.pop(place, None)
        if old is None:
            connection.execute(insert(table).values(row))
        elif {**old, **row} == old:
            continue
        elif table in _CHANGING:
            conditions = [table.c[name] == row[name] for name in key]
            connection.execute(update(table).where(*conditions).values(row))
        else:
            raise _differs(run, source)
        changed += 1
    if there:
        raise _differs(run, source)
    return changed


def _differs(run: SessionRun, source: str) -> UsageError:
    return UsageError(
        f"{source}: {run.id} is here already and says something else: what was imported is not "
        "changed (import it into another database)"
    )
