"""Bringing an export of Runner's own into the database.

The file is read twice: once to look at every line and at what is here already, before anything is
written, and then run by run, each in one transaction. Who is cut off brings it in again: what is here
already is left as it is.

Looking through an export of Runner's own before any of it is stored.

Bringing sessions of Claude Code's into the database, as runs of one job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import IO, Any, Literal

from sqlalchemy import Connection, Row, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.core.events import INPUT_SUMMARY_LENGTH, Event, signed_event
from runner.core.run import ENDED, UNKNOWN, Author
from runner.core.spec import JobSpec
from runner.core.state import ModelState, Progress
from runner.core.text import shorten
from runner.errors import UsageError
from runner.exchange.checks import JobCheck, Place, RunCheck, Shape, check_id, misfit
from runner.exchange.lines import Line, Reading, encoded_row, parsed
from runner.exchange.session_runs import (
    Happened,
    SessionFile,
    SessionRun,
    happened_in,
    what_it_tells_of,
)
from runner.permissions import ToolContext
from runner.store import ids
from runner.store.control import cancel_locked, store_change
from runner.store.database import Database
from runner.store.entries import add_job_events
from runner.store.exports import (
    IMPORTED,
    JOB_TABLES,
    RUN_TABLES,
    SHAPES,
    TABLES,
    digest_of,
    job_rows,
    run_rows,
)
from runner.store.jobs import SESSIONS
from runner.store.run_state import progress_from_row, progress_to_json, tool_context_from_json
from runner.store.statements import Writes
from runner.store.tables import (
    approvals,
    blocks,
    compactions,
    events,
    job_events,
    jobs,
    model_calls,
    run_items,
    runs,
    tool_calls,
    tool_outputs,
)

_JOB_ORDER = {table.name: number for number, table in enumerate(JOB_TABLES)}
_RUN_ORDER = {table.name: number for number, table in enumerate(RUN_TABLES)}


@dataclass(eq=False)
class Section:
    """The rows of a job as a whole, or of one run: where they are in the file, from a byte and a line
    on, and their digest. ``state`` is the run's, ``questions`` the ids of what was asked in it."""

    kind: Literal["job", "run"]
    id: str
    start: int
    line: int
    rows: int = 0
    digest: str = ""
    state: str = ""
    has_ended: bool = True
    questions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What a file holds. ``key`` is the job's, if its submitter gave it one."""

    source: str
    job: Section
    runs: tuple[Section, ...]
    key: str | None


def look_through(file: IO[bytes], source: str) -> Plan:
    """Look at every line of a file.

    Args:
        source: what it is called in errors.

    Raises:
        UsageError: what is wrong, and in which line.
    """
    file.seek(0)
    looking = _Looking()
    reading: Reading | None = None
    try:
        reading = Reading(file)
        looking.begin(reading)
        for line in reading.rows():
            looking.add(line)
        return looking.end(source)
    except ValueError as error:
        number = 1 if reading is None else reading.number
        raise UsageError(f"{source}, line {number}: {error}; nothing was imported") from error


def shape_of(line: Line) -> Shape:
    """The shape of a row's table. Raises ``ValueError``."""
    shape = SHAPES.get(line.table)
    if shape is None:
        raise ValueError(
            f"there is no table {line.table[:60]!a}: the file may be of a newer Runner"
        )
    return shape


