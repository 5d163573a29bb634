"""``run``, ``submit`` and ``worker``: real runs by a scripted model, from a job file to the end."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner import wiring
from runner.queries.jobs import list_jobs
from runner.store.database import Database
from tests.cli.conftest import Result
from tests.postgres import postgres_server
from tests.runner_process import RunnerAtTerminal, RunnerProcess

PATIENCE = 120.0
DONE = {"text": "Done.\nAll of it."}
HELD = "touch begun; until [ -e go ]; do sleep 0.1; done"

Start = Callable[..., RunnerProcess]


def bash(command: str) -> dict[str, Any]:
    return {"tools": [{"name": "Bash", "input": {"command": command}}]}


def write_job(folder: Path, script: Mapping[str, Any], more: str = "", rule: str = "allow") -> str:
    """A scripted job with a run for each key; its file."""
    (folder / "workspace").mkdir()
    (folder / "script.json").write_text(json.dumps(script))
    lines = [
        'name = "job"',
        'provider = "scripted"',
        'model = "scripted"',
        'script = "script.json"',
        'prompt = "Do {{ item }}."',
        'tools = ["Bash"]',
        f"[items]\nlist = {json.dumps(list(script))}",
        '[workspace]\npath = "workspace"',
        f'[permissions]\n{rule} = ["Bash"]',
        more,
    ]
    (folder / "job.toml").write_text("\n".join(lines))
    return "job.toml"


@pytest.mark.slow
def test_a_job_that_requires_a_sandbox_is_refused_where_there_is_none(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(folder, {"a": [DONE]}, '[sandbox]\nmode = "required"')
    (folder / "bin").mkdir()
    monkeypatch.setenv("PATH", str(folder / "bin"))
    missing = "the job requires a sandbox, and this host has none: bwrap is not on the PATH"
    refused = command("run", job)
    assert (refused.code, missing in refused.err) == (2, True)
    assert not list(folder.glob(".runner/*.db"))
    submitted = command("submit", job)
    assert submitted.code == 0
    assert f"warning: sandbox.mode: {missing}" in submitted.err
    assert command("run", "--resume", submitted.out.strip()).code == 2


def wait_for(path: Path) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"waited for {path}"
        pause.wait(0.05)


def finish(process: RunnerProcess) -> Result:
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out, err)


def stop(process: RunnerProcess, folder: Path, number: int = signal.SIGINT) -> Result:
    """Stop a command that works ``HELD``, and let that go on once the command stops."""
    wait_for(folder / "workspace" / "begun")
    process.send_signal(number)
    assert process.stderr is not None
    said = [process.stderr.readline()]
    while "stopping" not in said[-1]:
        assert said[-1], f"it ended: {said}"
        said.append(process.stderr.readline())
    (folder / "workspace" / "go").touch()
    result = finish(process)
    return Result(result.code, result.out, "".join(said) + result.err)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline


def drains(command: Callable[..., Result]) -> bool:
    """True if the only worker has seen that it is to stop."""
    return [each["state"] for each in command("workers", "--json").json] == ["draining"]


@pytest.mark.slow
def test_job_is_worked_to_its_end_and_summed_up(start: Start, folder: Path) -> None:
    job = write_job(folder, {"a": [bash("echo hello > a"), DONE], "b": [DONE]})
    result = finish(start("run", job))
    assert result.code == 0, result.err
    header, first, second, _, totals, cost, sandbox = result.out.splitlines()
    assert sandbox.startswith("sandbox: 1 call ")
    assert header.split()[:4] == ["run", "item", "state", "reason"]
    assert first.split()[1:5] == ["a", "succeeded", "end_turn", "2"]
    assert first.endswith("Done.")
    assert second.split()[1:5] == ["b", "succeeded", "end_turn", "1"]
    assert totals.startswith("2 succeeded; 3 turns")
    assert cost.startswith("cost: none (scripted); ")
    assert re.search(r"runner transcript \w{8}\n", result.err)
    assert "[2/2] succeeded" in result.err
    assert (folder / "workspace" / "a").read_text() == "hello\n"


@pytest.mark.slow
def test_other_jobs_of_the_database_are_not_worked(
    command: Callable[..., Result], start: Start, folder: Path
) -> None:
    job = write_job(folder, {"a": [DONE]})
    other = command("submit", job).out.strip()
    assert finish(start("run", job)).code == 0
    states = {each["id"]: each["state"] for each in command("list", "--json").json}
    assert states.pop(other) == "queued"
    assert list(states.values()) == ["succeeded"]
    assert finish(start("run", "--resume", other)).code == 0


@pytest.mark.slow
def test_summary_as_json_is_one_object_with_the_runs(start: Start, folder: Path) -> None:
    result = finish(start("run", write_job(folder, {"a": [DONE]}), "--json"))
    assert result.json["state"] == "succeeded"
    (run,) = result.json["run_summaries"]
    assert (run["item_key"], run["state"], run["last_text"]) == ("a", "succeeded", DONE["text"])
    assert run["cost_usd"] == result.json["cost_usd"] == 0
    assert run["scripted_calls"] == 1


@pytest.mark.slow
def test_denied_call_is_said(start: Start, folder: Path) -> None:
    result = finish(start("run", write_job(folder, {"a": [bash("touch x"), DONE]}, rule="deny")))
    assert result.code == 0
    assert "1 tool call was denied, in 1 run" in result.out
    assert not (folder / "workspace" / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more", "code", "state"),
    [
        ([{"error": {"kind": "invalid_request_error", "status": 400}}], "", 1, "failed"),
        ([bash("true"), bash("true"), DONE], "[limits]\nmax_turns = 1", 4, "stopped"),
    ],
)
def test_run_that_does_not_succeed_gives_the_exit_code(
    start: Start, folder: Path, script: list[Any], more: str, code: int, state: str
) -> None:
    result = finish(start("run", write_job(folder, {"a": script, "b": [DONE]}, more)))
    assert result.code == code, result.err
    assert f"1 succeeded, 1 {state}" in result.out


@pytest.mark.slow
def test_job_that_only_waits_ends_the_command_with_3(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    job_id = command("submit", write_job(folder, {"a": [DONE], "b": [DONE]})).out.strip()
    runs = command("list", job_id, "--json").json
    command("pause", runs[0]["id"])
    result = finish(start("run", "--resume", job_id))
    assert result.code == 3
    assert "1 waiting, 1 succeeded" in result.out


@pytest.mark.slow
def test_other_jobs_are_given_back_when_the_job_is_done(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    (folder / "other").mkdir()
    write_job(folder / "other", {"slow": [bash("touch begun; sleep 613"), DONE]})
    other = command("submit", "other/job.toml").out.strip()
    mine = command("submit", write_job(folder, {"a": [bash("sleep 0.5"), DONE]})).out.strip()
    result = finish(start("run", "--resume", mine))
    assert result.code == 0
    assert "slow" not in result.out
    (run,) = command("list", other, "--json").json
    assert (run["state"], run["worker_id"]) == ("queued", None)


@pytest.mark.slow
def test_ctrl_c_leaves_the_job_to_be_resumed(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    steps = [bash(HELD), bash("touch on"), DONE]
    result = stop(start("run", write_job(folder, {"a": steps})), folder)
    assert result.code == 130
    (job,) = command("list", "--json").json
    assert f"runner run --resume {job['id'][-8:]}" in result.err
    assert (job["state"], job["pause"]["reason"]) == ("waiting", "person")
    assert finish(start("worker", "--burst")).code == 0
    assert not (folder / "workspace" / "on").exists()
    events = command("events", job["id"], "--json").json
    paused = [event["data"] for event in events if event["type"] == "paused"]
    assert {each["why"] for each in paused} == {"Ctrl-C in `runner run`"}
    assert {each["by"] for each in paused} == {getpass.getuser()}
    assert finish(start("run", "--resume", job["id"][-6:])).code == 0
    assert (folder / "workspace" / "on").exists()
    assert [j["state"] for j in command("list", "--json").json] == ["succeeded"]


@pytest.mark.slow
def test_a_terminal_that_is_closed_drains_the_worker(
    folder: Path, command: Callable[..., Result]
) -> None:
    job = write_job(folder, {"a": [bash(HELD), bash("touch on"), DONE]})
    hand, terminal = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = RunnerAtTerminal(["run", job], folder, environment, terminal)
    os.close(terminal)
    try:
        screen = b""
        while not ((folder / "workspace" / "begun").exists() and b"\x1b[?1049h" in screen):
            screen += os.read(hand, 65536)  # a screen counts seconds
        os.close(hand)
        wait_until(lambda: drains(command))
        (folder / "workspace" / "go").touch()
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
    assert [each["state"] for each in command("workers", "--all", "--json").json] == ["ended"]
    assert command("list", "--json").json[0]["state"] == "queued"
    assert not (folder / "workspace" / "on").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_are_like_ctrl_c(
    start: Start, folder: Path, number: signal.Signals
) -> None:
    process = start("run", write_job(folder, {"a": [bash(HELD), DONE, DONE]}))
    assert stop(process, folder, number).code == 130


@pytest.mark.slow
def test_ctrl_c_while_the_database_is_away_is_130(start: Start, folder: Path) -> None:
    job = write_job(folder, {"a": [bash(HELD), DONE, DONE]})
    with postgres_server() as server:
        process = start("run", job, "--database-url", server.get_uri())
        wait_for(folder / "workspace" / "begun")
        server.stop()
        result = stop(process, folder)
    assert result.code == 130, result.err
    assert "does not answer" in result.err
    assert re.search(r"runner run --resume \w{8}\b", result.err)
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_second_ctrl_c_quits_at_once_and_leaves_no_tool(start: Start, folder: Path) -> None:
    sleeps = ["sleep", f"614.{os.getpid()}"]  # a process id means nothing outside of a sandbox
    command = f"touch began; {' '.join(sleeps)}"
    process = start("run", write_job(folder, {"a": [bash(command), DONE]}))
    wait_for(folder / "workspace" / "began")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in (line := process.stderr.readline()):
        assert line, "ended after one Ctrl-C"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert re.search(r"go on with `runner run --resume \w{8}`", process.stderr.read())
    deadline = time.monotonic() + PATIENCE
    while any(each.info["cmdline"] == sleeps for each in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline, "the tool outlived the command"


@pytest.mark.slow
def test_worker_works_what_is_due_and_ends_in_a_burst(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    job_id = command("submit", write_job(folder, {"a": [DONE], "b": [DONE]})).out.strip()
    assert finish(start("worker", "--burst", "-c", "1")).code == 0
    assert {run["state"] for run in command("list", job_id, "--json").json} == {"succeeded"}


@pytest.mark.slow
def test_worker_ends_with_0_when_told_to(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    steps = [bash(HELD), bash("touch on"), DONE]
    command("submit", write_job(folder, {"a": steps}))
    worker = start("worker")
    wait_for(folder / "workspace" / "begun")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: drains(command))
    (folder / "workspace" / "go").touch()
    assert finish(worker).code == 0
    (job,) = command("list", "--json").json
    assert job["state"] == "queued"


@pytest.mark.slow
def test_submit_prints_the_id_and_needs_no_redis(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_REDIS_URL", "redis://127.0.0.1:1/0")
    job = write_job(folder, {"a": [DONE]})
    first = command("submit", job, "--key", "nightly")
    assert first.code == 0
    assert first.out.startswith("job_")
    assert f"runner run --resume {first.out.strip()[-8:]}`, or start `runner worker`" in first.err
    told = command("submit", job, "--key", "nightly", "--json")
    there = f"{first.out.strip()[-8:]} was submitted with the key 'nightly' before: nothing new"
    assert there in told.err
    assert there not in first.err
    again = told.json
    assert again["id"] == first.out.strip()
    assert (again["state"], again["runs"]) == ("queued", {"queued": 1})
    shutil.rmtree(folder / "workspace")
    other = write_job(folder, {"b": [DONE]})
    refused = command("submit", other, "--key", "nightly")
    assert (refused.code, refused.out) == (2, "")
    *lines, last = refused.err.splitlines()
    assert {"no longer an item: a", "a new item: b"} <= set(lines)
    assert (
        f"{first.out.strip()[-8:]} has the key 'nightly' and another job file or other items"
        in last
    )
    assert len(command("list", "--json").json) == 1


@pytest.mark.slow
def test_a_job_is_worked_without_redis_with_a_warning_that_shows_no_password(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    result = command("run", write_job(folder, {"a": [DONE]}))
    assert result.code == 0
    assert "WARNING Redis is away, trying on: " in result.err
    assert "hunter2" not in result.err


def test_every_problem_of_a_job_file_is_a_line_and_nothing_is_created(
    command: Callable[..., Result], folder: Path
) -> None:
    write_job(folder, {"a": [DONE]}, more="[limits]\nmax_turn = 3\ntool_timeout = 'long'")
    result = command("run", "job.toml")
    assert (result.code, result.out) == (2, "")
    path, first, _, _, second, _, _ = result.err.splitlines()
    assert path == f"runner: {folder / 'job.toml'}: 2 problems"
    assert "limits.max_turn: " in first
    assert "limits.tool_timeout: " in second
    assert command("submit", "job.toml").code == 2
    assert not (folder / ".runner").exists()


@pytest.mark.parametrize("arguments", [(), ("missing.toml",), ("job.toml", "--resume", "job_1")])
def test_run_needs_one_job_that_is_there(
    command: Callable[..., Result], folder: Path, arguments: tuple[str, ...]
) -> None:
    write_job(folder, {"a": [DONE]})
    result = command("run", *arguments)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1


def test_the_error_for_a_missing_job_file_suggests_the_closest_name(
    command: Callable[..., Result], folder: Path
) -> None:
    assert "`runner init` writes a first one" in command("run", "night.toml").err
    write_job(folder, {"a": [DONE]})
    for typed in ("job", "jbo.toml", "job.tml"):
        assert "No such file or directory; did you mean 'job.toml'?" in command("run", typed).err


@pytest.mark.slow
def test_events_are_followed_with_live_text_until_the_end(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    waits = [bash(f"until [ -e {number} ]; do sleep 0.1; done") for number in range(10)]
    talk = [{"text": f"Step {number}.", **call} for number, call in enumerate(waits)]
    job = command("submit", write_job(folder, {"a": [*talk, DONE]}))
    (run,) = command("list", job.out.strip(), "--json").json
    start("worker", "--burst")
    follower = start("events", run["id"], "-f", "--json")
    assert follower.stdout is not None
    lines: list[dict[str, Any]] = []

    def said() -> str:
        return "".join(line["text"] for line in lines if line["type"] == "text_delta")

    for number in range(10):
        # What was said while nobody was known to follow is lost.
        while [line["type"] for line in lines].count("tool_started") <= number or (
            number == 9 and "Step 9." not in said()
        ):
            lines.append(json.loads(follower.stdout.readline()))
        (folder / "workspace" / str(number)).touch()
    lines += [json.loads(line) for line in finish(follower).out.splitlines()]
    events = [line for line in lines if "number" in line]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "done"
    assert said().startswith("Step ")


@pytest.mark.slow
def test_a_left_worker_that_is_done_before_it_is_looked_for_is_no_error(
    command: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = wiring.leave_worker

    def late(*arguments: Any) -> Any:
        process, log = leave(*arguments)
        process.wait(PATIENCE)
        return process, log

    monkeypatch.setattr(wiring, "leave_worker", late)
    left = command("run", write_job(folder, {"a": [DONE]}), "--detach")
    assert (left.code, "the worker has ended already" in left.err) == (0, True), left.err
    assert [job["state"] for job in command("list", "--json").json] == ["succeeded"]


@pytest.mark.slow
def test_interrupted_command_shows_what_has_ended(
    start: Start, folder: Path, command: Callable[..., Result]
) -> None:
    script = {"a": [DONE], "b": [bash(HELD), DONE, DONE]}
    process = start("run", write_job(folder, script), "-c", "2")
    wait_for(folder / "workspace" / "begun")
    wait_until(lambda: "succeeded" in command("list", "--json").json[0]["runs"])
    result = stop(process, folder)
    assert "1 succeeded" in result.out
    assert "1 waiting" in result.out
    assert "paused by " in result.out


@pytest.mark.slow
def test_database_is_brought_up_to_date_by_run(start: Start, folder: Path) -> None:
    assert finish(start("run", write_job(folder, {"a": [DONE]}))).code == 0
    database = Database(f"sqlite:///{folder}/.runner/runner.db")
    assert len(list_jobs(database)) == 1
    database.close()
