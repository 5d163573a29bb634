"""Nothing that a model, a tool or a repository wrote becomes markup, on any page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from runner.app.approvals import editable
from runner.core.commands import Target
from runner.store.database import Database
from runner.store.questions import waiting
from runner.web.server import READS
from tests.app.parsed import Parsed
from tests.app.test_transcript_page import EVIL
from tests.cli.test_terminal import steers
from tests.web.browser import Browser
from tests.web.hostile import ATTRIBUTE, Record, hostile_record


def addresses(record: Record) -> Iterator[tuple[str, str]]:
    """Each route, with the pages of it that show the record."""
    evil = quote(f"{ATTRIBUTE}{EVIL}".replace("\ud800", "").replace("\x00", ""))
    for route, _ in READS:
        path = route.replace("{turn:int}", "1").replace("{call}", record.call)
        for run in {record.run, record.waiting}:
            found = path.replace("{job}", record.job).replace("{run}", run)
            found = found.replace("{question}", "decisions")
            yield route, found
        yield (
            route,
            f"{found}?text={evil}&tool={evil}&state={evil}&q={evil}&action={evil}&job={evil}",
        )
    for action in ("cancel", "approve"):
        yield "/jobs/{job}/all", f"/jobs/{record.job}/all?action={action}&text={quote(ATTRIBUTE)}"
    yield "/jobs/{job}", f"/jobs/{record.job}?text={quote(ATTRIBUTE)}&tool={quote(ATTRIBUTE)}"


def check(path: str, html: str) -> None:
    # What the reader's own address says is sent back as it is.
    shown = re.sub(r'value="[^"]*"|<textarea name="q".*?</textarea>', "", html, flags=re.DOTALL)
    assert not any(map(steers, shown.replace("\n", "").replace("\t", ""))), path
    parsed = Parsed.of(html)
    assert len(parsed.named("script")) <= 1, path
    for name in ("img", "iframe", "base", "object", "style", "embed"):
        assert parsed.named(name) == [], (path, name)
    for tag, attributes in parsed.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}, path
        for name in ("href", "src", "action"):
            value = attributes.get(name) or "/"
            assert value.startswith(("/", "#", "data:,")), (path, tag, value)
            assert not value.startswith("//"), (path, tag, value)


@pytest.mark.dialect
def test_every_page_shows_hostile_texts_as_texts(browser: Browser, database: Database) -> None:
    record = hostile_record(database)
    shown = 0
    for route, path in addresses(record):
        if "/sent/" in route:
            continue
        answer = browser.get(path)
        assert answer.status < 500, (path, answer.text[:300])
        assert "?" in path or answer.status == 200 or route.endswith(("/all", "/changes")), path
        if answer.headers["content-type"].startswith("text/html"):
            check(path, answer.text)
            shown += "alert(" in Parsed.of(answer.text).text
    assert shown > 10


@pytest.mark.slow  # anthropic makes the request, and takes long to import
def test_what_was_sent_is_text_too(browser: Browser, database: Database) -> None:
    path = f"/runs/{hostile_record(database).run}/sent/1"
    check(path, browser.get(path).text)


def test_an_edit_begins_with_what_was_asked_and_nothing_else(database: Database) -> None:
    """Whatever characters are in it: what is not touched must not change."""
    record = hostile_record(database)
    asked = waiting(database, Target("run", record.waiting))
    for question in asked:
        text = editable(question)
        assert not any(map(steers, text.replace("\n", "")))
        given = json.loads(text) if text.startswith("{") else {"command": text}
        assert given == question.input
