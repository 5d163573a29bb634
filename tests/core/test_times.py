"""Moments, windows and what follows of them, on the days on which clocks are set too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from runner.core.times import Moment, Times, Window, bounds_of, day_of
from runner.errors import UsageError

BERLIN = "Europe/Berlin"
NIGHT = Window("22:00", "07:00", BERLIN)


def at(text: str, zone: str = BERLIN, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def utc(text: str) -> float:
    return at(text, "UTC")


@pytest.mark.parametrize(
    ("now", "meant"),
    [
        ("2026-11-23 21:59:59", "2026-11-23 22:00"),
        ("2026-11-23 22:00", "2026-11-24 22:00"),
        ("2026-12-31 23:00", "2027-01-01 22:00"),
    ],
)
def test_a_time_of_day_is_the_next_one(now: str, meant: str) -> None:
    assert Moment("22:00", BERLIN).after(at(now)).at == at(meant)


def test_a_date_is_no_other_for_the_time_it_is_asked_at() -> None:
    moment = Moment("2026-11-24 22:00", BERLIN, at("2026-11-24 22:00"))
    assert moment.after(at("2027-01-01 00:00")) == moment


def test_a_time_that_clocks_skip_is_when_they_are_set() -> None:
    # On 29 March 2026 clocks in Berlin go from 02:00 to 03:00, which is 01:00 in UTC.
    assert Moment("02:30", BERLIN).after(at("2026-03-29 00:00")).at == utc("2026-03-29 01:00")
    window = Window("02:30", "04:00", BERLIN)
    assert window.opens_at(at("2026-03-29 00:00")) == utc("2026-03-29 01:00")
    closing = Window("01:00", "02:30", BERLIN)
    assert closing.opens_at(utc("2026-03-29 00:59")) == utc("2026-03-29 00:59")
    assert closing.opens_at(utc("2026-03-29 01:00")) == at("2026-03-30 01:00")


def test_a_time_that_comes_twice_is_the_first_of_both() -> None:
    # On 25 October 2026 the hour from 02:00 comes twice in Berlin, from 00:00 and from 01:00 in UTC.
    assert Moment("02:30", BERLIN).after(at("2026-10-25 00:00")).at == utc("2026-10-25 00:30")
    later = Moment("02:30", BERLIN).after(utc("2026-10-25 00:30"))
    assert later.at == at("2026-10-26 02:30")
    window = Window("01:00", "02:30", BERLIN)
    inside, between = utc("2026-10-25 00:29"), utc("2026-10-25 01:10")
    assert window.opens_at(inside) == inside
    assert window.opens_at(between) == at("2026-10-26 01:00")
    opening = Window("02:30", "04:00", BERLIN)
    assert opening.opens_at(at("2026-10-25 00:00")) == utc("2026-10-25 00:30")
    assert opening.opens_at(between) == between


def test_a_window_that_is_skipped_whole_opens_a_day_later() -> None:
    window = Window("02:10", "02:50", BERLIN)
    assert window.opens_at(at("2026-03-29 00:00")) == at("2026-03-30 02:10")


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-11-23 12:00", "2026-11-23 22:00"),
        ("2026-11-23 22:00", "2026-11-23 22:00"),
        ("2026-11-24 06:59:59", "2026-11-24 06:59:59"),
        ("2026-11-24 07:00", "2026-11-24 22:00"),
    ],
)
def test_a_window_over_midnight_opens_in_the_evening(now: str, opens: str) -> None:
    assert NIGHT.opens_at(at(now)) == at(opens)


@pytest.mark.parametrize(
    ("start", "hours", "end"),
    [
        ("2026-11-23 23:00", 2, "2026-11-24 01:00"),
        ("2026-11-23 12:00", 2, "2026-11-24 00:00"),
        ("2026-11-23 23:00", 8, "2026-11-24 07:00"),
        ("2026-11-23 23:00", 9, "2026-11-24 23:00"),
        ("2026-11-23 12:00", 20, "2026-11-26 00:00"),
        ("2026-03-28 22:00", 9, "2026-03-29 23:00"),  # a night of eight hours
    ],
)
def test_closed_hours_are_in_the_time_until_so_many_open_ones_have_passed(
    start: str, hours: float, end: str
) -> None:
    assert NIGHT.after(at(start), 3_600 * hours) == at(end)
    assert NIGHT.open_between(at(start), at(end)) == 3_600 * hours


def test_a_window_is_followed_for_ten_years_at_most() -> None:
    minute = Window("22:00", "22:01", BERLIN)
    assert minute.after(at("2026-11-23 12:00"), 1e9) > at("2036-01-01 00:00")


def test_a_window_is_of_its_own_zone() -> None:
    assert NIGHT.opens_at(utc("2026-11-23 20:00")) == utc("2026-11-23 21:00")
    assert NIGHT.opens_at(utc("2026-07-23 19:00")) == utc("2026-07-23 20:00")


def test_a_job_begins_when_all_of_its_times_allow_it() -> None:
    times = Times(Moment("20:00", BERLIN), NIGHT).at_submission(at("2026-11-23 12:00"))
    assert times.next_start(at("2026-11-23 12:00")) == (at("2026-11-23 22:00"), "window")
    assert times.next_start(at("2026-11-23 22:00")) is None
    later = Times(Moment("23:00", BERLIN), NIGHT).at_submission(at("2026-11-23 12:00"))
    assert later.next_start(at("2026-11-23 12:00")) == (at("2026-11-23 23:00"), "not_before")
    assert Times().next_start(0.0) is None


def test_finish_by_is_the_first_time_after_work_may_begin() -> None:
    finish_by = Moment("07:00", BERLIN)
    night = Times(Moment("22:00", BERLIN), None, finish_by)
    # In the small hours, seven o'clock today comes before ten o'clock tonight.
    for now in ("2026-11-23 03:00", "2026-11-23 12:00"):
        meant = night.at_submission(at(now)).finish_by or finish_by
        assert meant.at == at("2026-11-24 07:00")
    at_once = (
        Times(finish_by=finish_by).at_submission(at("2026-11-23 03:00")).finish_by or finish_by
    )
    assert at_once.at == at("2026-11-23 07:00")


def test_a_finish_before_the_beginning_is_refused_in_one_line() -> None:
    past = Moment("2026-11-23 07:00", BERLIN, at("2026-11-23 07:00"))
    times = Times(window=NIGHT, finish_by=past)
    with pytest.raises(UsageError) as refused:
        times.at_submission(at("2026-11-23 06:00") + 7_200)
    assert str(refused.value) == (
        "finish_by: 2026-11-23 07:00 Europe/Berlin is before the first model call may begin "
        "(2026-11-23 21:00 UTC): give a later time"
    )
    assert replace(times, window=None).at_submission(at("2026-11-23 06:00")).finish_by == past


def test_instants_are_seconds_since_the_epoch() -> None:
    moment = Moment("22:00", "UTC").after(datetime(2026, 11, 23, tzinfo=UTC).timestamp())
    assert moment.at == datetime(2026, 11, 23, 22, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("day", "hours"),
    [
        ("2026-03-29 Europe/Berlin", 23),
        ("2026-10-25 Europe/Berlin", 25),
        ("2026-11-24 Europe/Berlin", 24),
        ("2026-11-24 UTC", 24),
        ("2024-09-08 America/Santiago", 23),  # midnight itself is skipped
        ("2024-11-03 America/Havana", 25),  # midnight comes twice
    ],
)
def test_a_day_lasts_from_midnight_to_midnight_where_clocks_are_set(day, hours):
    begins, ends = bounds_of(day)
    assert ends - begins == hours * 3_600
    zone = day.split()[1]
    assert day_of(begins, zone) == day_of(ends - 1, zone) == day
    assert day_of(begins - 1, zone) != day != day_of(ends, zone)
