"""The lane as a job file has it."""

from __future__ import annotations

import pytest

from tests.jobfile.conftest import Load, Problems

JOB = 'name = "a"\nmodel = "m"\nprompt = "p"\n'
REFUSED = 'batches do not take it: leave it out, or set lane = "realtime"'


def test_a_job_file_has_a_lane_and_how_long_calls_wait(load_text: Load) -> None:
    spec = load_text(JOB + 'lane = "batch"\nbatch_linger = "5m"\n').spec
    assert (spec.lane, spec.batch_linger) == ("batch", 300.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('batch_linger = "5m"', 'line 4: batch_linger: is only for lane = "batch" or "auto"'),
        (
            'lane = "batch"\n[model_options]\nspeed = "fast"',
            f"line 6: model_options.speed: {REFUSED}",
        ),
        (
            'lane = "auto"\n[model_options.extra_body]\nspeed = "fast"',
            f"line 6: model_options.extra_body.speed: {REFUSED}",
        ),
    ],
)
def test_what_batches_refuse_is_refused_with_its_line(
    problems_of: Problems, text: str, problem: str
) -> None:
    assert problem in problems_of(JOB + text)


def test_a_script_has_no_batches(problems_of: Problems) -> None:
    problems = problems_of(JOB + 'provider = "scripted"\nscript = "s.toml"\nlane = "batch"\n')
    assert 'line 6: lane: is only for provider = "anthropic": "scripted" has no batches' in problems
