"""Stores imported sessions of Claude Code as runs, and keeps the lines of their files.

A session is known by its id. Its lines are the record: when a file brings more of them, the rows of
its runs are made again from all lines that are kept.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from runner.core.agents import item_of, tree_order
from runner.core.conversation import Usage
from runner.core.events import INPUT_SUMMARY_LENGTH, Event, signed_event
from runner.core.prices import PriceList, Terms
from runner.core.run import UNKNOWN, Author
from runner.core.spec import JobSpec
from runner.core.state import ModelState, Money, Progress
from runner.core.text import shorten
from runner.errors import UsageError
from runner.exchange.claude_code import session_id_of
from runner.exchange.recorded import SESSION
from runner.exchange.session_lines import as_object
from runner.exchange.sessions import READER, TABLES, Files, Happened, Session, SessionRun
from runner.store import ids
from runner.store.blobs import store_bytes
from runner.store.changes import tell_of_job
from runner.store.database import Database, in_lots
from runner.store.exports import lines_of_sessions
from runner.store.imports import ImportedRun, ImportOutcome, refusing_conflicts
from runner.store.jobs import SESSIONS
from runner.store.run_state import progress_to_json
from runner.store.statements import Writes
from runner.store.tables import (
    events,
    jobs,
    metadata,
    model_calls,
    run_items,
    runs,
    session_lines,
    sessions,
)

_RUN_COLUMNS = ("state", "reason", "detail", "ended_at", "message_count", "turns", "model")
_MOST_COST = 10**15  # a million USD, in billionths: sums over many runs stay within 64 bits
_Lines = dict[str, list[bytes]]  # as ``Files``
_READ_BY = f"{READER}:"  # prefix of the digest of a session's files


@dataclass(frozen=True, slots=True)
class ImportedSession(ImportedRun):
    project: str
    warnings: tuple[str, ...] = ()


def import_session(
    database: Database,
    files: Files,
    source: str,
    author: Author,
    now: float,
    modified: float = 0.0,
    prices: PriceList | None = None,
) -> list[ImportedSession]:
    """Store the runs of a session in one transaction, charged by these prices (None: nothing). A session
    that the database has stays; lines that it lacks are added. Raises ``UnreachableError``,
    ``UnreadableLineError``, ``EmptySessionError``, and ``UsageError`` if the database has other lines of
    it; nothing was stored."""
    digest = _digest(files)
    if there := database.read(
        lambda connection: _there(connection, sessions.c.files_digest == digest)
    ):
        return there
    session = Session(files, modified)

    def work(connection: Connection) -> list[ImportedSession]:
        job_id = _sessions_job(connection, author, now)
        if own := _own_run(connection, session.id):
            return own
        new = _Import(connection, job_id, source, now, prices)
        imported = new.store(session, files, modified)
        keeper = update(sessions).where(sessions.c.run_id == imported[0].run_id)
        connection.execute(keeper.values(files_digest=digest))
        if stored := sum(each.what != "there" for each in imported):
            told = {"source": shorten(source, 200), "runs": stored}
            tell_of_job(connection, job_id, now, "imported", author, new=told)
        return imported

    with refusing_conflicts(source):
        return database.write(work)


def _digest(files: Files) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(b"\0%s\0" % name.encode("utf-8", "replace"))
        for line in files[name]:
            digest.update(line + b"\n")
    return _READ_BY + digest.hexdigest()


def _there(connection: Connection, condition: Any) -> list[ImportedSession]:
    """Return the runs of a session that is here as it is."""
    known = select(sessions.c.session_id).where(condition)
    of_session = select(sessions.c.run_id).where(sessions.c.session_id.in_(known))
    return _stored(connection, runs.c.id.in_(of_session))


def _stored(connection: Connection, condition: Any) -> list[ImportedSession]:
    query = select(runs.c.id, runs.c.job_id, runs.c.state, runs.c.item_key).where(condition)
    return [
        ImportedSession(row.id, row.job_id, "there", row.state, item_of(row.id, row.item_key))
        for row in sorted(connection.execute(query), key=lambda row: tree_order(row.id))
    ]


def _own_run(connection: Connection, session_id: str) -> list[ImportedSession]:
    """Return the run of Runner's own that a session is an export of, if it is here."""
    if session_id[14:15] != "5":  # the version of the ids that exports give
        return []
    ids = connection.scalars(select(runs.c.id).where(runs.c.parent_run.is_(None)))
    return _stored(connection, runs.c.id.in_([i for i in ids if session_id_of(i) == session_id]))