class _Looking:
    """Looks at the rows of a file in order."""

    def __init__(self) -> None:
        self._run_wanted: str | None = None
        self._job: Section | None = None
        self._job_id = ""
        self._key: str | None = None
        self._runs: list[Section] = []
        self._known: dict[str, frozenset[Place]] = {}
        self._spec: JobSpec | None = None
        self._waiting: set[str] = set()  # for the sub-agent that has their whole task
        self._at: Section | None = None
        self._check: JobCheck | RunCheck | None = None
        self._digest = hashlib.sha256()
        self._place: tuple[int, list[Any]] = (-1, [])

    def begin(self, reading: Reading) -> None:
        self._job_id, self._run_wanted = reading.header.job_id, reading.header.run_id
        check_id(self._job_id, "job")

    def add(self, line: Line) -> None:
        shape = shape_of(line)
        table = shape.table
        if table in ("jobs", "runs"):
            self._finish_section()
            self._begin_section(line, table)
        if self._at is None or self._check is None:
            raise ValueError("the first row is not the job's")
        row = shape.from_file(line.row)
        self._check_order(table, [row[name] for name in shape.key])
        self._check.add(table, row)
        self._note(table, row)
        self._at.rows += 1
        self._digest.update(encoded_row(table, shape.to_file(row)))

    def end(self, source: str) -> Plan:
        self._finish_section()
        if self._job is None:
            raise ValueError("there is no row in it")
        if self._run_wanted is not None and self._run_wanted not in self._known:
            raise ValueError(f"the run {self._run_wanted[:60]!a} that it is of is not in it")
        if self._waiting:
            without = f"{min(self._waiting)} has given its whole task to a sub-agent"
            raise ValueError(f"{without}, which is not in the file")
        return Plan(source, self._job, tuple(self._runs), self._key)

    def _begin_section(self, line: Line, table: str) -> None:
        if (table == "jobs") == (self._job is not None):
            raise ValueError("a file has one job, and its row comes first")
        id_ = line.row.get("id") if isinstance(line.row, dict) else None
        if not isinstance(id_, str):
            raise ValueError(f"{table}.id is no text")
        self._place = (-1, [])
        self._digest = hashlib.sha256()
        if table == "jobs":
            self._job = self._at = Section("job", id_, line.start, line.number)
            self._check = JobCheck(self._job_id)
        else:
            self._at = Section("run", id_, line.start, line.number)
            assert self._spec is not None, "the job's row comes first"
            self._check = RunCheck(self._job_id, self._spec, self._known)

    def _finish_section(self) -> None:
        section, check = self._at, self._check
        if section is None:
            return
        section.digest = self._digest.hexdigest()
        if isinstance(check, RunCheck):
            check.end()
            section.has_ended = check.has_ended
            self._runs.append(section)
            self._known[section.id] = check.starts
        elif check is not None:
            self._spec = check.spec

    def _check_order(self, table: str, key: Sequence[Any]) -> None:
        """Each row once, and in the order in which they are written."""
        order = _JOB_ORDER if isinstance(self._check, JobCheck) else _RUN_ORDER
        if table not in order:
            raise ValueError(f"a row of {table} does not belong here")
        last, last_key = self._place
        place = order[table]
        in_order = place > last or (place == last and (not key or list(last_key) < list(key)))
        if not in_order:
            raise ValueError(f"the row of {table} is there twice, or is not in its place")
        self._place = (place, list(key))

    def _note(self, table: str, row: dict[str, Any]) -> None:
        """What is needed later, and what only the store can look at."""
        assert self._at is not None
        match table:
            case "jobs":
                self._key = row["key"]
            case "runs":
                self._at.state = row["state"]
                if _checked_progress(row).children.split == "whole":
                    self._waiting.add(row["id"])
                if row["parent_position"] is None:
                    self._waiting.discard(row["parent_run"])
            case "approvals":
                self._at.questions.append(row["id"])
                _check_setting(row)
            case "permission_rules":
                if (row["run_id"] is None) != (self._at.kind == "job"):
                    raise ValueError("permission_rules.run_id does not belong here")


def _checked_progress(row: dict[str, Any]) -> Progress:
    try:
        progress = progress_from_row(SimpleNamespace(**row))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"runs.progress is no run's ({type(error).__name__}: {error})") from error
    wrong = misfit(progress, Progress)
    if wrong is not None:
        raise ValueError(f"runs.progress is no run's ({wrong} is of another kind)")
    return progress


