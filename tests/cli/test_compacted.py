"""What ``transcript`` and ``show`` say of compactions, and requests as they were sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.app.report import report_on
from runner.cli.main import main
from runner.cli.report import summarise as summarise_job
from runner.core.conversation import Usage
from runner.core.model_calls import turn_request
from runner.llm.requests import request_body
from runner.queries.transcript import show_run
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.cli.questions import app_on
from tests.cli.test_terminal import steers
from tests.store.attempts import Attempt, claim, submit_one, text
from tests.store.compacting import (
    HOSTILE,
    ask_for_summary,
    compact,
    stand_in,
    summarise,
    truncation,
)
from tests.store.examples import NOW

NEXT = Usage(input_tokens=100, output_tokens=10)


def last_request(attempt: Attempt) -> bytes:
    """What the call that is under way sends."""
    call = attempt.state.model.open_call
    assert call is not None
    return request_body(turn_request(attempt.state, call))


@pytest.fixture
def sent(database: Database) -> tuple[str, list[bytes]]:
    """A run that was compacted in each of the ways, and what it sent, turn by turn."""
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    sent = [last_request(attempt)]
    compact(attempt, truncation(2, said="cut short"))
    sent.append(last_request(attempt))
    ask_for_summary(attempt)
    summarise(attempt, stand_in(4, f"[Earlier conversation summary] {HOSTILE}"))
    sent.append(last_request(attempt))
    compact(attempt, stand_in(6, "left out", "prune"))
    sent.append(last_request(attempt))
    attempt.reply(text("Done."), usage=NEXT)
    return run_id, sent


@pytest.mark.slow
def test_a_transcript_shows_compactions_where_they_happened_and_the_whole_conversation(
    command: Callable[..., Result], sent: tuple[str, list[bytes]]
) -> None:
    shown = command("transcript", sent[0]).out
    assert not any(map(steers, shown.replace("\n", "")))
    lines = shown.splitlines()
    heads = [" ".join(line.split(" · ")[0].split()[1:]) for line in lines if line.startswith("──")]
    assert heads == [
        "user",
        "assistant, turn 1",
        "user, turn 1",
        "compacted before turn 2",
        "assistant, turn 2",
        "user, turn 2",
        "compacted before turn 3",
        "assistant, turn 3",
        "user, turn 3",
        "compacted before turn 4",
        "assistant, turn 4",
    ]
    assert "about 900 tokens became 400" in shown
    assert "[1 result of a tool is sent shortened]" in lines
    assert "[messages 1 to 4 are sent as this summary, the reply to model call 3]" in lines
    assert "[Earlier conversation summary] " in shown
    assert "[messages 1 to 6 are left out; this is sent instead]" in lines
    assert "  left out" in lines
    assert lines.count("  ok") == 3


def test_every_turn_is_shown_as_it_was_sent_byte_for_byte(
    sent: tuple[str, list[bytes]], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run_id, bodies = sent
    for turn, body in enumerate(bodies, 1):
        with pytest.raises(SystemExit) as ended:
            main(["transcript", run_id, "--as-sent", str(turn)])
        assert ended.value.code == 0
        assert capsysbinary.readouterr().out == body


def test_a_terminal_is_shown_the_request_without_being_steered(
    command: Callable[..., Result], sent: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, bodies = sent
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = command("transcript", run_id, "--as-sent", "3").out
    assert json.loads(shown) == json.loads(bodies[2])
    assert shown.isascii()
    assert not any(map(steers, shown.replace("\n", "")))


def test_a_turn_in_which_nothing_was_sent_is_a_usage_error(
    command: Callable[..., Result], sent: tuple[str, list[bytes]]
) -> None:
    refused = command("transcript", sent[0], "--as-sent", "5")
    assert (refused.code, refused.out) == (2, "")
    assert "its last turn is 4" in refused.err
    assert command("transcript", sent[0], "--as-sent", "0").code == 2


@pytest.mark.slow
def test_a_run_is_shown_with_how_full_its_context_is(
    command: Callable[..., Result], sent: tuple[str, list[bytes]], folder: Path
) -> None:
    shown = command("show", sent[0])
    # The window of a model that nobody knows; what was appended since is the last reply.
    assert " of 200,000 tokens (" in shown.out
    assert "1 × clip, 1 × prune, 1 × summary" in shown.out
    told = command("show", sent[0], "--json").json
    assert told["compactions"] == {"clip": 1, "prune": 1, "summary": 1}
    assert (told["window"], told["fullness"]["measured"]) == (200_000, 100)


def test_turns_that_no_summary_could_stand_in_for_are_not_left_out_in_silence(
    command: Callable[..., Result], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit_one(database)
    attempt = ask_for_summary(claim(database, run_id))
    attempt.fail("not_found_error", "model: claude-nope-1")
    compact(attempt, stand_in(2, "left out", "prune")).reply(text("Done."))
    why = "not_found_error: model: claude-nope-1"
    assert f"1 × prune (no summary: {why})" in command("show", run_id).out
    job_id = show_run(database, run_id)["job_id"]
    report = report_on(app_on(database), job_id, NOW, with_changes=False)
    summarise_job(report, interrupted=False, as_json=False)
    assert "in 1 run the oldest turns were left out of what the model" in capsys.readouterr().out


def test_what_summaries_cost_is_told_apart(
    command: Callable[..., Result], sent: tuple[str, list[bytes]]
) -> None:
    lines = command("costs", "--by", "purpose", "--json").json["lines"]
    assert [(line["purpose"], line["calls"]) for line in lines] == [("summary", 1), ("turn", 4)]
