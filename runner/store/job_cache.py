"""What runs of the same job share: its spec, which never changes, and the rules of each snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, select

from runner.core.permissions import Policy, Rule
from runner.core.spec import JobSpec
from runner.store.rules import policy_for, rules_at
from runner.store.tables import jobs

K = TypeVar("K")
V = TypeVar("V")

_MOST_KEPT = 256


class JobCache:
    """Reads each thing once, on the connection of whoever asks first: a second connection, asked for
    while all others wait for theirs, might never come."""

    def __init__(self) -> None:
        self._specs: dict[str, JobSpec] = {}
        self._rules: dict[tuple[str, int], tuple[Rule, ...]] = {}
        self._policies: dict[tuple[str, int, str | None], Policy] = {}

    def spec(self, connection: Connection, job_id: str) -> JobSpec:
        def read() -> JobSpec:
            query = select(jobs.c.spec).where(jobs.c.id == job_id)
            return JobSpec.from_json(connection.execute(query).scalar_one())

        return _kept(self._specs, job_id, read)

    def rules(self, connection: Connection, job_id: str, snapshot: int) -> tuple[Rule, ...]:
        """The rules of one snapshot, those for single runs among them."""
        key = (job_id, snapshot)
        return _kept(self._rules, key, lambda: rules_at(connection, job_id, snapshot))

    def policy(self, connection: Connection, job_id: str, run_id: str, snapshot: int) -> Policy:
        """What holds for a run: one value for all runs of a job that have no rules of their own."""
        rules = self.rules(connection, job_id, snapshot)
        owner = run_id if any(rule.run_id == run_id for rule in rules) else None
        spec = self.spec(connection, job_id)
        return _kept(
            self._policies,
            (job_id, snapshot, owner),
            lambda: policy_for(rules, run_id, spec, snapshot),
        )


def _kept(kept: dict[K, V], key: K, read: Callable[[], V]) -> V:
    value = kept.get(key)
    if value is None:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        value = kept[key] = read()
    return value
