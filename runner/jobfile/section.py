"""Reading one table of a job file: typed values out, problems noted instead of raised."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from runner.errors import Problem
from runner.jobfile.content import line_problem, text_problem
from runner.jobfile.lines import Part, place

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_SECONDS = 366.0 * SECONDS["d"]

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", re.ASCII)


def seconds_in(text: str) -> float:
    """The seconds of a duration such as ``30m``; not a number for any other text."""
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * SECONDS[match[2]] if match else math.nan


def kind(value: Any) -> str:
    """What a TOML value is called, with its article."""
    if isinstance(value, bool):
        return "a boolean"
    names = {str: "a string", int: "an integer", float: "a number", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, Mapping) else "a date or time")


def shown(value: Any) -> str:
    """A value as an error quotes it: short, one line, nothing that a terminal would obey."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of that size"
    text = value if isinstance(value, str) else str(value)
    short = text if len(text) <= 60 else f"{text[:60]}…"
    return repr(short) if isinstance(value, str) else short


class Section:
    """One table of a job file. Each reader returns the value, or the default after noting a problem."""

    def __init__(self, values: Mapping[str, Any], path: tuple[Part, ...], problems: list[Problem]):
        self.values = values
        self.path = path
        self.problems = problems

    def has(self, key: str) -> bool:
        return key in self.values

    def note(self, message: str, *parts: Part) -> None:
        """Add a problem at a place under this section (at the section itself without parts)."""
        self.problems.append(Problem(place(*self.path, *parts), message))

    def expect_keys(self, known: tuple[str, ...], elsewhere: Mapping[str, str]) -> None:
        """Note every key that is not known here.

        Args:
            known: the keys of this section.
            elsewhere: keys of other sections, and how to name their right place.
        """
        for key in self.values:
            if key in known:
                continue
            message = f"unknown key {shown(key)}"
            near = difflib.get_close_matches(key, known, 1, 0.8 if key in elsewhere else 0.6)
            if near:
                message += f"; did you mean {near[0]}?"
            elif key in elsewhere:
                message += f" here; it belongs {elsewhere[key]}"
            elif far := difflib.get_close_matches(key, elsewhere, n=1):
                message += f"; did you mean {far[0]}, which belongs {elsewhere[far[0]]}?"
            else:
                message += f"; known here: {', '.join(known)}"
            self.note(message, key)

    def section(self, key: str) -> Section | None:
        """The table of that name, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, Mapping):
            return Section(value, (*self.path, key), self.problems)
        written = place(*self.path, key)
        self.note(f"must be a table, written [{written}], not {kind(value)}", key)
        return None

    def text(self, key: str) -> str | None:
        """A string that is not blank, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.note(f"must be a string, not {kind(value)}", key)
        elif not value.strip():
            self.note("is empty", key)
        elif problem := text_problem(value):
            self.note(problem, key)
        else:
            return value
        return None

    def line(self, key: str, most: int) -> str | None:
        """A string of one line of at most ``most`` characters, or None."""
        value = self.text(key)
        if value is not None and (problem := line_problem(value, most)):
            self.note(problem, key)
            return None
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        """One of the options."""
        value = self.values.get(key, default)
        if isinstance(value, str) and value in options:
            return value
        wanted = " or ".join(f'"{option}"' for option in options)
        got = shown(value) if isinstance(value, str) else kind(value)
        near = difflib.get_close_matches(value, options, n=1) if isinstance(value, str) else []
        meant = f"; did you mean {near[0]}?" if near else ""
        self.note(f"must be {wanted}, not {got}{meant}", key)
        return default

    def integer(self, key: str, default: int, *, most: int) -> int:
        """A whole number from 1 to ``most``."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(f"must be an integer, not {kind(value)}", key)
        elif value < 1:
            self.note(f"must be at least 1, not {shown(value)}", key)
        elif value > most:
            self.note(f"must be at most {most:,}, not {shown(value)}", key)
        else:
            return value
        return default

    def flag(self, key: str) -> bool:
        """A boolean; False when it is not there."""
        value = self.values.get(key, False)
        if isinstance(value, bool):
            return value
        self.note(f"must be true or false, not {kind(value)}", key)
        return False

    def number(self, key: str, *, least: float, most: float) -> float | None:
        """A number from ``least`` to ``most``, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.note(f"must be a number, not {kind(value)}", key)
        elif not least <= value <= most:
            bounds = f"from {_plain(least)} to {_plain(most)}"
            self.note(f"must be a number {bounds}, not {shown(value)}", key)
        else:
            return float(value)
        return None

    def seconds(self, key: str, *, most: float = MOST_SECONDS) -> float | None:
        """A duration over nothing in seconds, from a number of seconds or a string like "30m"."""
        value = self.values.get(key)
        if value is None:
            return None
        seconds = math.nan
        if isinstance(value, str):
            seconds = seconds_in(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(max(-1, min(value, 10**15)))
        if math.isnan(seconds):
            got = shown(value) if isinstance(value, str | float) else kind(value)
            self.note(
                f'must be a number of seconds or a string such as "90s", "30m", "8h", not {got}',
                key,
            )
        elif seconds <= 0:
            self.note(f"must be more than 0 seconds, not {shown(value)}", key)
        elif seconds > most:
            self.note(f"must be at most {most:,.0f} seconds, not {shown(value)}", key)
        else:
            return seconds
        return None

    def texts(self, key: str, *, any_lines: bool = False) -> list[tuple[int, str]]:
        """The strings of a list, each with its index; what is no usable string is left out.

        Args:
            any_lines: take strings of more than one line, and of any length.
        """
        value = self.values.get(key, [])
        if not isinstance(value, list):
            self.note(f"must be a list of strings, not {kind(value)}", key)
            return []
        good = []
        for index, entry in enumerate(value):
            if not isinstance(entry, str):
                self.note(f"must be a string, not {kind(entry)}", key, index)
            elif problem := text_problem(entry) if any_lines else line_problem(entry, 500):
                self.note(problem, key, index)
            else:
                good.append((index, entry))
        return good

    def commands(self, key: str) -> tuple[str, ...]:
        """The shell commands of a list: at least one, if the key is there."""
        if self.values.get(key) == []:
            self.note("is empty: give at least one shell command, or leave it out", key)
        commands = self.texts(key, any_lines=True)
        for index, command in commands:
            if not command.strip():
                self.note("is empty", key, index)
        return tuple(command for _, command in commands)

    def exactly_one(self, keys: tuple[str, ...], meaning: str) -> str | None:
        """The one of these keys that is there; anything but one is noted, and None returned."""
        there = [key for key in keys if key in self.values]
        if len(there) == 1:
            return there[0]
        wanted = _listed(keys)
        if there:
            self.note(f"give only one of {wanted}, not {_listed(there)}", there[-1])
        else:
            self.note(f"one of {wanted} is needed: {meaning}", *(() if self.path else (keys[0],)))
        return None


def _plain(number: float) -> str:
    return f"{number:,f}".rstrip("0").rstrip(".")


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
