"""Pauses of whole jobs with real workers: pilots, circuit breakers and spend limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.lifecycle.site import Site, done, wait_until
from tests.messages_api import API_KEY, Break, MessagesServer, Received, Reply, text

ITEMS = [f"item {number}" for number in range(8)]


def states(site: Site, job: str) -> Counter[str]:
    return Counter(run["state"] for run in site.runs(job).values())


def settings(**sections: str) -> str:
    return "".join(f"\n[{name}]\n{text}\n" for name, text in sections.items())


def job(site: Site, reply: dict[str, Any], count: int, **sections: str) -> str:
    """A submitted job of so many items; its id."""
    path = site.job({f"item {number}": [reply] for number in range(count)})
    path.write_text(path.read_text() + settings(sandbox='mode = "off"', **sections))
    return site.submit(path)


def listed(site: Site, job_id: str) -> dict[str, Any]:
    (found,) = [each for each in site.json("list") if each["id"] == job_id]
    return dict(found)


def changes(site: Site, job_id: str) -> list[str]:
    return [each["type"] for each in site.json("events", job_id) if not each["run_id"]]


@pytest.mark.slow
def test_two_workers_work_the_pilot_alone_until_a_person_resumes_the_job(
    site_of_either: Site,
) -> None:
    site = site_of_either
    path = site.job({item: [done()] for item in ITEMS})
    site.run("submit", str(site.job({"warm": [done()]}, "other")))
    job_id = site.run("submit", str(path), "--pilot", "3").strip()
    for _ in range(2):
        site.start("worker", "-c", "4")
    wait_until(lambda: "pilot_ended" in changes(site, job_id), "the pilot to end")
    worked = [item for item, run in site.runs(job_id).items() if run["state"] == "succeeded"]
    assert worked == ["item 0", "item 3", "item 7"]
    assert states(site, job_id) == {"succeeded": 3, "waiting": 5}
    assert "3 of 3 items of the pilot succeeded" in listed(site, job_id)["waits_for"]
    assert "paused by the pilot" in site.run("show", job_id)
    assert "## Paused" in site.run("report", job_id)
    site.run("resume", job_id)
    wait_until(lambda: states(site, job_id) == {"succeeded": 8}, "the other items")
    assert changes(site, job_id) == ["submitted", "pilot_ended", "resumed"]


def test_run_works_a_pilot_reports_and_waits(site: Site) -> None:
    path = site.job({item: [done()] for item in ITEMS})
    site._make_database()
    said = site.run("run", str(path), "--pilot", "2", "--no-input", expect=3)
    assert "6 waiting, 2 succeeded" in said
    assert "paused by the pilot: 2 of 2 items of the pilot succeeded: `runner resume " in said
    assert "an item took " in said


@pytest.mark.slow
def test_items_follow_in_the_same_run_when_the_pilot_kept_what_was_asked(
    site_of_either: Site,
) -> None:
    site = site_of_either
    path = site.job({item: [done()] for item in ITEMS})
    pilot = "items = 2\ncontinue = { success = 1 }"
    path.write_text(path.read_text() + settings(pilot=pilot))
    site._make_database()
    assert "8 succeeded" in site.run("run", str(path), "--no-input")
    job_id = site.submit(path)
    site.run("worker", "--burst")
    assert states(site, job_id) == {"succeeded": 8}


@pytest.mark.slow
def test_a_breaker_pauses_a_job_of_two_workers_once(site_of_either: Site) -> None:
    site = site_of_either
    bad = {
        "error": {"kind": "not_found_error", "status": 404, "message": "no model 7"},
        "delay": 0.5,
    }
    count = 24  # more than fail while a busy machine pauses the job
    job_id = job(site, bad, count, breaker="same_failure = 2")
    for _ in range(2):
        site.start("worker", "-c", "1")
    wait_until(lambda: "paused" in changes(site, job_id), "the breaker")
    wait_until(lambda: not {"queued", "running"} & set(states(site, job_id)), "the runs to rest")
    found = states(site, job_id)
    assert 2 <= found["failed"] <= count / 2
    assert found["failed"] + found["waiting"] == count
    why = "paused by the circuit breaker: 2 runs in a row failed not_found_error: no model <n>"
    assert listed(site, job_id)["waits_for"].startswith(why)
    assert changes(site, job_id) == ["submitted", "paused"]
    site.run("resume", job_id)
    wait_until(lambda: changes(site, job_id).count("paused") == 2, "the breaker once more")


@pytest.mark.slow
def test_a_spend_limit_fails_no_run_and_pauses_all_jobs_of_the_api(site_of_either: Site) -> None:
    site, is_reached = site_of_either, True
    code = {"error_code": "enforced_spend_limit_reached"}
    said = "You have reached your API usage limits: you will regain access on 2026-12-01."
    limit = Break("status", status=429, message=said, details=code)

    def plan(request: Received) -> Reply:
        return Reply([text("Done.")], broken=limit if is_reached else None)

    with MessagesServer(plan) as server:
        site.environment |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": API_KEY}
        jobs = [site.submit(site.live_job(["a", "b", "c"], name)) for name in ("one", "two")]
        for _ in range(2):
            site.start("worker", "-c", "2")
        for job_id in jobs:
            wait_until(lambda job_id=job_id: states(site, job_id) == {"waiting": 3}, "the pause")
            assert listed(site, job_id)["waits_for"].startswith(
                f"paused by Runner: a spend limit is reached: {said}"
            )
            assert changes(site, job_id) == ["submitted", "paused"]
        calls = server.count
        assert calls <= 3 * len(jobs) * 3, "none is tried again and again"
        is_reached = False
        for job_id in jobs:
            site.run("resume", job_id)
        for job_id in jobs:
            wait_until(lambda job_id=job_id: states(site, job_id) == {"succeeded": 3}, "the end")
        assert {run["charged_tokens"] > 0 for run in site.runs(jobs[0]).values()} == {True}
