"""Imports exports of Runner's own.

An export is read twice: first every line is checked, and what the database has of it, before
anything is written; then it is stored run by run, each in one transaction. An import that was cut
off is done again: stored rows do not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import IO, TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.core.events import signed_event
from runner.core.run import ENDED, Author
from runner.core.spec import JobSpec
from runner.core.text import LONGEST_LINE, read_json_line, shorten
from runner.errors import UsageError
from runner.store.blobs import store_bytes
from runner.store.changes import store_change, tell_of_job
from runner.store.control import cancel_locked
from runner.store.database import Database
from runner.store.exports import FORMATS, IMPORTED, VERSION, section_lines
from runner.store.jobs import insert_shares
from runner.store.tables import approvals, events, job_events, jobs, runs

if TYPE_CHECKING:
    from runner.store.import_checks import Section

ImportOutcome = Literal["imported", "there", "continued"]


@dataclass(frozen=True, slots=True)
class ImportedRun:
    run_id: str
    job_id: str
    # ``there``: the database had the run already. ``continued``: it had less of the session.
    what: ImportOutcome
    state: str  # here


# --- Reading a file ---


def _check_file(file: IO[bytes], source: str) -> list[Section]:
    """Check a file, and return its job and then its runs. Raises ``UsageError`` with the line."""
    from runner.store.import_checks import FileCheck, require  # late: pydantic is slow to import

    check, digest, number, is_whole = FileCheck(), hashlib.sha256(), 0, False
    file.seek(0)
    try:
        while not is_whole:
            number += 1
            start, before = file.tell(), digest.hexdigest()
            line = file.readline(LONGEST_LINE + 1)
            is_line = len(line) > LONGEST_LINE or line.endswith(b"\n")
            require(is_line, "it is missing or cut off: the export is not whole")
            digest.update(line)
            value = read_json_line(line)
            if number == 1:
                version = value.get("runner_export")
                require(version is not None, "it is not the first line of an export of Runner's")
                told = f"of version {str(version)[:20]!a}, and this Runner knows {VERSION}"
                require(
                    version == VERSION, f"it is {told}: import it with the Runner that wrote it"
                )
            elif value.keys() == {"table", "row"}:
                check.add(start, value["table"], value["row"])
            else:
                is_whole = value == {"end": {"rows": number - 2, "sha256": before}}
                what = "it does not fit what is before it: the file was changed or damaged"
                require(is_whole, f"{what} (export it anew)")
                check.end()
        number += 1
        require(not file.read(1), "it comes after the end of the export")
    except ValueError as error:
        where = f"{source}, line {number}"
        raise UsageError(f"{where}: {error}; nothing was imported") from error
    return check.sections


def _rows_of(
    file: IO[bytes], section: Section, source: str
) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Yield the rows of a section as the database takes them. Raises ``UsageError`` at the end unless
    they are the ones that were checked."""
    from runner.store.import_checks import read_row

    digest = hashlib.sha256()
    file.seek(section.start)
    try:
        for _ in range(section.rows):
            value = read_json_line(file.readline())
            format = FORMATS[value["table"]]
            row = read_row(format.table.name, value["row"])
            digest.update(format.line(row))
            yield format.table, row
    except (ValueError, KeyError, TypeError):
        digest.update(b"changed")
    if digest.hexdigest() != section.digest:
        raise UsageError(f"{source}: the file changed while it was imported: import it again")


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
        table = jobs if section is sections[0] else runs
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
    digest = hashlib.sha256()
    for line in section_lines(connection, section.id):
        digest.update(line)
    if digest.hexdigest() == section.digest:
        return True
    is_job = section.id.startswith("job_")
    table, key = (job_events, job_events.c.job_id) if is_job else (events, events.c.run_id)
    query = select(table.c.data).where(key == section.id, table.c.type == IMPORTED)
    return any(data.get("sha256") == section.digest for data in connection.scalars(query))


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
