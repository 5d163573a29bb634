"""The log lines of a real worker."""

from __future__ import annotations

import json
import re

import pytest

import runner
from runner.store import migrate
from tests.lifecycle.site import PATIENCE, Site, bash, done

SECRET = "the words of the conversation"
ITEM = 'a "b" = c'
WRITTEN = {"file_path": "a.txt", "content": SECRET}
SCRIPT = {
    ITEM: [bash(f"echo {SECRET}", text=SECRET), done(SECRET)],
    "waits": [{"text": SECRET, "tools": [{"name": "Write", "input": WRITTEN}]}],
}


def lines_of(site: Site, *options: str, **environment: str) -> list[str]:
    """Work a job, and return the worker's log."""
    site.submit(site.job(SCRIPT, allow=("Bash",), ask=["Write"]))
    worker = site.start("worker", "--burst", "-c", "1", *options, **environment)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, said
    assert SECRET not in said
    # A queue that is starved for a second is said to be away.
    return [line for line in said.splitlines() if "Redis is" not in line]


def test_a_worker_logs_its_start_and_each_claim_and_end_without_content(site: Site) -> None:
    began, *attempts, ended = [json.loads(line) for line in lines_of(site, "--log-format", "json")]
    assert began["message"] == "worker began"
    assert (began["slots"], began["version"]) == (1, f"{runner.__version__}/{migrate.HEAD}")
    assert ended["message"] == "worker ended"
    assert began["worker"] == ended["worker"]
    claims = {line["item"]: line for line in attempts if line["message"] == "attempt began"}
    ends = {line["item"]: line for line in attempts if line["message"] == "attempt ended"}
    assert set(claims) == set(ends) == set(SCRIPT)
    assert len(attempts) == 4
    for item, end in ends.items():
        names = ("run", "job", "item", "attempt")
        assert [end[name] for name in names] == [claims[item][name] for name in names]
        assert end["seconds"] >= 0
    end = ends[ITEM]
    (run,) = [run for run in site.runs(end["job"]).values() if run["item_key"] == ITEM]
    assert (end["state"], end["reason"], end["turns"]) == ("succeeded", "end_turn", 2)
    assert end["tokens"] == run["tree_tokens"]
    assert end["cost_usd"] == 0
    assert (ends["waits"]["state"], ends["waits"]["reason"]) == ("waiting", "approval")


@pytest.mark.slow
def test_the_same_as_text_is_a_line_for_each_with_its_fields(site: Site) -> None:
    lines = lines_of(site, RUNNER_LOG_FORMAT="text")
    assert len(lines) == 6
    at = r"runner: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO"
    run = r'run=run_\w+ job=job_\w+ item="a \\"b\\" = c" attempt=1'
    counted = r"turns=2 tokens=\d+ cost_usd=0.0 seconds=[\d.]+"
    assert re.fullmatch(rf"{at} attempt began {run}", lines[1])
    assert re.fullmatch(
        rf"{at} attempt ended {run} state=succeeded reason=end_turn {counted}", lines[2]
    )
