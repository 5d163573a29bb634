"""Workers whose API key is wrong, or revoked while they work, and workers that do not reach the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lifecycle.site import PATIENCE, Site, done, wait_until
from tests.messages_api import API_KEY, Break, MessagesServer, Reply, text
from tests.messages_api.batches import CreateFault

pytestmark = pytest.mark.slow

ITEMS = [f"item {number}" for number in range(8)]
WRONG = "sk-ant-a-wrong-key"
REFUSED = (
    "the API refuses this host's key for anthropic (invalid x-api-key): start its worker again with a "
    "valid key"
)


@pytest.fixture
def api() -> Iterator[MessagesServer]:
    with MessagesServer(lambda request: Reply([text("Done.")])) as server:
        yield server


def live(site: Site, api: MessagesServer, key: str = WRONG) -> str:
    """Submit a job to workers that have this key by default."""
    site.environment |= {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": key}
    return site.submit(site.live_job(ITEMS, sandbox={"mode": "off"}))


def states(site: Site, job: str) -> set[tuple[str, str]]:
    return {(run["state"], run["reason"]) for run in site.runs(job).values()}


def wait_for_success(site: Site, job: str) -> None:
    wait_until(lambda: states(site, job) == {("succeeded", "end_turn")}, "the job to succeed")


def test_runs_of_a_wrong_key_wait_for_a_worker_with_a_good_one(
    site_of_either: Site, api: MessagesServer
) -> None:
    site = site_of_either
    job = live(site, api)
    bad = site.start("worker", "-c", "2")
    wait_until(lambda: ("queued", "host_fault") in states(site, job), "a refusal")
    site.wait_for(site.submit(site.job({"a": [done()]}, name="scripted")), "a", "succeeded")
    wait_until(lambda: {state for state, _ in states(site, job)} == {"queued"}, "all to be back")
    assert len(api.requests) <= 4, (
        "of eight runs, the two that were worked on; the key is asked for"
    )
    for command in ("show", job), ("list",), ("workers",), ("doctor",):
        assert REFUSED in site.run(*command, expect=1 if command == ("doctor",) else 0)
    site.start("worker", ANTHROPIC_API_KEY=API_KEY)
    wait_for_success(site, job)
    bad.terminate()
    assert bad.communicate(timeout=PATIENCE)[1].count(REFUSED) == 1


def test_a_host_that_does_not_reach_the_api_leaves_runs_to_others_until_it_does(
    site_of_either: Site, api: MessagesServer
) -> None:
    site = site_of_either
    job = live(site, api, API_KEY)
    portal = Reply(broken=Break("status", status=403, html=True))
    page = {"/v1/models": Break("status", status=403, html=True)}
    answers = [portal]
    with MessagesServer(lambda request: answers[-1], broken=page) as on_the_way:
        astray = site.start("worker", "-c", "2", ANTHROPIC_BASE_URL=on_the_way.url)
        wait_until(lambda: ("queued", "host_fault") in states(site, job), "a run to be back")
        wait_until(
            lambda: {state for state, _ in states(site, job)} == {"queued"}, "all to be back"
        )
        asked = len(on_the_way.requests)
        unreached = (
            "this host does not reach the API of anthropic (HTTP 403, with a body that is not"
        )
        for command in ("show", job), ("workers",), ("doctor",):
            assert unreached in site.run(*command, expect=1 if command == ("doctor",) else 0)
        site.start("worker", "-c", "1")
        wait_for_success(site, job)
        assert len(on_the_way.requests) == asked, "only the API itself is asked for, not by runs"
        page.clear()
        answers.append(Reply([text("Done.")]))
        wait_until(lambda: not site.json("workers")[0]["fault"], "the host to reach the API")
        astray.terminate()
        assert astray.communicate(timeout=PATIENCE)[1].count(unreached) == 1


def test_a_worker_goes_on_when_a_revoked_key_works_again(site: Site, api: MessagesServer) -> None:
    api.api_key = "another"
    job = live(site, api, API_KEY)
    site.start("worker", "-c", "2")
    wait_until(lambda: ("queued", "host_fault") in states(site, job), "a refusal")
    api.api_key = API_KEY
    wait_for_success(site, job)
    assert site.json("workers")[0]["fault"] is None


def test_a_key_that_only_a_batch_meets_is_a_fault_of_the_host_too(
    site: Site, api: MessagesServer
) -> None:
    site.environment |= {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": API_KEY}
    options = {"lane": "batch", "batch_linger": "1s"}
    job = site.submit(site.live_job(ITEMS, options=options, sandbox={"mode": "off"}))
    busy = Break("status", status=429, headers={"retry-after": "2"})
    api.shelf.faults.append(CreateFault(busy, made=False))
    worker = site.start("worker", "-c", "8")
    wait_until(lambda: not api.shelf.faults, "a batch to be refused for a moment")
    api.api_key = "another"
    wait_until(lambda: site.json("workers")[0]["fault"] == REFUSED, "the fault to be shown")
    api.api_key = API_KEY
    wait_for_success(site, job)
    assert site.json("workers")[0]["fault"] is None
    worker.terminate()
    assert worker.communicate(timeout=PATIENCE)[1].count(REFUSED) == 1


def test_a_run_in_the_foreground_ends_with_the_error_and_goes_on_with_a_good_key(
    site: Site, api: MessagesServer
) -> None:
    path = site.live_job(ITEMS, sandbox={"mode": "off"})
    site.environment |= {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": WRONG}
    run = site.start("run", str(path))
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert f"{REFUSED}: `runner run --resume " in said.splitlines()[-1]
    assert said.count(REFUSED) == 1
    assert states(site, site.json("list")[0]["id"]) == {("waiting", "paused")}
    site.environment["ANTHROPIC_API_KEY"] = API_KEY
    site.run("run", "--resume", "last")


@pytest.mark.parametrize(("status", "kind"), [(403, "permission_error"), (404, "not_found_error")])
def test_a_model_that_the_key_may_not_use_fails_its_runs(
    site: Site, status: int, kind: str
) -> None:
    refused = Reply(broken=Break("status", status=status, message="not this model"))
    with MessagesServer(lambda request: refused) as api:
        job = live(site, api, API_KEY)
        site.run("worker", "--burst")
        assert states(site, job) == {("failed", kind)}
