"""Live pages: what changes is told to all that are open, from one look into the database."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from runner.app import live
from runner.app.handle import App
from runner.core.commands import Target
from runner.core.run import Author
from runner.store.control import cancel
from runner.store.database import Database
from runner.web import live as pages
from tests.cli.questions import ask, submit_runs
from tests.store.attempts import claim, run_row, text
from tests.store.audit.played import bash, submit, turn
from tests.web.browser import Browser
from tests.web.conftest import Site


class Stream:
    """The stream of a page, whose events are read as they come."""

    def __init__(self, browser: Browser, topic: str, since: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection(browser.address, timeout=60)
        given = {"cookie": browser.cookie, **{k.replace("_", "-"): v for k, v in headers.items()}}
        self._connection.request("GET", f"/live?topic={topic}&since={since}", headers=given)
        self.response = self._connection.getresponse()

    def event(self) -> dict[str, str]:
        """The next event; raises ``TimeoutError`` if none comes."""
        while True:
            found: dict[str, str] = {}
            while line := self.response.readline().decode().rstrip("\n"):
                name, _, value = line.partition(":")
                found[name] = value.strip()
            if "event" in found:
                return found
            if not found:
                raise EOFError

    def close(self) -> None:
        self._connection.close()


@contextmanager
def opened(browser: Browser, topic: str, since: str = "", **headers: str) -> Iterator[Stream]:
    stream = Stream(browser, topic, since, **headers)
    try:
        yield stream
    finally:
        stream.close()


@pytest.mark.dialect
def test_a_page_hears_of_a_change_of_its_run(
    app: App, browser: Browser, database: Database
) -> None:
    job = submit(database, "a.py")
    topic = f"run:{job.runs[0]}"
    seen = live.look(app, [topic])[topic]
    with opened(browser, topic, seen) as stream:
        turn(claim(database, job.runs[0]), *bash("ls -l"))
        event = stream.event()
    assert event["event"] == "changed"
    assert event["id"] != seen


@pytest.mark.dialect
def test_each_topic_changes_with_what_it_is_about(app: App, database: Database) -> None:
    runs = submit_runs(database, "a.py", "b.py")
    job_id = run_row(database, runs[0]).job_id
    topics = ["jobs", "inbox", f"job:{job_id}", f"run:{runs[0]}", f"run:{runs[1]}"]

    def changed_by(act: Callable[[], object]) -> set[str]:
        before = live.look(app, topics)
        assert live.look(app, topics) == before
        act()
        after = live.look(app, topics)
        return {topic for topic in topics if before[topic] != after[topic]}

    assert changed_by(lambda: ask(database, runs[0])) == {"jobs", "inbox", f"run:{runs[0]}"}
    about = Target("run", runs[1])
    assert changed_by(lambda: cancel(database, about, 2e9, author=Author("ada"))) == {
        "jobs",
        f"job:{job_id}",
        f"run:{runs[1]}",
    }


@pytest.mark.slow
def test_a_page_that_slept_catches_up(app: App, browser: Browser, database: Database) -> None:
    job = submit(database, "a.py")
    topic = f"run:{job.runs[0]}"
    seen = live.look(app, [topic])[topic]
    claim(database, job.runs[0]).reply(text("Done."))
    with opened(browser, topic, last_event_id=seen) as stream:
        assert stream.event()["event"] == "changed"
    now = live.look(app, [topic])[topic]
    with opened(browser, topic, seen, last_event_id=now) as stream:
        cancel(database, Target("job", job.id), 2e9, author=Author("ada"))  # changes nothing
        stream._connection.sock.settimeout(2.5)
        with pytest.raises(TimeoutError):
            stream.event()


@pytest.mark.slow
def test_fifty_pages_cost_one_look_at_a_time(
    browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = submit_runs(database, "a.py", "b.py")
    looks: list[int] = []
    real = live.look

    def counted(app: App, topics: list[str]) -> dict[str, str]:
        if threading.current_thread().name == "live":
            looks.append(len(topics))
        return real(app, topics)

    monkeypatch.setattr(live, "look", counted)
    with ExitStack() as stack:
        streams = [
            stack.enter_context(opened(browser, f"run:{runs[number % 2]}")) for number in range(50)
        ]
        for stream in streams:
            stream.event()  # the first: its page did not say which version it has
        deadline = time.monotonic() + 60
        while 2 not in looks:  # one that began before may know of one run only
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        looks.clear()
        for run_id in runs:
            cancel(database, Target("run", run_id), 2e9, author=Author("ada"))
        for stream in streams:
            assert stream.event()["event"] == "changed"
        found = [*looks]
        took = time.monotonic() - began
    assert set(found) <= {2}  # both runs in one look; it may have begun before
    assert len(found) <= took + 2


def test_an_error_of_one_look_does_not_end_the_others(
    app: App, browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    topic, real = f"run:{run_id}", live.look
    seen = real(app, [topic])[topic]
    failed = threading.Event()

    def fails_once(app: App, topics: list[str]) -> dict[str, str]:
        if threading.current_thread().name == "live" and not failed.is_set():
            failed.set()
            raise ValueError("a bug")
        return real(app, topics)

    monkeypatch.setattr(pages, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(live, "look", fails_once)
    with opened(browser, topic, seen) as stream:
        assert failed.wait(60)
        cancel(database, Target("run", run_id), 2e9, author=Author("ada"))
        assert stream.event()["event"] == "changed"


def test_a_page_that_opens_during_a_look_hears_of_the_change(
    app: App, browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    topic, real = f"run:{run_id}", live.look
    before = real(app, [topic])

    def late(app: App, topics: list[str]) -> dict[str, str]:
        return real(app, topics) if threading.current_thread().name == "live" else before

    monkeypatch.setattr(pages, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(live, "look", late)
    with opened(browser, topic, before[topic]) as first:
        cancel(database, Target("run", run_id), 2e9, author=Author("ada"))
        changed = first.event()
        with opened(browser, topic, before[topic]) as second:
            assert second.event() == changed


def test_text_is_heard_again_after_an_error(
    browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    failed = threading.Event()
    threads: list[threading.Thread] = []

    def texts(app: App, run: str) -> Iterator[str | None]:
        threads.append(threading.current_thread())
        if not failed.is_set():
            failed.set()
            raise ValueError("a bug")
        yield "Look."
        time.sleep(0.1)

    monkeypatch.setattr(live, "texts_of", texts)
    with opened(browser, f"run:{run_id}", since="x&text=1"):
        assert failed.wait(60)
        threads[0].join(60)
    with opened(browser, f"run:{run_id}", since="x&text=1") as stream:
        assert "text" in {stream.event()["event"] for _ in range(2)}


def test_what_the_model_is_saying_reaches_the_pages_that_show_it(
    browser: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    listened: list[str] = []

    def texts(app: App, run: str) -> Iterator[str | None]:
        listened.append(run)
        yield from (None, "Look: <b>", None)
        time.sleep(0.5)

    monkeypatch.setattr(live, "texts_of", texts)
    with opened(browser, f"run:{run_id}") as silent:
        assert silent.event()["event"] == "changed"
        assert listened == []  # nobody listens for a page that shows none
        with opened(browser, f"run:{run_id}", since="x&text=1") as stream:
            events = [stream.event(), stream.event()]
    (said,) = [event["data"] for event in events if event["event"] == "text"]
    assert said == '"Look: <b>"'


def test_streams_end_with_the_server(open_site: Callable[..., Site], database: Database) -> None:
    site = open_site()
    browser = site.browser()
    with opened(browser, "jobs") as stream:
        stream.event()
        site.close()
        with pytest.raises((EOFError, ConnectionError, http.client.IncompleteRead)):
            stream.event()


def test_who_is_not_logged_in_hears_nothing(site: Site) -> None:
    assert site.stranger().get("/live?topic=jobs").status == 401
    assert site.browser().get("/live?topic=run:nothing").status == 404
    assert site.browser().get("/live?topic=else").status == 404


def test_a_refresh_takes_no_words_from_the_next_page(browser: Browser, database: Database) -> None:
    (run_id,) = submit_runs(database, "a.py")
    page = f"/runs/{run_id}"
    fields = {"csrf": browser.csrf(page), "back": page, "run": run_id, "action": "pause"}
    browser.post("/do", fields)
    assert "a.py: paused" not in browser.get(page, x_refresh="1").words
    assert "a.py: paused" in browser.get(page).words
