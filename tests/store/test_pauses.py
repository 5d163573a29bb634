"""Pauses of whole jobs: pilots, circuit breakers and spend limits, in the database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.core.budget import billionths, in_usd
from runner.core.commands import Target
from runner.core.entries import SPEND_LIMIT, ModelCallFailed
from runner.core.forecast import Item, forecast
from runner.core.pauses import BY_PILOT, Breaker, Pilot
from runner.core.run import Author, Requeued
from runner.core.steps import CallModel, Done
from runner.queries.jobs import list_jobs
from runner.store import control, pauses
from runner.store.database import Database
from runner.store.due_runs import claim as claim_run
from runner.store.due_runs import due_to_notify, look_at
from runner.store.jobs import submit
from runner.store.pauses import Breakers, attend, resume, stop_spending
from runner.store.retry import retry
from runner.store.tables import job_events, runs
from tests.store.asked import run_ids
from tests.store.attempts import claim, event_types, run_row, text, tool_use
from tests.store.examples import NOW, SPEC, submission

pytestmark = pytest.mark.dialect

ADA = Author("ada", "looks good")
KEYS = ("a", "b", "c", "d", "e")


def submit_with(database: Database, *keys: str, **options: Any) -> tuple[str, list[str]]:
    job_id = submit(database, submission(*keys, spec=replace(SPEC, **options)), NOW)
    return job_id, run_ids(database, job_id)


def states(database: Database, job_id: str) -> list[str]:
    query = select(runs.c.state).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return [row.state for row in database.rows(query)]


def pause_of(database: Database, job_id: str) -> dict[str, Any] | None:
    (job,) = list_jobs(database, among=[job_id])
    return job["pause"]


def changes(database: Database, job_id: str) -> list[str]:
    query = select(job_events.c.type).where(job_events.c.job_id == job_id)
    return [row.type for row in database.rows(query.order_by(job_events.c.number))]


def succeed(database: Database, *ids: str) -> None:
    for run_id in ids:
        claim(database, run_id, NOW).reply(text("Done."))


def fail(database: Database, *ids: str, why: str = "no model is called x", at: float = NOW) -> None:
    for run_id in ids:
        claim(database, run_id, at).fail("not_found_error", why)


def test_a_job_that_was_paused_and_cancelled_goes_on_after_a_retry(database: Database) -> None:
    job_id, ids = submit_with(database, "a", "b", "c", breaker=Breaker(same_failure=2))
    job, breakers = Target("job", job_id), Breakers(database)
    pauses.pause(database, job, NOW, author=ADA)
    pauses.cancel(database, job, NOW + 1, author=ADA)
    retry(database, job, NOW + 2, author=ADA)
    assert (states(database, job_id), pause_of(database, job_id)) == (["queued"] * 3, None)
    fail(database, *ids[:2], at=NOW + 3)
    assert breakers.look(job_id, NOW + 4) is not None


# --- The pilot ---


def test_items_after_the_pilot_cannot_be_claimed(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2))
    assert states(database, job_id) == ["queued", "waiting", "waiting", "waiting", "queued"]
    assert sorted(due_to_notify(database, 10, NOW + 60)) == [ids[0], ids[4]]
    held = run_row(database, ids[2])
    assert (held.reason, held.detail, held.due_at) == ("paused", BY_PILOT, None)
    pause = pause_of(database, job_id)
    assert pause is not None
    assert (pause["reason"], pause["detail"]) == ("pilot", "2 of 5 items are worked first")


def test_a_pilot_of_all_items_is_none(database: Database) -> None:
    job_id, _ = submit_with(database, "a", "b", pilot=Pilot(2))
    assert states(database, job_id) == ["queued", "queued"]
    assert pause_of(database, job_id) is None


def test_a_job_waits_for_a_person_after_its_pilot(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2))
    succeed(database, ids[0])
    attend(database, NOW + 1)
    assert changes(database, job_id) == ["submitted"]
    fail(database, ids[4])
    for _ in range(2):
        attend(database, NOW + 2)
    assert changes(database, job_id) == ["submitted", "pilot_ended"]
    assert states(database, job_id) == ["succeeded", "waiting", "waiting", "waiting", "failed"]
    pause = pause_of(database, job_id)
    assert pause is not None
    assert pause["detail"] == "1 of 2 items of the pilot succeeded"
    resume(database, Target("job", job_id), NOW + 3, author=ADA)
    assert states(database, job_id) == ["succeeded", "queued", "queued", "queued", "failed"]
    assert pause_of(database, job_id) is None
    assert changes(database, job_id)[-1] == "resumed"
    assert isinstance(claim(database, ids[2], NOW + 3).effect, CallModel)


def test_items_follow_a_pilot_that_another_worker_decides_on_at_the_same_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a command takes the job for one that rests, before the other has let its items go on."""
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(1, success=1.0))
    succeed(database, ids[0])
    find = database.find

    def decided_meanwhile(*query: Any) -> Any:
        found = find(*query)
        assert pauses._decide(database, job_id, NOW) is not None
        return found

    monkeypatch.setattr(database, "find", decided_meanwhile)
    attend(database, NOW)
    assert states(database, job_id) == ["succeeded", *["queued"] * 4]
    assert pause_of(database, job_id) is None
    assert changes(database, job_id) == ["submitted", "pilot_ended"]


