"""Real workers against an API that limits them."""

from __future__ import annotations

import pytest

from tests.lifecycle.site import Site, wait_until
from tests.messages_api import API_KEY, MessagesServer, RateLimits, Reply, text

ITEMS = [f"item {number}" for number in range(24)]


@pytest.mark.slow
def test_workers_share_a_limit_and_fail_no_run_also_when_one_is_killed(
    site_of_either: Site,
) -> None:
    site, limits = site_of_either, RateLimits(requests=150, full=0.03)
    with MessagesServer(lambda request: Reply([text("Done.")]), limits=limits) as server:
        site.environment |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": API_KEY}
        job_id = site.submit(site.live_job(ITEMS, sandbox={"mode": "off"}))
        first = site.start("worker", "-c", "4")
        site.start("worker", "-c", "4")
        wait_until(lambda: limits.admitted >= 6, "some calls")
        wait_until(lambda: "150 requests a minute" in site.run("workers"), "the limit to be known")
        first.kill()

        def ended() -> bool:
            return all(run["state"] == "succeeded" for run in site.runs(job_id).values())

        wait_until(ended, "all runs to succeed")
        waits = [event["type"] for event in site.json("workers", "--limits")["events"]]
    assert waits[0] == "limit_changed"
    assert limits.refused <= 8, "only calls that began before a limit was known"
