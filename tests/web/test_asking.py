"""Search, ready questions, SQL and the report."""

from __future__ import annotations

import csv
import io
import threading
from typing import Any
from urllib.parse import quote

import pytest

from runner import audit
from runner.store.database import Database
from runner.web import asking
from runner.web.asking import QUESTIONS
from tests.cli.audit.test_questions import QUESTIONS as ASKED
from tests.store.audit.played import Job, play
from tests.web.browser import Browser


@pytest.fixture
def job(database: Database) -> Job:
    return play(database)


def sql(text: str, **more: str) -> str:
    return f"/sql?q={quote(text)}" + "".join(f"&{name}={value}" for name, value in more.items())


def test_every_question_of_the_command_line_has_a_page() -> None:
    assert set(QUESTIONS) == {*ASKED, "costs"}  # a command of its own: `runner costs`


@pytest.mark.dialect
def test_questions_answer_as_a_table_and_as_csv(browser: Browser, job: Job) -> None:
    for name in QUESTIONS:
        assert browser.get(f"/audit/{name}?job={job.id}").status == 200, name
        answer = browser.get(f"/audit/{name}?job={job.id}&format=csv")
        assert answer.headers["content-type"].startswith("text/csv"), name
        list(csv.reader(io.StringIO(answer.text)))
    rows = list(csv.DictReader(io.StringIO(browser.get("/audit/tools?format=csv").text)))
    assert {row["tool"] for row in rows} >= {"Bash", "Read"}


def test_a_table_is_sorted_by_its_heads(browser: Browser, job: Job) -> None:
    page = browser.get("/audit/tools?sort=tool").text
    assert page.index(">Bash<") < page.index(">Read<") if ">Bash<" in page else True
    names = [line for line in browser.get("/audit/tools?sort=-tool").words.split() if line]
    assert names.index("Write") < names.index("Bash")


def test_filters_that_make_no_sense_are_explained(browser: Browser, job: Job) -> None:
    for path in ("tools?since=soon", "costs?by=moon", "nothing", "tools?job=nope"):
        assert browser.get(f"/audit/{path}").status in (400, 404), path


@pytest.mark.dialect
def test_sql_reads_and_changes_nothing(browser: Browser, job: Job) -> None:
    page = browser.get(sql("SELECT state, count(*) AS n FROM v_runs GROUP BY state"))
    assert "succeeded" in page.words
    assert "v_runs" in page.words  # the views are documented beside it
    refused = browser.get(sql("DELETE FROM runs"))
    assert refused.status == 200
    assert 'role="alert"' in refused.text
    assert "2 rows" in browser.get(sql("SELECT state FROM v_runs")).words


def test_a_link_of_another_site_shows_sql_and_does_not_ask(browser: Browser, job: Job) -> None:
    page = browser.get(sql("SELECT state FROM v_runs"), sec_fetch_site="cross-site")
    assert "SELECT state FROM v_runs" in page.words
    assert "2 rows" not in page.words


@pytest.mark.dialect
def test_search_finds_what_was_said_and_leads_to_the_turn(browser: Browser, job: Job) -> None:
    page = browser.get("/search?q=push&in=input")
    assert "<mark>push</mark>" in page.text
    assert f"/runs/{job.runs[0]}?turn=2#turn-2" in page.text
    assert "No match" in browser.get("/search?q=nowheretobefound").words
    assert browser.get("/search?q=x&in=dreams").status == 400


def test_searches_that_nobody_waits_for_do_not_stand_in_the_way(
    browser: Browser, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, looks = threading.Event(), 0
    real = audit.Audit.find

    def slow(*args: Any, **options: Any) -> audit.Found:
        nonlocal looks
        looks += 1
        go_on.wait(60)
        return real(*args, **options)

    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(audit.Audit, "find", slow)
    for number in range(8):
        assert "refresh" in browser.get(f"/search?q=push&exact={number}").headers
    assert "many searches are running" in browser.get("/search?q=push").words
    go_on.set()
    for search in list(asking._Search.running.values()):
        search.join(60)
    monkeypatch.setattr(asking, "_PATIENCE_SECONDS", 60.0)
    assert "<mark>push</mark>" in browser.get("/search?q=push&in=input").text
    monkeypatch.setattr(asking, "_KEPT_SECONDS", 0.0)
    browser.get("/search?q=push&exact=0")
    assert looks == 10  # what was found long ago is looked up anew
    assert asking._Search.running == {}


def test_the_report_says_what_to_look_at_first(browser: Browser, job: Job) -> None:
    page = browser.get(f"/jobs/{job.id}/report")
    assert "1 run failed invalid_request_error" in page.words
    assert "although tool calls were denied" in page.words
    assert "nothing is deleted" in page.words
