"""What runs of the same job share: its spec, which never changes, and the rules of each snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from runner.core.permissions import Policy, Rule
from runner.core.spec import JobSpec
from runner.store.rules import policy_for, rules_at
from runner.store.tables import jobs

T = TypeVar("T")
_Key = tuple[Any, ...]

_MOST_KEPT = 512


class JobCache:
    """Keeps what was read, once it is known to be stored."""

    def __init__(self) -> None:
        self._kept: dict[_Key, Any] = {}

    def on(self, connection: Connection) -> JobReader:
        """Reads for one transaction."""
        return JobReader(self._kept, connection)


class JobReader:
    """Reads each thing once, on the connection of whoever asks first: a second connection, asked for
    while all others wait for theirs, might never come. A transaction that writes may see what is
    rolled back with it, so what it read is kept only when ``keep`` is called after its end."""

    def __init__(self, kept: dict[_Key, Any], connection: Connection) -> None:
        self._kept = kept
        self._connection = connection
        self._read: dict[_Key, Any] = {}

    def spec(self, job_id: str) -> JobSpec:
        def read() -> JobSpec:
            query = select(jobs.c.spec).where(jobs.c.id == job_id)
            return JobSpec.from_json(self._connection.execute(query).scalar_one())

        return self._once(("spec", job_id), read)

    def rules(self, job_id: str, snapshot: int) -> tuple[Rule, ...]:
        """The rules of one snapshot, those for single runs among them."""
        return self._once(
            ("rules", job_id, snapshot), lambda: rules_at(self._connection, job_id, snapshot)
        )

    def policy(self, job_id: str, run_id: str, snapshot: int) -> Policy:
        """What holds for a run: one value for all runs of a job that have no rules of their own."""
        rules = self.rules(job_id, snapshot)
        owner = run_id if any(rule.run_id == run_id for rule in rules) else None
        spec = self.spec(job_id)
        return self._once(
            ("policy", job_id, snapshot, owner), lambda: policy_for(rules, run_id, spec, snapshot)
        )

    def keep(self) -> None:
        """What was read is stored: others may go by it."""
        if len(self._kept) + len(self._read) > _MOST_KEPT:
            self._kept.clear()
        self._kept.update(self._read)

    def _once(self, key: _Key, read: Callable[[], T]) -> T:
        found: T | None = self._kept.get(key, self._read.get(key))
        if found is None:
            found = self._read[key] = read()
        return found