def _check_setting(row: dict[str, Any]) -> None:
    try:
        tool_context = tool_context_from_json(row["setting"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"approvals.setting is none ({type(error).__name__}: {error})") from error
    wrong = misfit(tool_context, ToolContext)
    if wrong is not None:
        raise ValueError(f"approvals.setting is none ({wrong} is of another kind)")


_ROWS_AT_ONCE = 64

ImportOutcome = Literal["imported", "there"]


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of a run of a file: it was brought in, or was there already. ``state`` is the one
    that it has here."""

    run_id: str
    job_id: str
    what: ImportOutcome
    state: str


def bring_in(
    database: Database, file: IO[bytes], source: str, author: Author, now: float
) -> list[Brought]:
    """Store an export of Runner's own. A run that had not ended where it was exported is cancelled
    here, in the transaction that stores it: it goes on there, if at all.

    Args:
        file: can be read twice.
        source: what it is called in errors.
        author: who brings it in. now: seconds since the epoch.

    Raises:
        UsageError: which line is wrong, or which job or run is here already and is another; nothing
            was stored. UnreachableError: the database does not answer; what was stored is whole.
    """
    plan = look_through(file, source)
    with alone(source):
        return _bring_in(database, file, plan, author, now)


@contextmanager
def alone(source: str) -> Iterator[None]:
    """What is stored by someone else in the same moment is refused, and not stored twice."""
    try:
        yield
    except IntegrityError as error:
        reason = str(error.orig).splitlines()[0]
        raise UsageError(
            f"{source}: it cannot be stored beside what is here ({reason}): if someone else imports "
            "it too, import it again when they are done"
        ) from error


def _bring_in(
    database: Database, file: IO[bytes], plan: Plan, author: Author, now: float
) -> list[Brought]:
    missing = database.read(lambda connection: _missing(connection, plan))
    brought = []
    if plan.job in missing:
        database.write(lambda connection: _store_job(connection, file, plan, author, now))
    for section in plan.runs:
        if section in missing:
            database.write(
                partial(_store_run, file=file, plan=plan, of=section, by=author, now=now)
            )
            state = section.state if section.has_ended else "cancelled"
            brought.append(Brought(section.id, plan.job.id, "imported", state))
        else:
            brought.append(Brought(section.id, plan.job.id, "there", _state(database, section.id)))
    return brought


def _missing(connection: Connection, plan: Plan) -> set[Section]:
    """The sections that are not here.

    Raises:
        UsageError: one is here, and is another.
    """
    missing = set()
    for section in (plan.job, *plan.runs):
        table = jobs if section.kind == "job" else runs
        here = connection.execute(select(table.c.id).where(table.c.id == section.id)).first()
        if here is None:
            missing.add(section)
        elif not _is_same(connection, section):
            raise UsageError(
                f"{plan.source}: {section.id} is here already and is not the same: a job or run is "
                "not changed by an import (export it anew, or import it into another database)"
            )
    _refuse_taken(connection, plan, missing)
    return missing


def _refuse_taken(connection: Connection, plan: Plan, missing: set[Section]) -> None:
    """Refuse what must be unique in a database and is another's here."""
    if plan.key is not None and plan.job in missing:
        holder = connection.execute(select(jobs.c.id).where(jobs.c.key == plan.key)).scalar()
        if holder is not None:
            raise UsageError(f"{plan.source}: {holder} has the key {plan.key[:60]!a} here already")
    for section in plan.runs:
        if section in missing and section.questions:
            query = select(approvals.c.id).where(approvals.c.id.in_(section.questions)).limit(1)
            taken = connection.execute(query).scalar()
            if taken is not None:
                raise UsageError(f"{plan.source}: {taken} is a question of another run here")


def _is_same(connection: Connection, section: Section) -> bool:
    """Whether what is here is what the file has, or came from it."""
    of_job = section.kind == "job"
    rows = job_rows(connection, section.id) if of_job else run_rows(connection, section.id)
    if digest_of(rows) == section.digest:
        return True
    table, key = (job_events, job_events.c.job_id) if of_job else (events, events.c.run_id)
    query = select(table.c.data).where(key == section.id, table.c.type == IMPORTED)
    return any(data.get("sha256") == section.digest for data in connection.execute(query).scalars())


def _store_job(
    connection: Connection, file: IO[bytes], plan: Plan, author: Author, now: float
) -> None:
    _insert(connection, file, plan, plan.job)
    new = {"source": shorten(plan.source, 200), "runs": len(plan.runs)}
    event = signed_event("imported", author, {"sha256": plan.job.digest}, new=new)
    add_job_events(connection, plan.job.id, [event], now)


def _store_run(
    connection: Connection, file: IO[bytes], plan: Plan, of: Section, by: Author, now: float
) -> None:
    _insert(connection, file, plan, of)
    if of.has_ended:
        return
    run = _locked(connection, of.id)
    data = {"state": run.state, "reason": run.reason, "sha256": of.digest}
    store_change(connection, run, now, [signed_event("imported", by, data)])
    run = _locked(connection, of.id)
    if run.state not in ENDED:
        cancel_locked(connection, run, now, by)
    # Questions of a run that has ended: nobody is to be asked, or told, about them here.
    connection.execute(
        update(approvals)
        .where(approvals.c.run_id == of.id, approvals.c.answer.is_(None))
        .values(answer="cancelled", answered_at=now, answered_by=by.name, answered_via="end")
    )


def _locked(connection: Connection, run_id: str) -> Row[Any]:
    return connection.execute(select(runs).where(runs.c.id == run_id).with_for_update()).one()


def _insert(connection: Connection, file: IO[bytes], plan: Plan, section: Section) -> None:
    for name, rows in groupby(_rows_of(file, plan, section), key=lambda row: row[0]):
        waiting: list[dict[str, Any]] = []
        for _, row in rows:
            waiting.append(row)
            if len(waiting) == _ROWS_AT_ONCE:
                _insert_all(connection, name, waiting)
                waiting = []
        _insert_all(connection, name, waiting)


def _insert_all(connection: Connection, name: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(TABLES[name]), rows)


def _rows_of(file: IO[bytes], plan: Plan, section: Section) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a section as the database takes them: the very ones that were looked through."""
    digest = hashlib.sha256()
    file.seek(section.start)
    try:
        for _ in range(section.rows):
            value = parsed(file.readline())
            shape = SHAPES[value["table"]]
            row = shape.from_file(value["row"])
            digest.update(encoded_row(shape.table, shape.to_file(row)))
            yield shape.table, row
    except (ValueError, KeyError, TypeError):
        digest.update(b"changed")
    if digest.hexdigest() != section.digest:
        raise UsageError(f"{plan.source}: the file changed while it was imported: import it again")


def _state(database: Database, run_id: str) -> str:
    query = select(runs.c.state).where(runs.c.id == run_id)
    return str(database.read(lambda connection: connection.execute(query).scalar_one()))


# What a session that goes on may change of what it was; all else it can only add to.
_CHANGING = (tool_calls, model_calls, compactions)
_TABLES = (blocks, tool_calls, tool_outputs, model_calls, compactions)

SessionOutcome = Literal["imported", "there", "continued"]


@dataclass(frozen=True, slots=True)
class BroughtSession:
    """What became of a session, or of an agent's part of one: it was brought in, was there already, or
    was there and has gone on since."""

    run_id: str
    job_id: str
    what: SessionOutcome
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


def _store(connection: Connection, job_id: str, run: SessionRun, source: str) -> SessionOutcome:
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
    progress = Progress(model=ModelState(calls=len(calls)))
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
