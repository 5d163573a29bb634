"""Prices, counted in cents so that sums are exact."""

from collections.abc import Iterable


def cents(price: str) -> int:
    """A price as it is written ("19.99"), in cents."""
    return int(float(price) * 100)


def written(amount: int) -> str:
    """An amount of cents as it is written."""
    return f"{amount // 100}.{amount % 100:02d}"


def total(prices: Iterable[str]) -> str:
    """The sum of prices, as it is written."""
    return written(sum(cents(price) for price in prices))
