"""``runner notify``: a trial of how a job tells people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

JOB = """
model = "claude-haiku-4-5"
prompt = "Hello"
[notify]
command = "cat > told.json"
[[items.list]]
key = "a"
"""


@pytest.mark.parametrize(
    ("event", "page"), [("done", "jobs/job_test"), ("needs_approval", "inbox?job=job_test")]
)
def test_a_trial_has_the_address_of_the_page(
    folder: Path,
    command: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    page: str,
) -> None:
    monkeypatch.setenv("RUNNER_WEB_URL", "https://runner.example.com")
    (folder / "job.toml").write_text(JOB)
    result = command("notify", "test", "job.toml", "--event", event)
    assert (result.code, result.out) == (0, "command   sent\n")
    told = json.loads((folder / "told.json").read_text())
    assert told["url"] == f"https://runner.example.com/{page}"


def test_a_trial_has_no_address_without_a_web_url(
    folder: Path, command: Callable[..., Result]
) -> None:
    (folder / "job.toml").write_text(JOB)
    assert command("notify", "test", "job.toml").code == 0
    assert "url" not in json.loads((folder / "told.json").read_text())