def test_cancelling_ends_a_job_after_its_pilot(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(1))
    succeed(database, ids[0])
    attend(database, NOW)
    control.cancel(database, Target("job", job_id), NOW + 1, author=ADA)
    assert states(database, job_id) == ["succeeded", *["cancelled"] * 4]
    assert pause_of(database, job_id) is None


@pytest.mark.parametrize("most", [1_000.0, 1.0])
def test_the_cost_of_all_items_is_that_of_the_forecast(database: Database, most: float) -> None:
    keys = tuple("abcdefghij")
    job_id, ids = submit_with(database, *keys, pilot=Pilot(3, forecast_usd=most))
    piloted, usd = [ids[0], ids[4], ids[9]], (0.1, 0.1, 3.0)
    succeed(database, *piloted)
    for run_id, cost in zip(piloted, usd, strict=True):
        progress = run_row(database, run_id).progress
        progress["money"]["charged_cost"] = billionths(cost)
        database.execute(update(runs).where(runs.c.id == run_id).values(progress=progress))
    attend(database, NOW + 1)
    found = forecast(job_id, [Item(each, 0, 0, NOW) for each in usd], [], 7)
    assert found is not None
    assert found.usd.expected < 10 * sum(usd) / 3
    pause = pause_of(database, job_id)
    assert (pause is None) is (most == 1_000.0)
    if pause is not None:
        expected = in_usd(billionths(found.usd.expected))
        assert f"all items may cost {expected}, more than $1.0000" in pause["detail"]


def test_a_pilot_of_two_items_has_no_forecast_that_lets_others_follow(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2, forecast_usd=1_000.0))
    succeed(database, ids[0], ids[4])
    attend(database, NOW + 1)
    pause = pause_of(database, job_id)
    assert pause is not None
    assert pause["detail"].endswith("; too few have finished for a forecast")


@pytest.mark.parametrize(("success", "goes_on"), [(0.5, True), (0.6, False)])
def test_items_follow_a_pilot_that_kept_what_was_asked(
    database: Database, success: float, goes_on: bool
) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2, success=success))
    control.pause(database, Target("run", ids[3]), NOW)
    succeed(database, ids[0])
    fail(database, ids[4])
    attend(database, NOW + 1)
    state = "queued" if goes_on else "waiting"
    assert states(database, job_id) == ["succeeded", state, state, state, "failed"]
    assert (pause_of(database, job_id) is None) is goes_on


def test_a_run_that_a_person_paused_does_not_follow_the_pilot(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2, success=0.5))
    succeed(database, ids[0], ids[4])
    control.resume(database, Target("run", ids[1]), NOW, author=ADA)
    control.pause(database, Target("run", ids[1]), NOW, author=ADA)
    control.resume(database, Target("run", ids[2]), NOW, author=ADA)
    succeed(database, ids[2])
    attend(database, NOW + 1)
    assert "pilot_ended" not in changes(database, job_id), "one of the begun runs has not ended"
    control.cancel(database, Target("run", ids[1]), NOW, author=ADA)
    attend(database, NOW + 1)
    assert run_row(database, ids[3]).state == "queued"


@pytest.mark.slow
def test_many_workers_decide_on_a_pilot_once(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2, success=0.5))
    succeed(database, ids[0], ids[4])
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda at: attend(database, NOW + at), range(12)))
    assert changes(database, job_id).count("pilot_ended") == 1
    for run_id in ids[1:4]:
        assert event_types(database, run_id).count("resumed") == 1


def test_items_follow_a_pilot_although_the_worker_died_that_decided(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(2, success=0.5))
    succeed(database, ids[0], ids[4])

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(pauses, "_resume_held", die)
        with pytest.raises(KeyboardInterrupt):
            attend(database, NOW + 1)
    assert states(database, job_id)[1:4] == ["waiting"] * 3
    attend(database, NOW + 2)
    assert states(database, job_id)[1:4] == ["queued"] * 3
    assert pause_of(database, job_id) is None


