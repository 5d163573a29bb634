"""``report``: what a job has come to, in Markdown in which nothing from outside means anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.commands import Reply, Target
from runner.core.conversation import Usage
from runner.core.entries import RunSettled
from runner.core.run import Ended, Waiting
from runner.core.spec import Asking
from runner.permissions import Rule
from runner.store.approvals import answer
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.retry import retry
from tests.app.test_markdown import cells_of
from tests.cli.conftest import Result
from tests.cli.out.recorded import AtWork, begin, git, git_spec, submit, with_verify
from tests.cli.test_costs import PRICED
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.asked import ASKING, ask, run_ids, submit_asking
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW

STORABLE = HOSTILE.replace("\x00", "").replace("\ud800", "")
INJECTION = "`x` | <img src=x> @team [a](http://evil) \x1b[2J\n# Heading\n```\n| a |"


def job_id(database: Database, run_id: str) -> str:
    return str(run_row(database, run_id).job_id)


def section(page: str, heading: str) -> str:
    """What stands under a heading; nothing when there is none."""
    found = re.search(rf"^## {heading}\n\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def rows(page: str) -> dict[str, dict[str, str]]:
    """The table of runs by the items' keys."""
    lines = section(page, "Runs").splitlines()
    heads = cells_of(lines[0])
    found = (dict(zip(heads, cells_of(line), strict=True)) for line in lines[2:])
    return {row["item"].strip("`"): row for row in found}


def work_job(database: Database, home: Path, repository: Path) -> list[AtWork]:
    """Five runs: one that succeeds at once, one the second time, two that fail alike, one that
    changes nothing."""
    spec = with_verify(git_spec(repository), rounds=1)
    _, found = submit(database, spec, "good", "again", "bad", "worse", "idle")
    good, again, bad, worse, idle = works = [begin(database, home, run_id) for run_id in found]
    good.write({"a.txt": b"one\nzwei\ndrei\n"}).end().verify().deliver()
    again.write({"a.txt": b"x\n" * 500}).end().verify("failed", "E   ValueError: 3 in /tmp/a/b")
    again.write({"b.txt": b"b\n"}).end().verify().deliver()
    for work, said in ((bad, "7 in /tmp/c"), (worse, "12 in x/d")):
        work.end().verify("failed", "first")
        work.write({"a.txt": b"no\n"}).end().verify("failed", f"E   ValueError: {said}\n1 failed")
        work.deliver()
    idle.end().verify().deliver()
    return works


@pytest.mark.slow
def test_each_run_has_a_line(
    command: Callable[..., Result],
    database: Database,
    home: Path,
    repository: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "prices.toml").write_text(PRICED)
    monkeypatch.setenv("RUNNER_PRICES", "prices.toml")
    works = work_job(database, home, repository)
    told = command("report", job_id(database, works[0].id))
    assert told.code == 0
    table = rows(told.out)
    assert list(table) == ["good", "again", "bad", "worse", "idle"]
    assert table["good"] == {
        "run": f"`{works[0].id[-8:]}`",
        "item": "`good`",
        "outcome": "succeeded `end_turn`",
        "changes": "1 file +2 −1",
        "verify": "passed",
        "cost": "$0.0003",
        "time": "0.0s",
        "turns": "2",
    }
    assert table["again"]["changes"] == "2 files +501 −2"
    assert table["again"]["verify"] == "passed (verification 2)"
    assert table["bad"]["outcome"] == "failed `verify`"
    assert table["bad"]["verify"] == "failed (verification 2)"
    assert table["idle"]["changes"] == "none"
    head = told.out.split("\n## ")[0]
    for fact in ("3 succeeded, 2 failed, of 5", "+505 −7 lines in 4 of 5 runs", "verified: 3 of 5"):
        assert fact in head


