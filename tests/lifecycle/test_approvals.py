"""Runs wait for a person, and whatever happens meanwhile, what was approved runs once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from tests.lifecycle.site import Site, bash, done, wait_until

ITEMS = ("a", "b", "c")
HELD = "touch began; while [ ! -e go ]; do sleep 0.1; done"


def asking_job(site: Site, *commands: str, **permissions: Any) -> Path:
    """A job of one run that is asked about each ``make``, and may run anything else."""
    script = {"a": [*map(bash, commands), done()]}
    return site.job(script, **{"ask": ["Bash(make *)"], **permissions})


def furnish(site: Site) -> None:
    """Give ``make`` something to do: ``make log-X`` appends X to ``log``."""
    rule = "log-%:\n\t@echo $* >> log\n"
    (site.workspace / "Makefile").write_text(rule)


def logged(site: Site) -> list[str]:
    log = site.workspace / "log"
    return log.read_text().split() if log.exists() else []


def waiting(site: Site, job: str, item: str = "a") -> str:
    """The run of an item once it waits for an answer: its id."""
    run = site.wait_for(job, item, "waiting")
    assert run["reason"] == "approval"
    return str(run["id"])


def processes_of(site: Site) -> list[list[str]]:
    """The command lines of all that lives with the site's RUNNER_HOME, or in its folder."""
    found = []
    for process in psutil.process_iter():
        try:
            at_home = process.environ().get("RUNNER_HOME") == str(site.home)
            if at_home or process.cwd() == str(site.folder):
                found.append(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return list(filter(None, found))


def test_runs_that_ask_for_the_same_wait_without_a_worker_and_one_answer_is_for_all(
    site_of_either: Site,
) -> None:
    site = site_of_either
    furnish(site)
    script = {item: [bash("make log-once"), done()] for item in ITEMS}
    path = site.job(script, ask=["Bash(make *)"])
    site.run("run", str(path), "--no-input", expect=3)
    wait_until(lambda: not processes_of(site), "all processes to be gone")
    [job] = [row["id"] for row in site.json("list")]
    states = {(run["state"], run["reason"]) for run in site.runs(job).values()}
    assert states == {("waiting", "approval")}
    [group] = site.json("approvals")
    assert (group["job_id"], group["runs"], group["tool"]) == (job, len(ITEMS), "Bash")
    assert logged(site) == []
    answered = site.json("approve", group["calls"][0]["id"], "--remember", "job")
    assert [one["by_rule"] for one in answered] == [False, True, True]
    assert site.json("approvals") == []
    site.run("run", "--resume", job)
    assert logged(site) == ["once"] * len(ITEMS)
    [rule] = [rule for rule in site.json("rules", "list", job) if rule["origin"] == "remembered"]
    assert (rule["effect"], rule["rule"]) == ("allow", "Bash(make log-once)")


def test_a_worker_takes_up_what_was_answered_meanwhile(site_of_either: Site) -> None:
    site = site_of_either
    furnish(site)
    script = {item: [bash(f"make log-{item}"), done()] for item in ITEMS}
    job = site.submit(site.job(script, ask=["Bash(make *)"]))
    worker = site.start("worker")
    denied, edited, approved = (waiting(site, job, item) for item in ITEMS)
    site.run("deny", denied, "--reason", "The log is full.")
    site.run("approve", edited, "--edit", "make log-edited")
    site.run("approve", approved)
    for item in ITEMS:
        site.wait_for(job, item, "succeeded")
    assert sorted(logged(site)) == ["c", "edited"]
    [refusal] = site.tool_results(denied)
    assert refusal.startswith("Permission denied")
    assert "The log is full." in refusal
    [told] = site.tool_results(edited)
    assert "changed its input" in told
    assert "make log-edited" in told
    assert "changed" not in site.tool_results(approved)[0]
    assert worker.poll() is None


def test_what_nobody_answers_in_time_is_denied_or_stops_the_run(site: Site) -> None:
    furnish(site)
    script = {"a": [bash("make log-a"), bash("echo on >> log"), done()]}
    denying, stopping = (
        site.submit(site.job(script, end, ask=["Bash(make *)"], ask_timeout="1s", on_timeout=end))
        for end in ("deny", "stop")
    )
    site.start("worker")
    run = site.wait_for(denying, "a", "succeeded")
    assert "nobody answered in time" in site.tool_results(run["id"])[0]
    assert site.wait_for(stopping, "a", "stopped")["reason"] == "approval_timeout"
    assert logged(site) == ["on"]
    site.run("run", "--resume", denying)
    site.run("run", "--resume", stopping, expect=4)


def test_people_are_told_once_of_what_waits_though_the_job_parks_at_once(site: Site) -> None:
    script = {item: [bash(f"make log-{item}"), done()] for item in ITEMS}
    path = site.job(script, ask=["Bash(make *)"])
    path.write_text(f'{path.read_text()}\n[notify]\ncommand = "cat >> told; echo >> told"\n')
    told = site.folder / "told"
    site.run("run", str(path), "--no-input", expect=3)
    [job] = [row["id"] for row in site.json("list")]

    def questions() -> list[Any]:
        lines = told.read_text().split("\n")
        notices = [each for line in lines if line and (each := json.loads(line)).get("questions")]
        assert {notice["job_id"] for notice in notices} == {job}
        return [question for notice in notices for question in notice["questions"]]

    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "people to be told")
    site.run("run", "--resume", job, expect=3)
    assert sorted(question["item_key"] for question in questions()) == sorted(ITEMS)
    assert {question["summary"] for question in questions()} == {
        f"make log-{item}" for item in ITEMS
    }


