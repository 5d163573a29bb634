"""What a person does to runs that are being worked."""

from __future__ import annotations

import shutil
import signal

from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.lifecycle.test_deaths import processes_with

HELD = "touch began; while [ ! -e go ]; do sleep 0.1; done"


def test_cancel_ends_a_tool_with_all_its_processes(site: Site) -> None:
    job = site.submit(
        site.job({"a": [bash("touch began; setsid sleep 611.5 & sleep 611.5"), done()]})
    )
    site.start("worker")
    site.wait_for_file_made("began")
    site.run("cancel", job)
    assert site.runs(job)["a"]["state"] == "cancelled"
    wait_until(lambda: not processes_with("611.5"), "the tool's processes to be gone")


def test_a_cancelled_run_goes_on_when_it_is_retried(site: Site) -> None:
    job = site.submit(
        site.job({"a": [bash("touch began; sleep 612.5"), bash("echo on > on"), done()]})
    )
    site.start("worker")
    site.wait_for_file_made("began")
    site.run("cancel", job)
    site.run("retry", job)
    run = site.wait_for(job, "a", "succeeded")
    assert site.tool_results(run["id"])[0].startswith("Interrupted")
    assert (site.workspace / "on").exists()


def test_cancel_ends_a_model_call(site: Site) -> None:
    job = site.submit(site.job({"a": [{"text": "Slowly …", "delay": 600}]}))
    site.start("worker", "-c", "1")
    site.wait_for(job, "a", "running")
    site.run("cancel", job)
    later = site.submit(site.job({"b": [done()]}, "later"))
    site.wait_for(later, "b", "succeeded")  # the only slot is free
    assert site.runs(job)["a"]["state"] == "cancelled"


def test_pause_stops_at_the_next_step_and_resume_goes_on(site: Site) -> None:
    steps = [f"{HELD}; echo 0 >> log", *(f"echo {n} >> log" for n in range(1, 5))]
    job = site.submit(site.job({"a": [*map(bash, steps), done()]}))
    site.start("worker")
    site.wait_for_file_made("began")
    site.run("pause", job)
    (site.workspace / "go").touch()
    site.wait_for(job, "a", "waiting")
    assert (site.workspace / "log").read_text().split() == ["0"]
    site.run("resume", job)
    site.wait_for(job, "a", "succeeded")
    assert (site.workspace / "log").read_text().split() == [str(n) for n in range(5)]


def test_a_message_joins_after_the_tool_results(site: Site) -> None:
    job = site.submit(site.job({"a": [bash(HELD), done()]}))
    site.start("worker")
    site.wait_for_file_made("began")
    run = site.runs(job)["a"]["id"]
    site.run("say", run, "Mind the gap.")
    (site.workspace / "go").touch()
    site.wait_for(job, "a", "succeeded")
    contents = [message["content"] for message in site.json("transcript", run)]
    assert [block["type"] for block in contents[2]] == ["tool_result", "text"]
    assert contents[2][1]["text"] == "Mind the gap."


def test_a_run_whose_workspace_nobody_sees_waits_for_it(site: Site) -> None:
    job = site.submit(site.job({"a": [bash("echo here > here"), done()]}))
    hidden = site.folder / "hidden"
    shutil.move(site.workspace, hidden)
    site.start("worker")
    run = site.wait_for(job, "a", "waiting")
    assert run["reason"] == "workspace"
    shutil.move(hidden, site.workspace)
    site.wait_for(job, "a", "succeeded")


def test_ctrl_c_exits_130_and_resume_goes_on(site: Site) -> None:
    steps = [bash(f"echo {n} >> log; [ -e interrupted ] || sleep 1") for n in range(15)]
    runner = site.start("run", str(site.job({"a": [*steps, done()]})))
    site.wait_for_file("log")
    runner.send_signal(signal.SIGINT)
    output, errors = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 130, errors
    [job] = [row["id"] for row in site.json("list")]
    assert f"runner run --resume {job[-8:]}" in output + errors
    (site.workspace / "interrupted").touch()
    site.run("run", "--resume", job)
    assert (site.workspace / "log").read_text().split() == [str(n) for n in range(15)]


def test_a_workspace_that_lost_its_id_is_mended_by_resume(site: Site) -> None:
    job = site.submit(site.job({"a": [bash("echo here > here"), done()]}))
    (site.workspace / ".runner-workspace").unlink()
    site.start("worker")
    site.wait_for(job, "a", "waiting")
    site.run("resume", job)
    site.wait_for(job, "a", "succeeded")
