"""One pass of the sweep over a family: a worker that works all of its runs is killed or frozen."""

from __future__ import annotations

from sqlalchemy import select

from runner.core.agents import tree_order
from runner.store import tables
from tests.crash import record, scenario
from tests.crash.family import invariants
from tests.crash.family.scenario import Who, reply_to
from tests.crash.record import Record
from tests.crash.sweep import Iteration, Sweep
from tests.messages_api import Received, Reply


class FamilyIteration(Iteration):
    """A run with all that it starts, their model, and their two workers."""

    def begin(self) -> None:
        """Nobody says anything: the run's task is all."""
        self._broken: set[tuple[Who, int]] = set()

    def plan(self, request: Received) -> Reply:
        """The model: its reply depends on who asks, and after what; some calls fail the first time."""
        who, position, said = reply_to(request.body)
        self.served.asked += 1
        prompt_tokens = len(request.raw) // 4
        reply = scenario.with_usage(said, prompt_tokens)
        if reply.fail_first and (who, position) not in self._broken:
            self._broken.add((who, position))
            reply = scenario.failing(reply)
        return self.billed(reply, prompt_tokens)

    def records(self) -> list[Record]:
        """Of the run, and of those that it has started so far, each after who started it."""
        runs = tables.runs
        query = select(runs.c.id).where(
            (runs.c.id == self.run_id) | (runs.c.root_run == self.run_id)
        )
        ids = self.database.read(lambda connection: connection.execute(query).scalars().all())
        return [record.read(self.database, run_id) for run_id in sorted(ids, key=tree_order)]

    def check(self) -> None:
        """Raise ``Violation`` unless everything holds of what has ended."""
        invariants.check(self.records(), self.served, self.folder)


class FamilySweep(Sweep):
    """A family, swept in one way."""

    iteration = FamilyIteration
