"""What a transcript is made of: messages a few at a time, what each call cost, where things happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection, update

from runner.core.commands import Target
from runner.core.conversation import Usage
from runner.core.prices import Spending
from runner.core.run import Author
from runner.llm.prices import load_prices
from runner.permissions import Rule
from runner.queries import transcript
from runner.queries.costs import call_costs, costs_by
from runner.queries.timeline import ENDED, REPLIED, Position, history_of_run
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.retry import say
from runner.store.rules import lock_rules, remember_rules
from runner.store.tables import events, model_calls
from tests.cli.told import long_run, told
from tests.store.attempts import blocks_of_run, claim, run_row, submit_one, text, tool_use
from tests.store.compacting import ask_for_summary, stand_in, summarise
from tests.store.examples import NOW, SPEC

LENA = Author("lena", "It is late")


def test_messages_come_in_order_and_whole_whatever_is_read_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = long_run(database, 9)
    whole = blocks_of_run(database, run_id)
    assert [line["message"] for line in whole] == sorted(line["message"] for line in whole)
    assert len({line["message"] for line in whole}) == 18
    for batch in (1, 2, 7):
        monkeypatch.setattr(transcript, "MESSAGES_AT_ONCE", batch)
        found = list(transcript.messages_of_run(database, run_id))
        assert [line for message in found for line in message] == whole
        assert all(len({line["message"] for line in message}) == 1 for message in found)
    calls = [line["call"]["turn"] for line in whole if line["call"]]
    assert calls == [turn for turn in range(1, 9) for _ in ("asked", "answered")]


def test_some_turns_have_their_calls(database: Database) -> None:
    run_id = long_run(database, 9)
    found = [
        line for message in transcript.messages_of_run(database, run_id, (3, 4)) for line in message
    ]
    assert [
        (line["turn"], line["role"]) for line in found if line["content"]["type"] != "text"
    ] == [(3, "assistant"), (3, "user"), (4, "assistant"), (4, "user")]
    assert all(line["call"] for line in found if line["content"]["type"] == "tool_result")
    assert list(transcript.messages_of_run(database, run_id, (10, 12))) == []


def test_whole_outputs_are_named_by_their_length(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1), stop="tool_use").finish("part", b"x" * 5_000)
    attempt.reply(tool_use(2), stop="tool_use").finish("all of it")
    sizes = [line["call"]["size"] for line in blocks_of_run(database, run_id) if line["call"]]
    assert sizes == [5_000, 5_000, None, None]


@pytest.mark.parametrize("options", [{}, {"speed": "fast"}, {"cache_control": {"ttl": "1h"}}])
@pytest.mark.parametrize("summary_model", [None, "claude-sonnet-4-5"])
def test_costs_of_calls_are_together_what_costs_says(
    database: Database, options: dict[str, object], summary_model: str | None
) -> None:
    context = replace(SPEC.context, summary_model=summary_model)
    # One has fast mode, the other dearer long prompts.
    model = "claude-opus-5" if "speed" in options else "claude-haiku-5-5"
    spec = replace(SPEC, model=model, model_options=options, context=context)
    run_id = submit_one(database, spec=spec)
    attempt = claim(database, run_id)
    ask_for_summary(attempt)
    summarise(attempt, stand_in(2), model=spec.summary_model)
    attempt.reply(text("Done."), usage=Usage(900_000, 7, 11, 13))

    def forget(connection: Connection) -> None:
        unknown = update(model_calls).where(
            model_calls.c.run_id == run_id, model_calls.c.number == 1
        )
        used = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
        connection.execute(
            unknown.values(dict.fromkeys(used) | {"charged_tokens": 9, "hour_cache": None})
        )
        priced = update(model_calls).where(model_calls.c.model == "claude-test")
        connection.execute(priced.values(model=spec.model))
        last = update(model_calls).where(model_calls.c.run_id == run_id, model_calls.c.number == 3)
        connection.execute(last.values(hour_cache="cache_control" not in options))

    database.write(forget)
    prices = load_prices()
    calls = call_costs(database, prices, run_id)
    assert [(call.turn, call.purpose) for call in calls] == [
        (1, "turn"),
        (2, "summary"),
        (2, "turn"),
    ]
    (whole,) = costs_by(database, prices, "run", run_id=run_id)
    assert sum((call.spending for call in calls), Spending()) == whole.spending
    assert (whole.spending.unknown, whole.spending.unpriced) == (1, frozenset())


def places(database: Database, run_id: str, *types: str) -> list[tuple[str, Position]]:
    found = ((each.type, each.place) for each in history_of_run(database, run_id))
    return [each for each in found if each[0] in types]


def test_things_happened_between_the_messages_that_the_record_has_them_between(
    database: Database,
) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    say(database, run_id, "One.", NOW + 9_000, author=LENA)  # this clock is ahead
    attempt.reply(text("Hm."), tool_use(1), stop="tool_use")
    say(database, run_id, "Two.", NOW - 9_000, author=LENA)
    attempt.finish("ok")
    cancel(database, Target("run", run_id), NOW, author=LENA)
    types = ("run_submitted", "message_queued", "cancelled", "done")
    assert places(database, run_id, *types) == [
        ("run_submitted", Position(0, ENDED)),
        ("message_queued", Position(0, ENDED)),
        ("message_queued", Position(1, REPLIED)),
        ("cancelled", Position(1, ENDED)),
        ("done", Position(1, ENDED)),
    ]


def test_a_fork_begins_after_the_turns_that_it_was_copied_with(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("ok")
    attempt.reply(text("Done."))
    forked = fork(database, run_id, 1, NOW, text="Again.", model=None, author=LENA)
    assert ("forked", Position(1, ENDED)) in places(database, forked.id, "forked")


def test_events_of_the_job_are_there_while_the_run_was(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id

    def add(at: float) -> None:
        def work(connection: Connection) -> None:
            lock_rules(connection, job_id)
            remember_rules(connection, job_id, [Rule("deny", f"Read({at})")], LENA, at)

        database.write(work)

    add(NOW - 1)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("ok")
    add(NOW + 1)
    attempt.now = NOW + 2
    attempt.reply(text("Done."))
    add(NOW + 3)
    told_of = [each for each in history_of_run(database, run_id) if each.type == "rule_added"]
    assert [(each.at, each.place, each.attempt) for each in told_of] == [
        (NOW + 1, Position(1, ENDED), None)
    ]


def test_a_record_without_turns_is_placed_by_its_times(database: Database) -> None:
    run = told(database).work({"command": "pytest"}, "ok").reply(text("Done."))
    run.rows[events] = [each for each in run.rows[events] if not each["type"].endswith("ended")]
    run_id = run.event("imported", by="lena").store(database)
    assert places(database, run_id, "run_submitted", "imported", "done") == [
        ("run_submitted", Position(0, ENDED)),
        ("imported", Position(2, ENDED)),
        ("done", Position(2, ENDED)),
    ]


def test_what_the_conversation_tells_itself_is_no_event(database: Database) -> None:
    types = {each.type for each in history_of_run(database, told(database).store(database))}
    assert types == {"run_submitted", "done"}
    assert SPEC.rules  # the job's own submission is told by the run's