def test_an_answer_outlives_the_worker_that_was_killed_before_it_saw_it(site: Site) -> None:
    furnish(site)
    job = site.submit(asking_job(site, "make log-a"))
    worker = site.start("worker")
    run = waiting(site, job)
    site.freeze(worker)
    site.run("approve", run)
    worker.kill()
    worker.wait()
    assert logged(site) == []
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    assert logged(site) == ["a"]


def test_an_approved_tool_whose_worker_was_killed_does_not_run_twice(site: Site) -> None:
    job = site.submit(
        asking_job(site, "echo a >> log; touch began; sleep 621.5", ask=["Bash(touch *)"])
    )
    worker = site.start("worker")
    run = waiting(site, job)
    site.run("approve", run)
    site.wait_for_file_made("began")
    worker.kill()
    site.start("worker")
    site.wait_for(job, "a", "succeeded")
    [result] = site.tool_results(run)
    assert "outcome of this call is unknown" in result
    assert logged(site) == ["a"]
    assert site.json("approvals") == []


def test_a_cancel_closes_the_question_and_a_retry_does_not_run_the_call(site: Site) -> None:
    furnish(site)
    job = site.submit(asking_job(site, "make log-a", "echo on >> log"))
    site.start("worker")
    run = waiting(site, job)
    [group] = site.json("approvals")
    site.run("cancel", run)
    assert site.runs(job)["a"]["state"] == "cancelled"
    assert site.json("approvals") == []
    [late] = site.json("approve", group["calls"][0]["id"], expect=1)
    assert not late["changed"]
    site.run("retry", run)
    site.wait_for(job, "a", "succeeded")
    assert site.tool_results(run)[0].startswith("Interrupted")
    assert logged(site) == ["on"]


def test_rules_that_change_while_a_run_works_hold_from_its_next_call_on(site: Site) -> None:
    furnish(site)
    job = site.submit(asking_job(site, "make log-1", "make log-2", HELD, "make log-3"))
    worker = site.start("worker")
    run = waiting(site, job)
    site.run("approve", run, "--remember", "job", "--rule", "Bash(make *)")
    site.wait_for_file_made("began")
    assert logged(site) == ["1", "2"]
    [rule] = [rule for rule in site.json("rules", "list", job) if rule["origin"] == "remembered"]
    site.run("rules", "revoke", job, str(rule["position"]))
    (site.workspace / "go").touch()
    waiting(site, job)
    assert logged(site) == ["1", "2"]
    site.run("deny", run, "--remember", "run", "--rule", "Bash(make log-3)")
    site.wait_for(job, "a", "succeeded")
    assert logged(site) == ["1", "2"]
    assert worker.poll() is None
