"""A job whose calls may reach some hosts: what they asked for is in the record, whoever reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.tools.sandbox import Sandboxes
from tests.lifecycle.site import Site, bash, done, wait_until

HERE = Sandboxes(Path("/nowhere"), os.environ).probe()
# Asks the proxy with bash alone, which every host has.
ASK = r"""
exec 3<>/dev/tcp/127.0.0.1/${HTTPS_PROXY##*:}
printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n' HOST >&3
head -1 <&3; exit 7
"""


@pytest.mark.skipif(HERE.kind != "bubblewrap", reason=f"no bubblewrap here: {HERE.missing}")
def test_what_a_worker_refused_a_call_is_an_event_and_a_row_of_the_audit(site: Site) -> None:
    asked = [bash(ASK.replace("HOST", host)) for host in ("evil.test:443", "169.254.169.254:80")]
    path = site.job({"a": [*asked, done()]})
    section = '[sandbox]\nmode = "required"\nnetwork = ["packages.example.org"]\n'
    path.write_text(f"{path.read_text()}\n{section}")
    job = site.submit(path)
    site.run("worker", "--burst")
    run = site.runs(job)["a"]["id"]
    refused, literal = site.tool_results(run)
    assert refused.splitlines()[0].startswith("HTTP/1.1 403 evil.test:443 is refused")
    assert refused.splitlines()[-1] == (
        "[sandbox] network of this job refused connections: "
        "evil.test:443: it is not on the job's list of hosts."
    )
    assert "only a port of a host with a name" in literal
    rows = site.json("audit", "connections", "--job", job)
    assert [(row["host"], row["port"], row["outcome"], row["turn"]) for row in rows] == [
        ("169.254.169.254", 80, "refused", 2),
        ("evil.test", 443, "refused", 1),
    ]
    sql = "SELECT host, made_by, tool, connections FROM v_connections ORDER BY at"
    first, second = site.json("audit", "sql", sql)
    assert first == {"host": "evil.test", "made_by": "call", "tool": "Bash", "connections": 1}
    assert second["host"] == "169.254.169.254"
    assert "connection to evil.test:443 refused: it is not on" in site.run("transcript", run)
    assert site.run("events", run).count(" connection ") == 2


@pytest.mark.slow
@pytest.mark.skipif(HERE.kind != "bubblewrap", reason=f"no bubblewrap here: {HERE.missing}")
@pytest.mark.parametrize("worker_dies", [False, True])
def test_connections_of_a_call_that_was_cut_are_events_too(site: Site, worker_dies: bool) -> None:
    ask = ASK.replace("HOST", "evil.test:443").replace("exit 7", "touch asked; sleep 600")
    path = site.job({"a": [bash(ask), done()]})
    path.write_text(f'{path.read_text()}\n[sandbox]\nnetwork = ["packages.example.org"]\n')
    job = site.submit(path)
    worker = site.start("worker")
    site.wait_for_file_made("asked")
    if worker_dies:
        worker.kill()
        worker.communicate()
    site.run("cancel", job)
    site.wait_for(job, "a", "cancelled")
    if worker_dies:
        site.run("worker", "--burst")
    notes = site.home / "connections"
    wait_until(lambda: not list(notes.iterdir()), "the connections to be stored")
    (row,) = site.json("audit", "connections", "--job", job)
    asked = {"host": "evil.test", "port": 443, "outcome": "refused", "turn": 1, "tool": "Bash"}
    assert asked.items() <= row.items()
    assert row["made_by"] == "call"
