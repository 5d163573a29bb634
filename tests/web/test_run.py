"""One run: its turns from the newest on, with calls, decisions, costs and events."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from runner.app import run_page
from runner.app.handle import App
from runner.app.run_page import TURNS
from runner.app.transcript import parts_of
from runner.core.budget import Limits
from runner.core.run import Author
from runner.store.database import Database
from runner.store.sessions import import_session
from tests.exchange.samples import usual
from tests.exchange.test_session_lines import with_agents
from tests.store.attempts import claim, text
from tests.store.audit.played import PLAYED, bash, play, submit, turn
from tests.web.browser import Browser


def turns_on(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<section class="turn" id="turn-(\d+)"', page)]


def long_run(database: Database, turns: int) -> str:
    job = submit(database, "long.py", spec=replace(PLAYED, limits=Limits(max_turns=1_000)))
    attempt = claim(database, job.runs[0])
    for number in range(turns - 1):
        turn(attempt, *bash(f"ls -l {number}"))
    attempt.reply(text("Done."))
    return job.runs[0]


@pytest.mark.dialect
def test_a_transcript_has_calls_with_their_decisions_and_results(
    browser: Browser, database: Database
) -> None:
    job = play(database)
    page = browser.get(f"/runs/{job.runs[0]}")
    assert turns_on(page.text) == [3, 2, 1, 0]
    assert "Mend a.py." in page.words
    assert "Bash ls -l allowed by Bash(ls *) succeeded" in page.words
    assert "the rule deny Bash(rm *) (nothing is deleted)" in page.words
    assert "approved by lena: go on" in page.words
    assert "System prompt" in page.words


def test_the_newest_turns_come_first_and_each_is_on_one_page(
    browser: Browser, database: Database
) -> None:
    run_id = long_run(database, 2 * TURNS + 3)
    path: str | None = f"/runs/{run_id}"
    seen: list[int] = []
    while path is not None:
        page = browser.get(path).text
        seen += turns_on(page)
        older = re.findall(r'id="older" href="([^"]*)"', page)
        path = older[0].replace("&amp;", "&") if older else None
    assert seen == list(range(2 * TURNS + 3, -1, -1))


def test_a_link_to_a_turn_shows_it(browser: Browser, database: Database) -> None:
    run_id = long_run(database, 3 * TURNS)
    for number in (1, TURNS, 3 * TURNS):
        assert number in turns_on(browser.get(f"/runs/{run_id}?turn={number}").text)
    assert browser.get(f"/runs/{run_id}?last=999").status == 400
    assert browser.get(f"/runs/{run_id}?last=x").status == 400


@pytest.mark.dialect
def test_pages_of_turns_have_all_parts_of_the_whole(app: App, database: Database) -> None:
    for run_id in (*play(database).runs, long_run(database, 9)):
        head = run_page.head_of(app, run_id)
        last = head.run["turns"] + 1
        whole = list(parts_of(app, head.run, (0, last)))
        for size in (1, 2, 4):
            pages = [
                part
                for first in range(0, last + 1, size)
                for part in parts_of(app, head.run, (first, min(first + size - 1, last)))
            ]
            assert pages == whole, (run_id, size)


@pytest.mark.slow  # the request is made by anthropic, which takes long to import
def test_other_tabs_show_costs_events_and_what_was_sent(
    browser: Browser, database: Database
) -> None:
    run_id = play(database).runs[0]
    assert "700" in browser.get(f"/runs/{run_id}/costs").words
    assert "run_submitted" in browser.get(f"/runs/{run_id}/events").words
    assert "Mend a.py." in browser.get(f"/runs/{run_id}/sent/1").words
    assert browser.get(f"/runs/{run_id}/sent/99").status == 404
    assert "has no workspace" in browser.get(f"/runs/{run_id}/changes").words
    assert "has started no sub-agent" in browser.get(f"/runs/{run_id}/tree").words


def test_a_call_has_a_page_with_its_whole_input_and_output(
    browser: Browser, database: Database
) -> None:
    run_id = play(database).runs[0]
    (call, *_) = re.findall(r"/calls/(call_\w+)", browser.get(f"/runs/{run_id}").text)
    page = browser.get(f"/calls/{call}")
    assert "decision allow by Bash(" in page.words or "decision deny by Bash(" in page.words


def test_an_edit_is_shown_as_a_diff(browser: Browser, database: Database) -> None:
    job = submit(database, "a.py", spec=PLAYED)
    edit = {"file_path": "a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\ny = 3"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "Edit", "input": edit}
    turn(claim(database, job.runs[0]), use)
    page = browser.get(f"/runs/{job.runs[0]}").text
    assert '<span class="removed">-y = 2' in page
    assert '<span class="added">+y = 3' in page


def test_the_page_of_an_imported_session_offers_nothing_that_is_refused(
    browser: Browser, database: Database
) -> None:
    ours = browser.get(f"/runs/{play(database).runs[0]}").words
    lines = {"": usual().raw()}
    (brought,) = import_session(database, lines, "session.jsonl", Author("ann"), time.time())
    page = browser.get(f"/runs/{brought.run_id}").words
    for words in ("Act on this run", "as sent"):
        assert words in ours
        assert words not in page
    changes = browser.get(f"/runs/{brought.run_id}/changes").words
    assert "it is an imported session" in changes
    assert "its job" not in changes


def test_the_events_of_a_run_say_which_sub_agents_its_calls_started(
    browser: Browser, database: Database
) -> None:
    author, now = Author("ann"), time.time()
    main, first, *_ = import_session(database, with_agents(), "session.jsonl", author, now)
    words = browser.get(f"/runs/{main.run_id}/events").words
    assert f"Agent starts Explore {first.run_id[-10:]} data" in words


@pytest.mark.slow
def test_a_run_of_many_turns_is_a_small_page(browser: Browser, database: Database) -> None:
    run_id = long_run(database, 400)
    browser.get(f"/runs/{run_id}")
    began = time.monotonic()
    page = browser.get(f"/runs/{run_id}")
    print(f"the newest turns of 400: {time.monotonic() - began:.3f} s, {len(page.body):,} bytes")
    assert len(page.body) < 200_000


@pytest.mark.dialect
def test_who_reads_a_transcript_is_recorded_where_the_job_wants_it(
    browser: Browser, database: Database
) -> None:
    kept = submit(database, "a.py", spec=replace(PLAYED, record_reads=True)).runs[0]
    silent = submit(database, "b.py").runs[0]
    for run_id in (kept, silent):
        attempt = claim(database, run_id)
        browser.get(f"/runs/{run_id}")
        browser.get(f"/runs/{run_id}", x_refresh="1")
        attempt.reply(text("Done."))  # the worker goes on as if nobody had looked
        browser.get(f"/runs/{run_id}/changes")
    assert browser.get(f"/runs/{kept}/events").words.count("transcript read by ada") == 2
    assert "transcript read" not in browser.get(f"/runs/{silent}/events").words
