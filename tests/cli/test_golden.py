"""Whole screens, as files in ``golden/`` that a reviewer reads: at 80 and 200 columns, and piped.

``pytest tests/cli/test_golden.py --write-golden`` writes them anew.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from sqlalchemy import insert

from runner.cli.main import cli
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
    said = f"\n(stderr)\n{shown.err}" if shown.err else ""
    page = f"$ runner {' '.join(SCREENS[screen])}\n{out}{said}".replace(str(folder), "")
    lines = "".join(f"{line.rstrip()}\n" for line in page.splitlines())
    golden = GOLDEN / f"{screen}.{width}.txt"
    if pytestconfig.getoption("--write-golden"):
        golden.write_text(lines)
    assert lines == golden.read_text()


def every_help(command: click.Command, name: str = "") -> Iterator[str]:
    yield f"{name} --help".strip()
    inner = getattr(command, "commands", {})
    for each in inner:
        yield from every_help(inner[each], f"{name} {each}".strip())


SHOWN = """
    list | list --tree | list nightly | list nightly --all | list --state failed | list --since yesterday
    show nightly | show nightly/billing.py | show CALL | events nightly | events nightly/billing.py
    events nightly/billing.py --tree | events nightly/billing.py --tool Bash
    transcript nightly/billing.py --no-pager | transcript nightly/search.py --no-pager
    workers | workers --all | workers --limits | approvals | approvals nightly | rules list nightly
    rules check job.toml | rules check job.toml Bash(git~push~--force~origin~main)
    report nightly | results nightly | diff nightly/billing.py | workspace list | workspace prune
    costs | costs nightly | costs --by model | costs --by day | costs nightly --tool Bash
    budget nightly | budget --all | search ls | search --without ls tax | search nothing_like_it
    audit tools | audit commands | audit files | audit connections | audit errors | audit decisions
    audit decisions --each | audit approvals | audit limits | audit models | audit views
    audit sql SELECT~*~FROM~v_runs | audit sql SELECT~*~FROM~v_tool_calls
    prune | prune --older-than 90d --dry-run | users list | users add lena | users list | schedule list
    schedule add job.toml --cron 0~22~*~*~* | schedule list | notify list nightly
    notify test nightly | db check | db upgrade | db reindex | doctor | run job.toml --dry-run
    submit job.toml | priority nightly | priority nightly high | lane nightly | finish-by nightly 09:00
    pause nightly | resume nightly | say nightly/docs/index.md hello | fork nightly/billing.py@1
    patch nightly -o patches | export nightly -o out.jsonl | import out.jsonl | retry nightly --failed
    approve nightly --remember job | deny nightly | cancel nightly | retry nightly --tokens 5 | list
    cancel nosuchjob | show nightly/ | retry nightly/billing.py | costs nightly --state x
"""
JOB_FILE = """
name = "a-job-with-a-long-name-that-says-what-it-is-for"
provider = "scripted"
model = "scripted"
script = {}
prompt = "Mend {{ item.key }}, and say in a sentence of more than eighty columns what was the matter."
tools = ["Bash", "Read"]
[workspace]
path = "."
[permissions]
allow = ["Read"]
deny = [{rule = "Bash(git push *)", why = "whoever pushes from here would overwrite what others have done"}]
[[items.list]]
key = "src/a_package/of_the_kind/that_has_a_long_path.py"
"""


@pytest.mark.slow
def test_no_screen_is_wider_than_eighty_columns(
    command: Callable[..., Result], morning: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.toml").write_text(JOB_FILE)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    (call, *_) = command("audit", "sql", "SELECT call_id FROM v_tool_calls", "--json").json
    wide: list[str] = []
    screens = [each.strip() for line in SHOWN.splitlines() for each in line.split("|")]
    for screen in [*every_help(cli), *filter(None, screens)]:
        words = [word.replace("~", " ") for word in screen.split()]
        shown = command(*[call["call_id"] if word == "CALL" else word for word in words])
        assert shown.code in range(6), (screen, shown)
        for line in re.sub(r"\x1b\[[0-9;]*[mK]", "", shown.out + shown.err).splitlines():
            # A path or an address is not cut.
            if len(line) > 80 and max(map(len, line.split())) < 60:
                wide.append(f"{screen}: {line}")
    assert not wide, "\n".join(wide)