def _sessions_job(connection: Connection, author: Author, now: float) -> str:
    """Return the id of the job whose runs are the sessions; store it if there is none."""
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
        **dict.fromkeys(("key", "name", "source"), SESSIONS),
        "id": job_id,
        "created_at": now,
        "spec_text": "",
        "spec_digest": hashlib.sha256(b"").hexdigest(),
        "spec": JobSpec(name=SESSIONS, model=SESSIONS).to_json(),
    }
    connection.execute(insert(jobs).values(row))
    tell_of_job(connection, job_id, now, "submitted", author, new={"name": SESSIONS, "runs": 0})
    return job_id


# --- Lines ---


def _merged(old: list[bytes], new: list[bytes]) -> list[bytes]:
    """Return the lines of a file that are kept and those that it has now. Raises ``ValueError`` if a line
    has changed."""
    if new[: len(old)] == old:
        return new
    known, here = dict(map(_keyed, old)), dict(map(_keyed, new))
    if any(here.get(key, value) != value for key, value in known.items()):
        raise ValueError
    if known.keys() < here.keys():
        return new
    return [*old, *(line for line in new if _keyed(line)[0] not in known)]


def _keyed(line: bytes) -> tuple[str, str]:
    """Return what a line is known by, and its content however it is written."""
    value = json.loads(line)
    text = json.dumps(value)
    uuid = value.get("uuid") if isinstance(value, dict) else None
    return (uuid if isinstance(uuid, str) else text), text


# --- Rows ---


