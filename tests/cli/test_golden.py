"""Whole screens, as files in ``golden/`` that a reviewer reads: at 80 and 200 columns, and piped.

``pytest tests/cli/test_golden.py --write-golden`` writes them anew.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert

from runner.core.run import Author
from runner.store import ids
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.tables import workers
from tests.cli.conftest import Result
from tests.cli.test_costs import PRICED
from tests.store.asked import run_ids
from tests.store.attempts import claim, text
from tests.store.audit.played import PLAYED, USAGE, bash, turn
from tests.store.examples import NOW, submission

GOLDEN = Path(__file__).parent / "golden"
SCREENS = {
    "help": ("--help",),
    "list": ("list",),
    "list-job": ("list", "nightly"),
    "show-job": ("show", "nightly"),
    "show-run": ("show", "nightly/search.py"),
    "costs": ("costs",),
    "costs-job": ("costs", "nightly"),
    "report": ("report", "nightly"),
    "workers": ("workers",),
    "approvals": ("approvals",),
}
FITTED = ("help", "list", "list-job", "show-job", "show-run", "workers")
WIDTHS = {"80": 80, "200": 200, "piped": None}


@pytest.fixture
def morning(database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there after a night, always with the same ids, and at the same hour."""
    monkeypatch.setattr("secrets.randbits", random.Random(20).getrandbits)
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time", lambda: NOW + 3600)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (folder / "prices.toml").write_text(PRICED)
    monkeypatch.setenv("RUNNER_PRICES", "prices.toml")
    for run_id in submit(database, "upgrade", "requirements.txt", "requirements-dev.txt"):
        turn(claim(database, run_id, NOW + 5), *bash("ls -l")).reply(text("Nothing to upgrade."))
    packages = "src/a_package/of_the_kind/that_has_a_long_path.py"
    done, failed, asking, _ = submit(
        database, "nightly", "src/billing.py", "src/search.py", packages, "docs/index.md"
    )
    attempt = turn(claim(database, done, NOW + 10), *bash("ls -l", "rm -rf build"), at=NOW + 20)
    attempt.now += 30
    attempt.reply(
        text("The tax was rounded once for each line; now it is rounded once."), usage=USAGE
    )
    attempt = turn(claim(database, failed, NOW + 15), *bash("git log"), at=NOW + 25)
    attempt.fail("invalid_request_error", "messages.3: the image exceeds 5 MB, see the limits")
    turn(claim(database, asking, NOW + 20), *bash("make all"), at=NOW + 40)
    worker = {
        "id": f"worker_{'0' * 18}7hq2m4xa",
        "host_id": "host",
        "hostname": "build-3",
        "pid": 4211,
    }
    times = {"started_at": NOW - 60, "lease_expires_at": NOW + 3610}
    row = {**worker, **times, "slots": 16, "version": "1.2.3/r01"}
    database.write(lambda connection: connection.execute(insert(workers).values(row)))


def submit(database: Database, name: str, *items: str) -> list[str]:
    spec = replace(PLAYED, name=name)
    job_id = jobs_store.submit(database, submission(*items, spec=spec), NOW, author=Author("ada"))
    return run_ids(database, job_id)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("screen", SCREENS)
def test_the_screen_is_the_one_that_was_reviewed(
    command: Callable[..., Result],
    morning: None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    screen: str,
    width: str,
) -> None:
    room = WIDTHS[width]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(room or 80))
    monkeypatch.setattr("sys.stdout.isatty", lambda: room is not None, raising=False)
    shown = command(*SCREENS[screen])
    out = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert room is None or screen not in FITTED or max(map(len, out.splitlines())) <= room
    said = f"\n(stderr)\n{shown.err}" if shown.err else ""
    page = f"$ runner {' '.join(SCREENS[screen])}\n{out}{said}".replace(str(folder), "")
    lines = "".join(f"{line.rstrip()}\n" for line in page.splitlines())
    golden = GOLDEN / f"{screen}.{width}.txt"
    if pytestconfig.getoption("--write-golden"):
        golden.write_text(lines)
    assert lines == golden.read_text()
