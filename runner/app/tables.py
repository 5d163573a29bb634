"""Rows that answer a question, as people and spreadsheets read them.

Text in rows is not trusted. In CSV an apostrophe stands before what a spreadsheet would take for a formula,
at the start of a cell or after what other spreadsheets take for a separator
(https://owasp.org/www-community/attacks/CSV_Injection).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from runner.app.humanize import dollars, duration, iso_time, moment
from runner.errors import UsageError
from runner.queries.rows import Column

MOST_ROWS = 2**31 - 1  # more than a database has, and a number that every database takes

_AGO = re.compile(r"([0-9]{1,6}) ?([smhdw])(?: ago)?")
_DAYS = {"today": 0, "yesterday": 1}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_FORMULA = re.compile(r"^(?=[\t\r\n])|(?:^|[;\t\r\n])(?= *[=+\-@＝＋－＠])")
# Texts of values for people, by the kind of the column.
_SAID: dict[str, Callable[[Any], str]] = {
    "time": moment,
    "seconds": duration,
    "usd": lambda value: dollars(Decimal(str(value))),
    "integer": "{:,}".format,
    "real": "{:,.4g}".format,
    "boolean": lambda value: "yes" if value else "no",
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "text": str,
}


def time_of(text: str) -> float:
    """Return a day, a time, or how long ago, as seconds since the epoch. Raises
    ``UsageError``."""
    text = text.strip()
    if ago := _AGO.fullmatch(text):
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    if (days := _DAYS.get(text.lower())) is not None:
        return datetime.combine(date.today() - timedelta(days), datetime.min.time()).timestamp()
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is not a time: use 2026-11-22, 2026-11-22T22:00, yesterday, today, or how long ago: "
            "3d, 12h, 30m"
        ) from None


def shown(column: Column, value: Any) -> str:
    """Return a value for people; unchanged if it is not of its column's kind."""
    try:
        return "" if value is None else _SAID[column.kind](value)
    except (ValueError, TypeError, ArithmeticError, OSError):  # as of a time far beyond all years
        return str(value)


def _csv_value(column: Column, value: Any) -> Any:
    match column.kind:
        case _ if value is None:
            return None
        case "time":
            return iso_time(value) if isinstance(value, int | float) else str(value)
        case "boolean":
            return "true" if value else "false"
        case "json":
            return json.dumps(value, ensure_ascii=False)
    return value


def harmless(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return _FORMULA.sub(lambda found: f"{found[0]}'", text)


def csv_values(columns: Sequence[Column], row: Mapping[str, Any]) -> list[Any]:
    """Return the values of a row for CSV."""
    values = [_csv_value(column, row[column.name]) for column in columns]
    return [harmless(value) if isinstance(value, str) else value for value in values]
