"""Workers end in every way, and the runs go on."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import psutil

from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until


def processes_with(marker: str) -> list[int]:
    """The live processes that have the marker among their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        if marker in arguments and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_sigterm_leaves_a_long_tool_to_resume_and_exits_0(site: Site) -> None:
    job = site.submit(site.job({"a": [bash("touch began; exec sleep 601.5"), done()]}))
    worker = site.start("worker", "-c", "2")
    site.wait_for_file_made("began")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert processes_with("601.5") == []
    assert site.runs(job)["a"]["state"] == "queued"
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    assert "shutdown" in site.tool_results(run["id"])[0]


def test_sigterm_with_nothing_long_in_hand_loses_no_step(site: Site) -> None:
    steps = [bash(f"echo {n} >> log; sleep 0.3") for n in range(12)]
    job = site.submit(site.job({"a": [*steps, done()]}))
    worker = site.start("worker")
    site.wait_for_file("log")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    assert (site.workspace / "log").read_text().split() == [str(n) for n in range(12)]


def test_after_sigkill_a_worker_on_the_host_goes_on_and_no_tool_of_the_dead_one_is_left(
    site: Site,
) -> None:
    script = {
        "a": [
            bash("touch began; setsid sleep 602.5 & sleep 602.5"),
            bash("echo on > after"),
            done(),
        ]
    }
    job = site.submit(site.job(script))
    worker = site.start("worker")
    site.wait_for_file_made("began")
    worker.kill()
    site.start("worker")
    site.wait_for_file("after")
    assert processes_with("602.5") == []
    run = site.wait_for(job, "a", "succeeded")
    results = site.tool_results(run["id"])
    assert "unknown" in results[0]
    assert len(results) == 2


def test_after_sigkill_a_worker_elsewhere_goes_on_when_the_lease_has_run_out(site: Site) -> None:
    job = site.submit(site.job({"a": [bash("echo x >> log; sleep 603.5"), done()]}))
    worker = site.start("worker")
    site.wait_for_file("log")
    with tempfile.TemporaryDirectory() as elsewhere:
        # Other folders for locks make it another host; the queue's server is the same.
        other = site.start("worker", RUNNER_REDIS_URL=site.embedded_url(), TMPDIR=elsewhere)
        wait_until(lambda: list(Path(elsewhere).glob("runner-*/worker_*")), "the other to be up")
        worker.kill()
        site.wait_for(job, "a", "succeeded")
        other.terminate()
        other.wait(PATIENCE)
    assert (site.workspace / "log").read_text() == "x\n"


def test_a_worker_that_slept_past_its_lease_appends_nothing(site: Site) -> None:
    script = {"a": [bash("touch began; sleep 5; echo late >> log"), bash("echo on >> log"), done()]}
    job = site.submit(site.job(script))
    sleeper = site.start("worker")
    site.wait_for_file_made("began")
    site.freeze(sleeper)
    with tempfile.TemporaryDirectory() as elsewhere:
        other = site.start("worker", RUNNER_REDIS_URL=site.embedded_url(), TMPDIR=elsewhere)
        run = site.wait_for(job, "a", "succeeded")
        sleeper.send_signal(signal.SIGCONT)
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(PATIENCE) == 0
        other.terminate()
        other.wait(PATIENCE)
    assert site.runs(job)["a"] == run
    events = site.json("events", run["id"])
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events].count("done") == 1


DEADLY_TOOL = """
import contextlib, os, psutil
from runner.tools.own import tool

@tool(repeatable=True)
def die() -> str:
    \"\"\"Kill the worker.\"\"\"
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        apart = arguments[1:5] == ["-m", "runner", "worker", "--only"]
        together = arguments[1:3] == ["-m", "tests.runner_process"] and not {alone}
        with contextlib.suppress(psutil.Error):  # one of another test that has ended
            if (apart or together) and process.cwd() == "{folder}":
                process.kill()
    return "still here"
"""


def test_a_run_that_kills_its_workers_is_worked_alone_and_then_failed(site: Site) -> None:
    (site.folder / "deadly.py").write_text(
        DEADLY_TOOL.format(folder=site.folder, alone="os.path.exists('alone')")
    )
    script = {"deadly": [{"tools": [{"name": "die", "input": {}}]}]}
    path = site.job(script, tools=["Bash", "Read", "Write", "deadly:die"], allow=["*"])
    path.write_text(
        path.read_text() + '\n[sandbox]\nmode = "off"'
    )  # it cannot see the worker in one
    job = site.submit(path)
    for _ in range(3):
        assert site.start("worker").wait(PATIENCE) == -signal.SIGKILL
    (site.workspace / "alone").touch()
    neighbour = site.submit(
        site.job({"good": [bash("sleep 1; echo fine > good"), done()]}, "other")
    )
    site.run("worker", "--burst")
    run = site.runs(job)["deadly"]
    assert (run["state"], run["reason"]) == ("failed", "crash_loop")
    assert site.runs(neighbour)["good"]["state"] == "succeeded"
    ends = [e["data"] for e in site.json("events", run["id"]) if e["type"] == "attempt_ended"]
    assert [end["in_a_row"] for end in ends] == [1, 2, 3, 4, 5]
