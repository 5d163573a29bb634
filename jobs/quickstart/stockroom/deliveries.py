"""When an order arrives."""

from datetime import date, timedelta

SATURDAY = 5


def is_working_day(day: date) -> bool:
    """Monday to Friday."""
    return day.weekday() <= SATURDAY


def arrives(ordered: date, working_days: int) -> date:
    """The day that many working days after the order."""
    day = ordered
    while working_days > 0:
        day += timedelta(days=1)
        working_days -= is_working_day(day)
    return day
