"""Long lists, a page at a time."""

from collections.abc import Sequence
from typing import TypeVar

Entry = TypeVar("Entry")


def page_count(entries: Sequence[Entry], size: int) -> int:
    """How many pages of ``size`` entries there are."""
    return len(entries) // size


def page(entries: Sequence[Entry], number: int, size: int) -> Sequence[Entry]:
    """The entries of a page; the first page is number 1."""
    if not 1 <= number <= page_count(entries, size):
        raise LookupError(f"there is no page {number}")
    start = (number - 1) * size
    return entries[start : start + size]
