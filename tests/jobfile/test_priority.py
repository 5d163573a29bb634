"""``priority`` and ``max_concurrency``: what a job file says about its share of the slots."""

from __future__ import annotations

from typing import Any

import pytest

from runner.jobfile.check import check

JOB = {"name": "x", "model": "m", "prompt": "Go."}


@pytest.mark.parametrize(
    ("given", "weight"), [("low", 1.0), ("normal", 4.0), ("high", 16.0), (7, 7.0), (0.5, 0.5)]
)
def test_a_priority_is_a_word_or_a_number(given: Any, weight: float) -> None:
    top = check({**JOB, "priority": given})
    assert (top["priority"], top.problems) == (weight, [])


@pytest.mark.parametrize("given", ["hihg", 0, -1, 1e9, True, ["low"]])
def test_another_priority_is_a_problem(given: Any) -> None:
    (problem,) = check({**JOB, "priority": given}).problems
    assert problem.place == "priority"


def test_only_a_shared_folder_has_a_limit_of_its_own() -> None:
    def problems(mode: str, **place: str) -> list[str]:
        workspace = {"mode": mode, "max_concurrency": 2, **place}
        return [each.place for each in check({**JOB, "workspace": workspace}).problems]

    assert problems("shared", path=".") == []
    assert problems("copy", path=".") == problems("git", repo=".") == ["workspace.max_concurrency"]


def test_a_limit_is_at_least_one() -> None:
    (problem,) = check({**JOB, "max_concurrency": 0}).problems
    assert problem.place == "max_concurrency"
