"""What the sweep is after."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 - it is not the sweep that erred
    """A guarantee of Runner's did not hold."""


def hold(condition: object, what: str, *seen: object) -> None:
    """Raise ``Violation`` unless the condition is true; it says what was ``seen``."""
    if not condition:
        raise Violation(": ".join([what, *map(repr, seen)]))
