"""``db``, ``doctor``, and how errors are told."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text, update

import runner
from runner.core.commands import Target
from runner.core.rate_limits import (
    NOTHING,
    Demand,
    News,
    Observation,
    Pool,
    PoolKey,
    Refusal,
    Report,
)
from runner.store import jobs as jobs_store
from runner.store import leases
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.due_runs import look_at, wait_for_workspace
from runner.store.migrate import HEAD
from runner.store.rate_limits import StoredRateLimits
from runner.store.tables import workers
from runner.tools import cgroups
from tests.cli.conftest import Result
from tests.store.attempts import submit_one
from tests.store.examples import NOW, submission


def checks(result: Result) -> dict[str, dict[str, object]]:
    return {check["name"]: check for check in result.json}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("status", "list"), ("logs", "transcript"), ("help", "--help"), ("check", "run --dry-run")],
)
def test_a_command_name_of_other_programs_suggests_the_right_one(
    command: Callable[..., Result], typed: str, meant: str
) -> None:
    told = command(typed)
    assert told.code == 2
    assert f"Did you mean {meant!r}" in told.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_under_the_output_is_one_line(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "runner", "schema"]
        told = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder)
    expected = "runner: the output cannot be written: No space left on device\n"
    assert (told.returncode, told.stderr) == (1, expected)


@pytest.mark.slow
def test_a_closed_pipe_ends_no_work(folder: Path) -> None:
    """As ``runner run SPEC 2>&1 | head -1``."""
    (folder / "one.toml").write_text(
        'model = "m"\nprompt = "Go."\nprovider = "scripted"\nscript = "s.toml"\n'
    )
    (folder / "s.toml").write_text('one = [{ text = "No.", stop_reason = "refusal", delay = 1 }]\n')
    argv = [sys.executable, "-m", "runner", "run", "one.toml"]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(argv, stdout=pipe, stderr=both, text=True, cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("working ")
        process.stdout.close()
        assert process.wait(60) == 1
    argv = [sys.executable, "-m", "runner", "list", "last", "--json"]
    (run,) = json.loads(subprocess.run(argv, capture_output=True, cwd=folder, check=True).stdout)
    assert run["state"] == "failed"


@pytest.mark.slow
def test_database_is_made_and_checked(command: Callable[..., Result], folder: Path) -> None:
    before = command("db", "check")
    assert before.code == 2
    assert "runner db upgrade" in before.out
    assert list(folder.iterdir()) == []
    assert command("db", "upgrade").code == 0
    assert command("db", "upgrade").out.startswith("up to date")
    assert command("db", "check").code == 0
    status = command("db", "check", "--json").json
    assert (status["state"], status["current"]) == ("current", status["head"])


@pytest.mark.slow
def test_database_of_a_newer_version_is_told(
    command: Callable[..., Result], database: Database
) -> None:
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    assert command("db", "check").code == 2
    assert command("db", "upgrade").code == 2
    assert not checks(command("doctor", "--json"))["database"]["ok"]


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://me:hunter2@/none?host=/nonexistent", 5),
        ("mysql://me:hunter2@localhost/runner", 2),
        ("no url", 2),
    ],
)
def test_database_that_cannot_be_used_is_told_in_a_line_without_its_password(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, url: str, code: int
) -> None:
    monkeypatch.setenv("RUNNER_DATABASE_URL", url)
    for arguments in (("list",), ("db", "upgrade"), ("db", "check")):
        result = command(*arguments)
        assert result.code == code
        assert result.err.startswith("runner: ")
        assert len(result.err.splitlines()) == 1
        assert "hunter2" not in result.out + result.err
    shown = command("doctor")
    assert shown.code == 5
    assert "hunter2" not in shown.out + shown.err


@pytest.mark.slow
def test_healthy_surroundings_are_told(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    result = command("doctor", "--json")
    amiss = {name for name, check in checks(result).items() if not check["ok"]}
    assert amiss <= {"sandbox"}, result.out  # a host may have none
    assert result.code == len(amiss)
    assert "sk-secret" not in result.out
    assert {"database", "queue", "key", "git", "shell", "versions"} <= set(checks(result))
    holder = "the kernel" if cgroups.offered() else "Runner"
    assert str(checks(result)["limits"]["detail"]).startswith(f"{holder} enforces ")


def test_doctor_makes_no_database(command: Callable[..., Result], folder: Path) -> None:
    found = checks(command("doctor", "--json"))
    assert found["database"]["ok"]
    told = {found[name]["detail"] for name in ("workers", "backlog", "cap")}
    assert told == {"no database yet"}
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_what_is_missing_is_told_with_what_to_do(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNNER_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    monkeypatch.setenv("PATH", str(tmp_path))
    result = command("doctor", "--json")
    assert result.code == 5
    assert "hunter2" not in result.out
    for name in ("queue", "git", "shell"):
        assert not checks(result)[name]["ok"]
        assert checks(result)[name]["mend"]
    sandbox = checks(result)["sandbox"]
    assert "bwrap is not on the PATH" in str(sandbox["detail"])
    kind = (
        "landlock; jobs that require a sandbox are not worked here" if sandbox["ok"] else "nothing"
    )
    assert str(sandbox["detail"]).startswith(kind)
    assert "no images: docker is not on the PATH; podman" in str(sandbox)
    assert "FAIL  git" in command("doctor").out


def test_missing_key_alone_is_no_part_that_cannot_be_reached(
    command: Callable[..., Result], database: Database
) -> None:
    submit_one(database)
    assert command("doctor").code == 1


@pytest.mark.slow
def test_runs_that_no_worker_sees_the_workspace_of_are_told(
    command: Callable[..., Result], database: Database
) -> None:
    due = look_at(database, submit_one(database), NOW)
    assert due is not None
    wait_for_workspace(database, due, NOW)
    check = checks(command("doctor", "--json"))["workspaces"]
    assert not check["ok"]
    assert "1 runs for" in str(check["detail"])


@pytest.mark.parametrize(
    ("text", "ok", "said"),
    [
        ("date = 2000-01-01", True, "days old, get a newer Runner or set RUNNER_PRICES"),
        ("date = 9999-01-01", True, "of 9999-01-01"),
        ("prices = 1", False, "prices is unknown"),
    ],
)
def test_prices_that_are_old_or_unreadable_are_told(
    command: Callable[..., Result],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    ok: bool,
    said: str,
) -> None:
    (folder / "prices.toml").write_text(text)
    monkeypatch.setenv("RUNNER_PRICES", "prices.toml")
    check = checks(command("doctor", "--json"))["prices"]
    assert check["ok"] is ok
    assert said in str(check["detail"])
    assert ("days old" in str(check["detail"])) == ("2000" in text)


def test_home_that_cannot_be_written_is_told(command: Callable[..., Result], folder: Path) -> None:
    (folder / "file").write_text("")
    check = checks(command("doctor", "--json", "--home", str(folder / "file" / "home")))["home"]
    assert not check["ok"]


def test_home_on_a_disk_without_room_is_told(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "home"
    home.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    check = checks(command("doctor", "--json", "--home", str(home)))["home"]
    assert not check["ok"]
    assert str(check["detail"]).endswith("cannot be written: No space left on device")


def test_command_that_is_none_is_a_usage_error(command: Callable[..., Result]) -> None:
    result = command("bogus")
    assert result.code == 2
    assert result.err == "runner: No such command 'bogus' (see `runner --help`)\n"


def test_no_command_shows_the_help(command: Callable[..., Result]) -> None:
    result = command()
    assert result.code == 2
    assert "Usage: runner" in result.err


def test_version_is_told(command: Callable[..., Result]) -> None:
    import runner

    assert command("--version").out == f"runner {runner.__version__}\n"


def test_schema_prints_the_schema_that_the_jobs_name(command: Callable[..., Result]) -> None:
    path = Path(__file__).parents[2] / "jobs/job.schema.json"
    assert command("schema").out == path.read_text()


def test_workers_are_listed_with_their_faults(
    command: Callable[..., Result], database: Database
) -> None:
    options = {
        "hostname": "node-1",
        "host_id": "host",
        "pid": 7,
        "slots": 4,
        "version": "0.1.0/r02",
    }
    leases.register(database, "worker_1", now=time.time(), **options)
    assert "worker_1" in command("workers").out
    (worker,) = command("workers", "--json").json
    assert (worker["hostname"], worker["version"], worker["state"]) == (
        "node-1",
        "0.1.0/r02",
        "alive",
    )
    assert (worker["slots"], worker["runs"], worker["draining_at"]) == (4, [], None)
    database.execute(update(workers).values(fault="no space\x1b[2J left", fault_at=NOW))
    shown = command("workers").out
    assert "faulty" in shown
    assert "\x1b" not in shown
    leases.end(database, "worker_1", time.time())
    assert "worker_1" not in command("workers").out
    assert "ended" in command("workers", "--all").out


@pytest.mark.slow
def test_rate_limits_in_use_stand_below_the_workers(
    command: Callable[..., Result], database: Database
) -> None:
    now, limits = time.time(), StoredRateLimits(database)
    about = {"hostname": "node-1", "host_id": "host", "pid": 7, "slots": 4, "version": "1"}
    leases.register(database, "worker_1", now=now, **about)
    found = Observation(now, {"requests": (480, 22)})
    wants = Report(NOTHING, 0, (Demand(4.0, 9, {**NOTHING, "requests": 9}),))
    news = News(found, (Refusal(now, now, 60.0),))
    limits.exchange("worker_1", PoolKey("org_1", "sonnet-5"), wants, news, Pool(), now)
    shown = command("workers").out
    assert "limits for sonnet-5 of org_1: 480 requests a minute (1" in shown
    assert "0 under way, 9 waiting; all held back until" in shown
    told = command("workers", "--limits").out
    assert "requests, old none, new 480" in told
    said = command("workers", "--limits", "--json").json
    assert [event["type"] for event in said["events"]] == [
        "limit_changed",
        "concurrency_lowered",
        "held_back",
    ]
    (pool,) = said["limits"]
    assert (pool["organization"], pool["concurrency"], pool["waiting"]) == ("org_1", 1.0, 9)
    assert isinstance(command("workers", "--json").json, list)


def test_doctor_tells_of_workers_and_of_what_waits_for_one(
    command: Callable[..., Result], database: Database
) -> None:
    jobs_store.submit(database, submission("a", "b"), time.time() - 90)
    found = checks(command("doctor", "--json"))
    assert not found["backlog"]["ok"]
    assert str(found["backlog"]["detail"]).startswith("2 runs due, the oldest for 1m")
    options = {"hostname": "node-1", "host_id": "host", "pid": 7, "slots": 4}
    leases.register(
        database, "worker_1", now=time.time(), version=f"{runner.__version__}/{HEAD}", **options
    )
    found = checks(command("doctor", "--json"))
    assert found["backlog"]["ok"]
    assert found["workers"]["ok"]
    assert found["workers"]["detail"] == "1 alive on 1 host, 0 of 4 slots in use"
    database.execute(update(workers).values(fault="no space left", fault_at=NOW))
    leases.register(database, "worker_2", now=time.time(), version="0.0.9/r01", **options)
    told = checks(command("doctor", "--json"))["workers"]
    assert not told["ok"]
    assert "fault on node-1: no space left" in str(told["detail"])
    assert "workers of another version: 0.0.9/r01" in str(told["detail"])


@pytest.mark.slow
def test_prune_says_what_it_removes_and_what_it_would(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    assert command("prune", "--older-than", "90d").out == ""
    cancel(database, Target("job", job_id), NOW)
    dry = command("prune", "--older-than", "90d", "--dry-run")
    assert job_id[-8:] in dry.out
    assert dry.err == "1 of 1 job would be removed: 2 runs, 2 messages, 0 workspaces\n"
    assert command("show", job_id).code == 0
    done = command("prune", "--older-than", "90d", "--as", "ann", "--json")
    assert (done.json["id"], done.json["runs"], done.json["why_kept"]) == (job_id, 2, "")
    assert command("show", job_id).code == 2
    assert command("prune", "--older-than", "soon").code == 2


@pytest.mark.slow
def test_prune_alone_lists_what_was_removed_and_by_whom(
    command: Callable[..., Result], database: Database
) -> None:
    job_id = jobs_store.submit(database, submission("a", "b"), NOW)
    cancel(database, Target("job", job_id), NOW)
    assert command("prune", "--json").json == []
    author = ("--as", "ann", "--reason", "retention\x1b[2J")
    assert command("prune", "--older-than", "90d", *author).code == 0
    (found,) = command("prune", "--json").json
    assert (found["job_id"], found["runs"], found["pruned_by"]) == (job_id, 2, "ann")
    listed = command("prune").out
    assert re.search(rf"{job_id[-8:]}  mend  2 .* ann  retention", listed), listed
    assert "\x1b" not in listed
    assert command("prune", "--dry-run").err == (
        "runner: --dry-run and --force need --older-than\n"
    )
