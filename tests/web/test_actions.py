"""Actions on one run, and on all that match, with who and why."""

from __future__ import annotations

import re
import time

import pytest

from runner.core.run import Author
from runner.store.database import Database
from runner.store.sessions import import_session
from runner.web import actions
from tests.cli.questions import ask, submit_runs
from tests.exchange.samples import usual
from tests.store.attempts import run_row
from tests.store.audit.played import Job, play
from tests.web.browser import Browser


def states(database: Database, runs: list[str]) -> list[str]:
    return [run_row(database, run_id).state for run_id in runs]


def test_a_run_is_paused_resumed_and_cancelled_with_who_and_why(
    browser: Browser, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    page = f"/runs/{run_id}"
    assert "a.py: paused" in browser.submit(page, "/do", run=run_id, action="pause").words
    browser.submit(page, "/do", run=run_id, action="resume")
    browser.submit(page, "/do", run=run_id, action="cancel", why="The wrong branch.")
    assert run_row(database, run_id).state == "cancelled"
    assert "cancelled by ada: The wrong branch." in browser.get(f"{page}/events").words


def test_an_ended_run_is_retried_with_a_higher_limit(browser: Browser, database: Database) -> None:
    job = play(database)
    failed = job.runs[1]
    page = f"/runs/{failed}"
    browser.submit(page, "/do", run=failed, action="retry", max_turns="77", why="once more")
    assert run_row(database, failed).state == "queued"
    assert run_row(database, failed).max_turns == 77
    said = browser.submit(page, "/do", run=failed, action="retry", max_turns="many").words
    assert "max_turns 'many' is not a number" in said


def test_a_run_is_spoken_to_and_forked_from_a_turn(browser: Browser, database: Database) -> None:
    job = play(database)
    run_id = job.runs[0]
    page = f"/runs/{run_id}"
    browser.submit(page, "/do", run=run_id, action="say", text="And the tests?")
    assert "message queued by ada: And the tests?" in browser.get(f"{page}/events").words
    said = browser.submit(page, "/do", run=run_id, action="fork", turn="1", text="Else.").words
    assert re.search(r"the fork is [0-9a-z]{8} ", said)


def test_what_cannot_be_done_is_said_and_changes_nothing(
    browser: Browser, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    page = browser.submit(f"/runs/{run_id}", "/do", run=run_id, action="retry")
    assert "has not ended" in page.words
    page = browser.submit(f"/runs/{run_id}", "/do", run=run_id, action="explode")
    assert "is not an action on a run" in page.words
    assert run_row(database, run_id).state == "queued"


@pytest.mark.dialect
def test_an_action_on_all_that_match_asks_first_and_changes_these_alone(
    browser: Browser, database: Database
) -> None:
    runs = submit_runs(database, "src/a.py", "src/b.py", "docs/c.md")
    job_id = run_row(database, runs[0]).job_id
    page = f"/jobs/{job_id}/all?action=cancel&text=src/"
    asked = browser.get(page)
    assert "2 runs match: text src/" in asked.words
    assert states(database, runs) == ["queued"] * 3
    fields = {"action": "cancel", "text": "src/", "why": "The wrong folder."}
    done = browser.submit(page, f"/jobs/{job_id}/all", **fields)
    assert "2 runs cancelled" in done.words
    assert states(database, runs) == ["cancelled", "cancelled", "queued"]
    assert "by ada: The wrong folder." in browser.get(f"/runs/{runs[0]}/events").words
    retried = browser.submit(page, f"/jobs/{job_id}/all", action="retry")
    assert "2 runs queued again" in retried.words
    assert "no worker is alive" in retried.words
    paused = browser.submit(page, f"/jobs/{job_id}/all", action="pause", state="queued")
    assert "3 runs paused" in paused.words


def test_what_all_that_match_ask_is_answered_at_once(browser: Browser, database: Database) -> None:
    runs = submit_runs(database, "src/a.py", "src/b.py", "docs/c.md")
    for run_id in runs:
        ask(database, run_id)
    job_id = run_row(database, runs[0]).job_id
    page = f"/jobs/{job_id}/all?action=approve&text=src/"
    assert "2 calls of theirs wait" in browser.get(page).words
    done = browser.submit(page, f"/jobs/{job_id}/all", action="approve", text="src/")
    assert "2 calls approved" in done.words
    assert states(database, runs) == ["queued", "queued", "waiting"]


@pytest.mark.slow
def test_an_action_on_too_many_to_wait_for_goes_on_by_itself(
    browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_MOST_WAITED_FOR", 11)
    runs = submit_runs(database, *(f"item-{number:04}" for number in range(12)))
    job_id = run_row(database, runs[0]).job_id
    page = f"/jobs/{job_id}/all?action=cancel"
    said = browser.submit(page, f"/jobs/{job_id}/all", action="cancel").words
    assert "12 runs: this goes on by itself" in said
    deadline = time.monotonic() + 60
    while "12 runs cancelled" not in said and time.monotonic() < deadline:
        time.sleep(0.2)
        said = browser.get("/").words
    assert "12 runs cancelled" in said
    assert set(states(database, runs)) == {"cancelled"}


def test_a_whole_job_is_seen_by_its_state(browser: Browser, database: Database) -> None:
    job: Job = play(database)
    said = browser.get(f"/jobs/{job.id}/all?action=retry&state=failed").words
    assert "1 run matches: state failed" in said


def test_only_actions_that_could_change_a_run_are_offered(
    browser: Browser, database: Database
) -> None:
    def offered(job_id: str) -> list[str]:
        page = browser.get(f"/jobs/{job_id}").text
        return re.findall(r'class="button" href="[^"]*action=(\w+)', page)

    runs = submit_runs(database, "a.py")
    job_id = run_row(database, runs[0]).job_id
    assert offered(job_id) == ["cancel", "pause", "resume"]
    ask(database, runs[0])
    assert offered(job_id) == ["cancel", "pause", "resume", "approve", "deny"]
    assert offered(play(database).id) == ["retry"]
    (brought,) = import_session(
        database, {"": usual().raw()}, "session.jsonl", Author("ann"), time.time()
    )
    assert offered(brought.job_id) == []