# --- The circuit breaker ---

ALIKE = Breaker(same_failure=2)


def test_runs_that_fail_alike_pause_their_job(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    breakers = Breakers(database)
    fail(database, ids[0])
    assert breakers.look(job_id, NOW) is None
    running = claim(database, ids[2])
    fail(database, ids[1], at=NOW + 1)
    why = breakers.look(job_id, NOW + 1)
    assert why is not None
    assert why == (
        "2 runs in a row failed not_found_error: no model is called x (request req_<n>) "
        f"(first: a, {ids[0]})"
    )
    assert states(database, job_id) == ["failed", "failed", "running", "waiting", "waiting"]
    assert run_row(database, ids[3]).detail == why
    pause = pause_of(database, job_id)
    assert pause is not None
    assert (pause["reason"], pause["detail"], pause["pending"]) == ("breaker", why, None)
    assert breakers.look(job_id, NOW + 2) is None, "it is paused already"
    assert changes(database, job_id) == ["submitted", "paused"]
    running.reply(tool_use(1), stop="tool_use")
    assert run_row(database, ids[2]).reason == "paused"


def test_the_count_starts_anew_when_a_job_is_resumed(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    breakers = Breakers(database)
    fail(database, *ids[:2])
    assert breakers.look(job_id, NOW) is not None
    resume(database, Target("job", job_id), NOW + 5, author=ADA)
    assert states(database, job_id) == ["failed", "failed", "queued", "queued", "queued"]
    fail(database, ids[2], at=NOW + 6)
    assert breakers.look(job_id, NOW + 6) is None
    fail(database, ids[3], at=NOW + 7)
    assert breakers.look(job_id, NOW + 7) is not None
    assert changes(database, job_id) == ["submitted", "paused", "resumed", "paused"]


def test_no_run_is_claimed_once_a_breaker_has_fired(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    fail(database, *ids[:2])
    due = look_at(database, ids[2], NOW)
    assert due is not None

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(pauses, "_pause_runs", die)
        with pytest.raises(KeyboardInterrupt):
            Breakers(database).look(job_id, NOW)
    assert claim_run(database, due, "worker_1", NOW) is None
    attend(database, NOW)
    assert states(database, job_id)[2:] == ["waiting"] * 3
    resume(database, Target("job", job_id), NOW, author=ADA)
    assert isinstance(claim(database, ids[2]).effect, CallModel)


@pytest.mark.slow
def test_a_breaker_fires_once_however_many_look_at_once(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    fail(database, *ids[:3])
    with ThreadPoolExecutor(6) as pool:
        fired = list(pool.map(lambda _: Breakers(database).look(job_id, NOW), range(12)))
    assert sum(why is not None for why in fired) == 1
    assert changes(database, job_id) == ["submitted", "paused"]
    for run_id in ids[3:]:
        assert event_types(database, run_id).count("paused") == 1


def test_a_look_that_comes_late_does_not_pause_a_resumed_job(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    fail(database, *ids[:2])
    stop = pauses._stop

    def late(*arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(pauses, "_stop", stop)
        assert Breakers(database).look(job_id, NOW) is not None
        resume(database, Target("job", job_id), NOW + 5, author=ADA)
        return stop(*arguments, **options)

    monkeypatch.setattr(pauses, "_stop", late)
    assert Breakers(database).look(job_id, NOW) is None
    assert states(database, job_id)[2:] == ["queued"] * 3
    assert pause_of(database, job_id) is None


def test_a_pause_is_finished_by_another_worker(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, ids = submit_with(database, *KEYS, breaker=ALIKE)
    fail(database, *ids[:2])

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(pauses, "_pause_runs", die)
        with pytest.raises(KeyboardInterrupt):
            Breakers(database).look(job_id, NOW)
    assert states(database, job_id)[2:] == ["queued"] * 3
    attend(database, NOW + 1)
    assert states(database, job_id)[2:] == ["waiting"] * 3
    assert changes(database, job_id) == ["submitted", "paused"]


def test_a_job_without_runs_left_is_not_paused(database: Database) -> None:
    job_id, ids = submit_with(database, "a", "b", breaker=ALIKE)
    fail(database, *ids)
    assert Breakers(database).look(job_id, NOW) is None
    assert changes(database, job_id) == ["submitted"]


def test_a_breaker_that_fires_in_a_pilot_lets_the_pilot_go_on(database: Database) -> None:
    job_id, ids = submit_with(database, *KEYS, pilot=Pilot(3), breaker=ALIKE)
    fail(database, ids[0], ids[2])
    assert Breakers(database).look(job_id, NOW) is not None
    resume(database, Target("job", job_id), NOW + 1, author=ADA)
    assert states(database, job_id) == ["failed", "waiting", "failed", "waiting", "queued"]
    pause = pause_of(database, job_id)
    assert pause is not None
    assert (pause["reason"], pause["pending"]) == ("pilot", "decide")
    assert pause["detail"] == "its items are worked first, and others wait (2)"


# --- A spend limit of the API ---


def refuse(database: Database, run_id: str, now: float = NOW) -> None:
    said = "You have reached your API usage limits."
    failed = ModelCallFailed(SPEND_LIMIT, said, 429, "req_1", 0, now, now)
    attempt = claim(database, run_id, now).append(failed)
    assert attempt.effect == Done(Requeued(now + 60, "spend_limit"))


def test_a_spend_limit_pauses_every_job_that_calls_the_api(database: Database) -> None:
    job_id, ids = submit_with(database, "a", "b")
    other, _ = submit_with(database, "x")
    scripted, _ = submit_with(database, "s", provider="scripted", script={"*": []})
    ended, (of_ended,) = submit_with(database, "z")
    succeed(database, of_ended)
    refuse(database, ids[0])
    queued = run_row(database, ids[0])
    assert (queued.state, queued.reason, queued.due_at) == ("queued", "spend_limit", NOW + 60)
    why = "a spend limit is reached: You have reached your API usage limits."
    assert stop_spending(database, ids[0], NOW) == dict.fromkeys(sorted([job_id, other]), why)
    assert stop_spending(database, ids[0], NOW) == {}
    assert states(database, job_id) == ["waiting", "waiting"]
    assert states(database, other) == ["waiting"]
    assert (states(database, scripted), states(database, ended)) == (["queued"], ["succeeded"])
    pause = pause_of(database, other)
    assert pause is not None
    assert (pause["reason"], pause["detail"]) == ("spend_limit", why)


def test_a_run_goes_on_long_after_a_spend_limit_and_has_lost_no_patience(
    database: Database,
) -> None:
    job_id, (run_id,) = submit_with(database, "a")
    refuse(database, run_id)
    stop_spending(database, run_id, NOW)
    later = NOW + 30 * 86_400
    resume(database, Target("job", job_id), later, author=ADA)
    attempt = claim(database, run_id, later)
    assert attempt.state.model.failure is None
    attempt.reply(text("Done."))
    assert run_row(database, run_id).state == "succeeded"


# --- A person ---


def test_a_job_that_a_person_paused_says_by_whom_and_why_until_it_is_resumed(
    database: Database,
) -> None:
    job_id, ids = submit_with(database, *KEYS)
    succeed(database, ids[0])
    changed = pauses.pause(database, Target("job", job_id), NOW, author=ADA)
    assert [change.changed for change in changed] == [False, True, True, True, True]
    assert states(database, job_id) == ["succeeded", *["waiting"] * 4]
    pause = pause_of(database, job_id)
    assert pause is not None
    assert (pause["reason"], pause["detail"], pause["pending"]) == (
        "person",
        "ada: looks good",
        None,
    )
    assert pauses.is_paused(database, job_id)
    again = pauses.pause(database, Target("job", job_id), NOW, author=ADA)
    assert not any(change.changed for change in again)
    resume(database, Target("job", job_id), NOW, author=ADA)
    assert pause_of(database, job_id) is None
    assert not pauses.is_paused(database, job_id)
    assert changes(database, job_id) == ["submitted", "paused", "resumed"]
    assert states(database, job_id) == ["succeeded", *["queued"] * 4]


def test_pausing_a_job_that_has_ended_or_one_run_of_it_does_not_pause_the_job(
    database: Database,
) -> None:
    job_id, ids = submit_with(database, "a", "b")
    pauses.pause(database, Target("run", ids[0]), NOW, author=ADA)
    assert not pauses.is_paused(database, job_id)
    control.cancel(database, Target("job", job_id), NOW, author=ADA)
    pauses.pause(database, Target("job", job_id), NOW, author=ADA)
    assert not pauses.is_paused(database, job_id)
    assert changes(database, job_id) == ["submitted"]


def test_a_pause_by_a_person_in_a_pilot_lets_the_pilot_go_on(database: Database) -> None:
    job_id, _ = submit_with(database, *KEYS, pilot=Pilot(2))
    pauses.pause(database, Target("job", job_id), NOW, author=ADA)
    assert set(states(database, job_id)) == {"waiting"}
    resume(database, Target("job", job_id), NOW, author=ADA)
    pause = pause_of(database, job_id)
    assert pause is not None
    assert (pause["reason"], pause["pending"]) == ("pilot", "decide")
    assert states(database, job_id).count("queued") == 2
