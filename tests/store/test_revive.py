"""Retrying runs, beginning them afresh, and saying something to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.budget import Limits
from runner.core.commands import Raised, Target
from runner.core.conversation import Usage
from runner.core.entries import ModelCallFailed, TimeWorked
from runner.core.steps import CallModel, RunTools
from runner.core.workspace import Workspace
from runner.errors import UsageError
from runner.queries.transcript import show_run
from runner.store import jobs as jobs_store
from runner.store.control import cancel, pause
from runner.store.database import Database
from runner.store.retry import retry, say
from runner.store.run_state import load_conversation
from runner.store.tables import blocks, events, run_items, runs
from runner.store.workspaces import WorkspaceRecord, save_record
from tests.store.asked import priced
from tests.store.attempts import Attempt, claim, event_types, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission


def with_limits(**limits: Any) -> dict[str, Any]:
    return {"spec": replace(SPEC, limits=Limits(**limits))}


def texts_sent(attempt: Attempt) -> list[Any]:
    return [
        block.get("text", block["type"])
        for message in attempt.state.messages
        for block in message.blocks
    ]


def test_failed_run_goes_on_from_its_journal(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("one")
    attempt.fail("invalid_request_error", "no")
    assert run_row(database, run_id).state == "failed"
    (change,) = retry(database, Target("run", run_id), NOW + 9)
    assert (change.id, change.state, change.changed) == (run_id, "queued", True)
    run = run_row(database, run_id)
    assert (run.reason, run.detail, run.due_at, run.ended_at) == ("", "", NOW + 9, None)
    again = claim(database, run_id, NOW + 9)
    assert isinstance(again.effect, CallModel)
    assert len(again.state.messages) == 3
    assert again.state.turns == 1
    again.reply(text("Done."))
    assert run_row(database, run_id).state == "succeeded"


def test_run_cancelled_in_its_back_off_does_not_wait_again(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.append(ModelCallFailed("overloaded_error", "", 529, None, 0, NOW, NOW + 600))
    assert run_row(database, run_id).due_at == NOW + 600
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW + 1)
    again = claim(database, run_id, NOW + 1)
    assert isinstance(again.effect, CallModel)
    assert again.state.model.failure is None


def test_cancelled_run_goes_on_and_its_cut_calls_are_answered(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(1), stop="tool_use")
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW)
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    result = again.state.messages[-1].blocks[0]
    assert (result["tool_use_id"], result["is_error"]) == ("toolu_1", True)


@pytest.mark.parametrize("blocks_cut", [(), (text("Half a"),)], ids=["empty", "text"])
def test_reply_that_was_cut_too_often_may_go_on_after_a_retry(
    database: Database, blocks_cut: tuple[Any, ...]
) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    while isinstance(attempt.effect, CallModel):
        attempt.reply(*blocks_cut, stop="max_tokens")
    assert run_row(database, run_id).state in ("stopped", "failed")
    retry(database, Target("run", run_id), NOW)
    assert isinstance(claim(database, run_id).effect, CallModel)


def test_reply_cut_by_the_ceiling_goes_on_when_it_is_raised(database: Database) -> None:
    run_id = submit_one(database, **with_limits(token_ceiling=6_000, max_output_tokens=5_000))
    used = Usage(input_tokens=500, output_tokens=3_000)
    claim(database, run_id).reply(text("Half a"), stop="max_tokens", usage=used)
    assert run_row(database, run_id).reason == "token_ceiling"
    with pytest.raises(UsageError, match="--tokens N"):
        retry(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW, raised=Raised(token_ceiling=50_000))
    assert isinstance(claim(database, run_id).effect, CallModel)


def test_used_up_turns_need_a_higher_limit(database: Database) -> None:
    run_id = submit_one(database, **with_limits(max_turns=1))
    claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("one")
    assert run_row(database, run_id).reason == "max_turns"
    for too_low in (None, 1):
        with pytest.raises(UsageError, match=r"used 1 of 1 turns.*--max-turns N. .at least 2"):
            retry(database, Target("run", run_id), NOW, raised=Raised(max_turns=too_low))
    assert run_row(database, run_id).state == "stopped"
    retry(database, Target("run", run_id), NOW, raised=Raised(max_turns=2))
    assert claim(database, run_id).state.limits.max_turns == 2


def test_used_up_tokens_need_a_higher_ceiling(database: Database) -> None:
    run_id = submit_one(database, **with_limits(token_ceiling=6_000, max_output_tokens=2_000))
    used = Usage(input_tokens=4_000, output_tokens=100)
    claim(database, run_id).reply(tool_use(1), stop="tool_use", usage=used).finish("one")
    assert run_row(database, run_id).reason == "token_ceiling"
    with pytest.raises(UsageError, match=r"at least (\d+)") as refused:
        retry(database, Target("run", run_id), NOW, raised=Raised(token_ceiling=6_001))
    least = int(str(refused.value).rsplit(" ", 1)[1].rstrip(")"))
    with pytest.raises(UsageError):
        retry(database, Target("run", run_id), NOW, raised=Raised(token_ceiling=least - 1))
    retry(database, Target("run", run_id), NOW, raised=Raised(token_ceiling=least))
    assert isinstance(claim(database, run_id).effect, CallModel)


def test_run_past_its_deadline_can_only_begin_afresh(database: Database) -> None:
    run_id = submit_one(database, **with_limits(deadline=60.0))
    cancel(database, Target("run", run_id), NOW)
    with pytest.raises(UsageError, match="--fresh"):
        retry(database, Target("run", run_id), NOW + 60)
    (change,) = retry(database, Target("run", run_id), NOW + 60, fresh=True)
    assert isinstance(claim(database, change.id, NOW + 61).effect, CallModel)


def test_run_that_has_not_ended_is_not_retried(database: Database) -> None:
    run_id = submit_one(database)
    for fresh in (False, True):
        with pytest.raises(UsageError, match="has not ended"):
            retry(database, Target("run", run_id), NOW, fresh=fresh)


def test_run_that_has_succeeded_is_only_done_afresh(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    with pytest.raises(UsageError, match="--fresh"):
        retry(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    assert change.id != run_id
    assert run_row(database, run_id).state == "succeeded"


def test_fresh_run_has_the_item_and_prompt_and_nothing_else(database: Database) -> None:
    run_id = submit_one(database, "one")
    claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("x")
    cancel(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW + 9, fresh=True)
    old, new = run_row(database, run_id), run_row(database, change.id)
    assert (new.job_id, new.item_key) == (old.job_id, old.item_key)
    assert show_run(database, new.id)["item"] == show_run(database, old.id)["item"]
    assert (new.fresh_of, new.state, new.created_at) == (run_id, "queued", NOW + 9)
    assert (new.turns, new.charged_tokens, new.attempt, new.message_count) == (0, 0, 0, 1)
    messages, calls = database.read(lambda c: load_conversation(c, change.id, lambda snapshot: ()))
    assert [message.as_api()["content"] for message in messages] == [[text("Mend one.")]]
    assert calls == ()
    assert new.progress["context"]["appended_bytes"] > 0
    assert event_types(database, run_id)[-1] == "begun_afresh"
    assert event_types(database, change.id) == ["run_submitted"]


def test_fresh_run_keeps_the_message_of_its_commit(database: Database) -> None:
    new = replace(submission().runs[0], commit_message="Mend one\n\nBy hand.")
    jobs_store.submit(database, replace(submission(), runs=(new,)), NOW)
    run_id = database.read(lambda c: c.execute(select(runs.c.id)).scalar_one())
    cancel(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    query = select(run_items.c.commit_message).where(run_items.c.run_id == change.id)
    assert database.read(lambda c: c.execute(query).scalar_one()) == "Mend one\n\nBy hand."


def test_fresh_run_begins_in_the_job_s_workspace_and_not_in_the_old_copy(
    database: Database,
) -> None:
    spec = replace(SPEC, workspace=Workspace("/src/project", "copy"))
    job_id = jobs_store.submit(database, submission(spec=spec), NOW, workspace_id="ws_source")
    query = select(runs.c.id).where(runs.c.job_id == job_id)
    run_id = database.read(lambda c: c.execute(query).scalar_one())
    save_record(
        database,
        claim(database, run_id).lease,
        WorkspaceRecord("here", "/copies/1"),
        "ws_copy",
        NOW,
    )
    cancel(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    fresh = run_row(database, change.id)
    assert (fresh.workspace_path, fresh.workspace_id) == ("/src/project", "ws_source")


def test_run_begun_afresh_is_not_taken_up_again(database: Database) -> None:
    run_id = submit_one(database)
    cancel(database, Target("run", run_id), NOW)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True)
    for fresh in (False, True):
        with pytest.raises(UsageError, match=f"afresh as {change.id}"):
            retry(database, Target("run", run_id), NOW, fresh=fresh)


def test_retrying_a_job_takes_what_did_not_succeed(database: Database) -> None:
    keys = ("succeeded", "failed", "cancelled", "queued", "afresh")
    job_id = jobs_store.submit(database, submission(*keys), NOW)
    query = select(runs.c.item_key, runs.c.id).where(runs.c.job_id == job_id)
    by_key = dict(database.read(lambda c: list(map(tuple, c.execute(query)))))
    claim(database, by_key["succeeded"]).reply(text("Done."))
    claim(database, by_key["failed"]).fail("invalid_request_error", "no")
    cancel(database, Target("run", by_key["cancelled"]), NOW)
    cancel(database, Target("run", by_key["afresh"]), NOW)
    retry(database, Target("run", by_key["afresh"]), NOW, fresh=True)
    job = Target("job", job_id)
    assert {c.item_key for c in retry(database, job, NOW, state="failed")} == {"failed"}
    assert {c.item_key for c in retry(database, job, NOW)} == {"cancelled"}


def test_one_run_that_needs_a_limit_does_not_stop_the_others(database: Database) -> None:
    example = submission("stopped", "failed", spec=with_limits(max_turns=1)["spec"])
    job_id = jobs_store.submit(database, example, NOW)
    query = select(runs.c.id).order_by(runs.c.id)
    stopped, failed = database.read(lambda c: c.execute(query).scalars().all())
    claim(database, stopped).reply(tool_use(1), stop="tool_use").finish("x")
    claim(database, failed).fail("invalid_request_error", "no")
    first, second = retry(database, Target("job", job_id), NOW)
    assert (first.changed, first.state) == (False, "stopped")
    assert "--max-turns" in first.detail
    assert (second.changed, second.state) == (True, "queued")


def test_message_to_a_run_waits_for_its_turn(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id).reply(tool_use(1), stop="tool_use")
    change = say(database, run_id, "Be quick.", NOW)
    assert (change.state, change.changed) == ("running", True)
    assert isinstance(attempt.effect, RunTools)
    attempt.finish("one")
    assert [block["type"] for block in attempt.state.messages[-1].blocks] == ["tool_result", "text"]
    assert run_row(database, run_id).queued_count == 0


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_message_to_an_ended_run_starts_it_again(database: Database, end: str) -> None:
    run_id = submit_one(database)
    if end == "succeeded":
        claim(database, run_id).reply(text("Done."))
    elif end == "failed":
        claim(database, run_id).fail("invalid_request_error", "no")
    else:
        cancel(database, Target("run", run_id), NOW)
    change = say(database, run_id, "Once more.", NOW + 3)
    assert (change.state, change.changed) == ("queued", True)
    again = claim(database, run_id, NOW + 3)
    assert isinstance(again.effect, CallModel)
    assert texts_sent(again)[-1] == "Once more."
    assert event_types(database, run_id).count("message_queued") == 1


def test_message_to_a_paused_run_leaves_it_paused(database: Database) -> None:
    run_id = submit_one(database)
    pause(database, Target("run", run_id), NOW)
    assert say(database, run_id, "Later.", NOW).state == "waiting"
    assert run_row(database, run_id).queued_count == 1


def test_message_to_a_run_without_turns_left_is_refused(database: Database) -> None:
    run_id = submit_one(database, **with_limits(max_turns=1))
    claim(database, run_id).reply(tool_use(1), stop="tool_use").finish("one")
    with pytest.raises(UsageError, match="--max-turns"):
        say(database, run_id, "Once more.", NOW)
    assert run_row(database, run_id).queued_count == 0
    assert event_types(database, run_id)[-1] == "done"


@pytest.mark.parametrize("words", ["", " \n", "a\0b", "\udce9"])
def test_message_that_says_nothing_or_cannot_be_stored_is_refused(
    database: Database, words: str
) -> None:
    run_id = submit_one(database)
    with pytest.raises(UsageError):
        say(database, run_id, words, NOW)
    assert run_row(database, run_id).queued_count == 0


def test_prompt_is_stored_once_more_for_a_fresh_run_and_not_changed(database: Database) -> None:
    run_id = submit_one(database)
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW, fresh=True)
    rows = database.read(lambda c: c.execute(select(blocks.c.content)).scalars().all())
    assert rows == [text("Mend one.")] * 2


def test_used_up_cost_needs_a_higher_ceiling(database: Database) -> None:
    limits = {"max_output_tokens": 2_000, "cost_ceiling_usd": 0.05}
    run_id = submit_one(database, **with_limits(**limits))
    attempt = claim(database, run_id, NOW, priced)
    attempt.reply(tool_use(1), stop="tool_use", usage=Usage(2_000, output_tokens=2_000))
    attempt.finish("one")
    run = run_row(database, run_id)
    assert (run.state, run.reason, run.cost_ceiling_usd) == ("stopped", "cost_ceiling", 0.05)
    for too_low in (None, 0.01, 0.05):
        with pytest.raises(
            UsageError, match=r"\$0.0360 of \$0.0\d00.*--usd N. .more than \$0.0500"
        ):
            retry(database, Target("run", run_id), NOW, raised=Raised(cost_ceiling_usd=too_low))
    with pytest.raises(UsageError, match="--usd N"):
        say(database, run_id, "Once more.", NOW)
    retry(database, Target("run", run_id), NOW, raised=Raised(cost_ceiling_usd=0.5))
    again = claim(database, run_id, NOW, priced)
    assert isinstance(again.effect, CallModel)
    assert again.state.limits.cost_ceiling_usd == 0.5


def test_used_up_cost_is_told_to_the_last_billionth(database: Database) -> None:
    limits = {"max_output_tokens": 2_000, "cost_ceiling_usd": 0.00005}
    run_id = submit_one(database, **with_limits(**limits))
    claim(database, run_id, NOW, priced)
    assert run_row(database, run_id).detail.startswith("$0.0000 of $0.00005 is used;")
    with pytest.raises(UsageError, match=r"\$0.0000 of \$0.00005: .*more than \$0.00005"):
        retry(database, Target("run", run_id), NOW)


def test_used_up_working_time_needs_more(database: Database) -> None:
    run_id = submit_one(database, **with_limits(working_time=60.0))
    attempt = claim(database, run_id).append(TimeWorked(70.5))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    assert run_row(database, run_id).reason == "working_time"
    for too_low in (None, 70.0):
        with pytest.raises(UsageError, match=r"70 s of \d0 s.*--working-time D. .more than 71s"):
            retry(database, Target("run", run_id), NOW, raised=Raised(working_time=too_low))
    retry(database, Target("run", run_id), NOW, raised=Raised(working_time=90.0))
    again = claim(database, run_id)
    assert isinstance(again.effect, CallModel)
    assert again.state.limits.working_time == 90.0


def test_raised_limits_are_told_and_go_over_to_a_fresh_run(database: Database) -> None:
    run_id = submit_one(database, **with_limits(cost_ceiling_usd=0.5, working_time=60.0))
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW, raised=Raised(cost_ceiling_usd=2.0))
    query = select(events.c.data).where(events.c.type == "retried")
    told = database.read(lambda connection: connection.execute(query).scalar_one())
    assert told == {
        "by": None,
        "why": "",
        "old": {"state": "cancelled", "reason": "cancelled", "cost_ceiling_usd": 0.5},
        "new": {"state": "queued", "reason": "", "cost_ceiling_usd": 2.0},
    }
    cancel(database, Target("run", run_id), NOW)
    raised = Raised(working_time=90.0)
    (change,) = retry(database, Target("run", run_id), NOW, fresh=True, raised=raised)
    fresh = run_row(database, change.id)
    assert (fresh.cost_ceiling_usd, fresh.working_time) == (2.0, 90.0)
