"""Jobs in the lane of Message Batches, from their submission to their end, with real workers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from runner.core.batches import GRACE_SECONDS
from tests.lifecycle.site import PATIENCE, Site, wait_until
from tests.messages_api import API_KEY, Break, MessagesServer, Received, Reply, text, tool_use
from tests.messages_api.batches import CreateFault

TURNS = 3

pytestmark = pytest.mark.timeout(900)


def plan(request: Received) -> Reply:
    """``TURNS`` turns, each but the last with a call of Bash that notes it in a file."""
    item, turn = request.first_text, request.position + 1
    if turn == TURNS:
        return Reply([text("Done.")])
    command = {"command": f"echo '{item} {turn}' >> log"}
    return Reply([text("On it."), tool_use(f"toolu_{turn}", "Bash", command)])


class Lane:
    """A site whose workers talk to a server with batches."""

    def __init__(self, site: Site, server: MessagesServer) -> None:
        self.site = site
        self.server = server
        site.environment |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": API_KEY}

    def submit(self, items: list[str], lane: str = "batch", **options: Any) -> str:
        options = {"lane": lane, "batch_linger": "1s", **options}
        return self.site.submit(self.site.live_job(items, options=options))

    def wait_for(self, job: str, *states: str) -> None:
        """Wait until all runs are in these states: also for a batch whose worker was killed after it stored
        the intent and before it asked for the batch."""
        runs, patience = self.site.runs, GRACE_SECONDS + 240
        wait_until(
            lambda: {r["state"] for r in runs(job).values()} <= {*states}, f"{states}", patience
        )

    @property
    def worked(self) -> list[tuple[str, int]]:
        """Item and turn of each request of a batch that was paid for."""
        return [(each.first_text, each.position) for each in self.server.worked_in_batches]


@pytest.fixture
def lane(site_of_either: Site) -> Iterator[Lane]:
    with MessagesServer(plan) as server:
        yield Lane(site_of_either, server)


@pytest.mark.slow
def test_all_but_the_first_call_of_a_job_go_in_batches_and_cost_half(lane: Lane) -> None:
    items = [f"item {number}" for number in range(5)]
    job = lane.submit(items)
    worker = lane.site.start("worker", "--burst", "-c", "4")
    lane.wait_for(job, "succeeded")
    assert worker.wait(PATIENCE) == 0
    realtime = [(each.first_text, each.position) for each in lane.server.requests]
    assert realtime == [("Do item 0.", 0)]
    turns = [(f"Do {item}.", turn) for item in items for turn in range(TURNS)]
    assert sorted(realtime + lane.worked) == turns
    assert len(lane.server.shelf.batches) < len(lane.worked)
    log = (lane.site.workspace / "log").read_text().splitlines()
    assert sorted(log) == sorted(f"Do {item}. {turn}" for item in items for turn in (1, 2))
    assert not lane.server.refusals


def test_a_worker_killed_while_a_batch_is_made_pays_no_call_twice(lane: Lane) -> None:
    items = [f"item {number}" for number in range(4)]
    unanswered = CreateFault(Break("stall_before_headers"), made=True)
    lane.server.shelf.faults.append(unanswered)
    job = lane.submit(items)
    worker = lane.site.start("worker", "-c", "4")
    wait_until(lambda: lane.server.shelf.batches, "a batch to be made")
    worker.kill()
    worker.communicate()
    lane.site.start("worker", "-c", "4")
    lane.wait_for(job, "succeeded")
    paid = [(each.first_text, each.position) for each in lane.server.requests] + lane.worked
    assert sorted(paid) == [(f"Do {item}.", turn) for item in items for turn in range(TURNS)]


def test_workers_killed_at_any_moment_pay_no_call_in_a_batch_twice(lane: Lane) -> None:
    items, dice = [f"item {number}" for number in range(6)], random.Random(7)
    job = lane.submit(items)
    for _ in range(5):
        worker = lane.site.start("worker", "-c", "4")
        time.sleep(dice.uniform(2.0, 6.0))
        worker.kill()
        worker.communicate()
    lane.site.start("worker", "-c", "4")
    lane.wait_for(job, "succeeded")
    assert sorted(lane.worked) == sorted(set(lane.worked))
