"""``queries.costs.priced_calls`` on both databases, and what ``costs`` makes of them."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from runner.core.conversation import Usage
from runner.queries.costs import priced_calls
from runner.queries.jobs import job_of
from runner.store.database import Database
from runner.store.tables import compactions, model_calls, runs
from tests.cli.questions import app_on
from tests.store.attempts import claim, submit_one, text, tool_use
from tests.store.examples import NOW

WRITES = Usage(cache_creation_tokens=100_000, output_tokens=100)


def two_turns(database: Database) -> str:
    """A run of two turns, the second six minutes after the first; its id."""
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1), stop="tool_use", usage=WRITES).finish("ok")
    attempt.reply(text("Done."), usage=WRITES)
    second = update(model_calls).where(model_calls.c.number == 2)
    later = second.values(started_at=NOW + 360, ended_at=NOW + 365)
    database.write(lambda connection: connection.execute(later))
    return run_id


def test_priced_calls_are_in_order_with_what_they_used(database: Database) -> None:
    run_id = two_turns(database)
    prices = app_on(database).prices()
    first, second = priced_calls(database, prices, job_of(database, run_id))
    assert (first.turn, second.turn) == (1, 2)
    assert second.started_at - first.ended_at == 360
    assert first.usage == WRITES
    assert first.replied
    assert not first.failed
    assert not first.compacted
    assert first.spending.unpriced == {"claude-test"}


def test_priced_calls_know_failures_and_compactions(database: Database) -> None:
    run_id = two_turns(database)
    compaction = {
        "run_id": run_id,
        "number": 1,
        "kind": "clip",
        "first_message": 1,
        "last_message": 2,
        "text": "",
        "clips": [],
        "tokens_before": 9,
        "tokens_after": 5,
        "turn": 2,
        "first_sent_in": 2,
        "created_at": NOW,
    }
    database.write(lambda connection: connection.execute(insert(compactions).values(compaction)))
    failed = update(runs).values(state="failed").where(runs.c.id == run_id)
    database.write(lambda connection: connection.execute(failed))
    assert database.rows(select(runs.c.state))[0][0] == "failed"
    found = priced_calls(database, app_on(database).prices(), job_of(database, run_id))
    assert [(call.failed, call.compacted) for call in found] == [(True, False), (True, True)]
