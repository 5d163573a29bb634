"""What calls ran with is found, also where it is not what the model asked for."""

from __future__ import annotations

from typing import Any

import pytest

from runner.store import ids
from runner.store.database import Database
from runner.store.tables import tool_calls
from tests.queries.search.record import Record, excerpts, find, record
from tests.store.attempts import claim, tool_use
from tests.store.audit.played import bash, finish, questions, reply_to, submit, turn
from tests.store.examples import NOW


@pytest.mark.slow
def test_what_a_person_had_a_call_run_with_is_found_at_the_block_that_asked(
    database: Database,
) -> None:
    (run_id,) = submit(database, "a").runs
    turn(claim(database, run_id), tool_use(7, "Read", file_path="x"), *bash("make all"))
    assert find(database, "walnut").total == 0
    reply_to(database, questions(database, run_id)[0], edited={"command": "make walnut"})
    assert find(database, "walnut").total == 0  # it has not run yet
    finish(claim(database, run_id, NOW + 60))
    (asked,) = find(database, '"make all"').hits
    for more in ({"exact": "walnut"}, {"text": "walnut", "sources": ["input"], "tool": "Bash"}):
        (hit,) = find(database, **more).hits
        assert hit.excerpt.text == "make walnut"
        assert (hit.place.message, hit.place.position) == (asked.place.message, 2)
        assert (hit.source, hit.role, hit.turn, hit.item) == ("input", "assistant", 1, "a")
        assert hit.call_id == asked.call_id == ids.call_id(run_id, 1, 1)
    assert find(database, "walnut", sources=["output"]).total == 0


def test_what_a_hook_made_of_an_input_is_found_beside_what_was_asked(database: Database) -> None:
    run = _called(database, {"command": "make walnut all"}, {"command": "make walnut twice"})
    assert sorted(excerpts(find(database, "walnut"))) == ["make walnut all", "make walnut twice"]
    assert excerpts(find(database, "twice", run_id=run.run_id)) == ["make walnut twice"]
    assert find(database, '"make walnut twice"').total == 1


@pytest.mark.parametrize("given", [{"command": "walnut"}, {"n": [1, None], "text": "walnut"}])
def test_what_a_call_ran_with_as_it_was_asked_is_found_once(
    database: Database, given: dict[str, Any]
) -> None:
    _called(database, given, given)
    assert find(database, "walnut").total == 1


def _called(database: Database, asked: Any, ran: Any) -> Record:
    run = record(database).call("Bash", asked, "ok")
    (row,) = (row for table, row in run.rows if table is tool_calls)
    row["updated_input"] = ran
    return run.store()
