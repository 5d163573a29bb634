"""Sessions of Claude Code's, brought into the database."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, select

from runner.core.commands import Raised, Target
from runner.core.conversation import Block
from runner.core.run import Author
from runner.core.text import json_line
from runner.errors import UsageError
from runner.exchange import sessions
from runner.exchange.claude_code import session_lines
from runner.llm.prices import load_prices
from runner.queries import transcript
from runner.queries.costs import costs_by
from runner.queries.jobs import show_job
from runner.queries.transcript import show_run
from runner.store.database import Database
from runner.store.exports import load_recorded
from runner.store.fork import fork
from runner.store.jobs import submit
from runner.store.retry import retry, say
from runner.store.sessions import ImportedSession, import_session
from runner.store.tables import blocks, job_events, jobs, runs, tool_calls
from tests.exchange.samples import CWD, Session, raw_of, text, use, usual
from tests.store.attempts import blocks_of_run, claim, event_types, run_row, submit_one
from tests.store.compacting import compact, stand_in, use_tool
from tests.store.examples import NOW, submission
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.stories import any_text, objects

ANN = Author("ann", "to search in it")
PRICES = load_prices()
OPUS = "claude-opus-4-5-20251101"


def bring(database: Database, session: Session) -> list[ImportedSession]:
    return import_session(database, {"": session.raw()}, "session.jsonl", ANN, NOW)


def rows(database: Database, table: Table) -> list[dict[str, Any]]:
    query = select(table).order_by(*table.primary_key)
    found = database.read(lambda connection: connection.execute(query).mappings().all())
    return [dict(row) for row in found]


def test_a_session_that_is_nested_more_deeply_than_can_be_worked_with_is_refused(
    database: Database,
) -> None:
    inner: Any = "deep"
    for _ in range(250):
        inner = {"a": inner}
    session = Session()
    session.user("go")
    session.reply("msg_1", use("toolu_1", "Bash", command=inner))
    with pytest.raises(ValueError, match="nested too deeply"):
        bring(database, session)


def test_a_session_is_a_run_of_the_job_claude_code(database: Database) -> None:
    (brought,) = bring(database, usual())
    assert (brought.what, brought.state, brought.project) == ("imported", "succeeded", CWD)
    job = show_job(database, brought.job_id)
    assert (job["name"], job["key"]) == ("claude-code", "claude-code")
    run = show_run(database, brought.run_id)
    assert (run["item_key"], run["turns"], run["input_tokens"]) == (CWD, 2, 12)
    assert event_types(database, brought.run_id) == [
        "run_submitted",
        "tool_started",
        "model_call_ended",
        "tool_started",
        "tool_done",
        "tool_done",
        "turn_ended",
        "model_call_ended",
        "turn_ended",
        "done",
    ]
    roles = [message["role"] for message in transcript.api_messages(database, brought.run_id)]
    assert roles == ["user", "assistant", "user", "assistant"]
    calls = [line["call"] for line in blocks_of_run(database, brought.run_id) if line["call"]]
    assert [call["state"] for call in calls] == ["succeeded", "failed", "succeeded", "failed"]


def test_what_a_session_cost_is_known_by_the_model_that_it_called(database: Database) -> None:
    bring(database, usual())
    ((model, spending),) = [(s.key, s.spending) for s in costs_by(database, PRICES, "model")]
    rates = PRICES.price(OPUS)
    assert rates is not None
    expected = rates.standard.cost(spending.usage, hour_cache=False)
    assert (model, spending.usd, spending.calls) == (OPUS, expected, 2)
    assert spending.usd > Decimal(0)


def test_who_imported_a_session_is_recorded(database: Database) -> None:
    bring(database, usual())
    made, imported = rows(database, job_events)
    assert (made["type"], made["data"]["by"]) == ("submitted", "ann")
    assert (imported["type"], imported["data"]["by"]) == ("imported", "ann")
    assert imported["data"]["why"] == "to search in it"


def test_a_session_that_is_there_stays_as_it_is(database: Database) -> None:
    bring(database, usual())
    before = [rows(database, table) for table in (runs, blocks, tool_calls, job_events)]
    (brought,) = bring(database, usual())
    assert brought.what == "there"
    assert [rows(database, table) for table in (runs, blocks, tool_calls, job_events)] == before


@pytest.mark.slow
def test_a_session_that_has_gone_on_is_added_to(database: Database) -> None:
    whole = usual()
    whole.user("And the tests?")
    whole.reply("msg_3", use("toolu_3", "Bash", command="make test"))
    early = Session()
    early.lines = list(whole.lines)
    whole.result("toolu_3", "ok")
    whole.reply("msg_4", text("They pass."), stop="end_turn", output_tokens=4)
    (first,) = bring(database, early)
    revision = run_row(database, first.run_id).revision
    assert (first.state, rows(database, tool_calls)[-1]["interrupted"]) == ("cancelled", True)
    (second,) = bring(database, whole)
    assert (second.what, second.run_id, second.state) == ("continued", first.run_id, "succeeded")
    call = rows(database, tool_calls)[-1]
    assert (call["interrupted"], call["outcome"]) == (False, "succeeded")
    run = run_row(database, first.run_id)
    assert (run.turns, run.message_count, run.revision) == (4, 8, revision + 1)
    assert event_types(database, first.run_id)[-6:] == [
        "session_continued",
        "tool_done",
        "turn_ended",
        "model_call_ended",
        "turn_ended",
        "done",
    ]
    assert [each.what for each in bring(database, whole)] == ["there"]


def test_a_session_that_says_something_else_is_refused_whole(database: Database) -> None:
    bring(database, usual())
    before = [rows(database, table) for table in (runs, blocks, job_events)]
    other = usual()
    other.lines[2]["message"]["content"] = "Break the cart."
    other.user("More.")
    with pytest.raises(UsageError, match=r"session\.jsonl: run_.* says something else"):
        bring(database, other)
    assert [rows(database, table) for table in (runs, blocks, job_events)] == before


def test_a_job_of_someones_own_is_not_taken_for_that_of_the_sessions(database: Database) -> None:
    job_id = submit(database, submission("a"), NOW, "claude-code")
    with pytest.raises(UsageError, match=f"{job_id} has the key 'claude-code'"):
        bring(database, usual())
    assert len(rows(database, jobs)) == len(rows(database, runs)) == 1


def test_an_imported_session_is_not_gone_on_with_by_mistake(database: Database) -> None:
    session = usual()
    session.user("And now?")
    (brought,) = bring(database, session)
    target = Target("run", brought.run_id)
    for go_on in (
        lambda: retry(database, target, NOW),
        lambda: retry(database, target, NOW, raised=Raised(max_turns=9, token_ceiling=10**6)),
        lambda: retry(database, target, NOW, fresh=True),
        lambda: say(database, brought.run_id, "Go on.", NOW),
        lambda: fork(database, brought.run_id, 1, NOW, text="Go on.", model="claude-opus-5"),
    ):
        with pytest.raises(UsageError, match="are sessions that were imported from Claude Code"):
            go_on()
    assert len(rows(database, runs)) == 1


def test_a_run_of_ours_comes_back_from_a_session_with_all_that_was_said(
    database: Database, make_database: MakeDatabase
) -> None:
    elsewhere = make_database("sqlite")
    run_id = submit_one(database)
    attempt = compact(use_tool(claim(database, run_id), "read"), stand_in(2))
    attempt.reply(text("Done."))
    recorded = load_recorded(database, run_id)
    lines = list(session_lines(recorded, "1"))
    (brought,) = import_session(elsewhere, {"": raw_of(lines)}, "session.jsonl", ANN, NOW)
    again = load_recorded(elsewhere, brought.run_id)
    assert said(again.blocks) == said(recorded.blocks)
    for name in ("input_tokens", "output_tokens", "model", "stop_reason", "turn"):
        assert [c[name] for c in again.model_calls] == [c[name] for c in recorded.model_calls]
    told = [
        [(c["text"], c["last_message"]) for c in each.compactions] for each in (again, recorded)
    ]
    assert told[0] == told[1] == [("summed up", 2)]


def said(found: Any) -> list[tuple[int, int, str, Block]]:
    return [(row["message"], row["position"], row["role"], row["content"]) for row in found]


_words = any_text.filter(lambda words: words.isprintable())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_whatever_was_said_in_a_session_is_stored_and_exported_as_it_was(
    make_database: MakeDatabase, kind: str
) -> None:
    target = make_database(kind)

    @settings(
        max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        turns=st.lists(
            st.tuples(any_text, st.lists(st.tuples(objects, any_text), max_size=2)), max_size=4
        ),
        tool=_words,
    )
    def stores(turns: list[Any], tool: str) -> None:
        session = Session(sessionId=str(uuid4()), cwd=tool)
        session.user("Begin.")
        for number, (words, calls) in enumerate(turns):
            asked = [
                use(f"{tool}{number}.{n}", tool, **given) for n, (given, _) in enumerate(calls)
            ]
            session.reply(f"msg_{number}", text(words), *asked)
            for n, (_, result) in enumerate(calls):
                session.result(f"{tool}{number}.{n}", result)
        raw = [json_line(line).strip() for line in session.lines]
        (found,) = sessions.Session({"": raw}).runs({}, {})
        (brought,) = import_session(target, {"": raw}, "session.jsonl", ANN, NOW)
        recorded = load_recorded(target, brought.run_id)
        assert list(recorded.lines) == raw
        written = [json_line(line).strip() for line in session_lines(recorded, "1")]
        (again,) = sessions.Session({"": written}).runs({}, {})
        assert said(again.rows["blocks"]) == said(found.rows["blocks"])

    stores()
