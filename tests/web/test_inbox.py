"""The inbox: what is asked, and what answers do."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.app import people
from runner.app.handle import App
from runner.core.run import Author
from runner.store.database import Database
from runner.store.rules import list_standing
from tests.cli.questions import ask, submit_runs
from tests.store.attempts import run_row
from tests.web.browser import Browser
from tests.web.conftest import Site


def names_on(page: str) -> list[str]:
    return [names.strip() for names in re.findall(r'name="names" value="([^"]*)"', page)]


@pytest.fixture
def asked(database: Database) -> list[str]:
    """Three runs: two ask for the same, one for something else."""
    runs = submit_runs(database, "a.py", "b.py", "c.py")
    for run_id, command in zip(runs, ("uv lock", "uv lock", "uv sync"), strict=True):
        ask(database, run_id, command)
    return runs


def test_an_empty_inbox_says_so(browser: Browser) -> None:
    assert "Nothing waits for you" in browser.get("/inbox").words


def test_questions_are_grouped_with_the_command_the_rule_and_the_runs(
    browser: Browser, asked: list[str]
) -> None:
    page = browser.get("/inbox")
    assert "uv lock" in page.text
    assert "asked by the rule ask Bash(uv *) (It changes the lock file.)" in page.words
    assert "2 runs of mend" in page.words
    assert sorted(len(names.split()) for names in names_on(page.text)) == [1, 2]
    assert "Inbox 3" in browser.get("/").words


@pytest.mark.dialect
def test_one_answer_settles_a_group(browser: Browser, database: Database, asked: list[str]) -> None:
    (both,) = [names for names in names_on(browser.get("/inbox").text) if " " in names]
    page = browser.submit("/inbox", "/answer", names=both, action="approve")
    assert "2 calls approved" in page.words
    assert "no worker is alive" in page.words
    assert [run_row(database, run_id).state for run_id in asked] == ["queued", "queued", "waiting"]


def test_a_denial_has_its_reason_and_its_person(
    browser: Browser, database: Database, asked: list[str]
) -> None:
    (one,) = [names for names in names_on(browser.get("/inbox").text) if " " not in names]
    browser.submit("/inbox", "/answer", names=one, action="deny", why="Not on a Friday.")
    events = browser.get(f"/runs/{asked[2]}/events").words
    assert "denied by ada: Not on a Friday." in events


def test_an_edited_command_runs_instead(
    browser: Browser, database: Database, asked: list[str]
) -> None:
    (one,) = [names for names in names_on(browser.get("/inbox").text) if " " not in names]
    fields = {"names": one, "action": "approve", "edit": "uv sync --frozen"}
    assert "1 call approved" in browser.submit("/inbox", "/answer", **fields, edited="1").words
    assert "with another input" in browser.get(f"/runs/{asked[2]}/events").words


def test_an_edit_that_was_not_ticked_is_not_taken(browser: Browser, asked: list[str]) -> None:
    (one,) = [names for names in names_on(browser.get("/inbox").text) if " " not in names]
    fields = {"names": one, "action": "approve", "edit": "rm -rf /"}
    browser.submit("/inbox", "/answer", **fields)
    assert "another input" not in browser.get(f"/runs/{asked[2]}/events").words


def test_a_rule_that_is_remembered_answers_the_others(
    browser: Browser, database: Database, asked: list[str]
) -> None:
    (one,) = [names for names in names_on(browser.get("/inbox").text) if " " not in names]
    fields = {"names": one, "action": "approve", "remember": "job", "rule": "Bash(uv *)"}
    page = browser.submit("/inbox", "/answer", **fields)
    assert "3 calls approved, 2 of them by the rule" in page.words


def asked_lena(
    app: App, database: Database, open_site: Callable[..., Site], role: people.Role
) -> tuple[Browser, str]:
    """Let a run ask about a call. Returns the browser of a person with a role, and the run's id."""
    (run_id,) = submit_runs(database, "a.py")
    ask(database, run_id)
    token = people.add(app, "lena", role, Author("ada"), with_token=True)
    browser = open_site(auth="users").stranger()
    browser.post("/login", {"token": str(token)})
    return browser, run_id


@pytest.mark.parametrize("role", ["answer", "operate"])
def test_a_rule_for_new_jobs_needs_the_role_operate(
    app: App, database: Database, open_site: Callable[..., Site], role: people.Role
) -> None:
    browser, _ = asked_lena(app, database, open_site, role)
    page = browser.get("/inbox")
    assert ("for all new jobs too" in page.words) == (role == "operate")
    (names,) = names_on(page.text)
    fields = {"names": names, "action": "approve", "remember": "always"}
    browser.submit("/inbox", "/answer", **fields)
    standing = [(row["effect"], row["author"]) for row in list_standing(database)]
    assert standing == ([("allow", "lena")] if role == "operate" else [])


def test_a_rule_that_does_not_cover_the_call_answers_nothing(
    browser: Browser, database: Database, asked: list[str]
) -> None:
    (one,) = [names for names in names_on(browser.get("/inbox").text) if " " not in names]
    fields = {"names": one, "action": "approve", "remember": "job", "rule": "Bash(ls *)"}
    page = browser.submit("/inbox", "/answer", **fields)
    assert len(names_on(page.text)) == 2
    assert "Bash(ls *)" in page.words


@pytest.mark.dialect
def test_two_people_answering_at_once_is_one_answer(
    site: Site, database: Database, asked: list[str]
) -> None:
    first = site.browser()
    link = re.findall(r"/login\?token=[\w-]+", first.submit("/inbox", "/link").text)[0]
    second = site.stranger()
    second.get(link)
    (one,) = [names for names in names_on(first.get("/inbox").text) if " " not in names]

    def answer(browser: Browser, action: str) -> str:
        return browser.submit("/inbox", "/answer", names=one, action=action).words

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(answer, (first, second), ("approve", "deny")))
    assert sum("1 call" in each for each in said) == 1
    assert sum("nothing was changed" in each for each in said) == 1
    events = first.get(f"/runs/{asked[2]}/events").text
    assert events.count("<td>approval_answered</td>") == 1


@pytest.mark.parametrize(("role", "status"), [("look", 403), ("answer", 303), ("operate", 303)])
def test_who_may_only_look_cannot_answer(
    app: App, database: Database, open_site: Callable[..., Site], role: people.Role, status: int
) -> None:
    browser, run_id = asked_lena(app, database, open_site, role)
    csrf = browser.csrf("/inbox")
    assert ("Approve" in browser.get("/inbox").words) == (role != "look")
    (approval,) = re.findall(r"apr_\w+", browser.get("/inbox").text)[:1] or ["apr_x"]
    answer = browser.post("/answer", {"csrf": csrf, "names": approval, "action": "approve"})
    assert answer.status == status
    pause = browser.post("/do", {"csrf": csrf, "run": run_id, "action": "pause"})
    assert pause.status == (303 if role == "operate" else 403)
