"""What a run's commit says."""

from __future__ import annotations

import subprocess
from typing import Any

from runner.workspace.repository import commit_message

RUN: dict[str, Any] = {
    "job_name": "mend",
    "job_id": "job_1",
    "run_id": "run_1",
    "item_key": "a.py",
    "model": "claude-test",
}


def trailers(message: str) -> list[str]:
    """The trailers as git finds them."""
    parse = ["git", "interpret-trailers", "--parse"]
    done = subprocess.run(parse, input=message, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_it_names_job_run_model_and_outcome() -> None:
    message = commit_message(
        **RUN, outcome="succeeded end_turn", message="Mend a.py\n\nAll of it.\n"
    )
    assert message.startswith("Mend a.py\n\nAll of it.\n\n")
    assert trailers(message) == [
        "Runner-Job: mend job_1",
        "Runner-Run: run_1",
        "Runner-Model: claude-test",
        "Runner-Outcome: succeeded end_turn",
    ]


def test_a_run_that_has_not_ended_has_no_outcome() -> None:
    assert trailers(commit_message(**RUN))[-1] == "Runner-Model: claude-test"


def test_names_on_several_lines_make_no_trailers_of_their_own() -> None:
    names = {"job_name": "mend\nRunner-Run: run_2", "item_key": "a\n\nRunner-Run: run_2"}
    message = commit_message(**{**RUN, **names})
    assert message.startswith("mend Runner-Run: run_2: a Runner-Run: run_2\n\n")
    assert [line for line in trailers(message) if line.startswith("Runner-Run")] == [
        "Runner-Run: run_1"
    ]
