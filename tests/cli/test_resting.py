"""When ``runner run`` has nothing left to do, with sub-agents under way."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runner.app.work import Progress


def run(id_: str, state: str, reason: str = "") -> dict[str, Any]:
    parent = id_.rpartition(".")[0] or None
    return {"id": id_, "state": state, "reason": reason, "parent": parent}


WAITS = run("run_a", "waiting", "children")


@pytest.mark.parametrize(
    ("runs", "is_at_rest"),
    [
        ([WAITS, run("run_a.1", "running")], False),
        ([WAITS, run("run_a.1", "queued")], False),
        ([WAITS, run("run_a.1", "succeeded")], False),  # it is about to be woken
        ([WAITS], False),
        ([WAITS, run("run_a.1", "waiting", "budget")], True),
        ([WAITS, run("run_a.1", "waiting", "budget"), run("run_b", "running")], False),
        ([WAITS, run("run_a.1", "waiting", "children")], False),
        ([WAITS, run("run_a.1", "waiting", "paused"), run("run_a.2", "failed")], True),
        ([run("run_a", "succeeded"), run("run_a.1", "cancelled")], True),
    ],
)
def test_a_run_that_waits_for_its_sub_agents_rests_when_they_do(
    runs: list[dict[str, Any]], is_at_rest: bool
) -> None:
    assert Progress(cast(Any, runs)).rests(asks=False) is is_at_rest


def test_a_question_in_a_sub_agent_is_asked_before_the_job_rests() -> None:
    job = Progress(cast(Any, [WAITS, run("run_a.1", "waiting", "approval")]))
    assert job.rests(asks=False)
    assert not job.rests(asks=True)
