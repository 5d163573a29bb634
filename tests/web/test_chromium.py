"""The pages as people use them, in Debian's Chromium. ``make test-web`` keeps the screenshots in
``build/web``; without Chromium these tests are skipped, with the reason."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.app.transcript import transcript_of
from runner.app.transcript_page import page
from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.entries import ToolFinished
from runner.core.media import PDF, Media
from runner.core.run import Author
from runner.store.control import cancel
from runner.store.database import Database
from tests.cli.questions import ask, submit_runs
from tests.media import image, pdf
from tests.runner_process import RunnerProcess
from tests.store.asked import run_ids
from tests.store.attempts import claim, run_row, text, tool_use
from tests.store.audit.played import bash, play, submit, turn
from tests.store.examples import NOW
from tests.web.conftest import Site
from tests.web.hostile import hostile_record

SHOTS = Path("build/web")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = (500, 1280)
_HARD_TO_READ = (Path(__file__).parent / "readable.js").read_text()

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
    pytest.mark.timeout(300),
    # Playwright's own threads and pipes are still there when its tests end.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container the shared memory is small.
        options = ["--disable-dev-shm-usage", "--disable-gpu"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(site: Site, chromium: Any) -> Iterator[Open]:
    """Opens a page in a browser of its own, which is logged in. No page may log an error."""
    contexts: list[Any] = []
    said: list[str] = []

    def open_one(path: str, width: int = 1280, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        name, _, value = site.browser().cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": site.origin}])
        page = context.new_page()
        page.on("console", lambda each: "status of 40" in each.text or said.append(each.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"a dialog: {dialog.message}"))
        page.set_default_timeout(60_000)
        page.goto(f"{site.origin}{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert said == []


def test_the_keyboard_alone_answers_what_waits(open_page: Open, database: Database) -> None:
    runs = submit_runs(database, "a.py", "b.py", "c.py")
    for run_id, command in zip(runs, ("uv lock", "uv sync", "uv add x"), strict=True):
        ask(database, run_id, command)
    page = open_page("/inbox")
    page.keyboard.press("j")
    page.keyboard.press("y")
    page.get_by_text("1 call approved").wait_for()
    page.keyboard.press("n")
    page.keyboard.type("Not today.")
    page.keyboard.press("Enter")
    page.get_by_text("1 call denied").wait_for()
    page.keyboard.press("e")
    page.keyboard.press("Control+a")
    page.keyboard.type("uv add y")
    page.keyboard.press("Escape")
    page.keyboard.press("y")
    page.get_by_text("Nothing waits for you").wait_for()
    assert {run_row(database, run_id).state for run_id in runs} == {"queued"}


@pytest.mark.slow
def test_keys_answer_only_the_question_that_was_picked_and_once_a_press(
    open_page: Open, database: Database
) -> None:
    runs = submit_runs(database, "a.py", "b.py", "c.py")
    for run_id, command in zip(runs, ("uv lock", "uv sync", "uv add x"), strict=True):
        ask(database, run_id, command)
    page = open_page("/inbox")
    page.keyboard.press("y")
    page.wait_for_timeout(300)
    assert page.locator(".ask").count() == 3
    page.keyboard.press("j")
    page.keyboard.down("y")
    page.get_by_text("1 call approved").wait_for()
    for _ in range(5):
        page.keyboard.down("y")  # held: the key repeats
    page.wait_for_timeout(300)
    assert page.locator(".ask").count() == 2


@pytest.mark.slow
def test_a_double_press_answers_one_question(open_page: Open, database: Database) -> None:
    runs = submit_runs(database, "a.py", "b.py")
    for run_id, command in zip(runs, ("uv lock", "uv sync"), strict=True):
        ask(database, run_id, command)
    page = open_page("/inbox")
    page.keyboard.press("j")
    page.keyboard.press("y")
    page.get_by_text("1 call approved").wait_for()
    page.keyboard.press("y")
    page.get_by_role("button", name="Approve").click()
    page.wait_for_timeout(1_000)
    assert page.locator(".ask").count() == 1
    page.keyboard.press("y")
    page.get_by_text("Nothing waits for you").wait_for()


@pytest.mark.slow
def test_two_browsers_on_one_approval_are_one_answer(open_page: Open, database: Database) -> None:
    (run_id,) = submit_runs(database, "a.py")
    ask(database, run_id)
    first, second = open_page("/inbox"), open_page("/inbox")
    # The second one does not see what happens meanwhile.
    second.evaluate("document.querySelector('#inbox').removeAttribute('data-live')")
    first.get_by_role("button", name="Approve").click()
    first.get_by_text("1 call approved").wait_for()
    second.get_by_role("button", name="Deny").click()
    second.get_by_text("nothing was changed").wait_for()


@pytest.mark.slow
def test_a_run_grows_before_the_reader_s_eyes(open_page: Open, database: Database) -> None:
    job = submit(database, "a.py")
    attempt = turn(claim(database, job.runs[0]), *bash("ls -l one"))
    page = open_page(f"/runs/{job.runs[0]}")
    page.locator("details.call").first.locator("summary").click()
    for number in range(3):
        turn(attempt, *bash(f"ls -l more-{number}"))
        page.get_by_text(f"ls -l more-{number}").first.wait_for()
    attempt.reply(text("All is done."))
    page.get_by_text("All is done.").wait_for()
    assert page.locator("#turn-1 details[open]").count() == 1  # stays as the reader left it
    assert "succeeded" in page.locator("#run-state").inner_text()


@pytest.mark.slow
def test_a_page_shows_the_run_of_a_real_worker_as_it_grows(
    open_page: Open, site: Site, database: Database, tmp_path: Path
) -> None:
    environment = {**os.environ, **site.app.settings.environment()}

    def runner(*arguments: str) -> RunnerProcess:
        return RunnerProcess(arguments, tmp_path, environment)

    job = str(Path("jobs/quickstart.toml").absolute())
    told, _ = runner("submit", job, "--only", "slugs").communicate(timeout=60)
    (run_id,) = run_ids(database, told.strip())
    page = open_page(f"/runs/{run_id}")
    assert "queued" in page.locator("#run-state").inner_text()
    worker = runner("worker", "--burst")
    page.locator("#run-state", has_text="succeeded").wait_for()
    assert page.locator("details.call").count() > 1
    worker.communicate(timeout=60)  # closes its streams: a later test would be told that nobody did
    assert worker.returncode == 0


@pytest.mark.slow
def test_a_page_that_was_hidden_catches_up(open_page: Open, database: Database) -> None:
    runs = submit_runs(database, "a.py", "b.py")
    job_id = run_row(database, runs[0]).job_id
    page = open_page(f"/jobs/{job_id}")
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    cancel(database, Target("run", runs[0]), time.time(), author=Author("ada"))
    page.wait_for_timeout(1_800)
    assert page.locator("#runs .chip", has_text="cancelled").count() == 0
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.locator("#runs .chip", has_text="cancelled").wait_for()


@pytest.mark.slow
def test_images_are_shown_as_thumbnails(
    open_page: Open, site: Site, database: Database, tmp_path: Path
) -> None:
    """In the pages of the server, and in a file that needs none."""
    job = submit(database, "a.py")
    attempt = claim(database, job.runs[0])
    attempt.reply(tool_use(1, "Read", file_path="a.png"), stop="tool_use")
    large = Media("image", "image/png", "<b>a</b>.png", image(size=(640, 1_280)), 640, 1_280)
    report = Media("document", PDF, "a.pdf", pdf(1), pages=1)
    attempt.append(ToolFinished(0, ToolResult("an image", media=(large, report))))
    attempt.reply(text("It is red."))
    file = tmp_path / "run.html"
    file.write_text("".join(page(transcript_of(site.app, job.runs[0], NOW))))
    SHOTS.mkdir(parents=True, exist_ok=True)
    opened = open_page(f"/runs/{job.runs[0]}")
    for name in ("image-web", "image-file"):
        opened.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        shown = opened.locator("img")
        shown.scroll_into_view_if_needed()
        opened.wait_for_function("document.querySelector('img').naturalWidth > 0")
        assert shown.evaluate("each => [each.naturalWidth, each.naturalHeight]") == [640, 1_280]
        assert shown.evaluate("each => each.getBoundingClientRect().height") <= 320
        opened.get_by_text("[document: a.pdf, 1 page]").wait_for()
        opened.screenshot(path=SHOTS / f"{name}.png", full_page=True)
        opened.goto(file.as_uri())


@pytest.mark.slow
def test_older_turns_come_when_the_reader_scrolls(open_page: Open, database: Database) -> None:
    job = submit(database, "a.py")
    attempt = claim(database, job.runs[0])
    for number in range(40):
        turn(attempt, *bash(f"ls -l {number}"))
    page = open_page(f"/runs/{job.runs[0]}")
    while page.locator("#older").count():
        page.mouse.wheel(0, 5_000)
        page.wait_for_timeout(100)
    ids = page.locator("#turns > .turn").evaluate_all("all => all.map((each) => each.id)")
    assert ids == [f"turn-{number}" for number in range(40, -1, -1)]


@pytest.mark.slow
def test_everything_but_live_updates_works_without_scripts(
    open_page: Open, database: Database
) -> None:
    (run_id,) = submit_runs(database, "a.py")
    ask(database, run_id)
    page = open_page("/inbox", java_script_enabled=False)
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("1 call approved").wait_for()
    page.goto(f"{page.url.rsplit('/', 1)[0]}/runs/{run_id}")
    page.get_by_text("Act on this run").click()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("a.py: paused").wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_every_screen_fits_and_reads_well(
    open_page: Open, database: Database, width: int, scheme: str
) -> None:
    """No page is wider than its window; text has the contrast of WCAG AA, and everything has a name."""
    job, record = play(database), hostile_record(database)
    paths = {
        "jobs": "/",
        "job": f"/jobs/{job.id}",
        "failures": f"/jobs/{job.id}/charts",
        "report": f"/jobs/{job.id}/report",
        "confirm": f"/jobs/{job.id}/all?action=cancel",
        "run": f"/runs/{job.runs[0]}",
        **{tab: f"/runs/{job.runs[0]}/{tab}" for tab in ("changes", "costs", "tree", "events")},
        "sent": f"/runs/{job.runs[0]}/sent/1",
        "call": f"/calls/{record.call}",
        "search of nothing": "/search",
        "no such page": "/nothing",
        "no such job": "/jobs/nothing",
        "login": "/login",
        "hostile": f"/runs/{record.run}",
        "inbox": "/inbox",
        "search": "/search?q=push",
        "audit": "/audit",
        "decisions": "/audit/decisions?each=1",
        "sql": "/sql?q=SELECT+state+FROM+v_runs",
    }
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        page = open_page(path, width, color_scheme=scheme)
        page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (name, wide)
        assert page.evaluate(_HARD_TO_READ) == [], name
        page.context.close()
