from __future__ import annotations

from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.run import Ended
from runner.ports import Ending
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.due_runs import endings
from tests.store.attempts import claim, submit_one, text, tool_use
from tests.store.examples import NOW


def test_a_run_that_a_person_cancelled_has_ended_with_the_worker_that_had_it(
    database: Database,
) -> None:
    run_id, other = submit_one(database), submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use")
    claim(database, other)
    assert endings(database, [run_id, other]) == []
    cancel(database, Target("run", run_id), NOW + 5)
    (ending,) = endings(database, [run_id, other])
    assert ending == Ending(
        run_id,
        attempt.lease.worker_id,
        Ended("cancelled", "cancelled"),
        NOW + 5,
        Usage(input_tokens=100, output_tokens=10),
    )


def test_only_the_runs_that_are_asked_for_are_looked_at(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    assert [ending.run_id for ending in endings(database, [run_id])] == [run_id]
    assert endings(database, []) == []
