"""``report --html``: one page that needs nothing else, in which nothing from outside is markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.entries import RunSettled
from runner.core.run import Ended
from runner.store.database import Database
from tests.app.parsed import Parsed
from tests.cli.conftest import Result
from tests.cli.out.recorded import begin, git_spec, submit, with_verify
from tests.cli.test_report import INJECTION, STORABLE, job_id, work_job
from tests.cli.test_terminal import steers
from tests.store.attempts import claim, submit_one, text, tool_use

Command = Callable[..., Result]


def test_the_page_needs_nothing_and_shows_the_diff_and_the_last_words(
    command: Command, database: Database, home: Path, repository: Path, folder: Path
) -> None:
    job, (good, bad) = submit(database, with_verify(git_spec(repository), rounds=1), "good", "bad")
    begin(database, home, good).write({"a.txt": b"one\n<b>zwei</b>\n"}).end().verify().deliver()
    failing = begin(database, home, bad).end().verify("failed", "first").end()
    failing.verify("failed", "E   ValueError: 3 in /tmp/a/b").deliver()
    written = command("report", job, "--html", "morning.html")
    assert (written.code, written.out, written.err) == (0, "", "written: morning.html\n")
    html = (folder / "morning.html").read_text()
    page = Parsed.of(html)
    assert not page.named("script")
    assert {name for name, _ in page.elements} & {"img", "iframe", "object", "form"} == set()
    loads = [a for _, a in page.elements if a.get("src") or "http" in (a.get("href") or "")]
    assert loads == []
    (style,) = page.sources["style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy, *_) = (m["content"] for m in page.named("meta") if m.get("http-equiv"))
    assert policy is not None
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in policy
    assert "prefers-color-scheme: dark" in style
    assert "max-width: 44rem" in style
    assert "+<b>zwei</b>\n" in page.text
    assert re.search(r"What to look at first\s*1 run failed, verify, E ValueError: <n>", page.text)
    kinds = {attributes.get("class") for attributes in page.named("span")}
    assert {"added", "removed", "file", "place"} <= kinds
    ids = {attributes.get("id") for attributes in page.named("details")}
    assert {link["href"] for link in page.named("a")} == {f"#{each}" for each in ids}


@pytest.mark.slow
def test_charts_show_each_run_and_each_kind_of_failure(
    command: Command, database: Database, home: Path, repository: Path
) -> None:
    works = work_job(database, home, repository)
    job = job_id(database, works[0].attempt.lease.run_id)
    page = Parsed.of(command("report", job, "--html", "-").out)
    states = [each["class"] for each in page.named("rect")]
    # Parts of the bar, times, runs with most tokens, and kinds of failures.
    assert states.count("s-succeeded") == 1 + 3 + 3
    assert states.count("s-failed") == 1 + 2 + 2 + 1
    assert "What succeeded" in page.text
    assert "Failures" in page.text
    assert page.text.count("2 × failed verify: E ValueError: <n> in <path>") == 1


def test_a_run_that_goes_on_has_a_bar_until_now(command: Command, database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id)
    page = Parsed.of(command("report", job_id(database, run_id), "--html", "-").out)
    (bar,) = [each for each in page.named("rect") if each.get("height") == "8"]
    assert (bar["x"], bar["width"]) == ("0", "1000")
    assert re.search(r"\d\d:\d\d:\d\d\s*now\s", page.text)


def test_nothing_from_outside_is_markup(command: Command, database: Database) -> None:
    run_id = submit_one(database, STORABLE)
    attempt = claim(database, run_id)
    attempt.reply(text(INJECTION), tool_use(1, "Bash", command=f"rm {INJECTION}"), stop="tool_use")
    attempt.append(RunSettled(Ended("failed", "verify", INJECTION + STORABLE)))
    html = command("report", job_id(database, run_id), "--html", "-").out
    page = Parsed.of(html)
    assert not page.named("img")
    assert "<img src=x>" in page.text
    assert not any(map(steers, html.replace("\n", "")))


def test_a_page_and_markdown_are_not_written_at_once(command: Command, database: Database) -> None:
    job = job_id(database, submit_one(database))
    refused = command("report", job, "--html", "a.html", "-o", "a.md")
    assert refused.code == 2
    assert "--html writes a page, -o Markdown: give one of them" in refused.err
