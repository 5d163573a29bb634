"""Times, windows and zones as a job file has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runner.core.times import Moment, Times, Window
from runner.jobfile import times
from runner.jobfile.times import read_moment, zone_named
from runner.jobfile.values import BadValueError
from tests.jobfile.conftest import Load, Problems

JOB = 'name = "a"\nmodel = "m"\nprompt = "p"\n'


def test_a_job_file_has_the_times_of_its_model_calls(load_text: Load) -> None:
    written = (
        'not_before = "22:00 UTC"\nwindow = " 22:00 - 7:00 Europe/Berlin"\n'
        'finish_by = "2099-11-24T09:00:00+02:00"\n'
    )
    finish_by = Moment("2099-11-24T09:00:00+02:00", "", 4_099_186_800.0)
    assert load_text(JOB + written).spec.times == Times(
        Moment("22:00", "UTC"), Window("22:00", "07:00", "Europe/Berlin"), finish_by
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            'not_before = "ten"',
            'not_before: must be a time such as "22:00", "22:00 Europe/Berlin" or '
            "\"2026-11-24 22:00\", not 'ten'",
        ),
        ('not_before = "24:00"', "not_before: '24:00' is not a time of day: 00:00 to 23:59"),
        ("not_before = 22:00:00", "not_before: must be a string, in quotes, not a date or time"),
        (
            'finish_by = "2026-02-30 07:00"',
            "finish_by: '2026-02-30 07:00' is not a date and time: day is out of range for month",
        ),
        (
            'finish_by = "2026-11-24T07:00Z UTC"',
            "finish_by: '2026-11-24T07:00Z UTC' has both an offset and a time zone: remove one",
        ),
        (
            'finish_by = "07:00 Europe/Berln"',
            "finish_by: 'Europe/Berln' is not a time zone that this host knows; did you mean "
            "Europe/Berlin?",
        ),
        (
            'window = "22:00"',
            "window: must be a part of the day such as \"22:00-07:00 Europe/Berlin\", not '22:00'",
        ),
        (
            'window = "07:00-07:00 UTC"',
            "window: '07:00-07:00 UTC' is the whole day: leave it out, or give another end",
        ),
    ],
)
def test_what_is_no_time_is_refused(problems_of: Problems, line: str, problem: str) -> None:
    assert [each.partition(": ")[2] or each for each in problems_of(JOB + line)] == [problem]


def test_without_a_zone_it_is_this_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert read_moment("22:00").zone == "Asia/Tokyo"
    monkeypatch.delenv("TZ")
    link = tmp_path / "localtime"
    monkeypatch.setattr(times, "_LOCALTIME", link)
    assert zone_named(None) == "UTC"
    link.symlink_to(Path("/usr/share/zoneinfo/Europe/Berlin"))
    assert zone_named(None) == "Europe/Berlin"
    monkeypatch.setenv("TZ", "CET-1CEST")
    with pytest.raises(BadValueError, match="needs a time zone, such as Europe/Berlin: this host"):
        read_moment("22:00")
    assert time.tzname  # the host's own zone is not touched


def test_a_finish_that_has_passed_is_a_problem_of_the_file(problems_of: Problems) -> None:
    (problem,) = problems_of(JOB + 'finish_by = "2020-01-01 07:00 UTC"')
    said = "line 4: finish_by: 2020-01-01 07:00 UTC is before the first model call may begin ("
    assert problem.startswith(said)
    assert problem.endswith(" UTC): give a later time")
