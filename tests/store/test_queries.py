"""Looking at jobs, runs, transcripts and tool calls."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select

from runner.core.commands import Target
from runner.core.run import STATES, RunStatus
from runner.errors import NotFoundError
from runner.queries import transcript
from runner.queries.jobs import (
    current_runs,
    job_state,
    last_texts,
    list_jobs,
    list_runs,
    runs_without_workspace,
    show_job,
)
from runner.queries.timeline import events_after
from runner.queries.transcript import show_run
from runner.store import jobs as jobs_store
from runner.store.control import cancel, pause
from runner.store.database import Database
from runner.store.due_runs import look_at, wait_for_workspace
from runner.store.retry import retry, say
from runner.store.tables import runs
from tests.store.attempts import blocks_of_run, claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission


def runs_of(database: Database, job_id: str) -> list[str]:
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return list(database.read(lambda c: c.execute(query).scalars()))


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"succeeded": 3}, "succeeded"),
        ({"succeeded": 3, "stopped": 1}, "stopped"),
        ({"stopped": 1, "cancelled": 1}, "cancelled"),
        ({"cancelled": 1, "failed": 1, "stopped": 1}, "failed"),
        ({"failed": 9, "waiting": 1}, "waiting"),
        ({"waiting": 9, "queued": 1}, "queued"),
        ({"queued": 9, "running": 1}, "running"),
        ({}, "succeeded"),
    ],
)
def test_state_of_a_job_is_that_of_what_is_left_to_do_else_the_worst_end(
    counts: dict[RunStatus, int], state: RunStatus
) -> None:
    assert job_state(counts) == state


def test_every_state_has_its_place_in_a_job_s() -> None:
    assert {job_state({state: 1}) for state in STATES} == set(STATES)


def test_jobs_are_listed_with_their_runs_in_numbers(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b", "c"), NOW, "nightly")
    other = jobs_store.submit(database, submission("d"), NOW + 1)
    first, second, _ = runs_of(database, job_id)
    claim(database, first).reply(text("Done."))
    claim(database, second)
    mine, theirs = list_jobs(database)
    assert (mine["id"], theirs["id"]) == (job_id, other)
    assert (mine["name"], mine["key"], mine["state"]) == ("mend", "nightly", "running")
    assert mine["runs"] == {"queued": 1, "running": 1, "succeeded": 1}
    assert (mine["turns"], mine["input_tokens"], mine["charged_tokens"]) == (1, 100, 110)
    assert theirs["runs"] == {"queued": 1}
    assert [job["id"] for job in list_jobs(database, "queued")] == [other]


def test_runs_are_listed_in_the_order_of_their_items(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("z", "a", "m"), NOW)
    cancel(database, Target("run", runs_of(database, job_id)[1]), NOW)
    assert [run["item_key"] for run in list_runs(database, job_id)] == ["z", "a", "m"]
    (cancelled,) = list_runs(database, job_id, "cancelled")
    assert (cancelled["item_key"], cancelled["ended_at"]) == ("a", NOW)


def test_run_begun_afresh_counts_as_its_successor(database: Database) -> None:
    run_id = submit_one(database)
    job_id = run_row(database, run_id).job_id
    claim(database, run_id).reply(tool_use(1, "Write"), stop="tool_use")
    cancel(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    claim(database, change.id).reply(text("Done."))
    (job,) = list_jobs(database)
    assert (job["state"], job["runs"]) == ("succeeded", {"succeeded": 1})
    assert (job["turns"], job["output_tokens"]) == (2, 20)
    old, new = list_runs(database, job_id)
    assert (old["fresh_run"], new["fresh_of"]) == (change.id, run_id)
    assert current_runs([old, new]) == [new]
    assert show_run(database, run_id)["fresh_run"] == change.id


def test_last_texts_are_the_last_that_the_model_wrote(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    first, _ = runs_of(database, job_id)
    attempt = claim(database, first)
    attempt.reply(text("One."), text("Two."), tool_use(1), stop="tool_use").finish("three")
    assert last_texts(database, job_id) == {first: "Two."}
    attempt.reply(text("Four."))
    assert last_texts(database, job_id) == {first: "Four."}


def test_job_is_shown_as_it_was_submitted(database: Database) -> None:
    example = submission("a")
    job_id = jobs_store.submit(database, example, NOW)
    job = show_job(database, job_id)
    assert (job["spec_text"], job["spec"]["model"]) == (example.text, SPEC.model)
    assert job["permission_rules"][1] == {"effect": "deny", "rule": "Bash", "origin": "job"}
    assert job["state"] == "queued"


def test_run_is_shown_with_the_messages_that_wait_for_it(database: Database) -> None:
    run_id = submit_one(database)
    say(database, run_id, "Be quick.", NOW)
    run = show_run(database, run_id)
    assert (run["id"], run["state"], run["job_name"]) == (run_id, "queued", "mend")
    assert [message["text"] for message in run["queued_messages"]] == ["Be quick."]
    claim(database, run_id)
    assert show_run(database, run_id)["queued_messages"] == []


def test_run_that_is_not_there_is_not_shown(database: Database) -> None:
    with pytest.raises(NotFoundError):
        show_run(database, "run_none")


def test_messages_are_exactly_those_of_the_api(database: Database) -> None:
    run_id = submit_one(database)
    reply = [text("Let me see."), tool_use(1, path="a"), tool_use(2, path="b")]
    attempt = claim(database, run_id).reply(*reply, stop="tool_use").finish("one")
    said = [
        {"role": "user", "content": [text("Mend one.")]},
        {"role": "assistant", "content": reply},
    ]
    assert transcript.api_messages(database, run_id) == said
    attempt.finish("two")
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"}
    results = [result, result | {"tool_use_id": "toolu_2", "content": "two"}]
    said.append({"role": "user", "content": results})
    assert transcript.api_messages(database, run_id) == said


def test_lines_tell_what_became_of_each_call(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1), tool_use(2), stop="tool_use").finish("one")
    found = blocks_of_run(database, run_id)
    assert [line["content"]["type"] for line in found] == [
        "text",
        "tool_use",
        "tool_use",
        "tool_result",
    ]
    prompt, first, second, result = (line["call"] for line in found)
    assert prompt is None
    assert first == result
    assert first is not None
    assert second is not None
    assert (first["state"], second["state"]) == ("succeeded", "started")
    cancel(database, Target("run", run_id), NOW)
    assert (blocks_of_run(database, run_id)[2]["call"] or {})["state"] == "interrupted"


def test_id_that_a_model_uses_twice_names_two_calls(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1, n=1), stop="tool_use").finish("one")
    attempt.reply(tool_use(1, n=2), stop="tool_use").finish("two")
    calls = {line["call"]["id"] for line in blocks_of_run(database, run_id) if line["call"]}
    shown = [transcript.show_call(database, name) for name in sorted(calls)]
    assert [(call["input"], call["output"]) for call in shown] == [
        ({"n": 1}, "one"),
        ({"n": 2}, "two"),
    ]


def test_call_is_shown_whole_even_where_the_model_saw_less(database: Database) -> None:
    run_id = submit_one(database)
    whole = "x" * 100_000 + "é"
    attempt = claim(database, run_id).reply(tool_use(1, path="a"), stop="tool_use")
    attempt.finish("x…é", output=whole.encode() + b"\xff")
    call: dict[str, Any] = transcript.show_call(database, f"call_{run_id[4:]}_1_1")
    assert (call["state"], call["decision"], call["rule"]) == ("succeeded", "allow", "Read")
    assert call["input"] == {"path": "a"}
    assert call["result"] == "x…é"
    assert call["output"] == whole + "\ufffd"


def test_call_that_is_not_there_is_not_shown(database: Database) -> None:
    run_id = submit_one(database)
    with pytest.raises(NotFoundError):
        transcript.show_call(database, f"call_{run_id[4:]}_1_1")


def test_events_go_on_from_a_number(database: Database) -> None:
    run_id = submit_one(database)
    pause(database, Target("run", run_id), NOW)
    numbers = [event["number"] for event in events_after(database, run_id)]
    assert numbers == [1, 2]
    assert [event["type"] for event in events_after(database, run_id, {run_id: 1})] == ["paused"]
    assert events_after(database, run_id, {run_id: 2}) == []


def test_runs_that_wait_for_a_workspace_are_counted(database: Database) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    for run_id in runs_of(database, job_id):
        due = look_at(database, run_id, NOW)
        assert due is not None
        wait_for_workspace(database, due, NOW)
    assert runs_without_workspace(database) == {"None": 2}


def test_looking_costs_the_same_number_of_queries_for_any_number_of_runs(
    database: Database,
) -> None:
    def queries_to_look_at(job_id: str) -> int:
        statements: list[str] = []
        note = lambda *arguments: statements.append(arguments[2])  # noqa: E731
        event.listen(database.reader, "before_cursor_execute", note)
        list_jobs(database)
        list_runs(database, job_id)
        last_texts(database, job_id)
        event.remove(database.reader, "before_cursor_execute", note)
        return len(statements)

    few = jobs_store.submit(database, submission("a"), NOW)
    many = jobs_store.submit(database, submission(*map(str, range(60))), NOW)
    assert queries_to_look_at(few) == queries_to_look_at(many)
