"""The order of work with real workers: who gets slots, and how soon."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.lifecycle.site import Site, bash, done, wait_until


def large(site: Site, count: int, turns: int = 1, name: str = "large", **top: Any) -> str:
    """A job whose runs take half a second a turn; its id."""
    replies = [{**bash("true"), "delay": 0.5}] * (turns - 1) + [{**done(), "delay": 0.5}]
    path = site.job({f"item {number}": replies for number in range(count)}, name)
    path.write_text("".join(f"{key} = {value}\n" for key, value in top.items()) + path.read_text())
    return site.submit(path)


def states(site: Site, job: str) -> list[str]:
    return [run["state"] for run in site.runs(job).values()]


@pytest.mark.slow
def test_a_job_behind_a_large_one_is_given_slots_at_the_end_of_a_turn(site_of_either: Site) -> None:
    """Each run of the large job works for minutes: none of them ends before."""
    site = site_of_either
    crowd = large(site, 50, turns=300)
    site.start("worker", "-c", "2")
    wait_until(lambda: states(site, crowd).count("running") == 2, "both slots to be taken")
    small = site.submit(site.job({"a": [done()], "b": [bash("echo b > b"), done()]}, "small"))
    for item in "ab":
        site.wait_for(small, item, "succeeded")
    assert not {"succeeded", "failed"} & set(states(site, crowd))
    begun = [run for run in site.runs(crowd).values() if run["turns"]]
    told = [
        event["data"]["why"]
        for run in begun
        for event in site.json("events", run["id"])
        if event["type"] == "attempt_ended"
    ]
    assert "yielded" in told
    assert set(told) == {"yielded"}
    wait_until(lambda: states(site, crowd).count("running") == 2, "the slots to be used again")
    assert len([run for run in site.runs(crowd).values() if run["turns"]]) == 2, "begun ones first"


@pytest.mark.slow
def test_a_run_of_a_killed_worker_comes_before_all_that_is_queued(site_of_either: Site) -> None:
    site = site_of_either
    first = site.submit(site.job({"a": [bash("touch began; sleep 1; echo a >> log"), done()]}))
    killed = site.start("worker", "-c", "1")
    site.wait_for_file_made("began")
    crowd = large(site, 1000)
    site.start("worker", "-c", "2")
    wait_until(lambda: "succeeded" in states(site, crowd), "the other worker to work")
    killed.send_signal(signal.SIGKILL)
    site.wait_for(first, "a", "succeeded")
    assert states(site, crowd).count("queued") > 500, "two slots work four of them a second"


def test_a_job_never_works_more_runs_at_once_than_it_allows(site_of_either: Site) -> None:
    site = site_of_either
    one = [bash("mkdir busy && sleep 0.2 && rmdir busy || touch two"), done()]
    path = site.job({f"item {number}": one for number in range(8)})
    path.write_text("max_concurrency = 1\n" + path.read_text())
    job = site.submit(path)
    for _ in range(2):
        site.start("worker", "-c", "4")
    wait_until(lambda: set(states(site, job)) == {"succeeded"}, "all runs to end")
    assert not (site.workspace / "two").exists()
