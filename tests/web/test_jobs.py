"""Jobs, and the runs of one: filtered, sorted, page by page."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

import pytest
from sqlalchemy import Engine, event

from runner.app import overview
from runner.app.exchange import import_file
from runner.app.handle import App
from runner.app.run_table import ROWS, Sorting, filters_of, runs_page
from runner.core.run import Author
from runner.store.batches import set_lane
from runner.store.database import Database
from runner.store.sessions import import_session
from tests.exchange.samples import Session, text, usual
from tests.store.audit.played import PLAYED, Job, play, submit
from tests.store.examples import NOW
from tests.web.browser import Browser


@pytest.fixture
def job(database: Database) -> Job:
    return play(database)


def items(page: str) -> list[str]:
    return re.findall(r'<td class="main-cell"><a href="[^"]*"><bdi>([^<]*)</bdi>', page)


def test_without_jobs_the_page_says_how_to_start_one(browser: Browser) -> None:
    assert "No jobs yet. Start one in a terminal" in browser.get("/").words


@pytest.mark.dialect
def test_a_job_is_listed_with_its_runs_by_state(
    browser: Browser, job: Job, database: Database
) -> None:
    assert "1 succeeded, 1 failed" in browser.get("/").words
    page = browser.get(f"/jobs/{job.id}")
    assert items(page.text) == ["a.py", "b.py"]
    assert "invalid_request_error" in page.words
    assert "lane realtime" in page.words
    set_lane(database, job.id, "batch", time.time(), author=Author("ada"))
    assert "failed batch lane" in browser.get("/").words


@pytest.mark.dialect
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=failed", ["b.py"]),
        ("reason=invalid_request_error", ["b.py"]),
        ("text=A.P", ["a.py"]),
        ("text=%25", []),
        ("tool=Write", ["a.py"]),
        ("denied=1", ["a.py", "b.py"]),
        ("waiting=1", []),
        ("usd=0.000001", []),
        ("sort=-item", ["b.py", "a.py"]),
        ("sort=turns", ["b.py", "a.py"]),
        ("sort=-cost", ["b.py", "a.py"]),
    ],
)
def test_runs_are_filtered_and_sorted(
    browser: Browser, job: Job, query: str, found: list[str]
) -> None:
    assert items(browser.get(f"/jobs/{job.id}?{query}").text) == found


def test_a_wrong_filter_is_explained(browser: Browser, job: Job) -> None:
    for query in ("state=gone", "sort=size", "usd=much", "after=x", "after=NQ"):
        answer = browser.get(f"/jobs/{job.id}?{query}")
        assert answer.status == 400, query
    assert "is not a sum in USD, such as 0.50" in browser.get(f"/jobs/{job.id}?usd=much").words
    assert browser.get("/jobs/nothing").status == 404


@pytest.mark.slow
@pytest.mark.parametrize("sort", ["submitted", "-item", "cost", "-tokens", "-ended"])
def test_pages_have_each_run_once(app: App, database: Database, sort: str) -> None:
    keys = [f"item-{number:04}" for number in range(2 * ROWS + 7)]
    job = submit(database, *keys, spec=PLAYED)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = runs_page(app, job.id, filters_of({}), Sorting.parse(sort), after or None)
        seen += [run["item_key"] for run in page.rows]
        after = page.next
    assert sorted(seen) == keys


def test_the_charts_page_groups_failures_with_an_example(browser: Browser, job: Job) -> None:
    page = browser.get(f"/jobs/{job.id}/charts")
    assert "No such model" in page.words
    assert "For example b.py" in page.words
    assert '<svg class="chart"' in page.text


def test_sessions_of_one_project_are_told_apart_by_title_and_cost(
    browser: Browser, database: Database
) -> None:
    (run,) = import_session(database, {"": usual().raw()}, "session.jsonl", Author("ann"), NOW)
    page = browser.get(f"/jobs/{run.job_id}")
    cost = page.text.partition('data-label="cost">')[2]
    assert "Mending the cart" in page.words
    assert cost.startswith("$0.0")


@pytest.mark.dialect
def test_imported_sessions_are_sorted_and_filtered_by_their_cost(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, tokens in (("a", 1_000), ("b", 3_000_000), ("c", 2_000_000)):
        session = Session(sessionId=name, cwd=f"/{name}")
        session.user("Go on.")
        session.reply(f"msg_{name}", text("Done."), stop="end_turn", output_tokens=tokens)
        if name == "b":  # imported before, by a Runner that charged nothing
            with monkeypatch.context() as patched:
                patched.setattr("runner.store.sessions._READ_BY", "5:")
                import_session(database, {"": session.raw()}, "b", Author("ann"), NOW)
        (run,), _ = import_file(app, session.file(), "session.jsonl", None, Author("ann"))

    def found(sort: str, **filters: str) -> list[str]:
        page = runs_page(app, run["job_id"], filters_of(filters), Sorting.parse(sort), None)
        return [row["item_key"].partition("+")[0] for row in page.rows]

    assert found("cost") == ["/a", "/c", "/b"]
    assert found("-cost") == ["/b", "/c", "/a"]
    assert found("cost", usd="1") == ["/c", "/b"]


@pytest.mark.slow
def test_10_000_runs_are_a_small_page(browser: Browser, database: Database) -> None:
    job = submit(database, *(f"item-{number:05}" for number in range(10_000)), spec=PLAYED)
    browser.get(f"/jobs/{job.id}")
    began = time.monotonic()
    page = browser.get(f"/jobs/{job.id}?sort=-cost")
    print(f"a page of 10,000 runs, sorted by cost: {time.monotonic() - began:.3f} s")
    assert len(page.body) < 200_000
    assert len(items(page.text)) == ROWS


def test_a_list_of_many_jobs_takes_as_many_queries_as_one_of_few(
    app: App, database: Database
) -> None:
    def queries() -> int:
        statements: list[str] = []

        def note(*arguments: Any) -> None:
            statements.append(arguments[2])

        event.listen(Engine, "before_cursor_execute", note)
        lines, _ = overview.jobs_page(app, None)
        event.remove(Engine, "before_cursor_execute", note)
        assert [line.total for line in lines] == [2] * len(lines)
        return len(statements)

    submit(database, "a.py", "b.py", spec=PLAYED)
    few = queries()
    for _ in range(overview.JOBS):
        submit(database, "a.py", "b.py", spec=PLAYED)
    assert queries() == few


@pytest.mark.slow
def test_the_first_pages_may_be_asked_for_at_the_same_moment() -> None:
    """Their threads find what they use loaded: the second one to load a module lazily finds it empty."""
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from runner.web import server
from runner.web.asking import report
server.web_app(None, SimpleNamespace(auth="users"), None, None)
together = threading.Barrier(8)
with ThreadPoolExecutor(8) as threads:
    list(threads.map(lambda _: (together.wait(), report.failure_groups), range(8)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
