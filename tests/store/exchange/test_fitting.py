"""Values made of someone's JSON, held against their types."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import wiring
from runner.core.spec import JobSpec
from runner.core.state import ContextState, Failure, ModelState, OpenCall, Progress
from runner.core.workspace import Verify, Workspace
from runner.permissions import Rule
from runner.settings import Settings
from runner.store.import_checks import misfit
from tests.store.asked import ASKING

JOBS = [Path(__file__).parents[3] / "jobs" / f"{name}.toml" for name in ("quickstart", "patches")]
RECORDED = replace(
    ASKING,
    workspace=Workspace("/repo", "git", external=(Rule("ask", "Bash(git push *)"),)),
    verify=Verify(("make test",)),
)


def read_again(spec: JobSpec) -> JobSpec:
    return JobSpec.from_json(json.loads(json.dumps(spec.to_json())))


@pytest.mark.parametrize("spec", [ASKING, RECORDED])
def test_a_spec_fits(spec: JobSpec) -> None:
    assert misfit(read_again(spec), JobSpec) is None


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_specs_of_job_files_fit(path: Path) -> None:
    spec = wiring.load_submission(path, Settings.load()).spec
    assert misfit(read_again(spec), JobSpec) is None


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (replace(RECORDED, name=3), "name"),
        (replace(RECORDED, provider="other"), "provider"),
        (replace(RECORDED, tools="Read"), "tools"),
        (replace(RECORDED, rules=(Rule("allow", 3),)), "rules[0].text"),
        (replace(RECORDED, model_options=[]), "model_options"),
        (replace(RECORDED, limits=None), "limits"),
        (replace(RECORDED, limits=replace(RECORDED.limits, max_turns=True)), "limits.max_turns"),
        (
            replace(RECORDED, limits=replace(RECORDED.limits, deadline=float("inf"))),
            "limits.deadline",
        ),
    ],
)
def test_the_first_part_that_does_not_fit_is_named(value: Any, where: str) -> None:
    assert str(misfit(value, JobSpec)).startswith(where)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Progress(), None),
        (Progress(worked=3, context=ContextState(measured=None)), None),
        (Progress(turns=2**61), "turns"),
        (
            Progress(model=ModelState(failure=Failure("1", 0.0, None, "x", "y"))),
            "model.failure.count: ",
        ),  # type: ignore[arg-type]
        (
            Progress(model=ModelState(open_call=OpenCall(1, 1, None))),
            "model.open_call.reservation: ",
        ),  # type: ignore[arg-type]
    ],
)
def test_progress_fits_or_the_part_is_named(value: Progress, where: str | None) -> None:
    problem = misfit(value, Progress)
    assert problem is None if where is None else str(problem).startswith(where)
