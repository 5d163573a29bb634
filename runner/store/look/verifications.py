"""What the verifications of runs said."""

from __future__ import annotations

from typing import TypedDict

from sqlalchemy import ColumnElement, Select, select

from runner.store.connection.database import Database
from runner.store.tables import runs, verifications


class Verified(TypedDict):
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


_NAMES = tuple(name for name in Verified.__annotations__ if name != "output")


def verifications_of(database: Database, run_id: str) -> list[Verified]:
    """All verifications of a run, in order."""
    return _found(database, _query(verifications.c.run_id == run_id))


def last_verifications(database: Database, job_id: str) -> dict[str, Verified]:
    """The newest verification of each run of a job by the run's id; runs without one are left out."""
    of_job = verifications.c.run_id.in_(select(runs.c.id).where(runs.c.job_id == job_id))
    return {each["run_id"]: each for each in _found(database, _query(of_job))}


def _query(condition: ColumnElement[bool]) -> Select[tuple[object, ...]]:
    columns = (verifications.c[name] for name in _NAMES)
    return (
        select(*columns, verifications.c.content.label("output"))
        .where(condition)
        .order_by(verifications.c.run_id, verifications.c.number)
    )


def _found(database: Database, query: Select[tuple[object, ...]]) -> list[Verified]:
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [Verified(**row) for row in rows]  # type: ignore[typeddict-item]
