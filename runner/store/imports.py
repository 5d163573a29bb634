"""Imports exports of Runner's own.

An export is read twice: first every line is checked, and what the database has of it, before
anything is written; then it is stored run by run, each in one transaction. An import that was cut
off is done again: stored rows do not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from types import SimpleNamespace
from typing import IO, Any, Literal

from sqlalchemy import Connection, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.core.events import signed_event
from runner.core.run import ENDED, Author
from runner.core.spec import JobSpec
from runner.core.state import Progress
from runner.core.text import read_json_line, shorten
from runner.errors import UsageError
from runner.permissions import ToolContext
from runner.store.blobs import store_bytes
from runner.store.changes import store_change, tell_of_job
from runner.store.control import cancel_locked
from runner.store.database import Database
from runner.store.export_lines import Reader
from runner.store.exports import FORMATS, IMPORTED, JOB_TABLES, RUN_TABLES, job_lines, run_lines
from runner.store.import_checks import Place, RunCheck, check_id, check_row, check_value, spec_of
from runner.store.jobs import insert_shares
from runner.store.run_state import progress_from_row, tool_context_from_json
from runner.store.tables import approvals, events, job_events, jobs, runs

ImportOutcome = Literal["imported", "there", "continued"]


@dataclass(frozen=True, slots=True)
class ImportedRun:
    run_id: str
    job_id: str
    # ``there``: the database had the run already. ``continued``: it had less of the session.
    what: ImportOutcome
    state: str  # here


# --- Checking a file ---


@dataclass(eq=False)
class Section:
    """The rows of a job as a whole, or of one run, in a file."""

    kind: Literal["job", "run"]
    id: str
    start: int  # in the file, in bytes
    rows: int = 0
    digest: str = ""  # of the rows as lines
    key: str | None = None  # of a job, if its submitter gave it one
    # Of a run:
    has_ended: bool = True
    approvals: list[str] = field(default_factory=list)  # their ids


def _check_file(file: IO[bytes], source: str) -> list[Section]:
    """Check a file, and return its job and then its runs. Raises ``UsageError`` with the line."""
    file.seek(0)
    reader: Reader | None = None
    try:
        reader = Reader(file)
        check = _FileCheck(reader)
        for start, table, row in reader.rows():
            check.add(start, table, row)
        check.end()
    except ValueError as error:
        number = 1 if reader is None else reader.number
        raise UsageError(f"{source}, line {number}: {error}; nothing was imported") from error
    return check.sections


class _FileCheck:
    """Checks the rows of a file in order. Raises ``ValueError``."""

    def __init__(self, reader: Reader) -> None:
        check_id(reader.job_id, "job")
        self._reader = reader
        self.sections: list[Section] = []
        self._spec: JobSpec | None = None
        self._run: RunCheck | None = None  # of the section that is read
        self._known: dict[str, set[Place]] = {}  # the runs, with the calls that start sub-agents
        self._delegating: set[str] = set()  # runs whose sub-agent for the whole task is to come
        self._digest = hashlib.sha256()
        self._last: tuple[int, list[Any]] = (-1, [])  # the table and the key of the last row

    def add(self, start: int, table: str, written: Any) -> None:
        if table not in FORMATS:
            raise ValueError(f"there is no table {table[:60]!a}: the file may be of a newer Runner")
        row = FORMATS[table].row(written)
        if table in ("jobs", "runs"):
            self._begin_section(start, table, row["id"])
        elif not self.sections:
            raise ValueError("the first row is not the job's")
        self._check_order(table, row)
        check_row(table, row)
        if row.get("job_id", self._reader.job_id) != self._reader.job_id:
            raise ValueError(f"{table}.job_id is not {self._reader.job_id}")
        if table == "jobs":
            if row["id"] != self._reader.job_id:
                raise ValueError(f"it is of another job than {self._reader.job_id}")
            self.sections[-1].key, self._spec = row["key"], spec_of(row)
        elif table == "runs":
            self._add_run(row)
        elif self._run is not None:
            self._run.add(table, row)
        elif row.get("run_id") is not None:
            raise ValueError(f"{table}.run_id does not belong here")
        section = self.sections[-1]
        if table == "approvals":
            section.approvals.append(row["id"])
            what = "approvals.setting is none"
            check_value(row["setting"], tool_context_from_json, ToolContext, what)
        section.rows += 1
        self._digest.update(FORMATS[table].line(row))

    def end(self) -> None:
        self._end_section()
        if not self.sections:
            raise ValueError("there is no row in it")
        wanted = self._reader.run_id
        if wanted is not None and wanted not in self._known:
            raise ValueError(f"the run {wanted[:60]!a} that it is of is not in it")
        if self._delegating:
            run_id = min(self._delegating)
            raise ValueError(
                f"{run_id} has given its whole task to a sub-agent, which is not in the file"
            )

    def _begin_section(self, start: int, table: str, id_: str) -> None:
        self._end_section()
        if (table == "jobs") == bool(self.sections):
            raise ValueError("a file has one job, and its row comes first")
        self.sections.append(Section("job" if table == "jobs" else "run", id_, start))
        self._last = (-1, [])
        self._digest = hashlib.sha256()

    def _end_section(self) -> None:
        if not self.sections:
            return
        section = self.sections[-1]
        section.digest = self._digest.hexdigest()
        if self._run is not None:
            self._run.end()
            section.has_ended = self._run.has_ended

    def _check_order(self, table: str, row: dict[str, Any]) -> None:
        """Check that a row is in its section once and in the order in which exports are written."""
        tables = JOB_TABLES if self.sections[-1].kind == "job" else RUN_TABLES
        format = FORMATS[table]
        if format.table not in tables:
            raise ValueError(f"a row of {table} does not belong here")
        last, last_key = self._last
        place, key = tables.index(format.table), [row[name] for name in format.key]
        if place < last or (place == last and key and key <= last_key):
            raise ValueError(f"the row of {table} is there twice, or is not in its place")
        self._last = (place, key)

    def _add_run(self, row: dict[str, Any]) -> None:
        assert self._spec is not None, "the job's row comes first"
        self._run = RunCheck(row, self._spec, self._known)
        progress: Progress = check_value(
            SimpleNamespace(**row), progress_from_row, Progress, "runs.progress is no run's"
        )
        if progress.children.split == "whole":
            self._delegating.add(row["id"])
        if row["parent_position"] is None:
            self._delegating.discard(row["parent_run"])


# --- Storing an export ---

ROWS_AT_ONCE = 64


def import_file(
    database: Database, file: IO[bytes], source: str, author: Author, now: float
) -> list[ImportedRun]:
    """Store an export of Runner's own, which can be read twice. A run that had not ended is
    cancelled in the same transaction: it goes on there, if at all. Raises ``UsageError``, with
    nothing stored, if a line is wrong or the database has other content; after ``UnreachableError``
    what was stored is whole."""
    job, *of_runs = sections = _check_file(file, source)
    new = {"source": shorten(source, 200), "runs": len(of_runs)}
    digest = {"sha256": job.digest}

    def store(connection: Connection, section: Section) -> None:
        rows = _rows_of(file, section, source)
        for table, of_table in groupby(rows, key=lambda each: each[0]):
            values = (row for _, row in of_table)
            while batch := list(islice(values, ROWS_AT_ONCE)):
                if table.name == "blocks":
                    store_bytes(connection, job.id, batch, now)
                connection.execute(insert(table), batch)
        if section is job:
            stored = select(jobs.c.spec, jobs.c.workspace_id).where(jobs.c.id == job.id)
            row = connection.execute(stored).one()
            insert_shares(connection, job.id, JobSpec.from_json(row.spec), row.workspace_id)
            tell_of_job(connection, job.id, now, "imported", author, digest, new=new)
        elif not section.has_ended:
            _cancel(connection, section, author, now)

    with refusing_conflicts(source):
        missing = database.read(lambda connection: missing_sections(connection, sections, source))
        for section in sections:
            if section in missing:
                database.write(partial(store, section=section))
        query = select(runs.c.id, runs.c.state).where(runs.c.job_id == job.id)
        states = dict(database.rows(query))
    return [
        ImportedRun(each.id, job.id, "imported" if each in missing else "there", states[each.id])
        for each in of_runs
    ]


@contextmanager
def refusing_conflicts(source: str) -> Iterator[None]:
    """Raise ``UsageError`` if someone else stores the same at the same time."""
    try:
        yield
    except IntegrityError as error:
        reason = str(error.orig).splitlines()[0]
        raise UsageError(
            f"{source}: it cannot be stored beside what is here ({reason}): if someone else imports "
            "it too, import it again when they are done"
        ) from error


def missing_sections(
    connection: Connection, sections: Sequence[Section], source: str
) -> set[Section]:
    """Return the sections that the database does not have. Raises ``UsageError`` if it has one with
    other content, or something else where the file needs to be alone."""
    missing = set()
    for section in sections:
        table = jobs if section.kind == "job" else runs
        if connection.scalar(select(table.c.id).where(table.c.id == section.id)) is None:
            missing.add(section)
        elif not _is_same(connection, section):
            raise UsageError(
                f"{source}: {section.id} is here already and is not the same: a job or run is "
                "not changed by an import (export it anew, or import it into another database)"
            )
    for section in filter(missing.__contains__, sections):
        if section.key is not None:
            holder = connection.scalar(select(jobs.c.id).where(jobs.c.key == section.key))
            if holder is not None:
                raise UsageError(
                    f"{source}: {holder} has the key {section.key[:60]!a} here already"
                )
        if section.approvals:
            query = select(approvals.c.id).where(approvals.c.id.in_(section.approvals)).limit(1)
            if (taken := connection.scalar(query)) is not None:
                raise UsageError(f"{source}: {taken} is a question of another run here")
    return missing


def _is_same(connection: Connection, section: Section) -> bool:
    """True if the database has the section as the file does, or imported it from such a file."""
    is_job = section.kind == "job"
    digest = hashlib.sha256()
    for line in (job_lines if is_job else run_lines)(connection, section.id):
        digest.update(line)
    if digest.hexdigest() == section.digest:
        return True
    table, key = (job_events, job_events.c.job_id) if is_job else (events, events.c.run_id)
    query = select(table.c.data).where(key == section.id, table.c.type == IMPORTED)
    return any(data.get("sha256") == section.digest for data in connection.scalars(query))


def _rows_of(
    file: IO[bytes], section: Section, source: str
) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Yield the rows of a section as the database takes them. Raises ``UsageError`` at the end unless
    they are the ones that were checked."""
    digest = hashlib.sha256()
    file.seek(section.start)
    try:
        for _ in range(section.rows):
            value = read_json_line(file.readline())
            format = FORMATS[value["table"]]
            row = format.row(value["row"])
            digest.update(format.line(row))
            yield format.table, row
    except (ValueError, KeyError, TypeError):
        digest.update(b"changed")
    if digest.hexdigest() != section.digest:
        raise UsageError(f"{source}: the file changed while it was imported: import it again")


def _cancel(connection: Connection, section: Section, author: Author, now: float) -> None:
    """Cancel a run that had not ended, and its open questions."""
    query = select(runs).where(runs.c.id == section.id).with_for_update()
    run = connection.execute(query).one()
    data = {"state": run.state, "reason": run.reason, "sha256": section.digest}
    store_change(connection, run, now, [signed_event("imported", author, data)])
    if run.state not in ENDED:
        cancel_locked(connection, connection.execute(query).one(), now, author)
    connection.execute(
        update(approvals)
        .where(approvals.c.run_id == section.id, approvals.c.answer.is_(None))
        .values(answer="cancelled", answered_at=now, answered_by=author.name, answered_via="end")
    )