class _Import:
    def __init__(
        self, connection: Connection, job_id: str, source: str, now: float, prices: PriceList | None
    ) -> None:
        self._connection, self._job_id, self._source, self._now = connection, job_id, source, now
        self._prices = prices

    def store(self, session: Session, files: Files, modified: float) -> list[ImportedSession]:
        known, kept = self._known(session.id)
        given = {name: list(lines) for name, lines in files.items() if lines}
        try:
            merged = kept | {name: _merged(kept.get(name, []), given[name]) for name in given}
        except ValueError as error:
            raise self._refusal(known[min(known, key=str)]) from error
        is_read = sessions.c.files_digest.startswith(_READ_BY)
        read = select(sessions.c.run_id).where(sessions.c.session_id == session.id, is_read)
        if merged == kept and self._connection.scalar(read) is not None:
            return _there(self._connection, sessions.c.session_id == session.id)
        if merged != given:
            session = Session({"": (), **merged}, modified)
        counted = self._counted(session.reply_ids, set(known.values()))
        forks = self._forks_among(set(counted.values()), session)
        found = session.runs(known, {id_: run for id_, run in counted.items() if run not in forks})
        imported = [self._store_run(run, is_legacy=not kept) for run in found]
        self._store_lines(found[0].id, kept, merged)
        for session_id in dict.fromkeys(forks.values()):
            self._make_again(session_id)
        return imported

    def _known(self, session_id: str) -> tuple[dict[str | None, str], _Lines]:
        """Return the stored runs of a session, by agent, and its stored lines."""
        query = select(sessions.c.agent_id, sessions.c.run_id)
        rows = self._connection.execute(query.where(sessions.c.session_id == session_id)).all()
        known: dict[str | None, str] = {row.agent_id: row.run_id for row in rows}
        return known, lines_of_sessions(self._connection, list(known.values()))

    def _forks_among(self, run_ids: Collection[str], session: Session) -> dict[str, str]:
        """Return which of these runs are forks of a session although they were imported before it, with the
        ids of their sessions. A session that is no fork is the origin of any fork that shares its turns."""
        of_session = sessions.c.session_id
        query = select(sessions.c.run_id, of_session, run_items.c.item).where(
            run_items.c.run_id == sessions.c.run_id, sessions.c.run_id.in_(run_ids)
        )
        found = {}
        for row in self._connection.execute(query):
            origin = as_object(as_object(row.item).get(SESSION)).get("forked_from")
            if origin == session.id or (origin and session.forked_from is None):
                found[row.run_id] = row.session_id
        return found

    def _make_again(self, session_id: str) -> None:
        """Rebuild the rows of a fork after the import of its origin, and those of its own forks."""
        known, kept = self._known(session_id)
        if kept:
            session = Session({"": (), **kept})
            counted = self._counted(session.reply_ids, set(known.values()))
            for run in session.runs(known, counted):
                self._store_run(run, is_legacy=False)
        query = select(sessions.c.session_id).where(
            sessions.c.run_id == runs.c.id, runs.c.fork_of.in_(known.values())
        )
        for each in set(self._connection.scalars(query)):
            self._make_again(each)

    def _refusal(self, run_id: str) -> UsageError:
        return UsageError(
            f"{self._source}: {run_id} is here already and says something else: what was imported is "
            "not changed (import it into another database)"
        )

    def _counted(self, reply_ids: Sequence[str], own: set[str]) -> dict[str, str]:
        """Return the replies that other runs have, by the API's id, with the first of these runs."""
        found: dict[str, str] = {}
        column = model_calls.c.message_id
        for some in in_lots(reply_ids):
            query = select(column, model_calls.c.run_id).where(column.in_(some))
            for row in self._connection.execute(query.order_by(model_calls.c.run_id.desc())):
                if row.run_id not in own:
                    found[row.message_id] = row.run_id
        return found

    def _store_lines(self, run_id: str, kept: _Lines, merged: _Lines) -> None:
        """Keep the lines that are new; a file whose lines are in another order now is kept anew."""
        line = session_lines.c
        query = select(line.file, line.run_id, line.part).order_by(line.part)
        query = query.where(line.run_id == run_id)
        parts = {row.file: row.part for row in self._connection.execute(query)}
        for name, lines in merged.items():
            old = kept.get(name, [])
            added, part = lines[len(old) :], parts.get(name, 0) + 1
            if lines[: len(old)] != old:
                of_file = (line.run_id == run_id) & (line.file == name)
                self._connection.execute(delete(session_lines).where(of_file))
                added, part = lines, 1
            if added:
                content = b"\n".join(added)
                row = {"run_id": run_id, "file": name, "part": part, "size": len(content)}
                row["compressed"] = zlib.compress(content)
                self._connection.execute(insert(session_lines).values(row))

    def _store_run(self, run: SessionRun, *, is_legacy: bool) -> ImportedSession:
        query = select(runs).where(runs.c.id == run.id).with_for_update()
        here = self._connection.execute(query).one_or_none()
        row = _run_row(run, self._prices)
        if here is None:
            key = "+".join((run.project, *run.id.split(".")[1:]))
            new = {"id": run.id, "job_id": self._job_id, "item_key": key, "attempt": 1}
            times = {"created_at": run.started_at, "started_at": run.started_at}
            self._connection.execute(insert(runs).values(new | times | row))
            self._connection.execute(insert(run_items).values(run_id=run.id, item=run.item))
        else:
            where = run_items.c.run_id == run.id
            self._connection.execute(update(run_items).where(where).values(item=run.item))
            if is_legacy:
                self._check_legacy(run)
        store_bytes(self._connection, self._job_id, run.rows["blocks"], self._now)
        changed = sum(self._store_rows(metadata.tables[name], run) for name in TABLES)
        told = self._new_events(run)
        what: ImportOutcome = "imported" if here is None else "continued"
        moved = here is not None and any(
            getattr(here, name) != value for name, value in run.place.items()
        )
        if here is None or changed or told or moved:
            self._store_events(run, here, changed, row, told)
        else:
            what = "there"
            self._connection.execute(update(runs).where(runs.c.id == run.id).values(row))
        warnings = tuple(run.warnings)
        return ImportedSession(run.id, self._job_id, what, run.state, run.project, warnings)

    def _check_legacy(self, run: SessionRun) -> None:
        """Refuse a file that lacks what an older Runner stored of it, which kept no lines."""
        table = metadata.tables["blocks"]
        stored = self._connection.scalars(select(table.c.content).where(table.c.run_id == run.id))
        old = Counter(json.dumps(each, sort_keys=True) for each in stored)
        new = Counter(json.dumps(row["content"], sort_keys=True) for row in run.rows["blocks"])
        if old - new:
            raise self._refusal(run.id)

    def _new_events(self, run: SessionRun) -> list[Happened]:
        of_run = select(events.c.type, events.c.data).where(events.c.run_id == run.id)
        known = {_subject(kind, data) for kind, data in self._connection.execute(of_run)}
        return [each for each in run.events if _subject(*_told(each)) not in known]

    def _store_events(
        self,
        run: SessionRun,
        here: Any,
        changed: int,
        row: Mapping[str, Any],
        new: Sequence[Happened],
    ) -> None:
        data = {"job_id": self._job_id, "item_key": shorten(run.project, INPUT_SUMMARY_LENGTH)}
        first = Happened(run.started_at, signed_event("run_submitted", UNKNOWN, data))
        if here is not None:
            first = Happened(run.ended_at, Event("session_continued", {"rows": changed}))
        end = {"state": run.state, "reason": run.reason, "detail": run.detail}
        happened = [first, *new, Happened(run.ended_at, Event("done", end))]
        count, revision = (0, 0) if here is None else (here.event_count, here.revision)
        counts = {"event_count": count + len(happened), "revision": revision + 1}
        self._connection.execute(update(runs).where(runs.c.id == run.id).values({**row, **counts}))
        rows = [
            {"run_id": run.id, "number": number, "at": at, "attempt": 1, **asdict(event)}
            for number, (at, event) in enumerate(happened, count + 1)
        ]
        self._connection.execute(insert(events), rows)

    def _store_rows(self, table: Table, run: SessionRun) -> int:
        """Make a table's rows of a run those that were read, and return how many it changed."""
        key = [column.name for column in table.primary_key]
        stored = self._connection.execute(select(table).where(table.c.run_id == run.id)).mappings()
        here = {tuple(row[name] for name in key): dict(row) for row in stored}
        added, changed = [], 0
        for row in run.rows[table.name]:
            old = here.pop(tuple(row[name] for name in key), None)
            if old is None:
                added.append(row)
            elif {**old, **row} != old:
                conditions = [table.c[name] == row[name] for name in key]
                self._connection.execute(update(table).where(*conditions).values(row))
                changed += 1
        for gone in here:
            conditions = [table.c[name] == value for name, value in zip(key, gone, strict=True)]
            self._connection.execute(delete(table).where(*conditions))
        writes = Writes()
        writes.insert(table, added)
        writes.run(self._connection)
        return len(added) + changed + len(here)


