"""Bringing an export of Runner's own into the database.

The file is read twice: once to look at every line and at what is here already, before anything is
written, and then run by run, each in one transaction. Who is cut off brings it in again: what is here
already is left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import IO, Any, Literal

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.core.author import Author
from runner.core.journal.events import signed_event
from runner.core.run import ENDED
from runner.core.text.plain import shorten
from runner.errors import UsageError
from runner.exchange.lines import encoded_row, parsed
from runner.store.connection.database import Database
from runner.store.exchange.plan import Plan, Section, look_through
from runner.store.exchange.shapes import IMPORTED, SHAPES, TABLES
from runner.store.exchange.taking import digest_of, job_rows, run_rows
from runner.store.steer.control import cancel_locked, store_change
from runner.store.steer.job_events import add_job_events
from runner.store.tables import approvals, events, job_events, jobs, runs

_ROWS_AT_ONCE = 64

What = Literal["imported", "there"]


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of a run of a file: it was brought in, or was there already. ``state`` is the one
    that it has here."""

    run_id: str
    job_id: str
    what: What
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
