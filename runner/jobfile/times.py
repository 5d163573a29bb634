"""Times, windows and time zones as people write them."""

from __future__ import annotations

import difflib
import os
import re
from datetime import datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from runner.core.times import Moment, Window, instant
from runner.jobfile.values import BadValueError, shown

_CLOCK = r"([0-9]{1,2}:[0-9]{2})"
_ZONE = r"(?:\s+([A-Za-z][\w+/-]*))?"
_TIME_OF_DAY = re.compile(rf"\s*{_CLOCK}{_ZONE}\s*", re.ASCII)
_DATE_TIME = re.compile(
    rf"\s*([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9]{{2}}:[0-9]{{2}}\S*){_ZONE}\s*", re.ASCII
)
_WINDOW = re.compile(rf"\s*{_CLOCK}\s*-\s*{_CLOCK}{_ZONE}\s*", re.ASCII)
_LOCALTIME = Path("/etc/localtime")


def read_moment(text: str) -> Moment:
    """Return the moment of ``22:00`` or ``2026-11-24 22:00``. Raises ``BadValueError``."""
    if match := _TIME_OF_DAY.fullmatch(text):
        return Moment(f"{_clock(match[1]):%H:%M}", zone_named(match[2]))
    if match := _DATE_TIME.fullmatch(text):
        try:
            written = datetime.fromisoformat(match[1])
        except ValueError as error:
            raise BadValueError(f"{shown(match[1])} is not a date and time: {error}") from error
        if written.tzinfo is not None and match[2]:
            raise BadValueError(f"{shown(text)} has both an offset and a time zone: remove one")
        if written.tzinfo is not None:
            return Moment(match[1], "", written.timestamp())
        zone = zone_named(match[2])
        return Moment(match[1], zone, instant(written.date(), written.time(), zone))
    raise BadValueError(
        'must be a time such as "22:00", "22:00 Europe/Berlin" or "2026-11-24 22:00", not '
        f"{shown(text)}"
    )


def read_window(text: str) -> Window:
    """Return the window of a text: ``22:00-07:00 Europe/Berlin``. Raises ``BadValueError``."""
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise BadValueError(
            f'must be a part of the day such as "22:00-07:00 Europe/Berlin", not {shown(text)}'
        )
    start, end = (f"{_clock(match[group]):%H:%M}" for group in (1, 2))
    if start == end:
        raise BadValueError(f"{shown(text)} is the whole day: leave it out, or give another end")
    return Window(start, end, zone_named(match[3]))


def _clock(text: str) -> time:
    hour, minute = map(int, text.split(":"))
    try:
        return time(hour, minute)
    except ValueError as error:
        raise BadValueError(f"{shown(text)} is not a time of day: 00:00 to 23:59") from error


def zone_named(name: str | None) -> str:
    """Return the name of a time zone, this host's by default. Raises ``BadValueError``."""
    if name is None:
        return _own_zone()
    if not _is_zone(name):
        near = difflib.get_close_matches(name, available_timezones(), 1)
        meant = f"; did you mean {near[0]}?" if near else ": give one such as Europe/Berlin or UTC"
        raise BadValueError(f"{shown(name)} is not a time zone that this host knows{meant}")
    return name


def _own_zone() -> str:
    """The name of this host's time zone (https://man7.org/linux/man-pages/man3/tzset.3.html)."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and not _LOCALTIME.exists():
        return "UTC"
    name = name or str(_LOCALTIME.resolve()).partition("zoneinfo/")[2]
    if not _is_zone(name):
        raise BadValueError(
            "needs a time zone, such as Europe/Berlin: this host does not name its own"
        )
    return name


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
