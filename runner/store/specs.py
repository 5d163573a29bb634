"""Read what the runs of a job share, such as its spec, and cache it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from runner.core.agents import lineage
from runner.core.spec import JobSpec, spec_of
from runner.store.database import Database
from runner.store.tables import jobs, runs

T = TypeVar("T")

_Key = tuple[Any, ...]

_MOST_KEPT = 512


class JobCache:
    """Caches values that are known to be committed and never change."""

    def __init__(self) -> None:
        self._kept: dict[_Key, Any] = {}

    def specs(self, database: Database, job_ids: Collection[str]) -> dict[str, JobSpec]:
        """The specs of stored jobs, by id, without a query if all are cached."""
        known = {job_id: self._kept.get(("spec", job_id)) for job_id in job_ids}
        found = {job_id: spec for job_id, spec in known.items() if spec is not None}
        if unknown := [job_id for job_id in job_ids if job_id not in found]:
            query = select(jobs.c.id, jobs.c.spec)
            rows = database.rows_in(query, jobs.c.id, unknown)
            read = {row.id: JobSpec.from_json(row.spec) for row in rows}
            self.keep({("spec", job_id): spec for job_id, spec in read.items()})
            found |= read
        return found

    def keep(self, values: Mapping[_Key, Any]) -> None:
        """Keep values that are known to be committed for later transactions."""
        if len(self._kept) + len(values) > _MOST_KEPT:
            self._kept.clear()
        self._kept.update(values)

    def on(self, connection: Connection) -> JobReader:
        """Reads for one transaction."""
        return JobReader(self, self._kept, connection)


class JobReader:
    """Reads each value once, on the first caller's connection: waiting for a second connection
    could deadlock. A writing transaction may read values that are rolled back, so they are cached
    only when ``keep`` is called after its end."""

    def __init__(self, cache: JobCache, kept: Mapping[_Key, Any], connection: Connection) -> None:
        self._cache = cache
        self._kept = kept
        self._connection = connection
        self._read: dict[_Key, Any] = {}

    def spec(self, job_id: str, *types: str) -> JobSpec:
        """The spec of a job, or of its sub-agents of a type: ``types`` as ``agent_types`` gives them."""

        def read(connection: Connection) -> JobSpec:
            if types:
                return spec_of(self.spec(job_id), *types)
            query = select(jobs.c.spec).where(jobs.c.id == job_id)
            return JobSpec.from_json(connection.execute(query).scalar_one())

        return self.once(("spec", job_id, *types), read)

    def types(self, run_id: str) -> tuple[str, ...]:
        """The types of sub-agents above a run and its own; see ``agent_types``."""
        if "." not in run_id:
            return ()
        return self.once(("types", run_id), lambda connection: agent_types(connection, run_id))

    def spec_of_run(self, job_id: str, run_id: str) -> JobSpec:
        """The spec of a run, without a model of its own."""
        return self.spec(job_id, *self.types(run_id))

    def keep(self) -> None:
        """Share what was read with later transactions: it is known to be stored."""
        self._cache.keep(self._read)

    def once(self, key: _Key, read: Callable[[Connection], T]) -> T:
        """Return the value of a key, which ``read`` reads if it is not known yet."""
        found: T | None = self._kept.get(key, self._read.get(key))
        if found is None:
            found = self._read[key] = read(self._connection)
        return found


def agent_types(connection: Connection, run_id: str) -> tuple[str, ...]:
    """The names of the types from the child of an item's run down to the run itself; empty for the run
    of an item. They never change."""
    line = lineage(run_id)[1:]
    if not line:
        return ()
    query = select(runs.c.id, runs.c.agent_type).where(runs.c.id.in_(line))
    types = {row.id: row.agent_type for row in connection.execute(query)}
    return tuple(types[each] for each in line)
