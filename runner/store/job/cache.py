"""What runs of the same job share: its spec, which never changes, and the rules of each snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from runner.core.agents.agent import lineage
from runner.core.agents.spec import spec_of
from runner.core.spec import JobSpec
from runner.permissions import Policy, Rule
from runner.store.children.types import agent_types
from runner.store.job.rules import policy_for, rules_at
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

    def spec(self, job_id: str, *types: str) -> JobSpec:
        """The spec of a job, or of its sub-agents of a type: ``types`` as ``agent_types`` gives them."""

        def read() -> JobSpec:
            query = select(jobs.c.spec).where(jobs.c.id == job_id)
            return JobSpec.from_json(self._connection.execute(query).scalar_one())

        if types:
            return self._once(("spec", job_id, *types), lambda: spec_of(self.spec(job_id), *types))
        return self._once(("spec", job_id), read)

    def types(self, run_id: str) -> tuple[str, ...]:
        """Of which types the run and those that it works for are."""
        if "." not in run_id:
            return ()
        return self._once(("types", run_id), lambda: agent_types(self._connection, run_id))

    def spec_of_run(self, job_id: str, run_id: str) -> JobSpec:
        """What a run works by, but for a model of its own."""
        return self.spec(job_id, *self.types(run_id))

    def rules(self, job_id: str, snapshot: int) -> tuple[Rule, ...]:
        """The rules of one snapshot, those for single runs among them."""
        return self._once(
            ("rules", job_id, snapshot), lambda: rules_at(self._connection, job_id, snapshot)
        )

    def rules_in(self, job_id: str, run_id: str, snapshot: int) -> tuple[Rule, ...]:
        """The rules that a decision of a snapshot may rest on: the job's, and those of the run's types."""
        policy = self.policy(job_id, run_id, snapshot)
        of_types = (rule for each in policy.restrictions for rule in each.rules)
        return (*self.rules(job_id, snapshot), *of_types)

    def policy(self, job_id: str, run_id: str, snapshot: int) -> Policy:
        """What holds for a run: one value for all runs of a job, and of the same types, that have no
        rules of their own."""
        rules, types = self.rules(job_id, snapshot), self.types(run_id)
        named = {rule.run_id for rule in rules}
        owners = tuple(each for each in lineage(run_id) if each in named)
        spec = self.spec(job_id)
        return self._once(
            ("policy", job_id, snapshot, owners, types),
            lambda: policy_for(rules, run_id, spec, snapshot, types),
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