_SUBJECTS = {
    "model_call_ended": ("call",),
    "context_compacted": ("first", "last"),
    "session_note": ("kind", "text"),
    "child_started": ("child",),
}


def _told(happened: Happened) -> tuple[str, Mapping[str, Any]]:
    return happened.event.type, happened.event.data


def _subject(kind: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key for what an event is about: two events of a session with one key tell the same."""
    names = _SUBJECTS.get(kind, ("turn", "call_index"))
    return (kind, *(data.get(name) for name in names))


def _run_row(run: SessionRun, prices: PriceList | None) -> dict[str, Any]:
    """Return the columns of ``runs`` that change when a session continues. The limits equal what is used,
    so that nobody resumes the run by mistake."""
    calls = run.rows["model_calls"]
    cost = sum(_cost_of(call, prices) for call in calls) if prices is not None else 0
    progress = Progress(
        model=ModelState(calls=len(calls)), money=Money(charged_cost=min(cost, _MOST_COST))
    )
    return {
        **{name: getattr(run, name) for name in _RUN_COLUMNS},
        **asdict(run.usage),
        **run.place,
        "max_turns": max(run.turns, 1),
        "token_ceiling": max(run.usage.total, 1),
        "denials": sum(call.get("outcome") == "denied" for call in run.rows["tool_calls"]),
        "charged_tokens": run.usage.total,
        "compaction_count": len(run.rows["compactions"]),
        "progress": progress_to_json(progress),
    }


def _cost_of(call: Mapping[str, Any], prices: PriceList) -> int:
    """Return the cost of a model call in billionths of a USD, 0 if its model has no price."""
    tariff = prices.tariff(call["model"], Terms())
    usage = Usage(*(call[kind] for kind in Usage.__slots__))
    return tariff.cost(usage, hour_cache=call["hour_cache"]) if tariff is not None else 0