@pytest.mark.slow
def test_failures_that_are_alike_are_told_once(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    works = work_job(database, home, repository)
    page = command("report", job_id(database, works[0].id)).out
    failures = section(page, "Failures")
    assert failures.count("### ") == 1
    assert "### 2 × failed `verify`: `E ValueError: <n> in <path>`" in failures
    assert f"`{works[2].id[-8:]}` `bad`, `{works[3].id[-8:]}` `worse`" in failures
    assert "```text\nE   ValueError: 7 in /tmp/c\n1 failed\n```" in failures


@pytest.mark.slow
def test_what_to_look_at_first_comes_first(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    works = work_job(database, home, repository)
    page = command("report", job_id(database, works[0].id)).out
    assert (
        page.index("## What to look at first") < page.index("## Failures") < page.index("## Runs")
    )
    short = [f"`{work.id[-8:]}`" for work in works]
    names = [f"`runner {{}} {work.id[-8:]}`" for work in works]
    assert section(page, "What to look at first").splitlines() == [
        f"- 2 runs failed, `verify`, `E ValueError: <n> in <path>`: "
        f"{names[2].format('transcript')}, {short[3]}",
        f"- 1 run succeeded and changed nothing: {names[4].format('show')}",
        f"- 1 run succeeded only when verified again: {names[1].format('show')}",
        f"- 1 run changed more than 400 lines: {names[1].format('diff')}",
    ]


@pytest.mark.slow
def test_a_run_with_a_repository_of_its_own_is_told(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    _, (run_id,) = submit(database, git_spec(repository), "one")
    work = begin(database, home, run_id)
    git(work.path, "init", "-q", "vendor")
    work.write({"vendor/a": b"x"})
    page = command("report", job_id(database, run_id)).out
    (told,) = [line for line in page.splitlines() if "recorded nowhere" in line]
    assert told.startswith("- 1 run may have changed what is recorded nowhere")
    assert "`vendor`" in told
    assert run_id[-8:] in told


def test_a_job_without_worries_says_so(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    page = command("report", job_id(database, run_id)).out
    assert section(page, "What to look at first") == "- Nothing stands out."
    assert "## Failures" not in page
    assert "changes" not in page


@pytest.mark.slow
def test_denials_and_approvals_are_counted_and_what_waits_comes_first(
    command: Callable[..., Result], database: Database
) -> None:
    asking = submit_asking(database, "one", "two", asking=Asking("ask"))
    first, second = run_ids(database, asking)
    (approved,) = ask(database, first, "uv lock")
    answer(database, [approved], Reply("approved", "ada"), NOW)
    ask(database, second, "uv lock")
    page = command("report", asking).out
    assert section(page, "Approvals") == "- 1 approved (by person)\n- 1 waiting for an answer"
    assert section(page, "What to look at first").splitlines()[0] == (
        f"- 1 tool call waits for an answer, in 1 run: `runner approvals {asking[-8:]}`"
    )
    assert rows(page)["two"]["approvals"] == "1 waiting"
    denying = replace(ASKING, rules=(Rule("deny", "Bash(rm *)", why="too | dangerous"),))
    run_id = submit_one(database, spec=denying)
    attempt = claim(database, run_id)
    attempt.reply(tool_use(1, "Bash", command="rm -rf x"), stop="tool_use").reply(text("Done."))
    page = command("report", job_id(database, run_id)).out
    (_, _, denied) = section(page, "Denied tool calls").splitlines()
    assert cells_of(denied)[:4] == ["1", "1", "`Bash`", "`rm -rf x` (it deletes)"]
    assert "the rule deny Bash(rm *) (too \\| dangerous)" in cells_of(denied)[4]
    assert "succeeded although tool calls were denied" in page


def test_the_most_dangerous_denied_call_is_named_also_without_a_rule(
    command: Callable[..., Result], database: Database
) -> None:
    run_id = submit_one(database, spec=replace(ASKING, rules=(), asking=Asking("deny")))
    attempt = claim(database, run_id)
    commands = ("cat .env", "ls", "git push", "cd x && rm -rf y | tee log", "make")
    calls = [tool_use(n, "Bash", command=each) for n, each in enumerate(commands)]
    attempt.reply(*calls, stop="tool_use").reply(text("Done."))
    page = command("report", job_id(database, run_id)).out
    told = [
        line for line in section(page, "What to look at first").splitlines() if "danger" in line
    ]
    assert len(told) == 1
    assert told[0].startswith(
        "- the most dangerous call that was denied: `Bash` `cd x && rm -rf y \\| tee log` (it deletes), of "
    )
    denied = [cells_of(line) for line in section(page, "Denied tool calls").splitlines()[2:]]
    assert sum(int(cells[0]) for cells in denied) == 5
    assert all(cells[3] for cells in denied)


@pytest.mark.slow
def test_what_goes_on_and_what_waits_is_told(
    command: Callable[..., Result], database: Database
) -> None:
    from tests.store.examples import SPEC

    job, (going, waiting) = submit(database, SPEC, "a", "b")
    claim(database, waiting).append(RunSettled(Waiting("workspace")))
    page = command("report", job).out
    first = section(page, "What to look at first").splitlines()
    assert first == [
        f"- 1 run waits (`workspace`): `runner show {waiting[-8:]}`",
        "- 1 run not ended yet",
    ]
    assert going != waiting


def test_nothing_from_outside_means_anything(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = submit_one(database, STORABLE)
    attempt = claim(database, run_id)
    attempt.append(RunSettled(Ended("failed", "verify", INJECTION + STORABLE)))
    job = job_id(database, run_id)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "10000")
    page = command("report", job).out
    assert not any(map(steers, page.replace("\n", "")))
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page, flags=re.DOTALL)
    for meaning in ("<img", "@team", "http:", "# Heading\n", "[bold]"):
        assert meaning in page.replace("⏎", "\n")
        assert meaning not in outside_code
    assert len(rows(page)) == 1


def test_a_report_is_written_to_a_file(
    command: Callable[..., Result], database: Database, folder: Path
) -> None:
    run_id = submit_one(database)
    job = job_id(database, run_id)
    told = command("report", job, "-o", "morning.md")
    assert (told.code, told.out) == (0, "")
    page = (folder / "morning.md").read_text()
    assert page.startswith("# Job `mend`\n")
    assert f"`{job[-8:]}`" in page


def test_runs_begun_afresh_are_left_out(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database)
    cancel(database, Target("run", run_id), NOW)
    retry(database, Target("run", run_id), NOW, fresh=True)
    page = command("report", job_id(database, run_id)).out
    assert run_id[-8:] not in page
    assert "1 queued, of 1" in page


def test_cost_is_that_of_runs_begun_afresh_too(
    command: Callable[..., Result],
    database: Database,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "prices.toml").write_text(PRICED)
    monkeypatch.setenv("RUNNER_PRICES", "prices.toml")
    run_id = submit_one(database)
    claim(database, run_id).reply(text("No."), stop="refusal", usage=Usage(output_tokens=100_000))
    retry(database, Target("run", run_id), NOW, fresh=True)
    for shown in ("report", "costs"):
        assert "cost: $0.50" in command(shown, job_id(database, run_id)).out


@pytest.mark.slow
def test_changes_that_cannot_be_counted_are_told_of(
    command: Callable[..., Result], database: Database, home: Path, repository: Path
) -> None:
    works = work_job(database, home, repository)
    for store in (home / "snapshots").glob("*.git"):
        shutil.rmtree(store)
    told = command("report", job_id(database, works[0].id))
    assert told.code == 0
    assert "Changes are not counted for every run" in told.out
    assert {row["changes"] for row in rows(told.out).values()} == {"?"}
