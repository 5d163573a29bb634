"""Compactions as rows, and what was sent in each turn as they tell it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, select

from runner.core.budget import Limits
from runner.core.commands import Target
from runner.core.context import Compaction
from runner.core.conversation import ModelRequest, text_block
from runner.core.entries import ModelCallFailed
from runner.core.model_calls import turn_request
from runner.core.run import Ended
from runner.core.steps import CallModel, Done
from runner.errors import NotFoundError
from runner.queries import transcript
from runner.queries.transcript import sent_request, show_run
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.retry import retry, say
from runner.store.run_state import load_compacted
from runner.store.tables import compactions, model_calls, runs
from tests.store.attempts import Attempt, claim, free, run_row, submit_one, text
from tests.store.compacting import (
    HOSTILE,
    ask_for_summary,
    compact,
    stand_in,
    summarise,
    truncation,
    use_tool,
)
from tests.store.examples import NOW, SPEC


@pytest.fixture
def attempt(database: Database) -> Attempt:
    return claim(database, submit_one(database))


def row_of_call(database: Database, run_id: str, number: int) -> Any:
    query = select(model_calls).where(
        model_calls.c.run_id == run_id, model_calls.c.number == number
    )
    return database.read(lambda connection: connection.execute(query).one())


def sent_now(attempt: Attempt) -> ModelRequest:
    """What the call that is under way sends."""
    assert isinstance(attempt.effect, CallModel)
    return turn_request(attempt.state, attempt.effect.call)


@pytest.mark.parametrize("said", ["summed up", "", HOSTILE])
def test_compactions_are_read_back_as_they_were_made(
    database: Database, attempt: Attempt, said: str
) -> None:
    compact(attempt, truncation(2, said=said))
    compact(attempt, stand_in(2, said, "prune"))
    compact(attempt, truncation(4, said=said))
    compacted = attempt.state.context.compacted
    assert (compacted.count, compacted.last, compacted.text) == (3, 2, said)
    assert compacted.truncated == {(4, 0): said}
    read = database.read(lambda c: load_compacted(c, attempt.lease.run_id))
    assert read == compacted
    assert run_row(database, attempt.lease.run_id).compaction_count == 3


def test_messages_stay_as_they_are_when_others_are_sent(
    database: Database, attempt: Attempt
) -> None:
    use_tool(attempt, "a")
    before = transcript.api_messages(database, attempt.lease.run_id)
    compact(attempt, stand_in(4))
    assert transcript.api_messages(database, attempt.lease.run_id)[: len(before)] == before


def test_row_of_a_summary_names_the_call_that_made_it_and_the_first_that_is_sent_it(
    database: Database, attempt: Attempt
) -> None:
    summarise(ask_for_summary(use_tool(attempt, "a")), stand_in(2))
    row = database.read(lambda c: c.execute(select(compactions)).one())
    assert (row.number, row.kind, row.first_message, row.last_message) == (1, "summary", 1, 2)
    assert (row.tokens_before, row.tokens_after) == (900, 300)
    assert (row.turn, row.made_by_call, row.first_sent_in) == (3, 3, 4)
    call = row_of_call(database, attempt.lease.run_id, 3)
    assert (call.purpose, call.turn, call.error, call.cut) == ("summary", 3, None, None)
    assert attempt.effect.call.number == row.first_sent_in  # type: ignore[union-attr]


def test_summary_of_no_use_is_kept_with_its_call(database: Database, attempt: Attempt) -> None:
    summarise(ask_for_summary(attempt), None, text("No."), why="it is longer than what it is of")
    call = row_of_call(database, attempt.lease.run_id, 2)
    assert call.error == "summary_failed: it is longer than what it is of"
    assert (call.stop_reason, call.charged_tokens) == ("end_turn", 110)
    assert call.cut == [text("No.")]
    assert (
        attempt.state.context.compacted.count
        == run_row(database, attempt.lease.run_id).compaction_count
    )
    assert attempt.state.context.compacted.count == 0


def test_thoughts_of_a_summary_are_kept_with_its_call(database: Database, attempt: Attempt) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "signed"}
    summarise(ask_for_summary(attempt), stand_in(2), thought, text("Sum."))
    assert row_of_call(database, attempt.lease.run_id, 2).cut == [thought]


def test_summary_is_a_result_that_a_lost_lease_is_forgotten_for(
    database: Database, attempt: Attempt
) -> None:
    ask_for_summary(attempt)
    database.write(lambda c: c.execute(runs.update().values(lost_leases=2)))
    summarise(attempt, stand_in(2))
    assert run_row(database, attempt.lease.run_id).lost_leases == 0


def test_calls_say_what_they_are_for_and_how_long_their_cache_lives(database: Database) -> None:
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    run_id = submit_one(database, spec=replace(SPEC, model_options=hour))
    ask_for_summary(claim(database, run_id))
    calls = [row_of_call(database, run_id, number) for number in (1, 2)]
    assert [call.purpose for call in calls] == ["turn", "summary"]
    assert [call.hour_cache for call in calls] == [True, False]


def test_every_turn_can_be_shown_as_it_was_sent(database: Database, attempt: Attempt) -> None:
    sent = [sent_now(attempt)]
    steps = (
        lambda: use_tool(attempt, "a"),
        lambda: compact(attempt, truncation(2, said=HOSTILE)),
        lambda: use_tool(attempt, "b"),
        lambda: summarise(ask_for_summary(attempt), stand_in(6)),
        lambda: compact(attempt, truncation(8)),
        lambda: summarise(ask_for_summary(attempt), None),
        lambda: compact(attempt, stand_in(10, HOSTILE, "prune")),
    )
    for step in steps:
        step()
        sent.append(sent_now(attempt))
    attempt.reply(text("Done."))
    turns = range(1, len(sent) + 1)
    assert [sent_request(database, attempt.lease.run_id, turn) for turn in turns] == sent


def test_turn_that_took_several_tries_is_shown_as_the_last_of_them(
    database: Database, attempt: Attempt
) -> None:
    use_tool(attempt, "a")
    say(database, attempt.lease.run_id, "Be quick.", NOW)
    attempt.append(ModelCallFailed("overloaded_error", "busy", 529, None, 0, NOW, NOW))
    last = sent_now(attempt)
    assert last.messages[-1].blocks[-1] == text_block("Be quick.")
    assert sent_request(database, attempt.lease.run_id, 2) == last
    attempt.reply(text("Done."))
    assert sent_request(database, attempt.lease.run_id, 2) == last


def test_what_was_said_after_a_call_that_failed_was_not_sent_in_it(database: Database) -> None:
    """A call without a reply leaves no mark between what was said before it and after it."""
    spec = replace(SPEC, limits=Limits(deadline=100.0))
    attempt = claim(database, submit_one(database, spec=spec))
    use_tool(attempt, "a")
    sent = sent_now(attempt)
    for words in ("Be quick.", "Be good."):
        say(database, attempt.lease.run_id, words, NOW)
    attempt.now = NOW + 100
    attempt.append(ModelCallFailed("overloaded_error", "busy", 529, None, 0, NOW, NOW + 1))
    assert isinstance(attempt.effect, Done)
    assert isinstance(attempt.effect.outcome, Ended)
    assert attempt.state.messages[-1].blocks[-1] == text_block("Be good.")
    assert sent_request(database, attempt.lease.run_id, 2) == sent


def test_turn_in_which_nothing_was_sent_is_not_shown(database: Database, attempt: Attempt) -> None:
    ask_for_summary(attempt)
    with pytest.raises(NotFoundError, match="its last turn is 1"):
        sent_request(database, attempt.lease.run_id, 2)
    with pytest.raises(NotFoundError, match="it has none yet"):
        sent_request(database, submit_one(database, "other"), 1)
    with pytest.raises(NotFoundError, match="no run is named"):
        sent_request(database, "run_none", 1)


def test_compactions_are_shown_before_the_turns_that_were_sent_them(
    database: Database, attempt: Attempt
) -> None:
    compact(attempt, truncation(2))
    summarise(ask_for_summary(attempt), stand_in(4))
    first, second = transcript.compactions_of_run(database, attempt.lease.run_id)
    assert (first["number"], first["kind"], first["clips"], first["turn"]) == (1, "clip", 1, 2)
    assert (second["kind"], second["text"], second["turn"]) == ("summary", "summed up", 3)
    assert (second["made_by_call"], second["clips"]) == (3, 0)


def test_run_is_shown_with_how_full_its_context_is(database: Database, attempt: Attempt) -> None:
    compact(attempt, truncation(2))
    compact(attempt, stand_in(2))
    summarise(ask_for_summary(attempt), stand_in(4))
    run = show_run(database, attempt.lease.run_id)
    assert run["compactions"] == {"clip": 1, "summary": 2}
    context = attempt.state.context
    assert run["fullness"] == {
        "tokens": context.tokens,
        "measured": context.measured,
        "correction": context.correction,
        "window": attempt.state.context.window,
    }
    assert (run["provider"], run["context"]["keep_messages"]) == ("anthropic", 8)


def test_run_without_compactions_is_loaded_without_looking_for_any(
    database: Database, attempt: Attempt
) -> None:
    use_tool(attempt, "a")
    journal = StoredJournal(database, lambda: NOW, free)
    with statements() as first:
        journal.load(attempt.lease)
    with statements() as before:
        journal.load(attempt.lease)
    compact(attempt, truncation(2))
    with statements() as after:
        journal.load(attempt.lease)
    assert not any("FROM compactions" in each for each in (*first, *before))
    assert len(after) == len(before) + 1


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that are run, on any connection."""
    found: list[str] = []
    note = lambda *arguments: found.append(arguments[2])  # noqa: E731
    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def test_run_that_was_cancelled_while_it_was_summed_up_goes_on_after_a_retry(
    database: Database, attempt: Attempt
) -> None:
    run_id = attempt.lease.run_id
    compact(attempt, truncation(2))
    ask_for_summary(attempt)
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW)
    again = claim(database, run_id)
    assert again.state.context.compacted == attempt.state.context.compacted
    assert sent_request(database, run_id, 3) == sent_now(again)


def test_truncation_of_several_results_is_one_compaction(
    database: Database, attempt: Attempt
) -> None:
    use_tool(attempt, "a")
    results = (*truncation(2, said="x").truncated, *truncation(4, said="y").truncated)
    compact(attempt, Compaction("clip", 2, 4, truncated=results))
    assert [m.blocks[0]["content"] for m in sent_now(attempt).messages[2::2]] == ["x", "y"]
    assert sent_request(database, attempt.lease.run_id, 3) == sent_now(attempt)
