"""Runs with calls of MCP servers, whose workers are killed and shut down."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.lifecycle.site import PATIENCE, Site, bash, done, wait_until
from tests.lifecycle.test_deaths import processes_with

SERVER = Path(__file__).parents[1] / "mcp_server.py"


def use(tool: str, **given: Any) -> dict[str, Any]:
    return {"text": "On it.", "tools": [{"name": f"mcp__ours__{tool}", "input": given}]}


def served(
    site: Site,
    script: Mapping[str, Any],
    allow: str = "mcp__ours",
    tools: Sequence[str] = (),
    on_unknown: str = "",
    **more: Any,
) -> str:
    """A job with our server, submitted. Its notes are the file ``notes`` of the site."""
    path = site.job(script, tools=tools, allow=(allow, *tools), **more.pop("permissions", {}))
    notes = str(site.folder / "notes")
    server = {"command": sys.executable, "args": [str(SERVER), notes], "scope": "job", **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    text = path.read_text()
    if on_unknown:
        text = text.replace("[workspace]", f'[workspace]\non_unknown = "{on_unknown}"')
    path.write_text("\n".join([text, "[mcp.ours]", *lines]))
    return site.submit(path)


def noted(site: Site) -> list[str]:
    return (site.folder / "notes").read_text().splitlines()


def servers(site: Site) -> list[int]:
    return processes_with(str(site.folder / "notes"))


def last_pid(site: Site) -> int:
    return int([line for line in noted(site) if line.startswith("pid ")][-1].split()[1])


def test_a_call_whose_worker_was_killed_is_unknown_and_never_repeated(site: Site) -> None:
    replies = [use("spawn"), use("slow", text="paid"), use("note", text="after"), done()]
    job = served(site, {"a": replies})
    worker = site.start("worker")
    wait_until(lambda: "paid" in noted(site), "the call to begin")
    worker.kill()
    wait_until(lambda: not servers(site), "the server to end with its worker")
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    child, first, second = site.tool_results(run["id"])
    assert not psutil.pid_exists(int(child))
    assert first.startswith("The outcome of this call is unknown")
    assert second == "(no output)"
    assert noted(site).count("paid") == 1
    assert noted(site).count("after") == 1
    assert servers(site) == []


@pytest.mark.parametrize("trusted", [True, False])
def test_a_killed_call_that_only_reads_runs_again_if_the_job_trusts_the_hint(
    site_of_either: Site, trusted: bool
) -> None:
    site = site_of_either
    job = served(site, {"a": [use("hang_once"), done()]}, trust_hints=trusted)
    worker = site.start("worker")
    wait_until(lambda: "hung" in noted(site), "the call to begin")
    worker.kill()
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    (result,) = site.tool_results(run["id"])
    assert result == "alive" if trusted else "unknown" in result
    assert noted(site).count("hung") == 1 + trusted


def test_a_person_decides_on_a_killed_call_where_the_job_says_so(site: Site) -> None:
    job = served(site, {"a": [use("slow", text="paid"), done()]}, on_unknown="ask")
    worker = site.start("worker")
    wait_until(lambda: "paid" in noted(site), "the call to begin")
    worker.kill()
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert (run["state"], noted(site).count("paid")) == ("waiting", 1)


def test_sigterm_cuts_a_call_and_ends_the_server(site: Site) -> None:
    job = served(site, {"a": [use("slow", text="began"), done()]})
    worker = site.start("worker")
    wait_until(lambda: "began" in noted(site), "the call to begin")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert servers(site) == []
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    assert "shutdown" in site.tool_results(run["id"])[0]
    assert noted(site).count("began") == 1


def test_a_server_killed_between_calls_is_started_again(site: Site) -> None:
    held = bash("touch between; while [ ! -e go ]; do sleep 0.1; done")
    script = {"a": [use("note", text="one"), held, use("note", text="two"), done()]}
    job = served(site, script, tools=["Bash"])
    site.start("worker")
    site.wait_for_file_made("between")
    os.kill(last_pid(site), signal.SIGKILL)
    (site.workspace / "go").touch()
    run = site.wait_for(job, "a", "succeeded")
    assert site.tool_results(run["id"]) == ["(no output)"] * 3
    assert noted(site).count("two") == 1


def test_a_question_about_a_call_waits_without_a_server(site: Site) -> None:
    job = served(
        site,
        {"a": [use("note", text="asked"), done()]},
        allow="mcp__ours__say",
        permissions={"ask": ["mcp__ours__note"]},
    )
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    assert run["state"] == "waiting"
    assert servers(site) == []
    site.run("approve", job)
    site.run("worker", "--burst")
    assert site.runs(job)["a"]["state"] == "succeeded"
    assert "asked" in noted(site)
