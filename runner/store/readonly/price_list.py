"""The price list in the database, where ``v_costs`` finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, delete, insert, select, text

from runner.core.money.prices import Price, PriceList, Rates
from runner.store.connection.database import Database
from runner.store.tables import prices as price_table


def keep(database: Database, prices: PriceList) -> None:
    """Have ``v_costs`` say what calls cost by this list. Writes only where the list has changed."""
    rows = [row for model, price in prices.models.items() for row in _rows(prices, model, price)]

    def is_kept(connection: Connection) -> bool:
        found = [dict(row) for row in connection.execute(select(price_table)).mappings()]
        return sorted(found, key=_place) == sorted(rows, key=_place)

    def write(connection: Connection) -> None:
        if database.dialect == "postgresql":  # what another process is writing is to be seen
            connection.execute(text("LOCK TABLE prices IN SHARE ROW EXCLUSIVE MODE"))
        connection.execute(delete(price_table))
        if rows:
            connection.execute(insert(price_table), rows)

    if not database.read(is_kept):
        database.write(write)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["fast"], row["above"]


def _rows(prices: PriceList, model: str, price: Price) -> Iterator[dict[str, Any]]:
    """The same choice as ``PriceList.rates``: fast mode has one price for prompts of any length."""
    above = price.long_above if price.long is not None else None
    yield _row(prices, model, price.standard, up_to=above)
    if price.long is not None:
        yield _row(prices, model, price.long, above=price.long_above)
    if price.fast is not None:
        yield _row(prices, model, price.fast, fast=1)


def _row(
    prices: PriceList,
    model: str,
    rates: Rates,
    *,
    fast: int = 0,
    above: int = -1,
    up_to: int | None = None,
) -> dict[str, Any]:
    return {
        "model": model,
        "fast": fast,
        "above": above,
        "up_to": up_to,
        "input": float(rates.input),
        "cache_write_5m": float(rates.cache_write_5m),
        "cache_write_1h": float(rates.cache_write_1h),
        "cache_read": float(rates.cache_read),
        "output": float(rates.output),
        "us_inference": float(prices.us_inference),
    }
