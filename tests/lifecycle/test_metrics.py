"""A worker's metrics and health over HTTP, as Prometheus and a health check ask for them."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.messages_api import API_KEY, Break, MessagesServer, Received, Reply, text, tool_use
from tests.runner_process import RunnerProcess

WRITTEN = {"file_path": "w.txt", "content": "w"}

Labels = frozenset[tuple[str, str]]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass
class Watched:
    """A worker that serves its metrics on a port that the system chose."""

    process: RunnerProcess

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        while "serving metrics" not in (line := self.process.stderr.readline()):
            assert line, "it ended"
        (port,) = re.findall(r"port=(\d+)", line)
        self.url = f"http://127.0.0.1:{port}"

    def samples(self) -> dict[tuple[str, Labels], float]:
        status, body = get(f"{self.url}/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        wanted = set(labels.items())
        found = [
            value for (n, held), value in self.samples().items() if n == name and wanted <= held
        ]
        return sum(found)


@dataclass
class Plan:
    """Busy at first, then a tool call, then the end."""

    asked: int = 0

    def __call__(self, request: Received) -> Reply:
        self.asked += 1
        if request.position:
            return Reply([text("Done.")])
        busy = Break("status", status=529) if self.asked == 1 else None
        return Reply([tool_use("call_1", "Bash", {"command": "echo a"})], broken=busy)


def watched(site: Site, *options: str) -> Watched:
    return Watched(site.start("worker", "--metrics", "0", *options))


def test_what_a_worker_did_and_what_is_queued_can_be_scraped(site_of_either: Site) -> None:
    site = site_of_either
    waits = {"text": "On it.", "tools": [{"name": "Write", "input": WRITTEN}]}
    asking = site.submit(site.job({"w": [waits]}, "asking", allow=("Bash",), ask=["Write"]))
    with MessagesServer(Plan()) as server:
        site.environment |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": API_KEY}
        job = site.submit(site.live_job(["a"]))
        worker = watched(site)
        site.wait_for(asking, "w", "waiting")
        run = site.wait_for(job, "a", "succeeded")
    total = worker.sum
    wait_until(lambda: total("runner_attempts_ended_total", reason="end_turn"), "the end")
    wait_until(
        lambda: total("runner_claims_total") == total("runner_attempts_ended_total") >= 2,
        "each claim to have ended",
    )
    model = {"model": "claude-sonnet-5"}
    assert total("runner_turns_total", **model) == run["turns"] == 2
    assert total("runner_tokens_total", **model) == run["tree_tokens"]
    assert total("runner_tokens_total", kind="output") > 0
    cost = site.json("costs", job)["total"]["cost_usd"]
    assert total("runner_cost_usd_total", **model) == pytest.approx(cost, rel=0.01)
    assert total("runner_errors_total", kind="overloaded_error") == 1
    assert total("runner_tool_seconds_count", tool="Bash", outcome="succeeded") == 1
    assert total("runner_slots") == 16
    # A busy machine may let Redis, or the renewal of leases, wait for a moment.
    wait_until(lambda: total("runner_healthy") == total("runner_ready") == 1, "it to be well")
    queue = {"job_id": asking, "job_name": "asking"}
    wait_until(lambda: total("runner_queue_depth", **queue, state="waiting") == 1, "the depth")
    assert total("runner_queue_depth", job_id=job) == 0
    wait_until(lambda: total("runner_lease_renewals_total"), "a renewal")
    assert total("process_resident_memory_bytes") > 0
    assert get(f"{worker.url}/else")[0] == 404


def test_it_is_not_ready_before_it_has_registered(site: Site) -> None:
    site.submit(site.job({"a": [done()]}))
    with closing(sqlite3.connect(site.home / "runner.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # its registration waits
        worker = watched(site)
        assert get(f"{worker.url}/readyz") == (503, "it has not registered yet\n")
    wait_until(lambda: get(f"{worker.url}/readyz") == (200, "ok\n"), "it to be ready")


@pytest.mark.slow
def test_runs_of_dead_workers_and_waiting_ones_are_counted(site: Site) -> None:
    script = {"a": [bash("touch began; exec sleep 606.5"), done()], "b": [done()]}
    job = site.submit(site.job(script))
    first = site.start("worker", "-c", "1")
    site.wait_for_file_made("began")
    first.kill()
    worker = watched(site)
    wait_until(lambda: worker.sum("runner_reaped_runs_total") == 1, "the dead worker's run")
    site.wait_for(job, "a", "succeeded")


@pytest.mark.slow
def test_it_is_unhealthy_while_the_database_is_away(tmp_path: Path, own_postgres: Any) -> None:
    site = Site(tmp_path / "site", RUNNER_DATABASE_URL=own_postgres.get_uri())
    try:
        site.submit(site.job({"a": [done()]}))
        worker = watched(site)
        assert get(f"{worker.url}/healthz") == (200, "ok\n")
        wait_until(lambda: get(f"{worker.url}/readyz") == (200, "ok\n"), "it to be ready")
        own_postgres.stop()
        wait_until(lambda: "does not answer" in (unhealthy(worker) or (0, ""))[1], "its outage")
        assert get(f"{worker.url}/readyz")[0] == 503
        names = {name for name, _ in worker.samples()}
        assert "runner_claims_total" in names
        own_postgres.ensure_postgres_running()
        wait_until(lambda: unhealthy(worker) is None, "it to be well again")
    finally:
        site.stop_all()


def unhealthy(worker: Watched) -> tuple[int, str] | None:
    answer = get(f"{worker.url}/healthz")
    return None if answer[0] == 200 else answer


@pytest.mark.slow
def test_it_is_healthy_but_not_ready_without_redis_or_while_it_drains(site: Site) -> None:
    job = site.submit(site.job({"a": [bash("touch began; exec sleep 607.5"), done()]}))
    site.environment["RUNNER_REDIS_URL"] = "redis://127.0.0.1:1"
    worker = watched(site)
    site.wait_for_file_made("began")
    wait_until(lambda: "RUNNER_REDIS_URL" in get(f"{worker.url}/readyz")[1], "it to miss Redis")
    assert get(f"{worker.url}/readyz")[0] == 503
    worker.process.terminate()
    wait_until(lambda: get(f"{worker.url}/readyz") == (503, "draining\n"), "it to drain")
    assert get(f"{worker.url}/healthz") == (200, "ok\n")
    site.run("cancel", job)


@pytest.mark.slow
def test_it_is_not_ready_while_its_host_has_a_fault(site: Site, tmp_path: Path) -> None:
    site.submit(site.job({"a": [done()]}))
    broken = tmp_path / "git"
    broken.write_text("#!/bin/sh\necho git is broken >&2; exit 1\n")
    broken.chmod(0o755)
    site.environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    worker = watched(site)
    wait_until(lambda: "git is broken" in get(f"{worker.url}/readyz")[1], "it to look at its host")
    assert get(f"{worker.url}/readyz")[0] == 503
    assert get(f"{worker.url}/healthz")[0] == 200
    broken.unlink()
    wait_until(lambda: get(f"{worker.url}/readyz")[0] == 200, "it to be ready")


@pytest.mark.slow
def test_it_listens_on_this_machine_alone_and_says_when_it_cannot(site: Site) -> None:
    site.submit(site.job({"a": [done()]}))
    worker = watched(site)
    port = worker.url.rpartition(":")[2]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port))).close()
    for given, said in (
        (port, f"cannot listen on 127.0.0.1:{port} (Address already in use)"),
        ("many", "'many' is not an address such as 9100 or 0.0.0.0:9100"),
    ):
        second = site.start("worker", "--metrics", given)
        _, err = second.communicate(timeout=PATIENCE)
        assert second.returncode == 2
        assert said in err
        assert len(err.splitlines()) == 1
