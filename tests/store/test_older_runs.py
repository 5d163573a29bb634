"""Runs stored as JSON that lacks the sums of the context, budgets and other later fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from runner.core.commands import Target
from runner.core.context import Context
from runner.core.entries import ModelCallFailed
from runner.core.model_calls import turn_request
from runner.core.run import Ended
from runner.core.state import Fullness
from runner.core.steps import CallModel, Done
from runner.queries import transcript
from runner.queries.costs import costs_by
from runner.queries.jobs import show_job, show_run
from runner.queries.transcript import sent_request
from runner.store import leases, migrate
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.retry import retry, say
from runner.store.tables import metadata
from tests.store.attempts import Attempt, claim, run_row, submit_one, text, tool_use
from tests.store.compacting import clip, compact, use_tool
from tests.store.examples import NOW, SPEC
from tests.store.test_costs import PRICES
from tests.upgraded import Upgraded

# The fields that an older Runner did not store, by the object that they are in.
NEW_NAMES = {
    "spec": {"budget", "context"},
    "limits": {"working_time", "cost_ceiling_usd"},
    "progress": {"charged_cost", "worked", "warms", "fullness", "pace"},
    "stop": {"lowered_by"},
    "open_call": {"purpose"},
    "reservation": {"lowered_by", "worst_cost", "hour_cache"},
}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.fixture
def newer(tmp_path: Path, upgraded: Upgraded) -> Iterator[Database]:
    """A database of this version, where runs are driven to where a test wants them."""
    url = f"sqlite:///{tmp_path / 'newer.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def brought_up(open_database: Callable[[], Database]) -> Callable[[Database], Database]:
    """Copies the rows of a database as the older Runner would have stored them."""

    def copy(source: Database) -> Database:
        database = open_database()
        migrate.upgrade(database)
        for table in metadata.sorted_tables:
            store(database, table, rows_of(source, table))
        return database

    return copy


def rows_of(database: Database, table: Any) -> list[dict[str, Any]]:
    rows = database.read(lambda connection: connection.execute(select(table)).mappings().all())
    return [dict(row) for row in rows]


def store(database: Database, table: Any, rows: list[dict[str, Any]]) -> None:
    older = [{name: as_older(name, value) for name, value in row.items()} for row in rows]
    if older:
        database.write(lambda connection: connection.execute(insert(table), older))


def as_older(name: str, value: Any) -> Any:
    """A value of that name without the fields that the older Runner did not store."""
    if name in NEW_NAMES and value:
        kept = {k: v for k, v in value.items() if k not in NEW_NAMES[name]}
        return {k: as_older(k, v) for k, v in kept.items()}
    return value


def submitted(attempt: Attempt) -> None:
    pass


def in_the_middle_of_calls(attempt: Attempt) -> None:
    use_tool(attempt, "é" * 200)
    attempt.reply(tool_use(8), tool_use(9), stop="tool_use").finish("the first of two")


def after_a_turn(attempt: Attempt) -> None:
    use_tool(attempt, "a" * 500)


def after_a_failure(attempt: Attempt) -> None:
    use_tool(attempt, "a" * 500)
    say(attempt.database, attempt.lease.run_id, "By the way.", NOW)
    attempt.append(ModelCallFailed("overloaded_error", "busy", 529, None, 0, NOW, NOW))


@pytest.mark.parametrize(
    "drive", [submitted, in_the_middle_of_calls, after_a_turn, after_a_failure]
)
def test_sums_of_an_older_run_s_context_are_those_that_it_would_have_kept(
    newer: Database,
    brought_up: Callable[[Database], Database],
    drive: Callable[[Attempt], None],
) -> None:
    run_id = submit_one(newer)
    attempt = claim(newer, run_id)
    drive(attempt)
    leases.give_back(newer, attempt.lease, NOW)
    database = brought_up(newer)
    older, now = claim(database, run_id).view, claim(newer, run_id).view
    kept = replace(now.progress.fullness, correction=1.0, window=None)
    assert replace(older.progress.fullness, window=None) == kept != Fullness()
    assert older.messages == now.messages
    assert [call.result for call in older.calls] == [call.result for call in now.calls]


def test_older_run_goes_on_to_its_end(
    newer: Database, brought_up: Callable[[Database], Database]
) -> None:
    run_id = submit_one(newer)
    attempt = use_tool(claim(newer, run_id), "a")
    leases.give_back(newer, attempt.lease, NOW)
    database = brought_up(newer)
    again = compact(use_tool(claim(database, run_id), "b"), clip(2))
    request = turn_request(again.view, again.effect.call)  # type: ignore[union-attr]
    again.reply(text("Done."))
    assert again.effect == Done(Ended("succeeded", "end_turn"))
    assert sent_request(database, run_id, 4) == request
    assert len(transcript.api_messages(database, run_id)) == 8


@pytest.mark.parametrize("options", [{}, HOUR])
def test_turns_of_an_older_run_can_be_shown_as_they_were_sent(
    newer: Database, brought_up: Callable[[Database], Database], options: dict[str, Any]
) -> None:
    run_id = submit_one(newer, spec=replace(SPEC, model_options=options))
    attempt = claim(newer, run_id)
    sent = []
    for content in ("a", "b"):
        assert isinstance(attempt.effect, CallModel)
        sent.append(turn_request(attempt.view, attempt.effect.call))
        use_tool(attempt, content)
    database = brought_up(newer)
    assert [sent_request(database, run_id, turn) for turn in (1, 2)] == sent
    assert transcript.compactions_of_run(database, run_id) == []


@pytest.mark.parametrize("options", [{}, HOUR])
def test_older_calls_were_turns_and_cost_what_they_did(
    newer: Database, brought_up: Callable[[Database], Database], options: dict[str, Any]
) -> None:
    use_tool(claim(newer, submit_one(newer, spec=replace(SPEC, model_options=options))), "a")
    (kept,) = costs_by(newer, PRICES, "purpose")
    assert kept.key == "turn"
    assert costs_by(brought_up(newer), PRICES, "purpose") == [kept]


def test_older_run_is_shown_without_sums_until_it_is_taken_up(
    newer: Database, brought_up: Callable[[Database], Database]
) -> None:
    run_id = submit_one(newer)
    leases.give_back(newer, use_tool(claim(newer, run_id), "a").lease, NOW)
    database = brought_up(newer)
    run = show_run(database, run_id)
    assert (run["fullness"], run["compactions"]) == (None, {})
    assert run["context"] == asdict(Context())
    assert (run["charged_cost"], run["worked"]) == (0, 0)
    assert show_job(database, run["job_id"])["budget_usd"] is None
    claim(database, run_id)
    assert show_run(database, run_id)["fullness"]["tokens"] > 0


def test_older_run_that_was_cancelled_is_counted_when_it_goes_on(
    newer: Database, brought_up: Callable[[Database], Database]
) -> None:
    """What is written on the way to it knows neither its messages nor its sums."""
    run_id = submit_one(newer)
    use_tool(claim(newer, run_id), "a" * 500)
    database = brought_up(newer)
    for there in (newer, database):
        cancel(there, Target("run", run_id), NOW)
        retry(there, Target("run", run_id), NOW)
    assert run_row(database, run_id).progress["fullness"]["sent"] == 0
    kept = claim(newer, run_id).view.progress.fullness
    assert claim(database, run_id).view.progress.fullness == replace(kept, correction=1.0)
