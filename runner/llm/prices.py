"""The list of prices and windows: the one that Runner comes with, changed by a file of the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

from runner.core.prices import Price, PriceList, Rates
from runner.errors import UsageError

_RATES = tuple(each.name for each in fields(Rates))
_FACTORS = ("us_inference", "batch", "regional")
_DEAREST = Decimal(1_000_000)
_MOST_PLACES = 6  # with more, sums of many calls would have to be rounded


def load_prices(own: Path | None = None) -> PriceList:
    """Return the prices that Runner comes with, changed by the TOML file ``own``, of the form of
    runner/llm/prices.toml. Its models replace built-in models of the same id; ``date``, ``source``,
    ``us_inference``, ``batch``, ``regional`` and a model's ``window`` do if they are there. Raises
    UsageError with the line that is wrong."""
    shipped = _parse("prices.toml", files("runner.llm").joinpath("prices.toml").read_text("utf-8"))
    prices = _Part("prices.toml", shipped).apply(PriceList(date.min, "", {}))
    if own is None:
        return prices
    try:
        text = own.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the price list {own} (RUNNER_PRICES) cannot be read: {error}") from error
    return _Part(str(own), _parse(str(own), text)).apply(replace(prices, source=str(own)))


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise UsageError(f"the price list {name} is not TOML: {error}") from error


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    data: Mapping[str, Any]

    def apply(self, prices: PriceList) -> PriceList:
        self._refuse_others("", self.data, {"date", "source", *_FACTORS, "models"})
        models = self._table("models", self.data.get("models", {}))
        day = self.data.get("date", prices.date)
        if not isinstance(day, date) or isinstance(day, datetime):
            raise self._wrong("date", "must be a day, like 2026-11-10")
        source = self.data.get("source", prices.source)
        if not isinstance(source, str):
            raise self._wrong("source", "must be a string")
        factors = {
            name: self._amount(name, self.data[name])
            if name in self.data
            else getattr(prices, name)
            for name in _FACTORS
        }
        own = {
            model: self._price(f"models.{model}", table, prices.window(model))
            for model, table in models.items()
        }
        return PriceList(day, source, {**prices.models, **own}, **factors)

    def _price(self, place: str, value: Any, window: int | None) -> Price:
        table = self._table(place, value)
        standard = self._rates(place, table, {"fast", "long", "window", "regional"})
        regional = None
        if "regional" in table:
            regional = self._amount(f"{place}.regional", table["regional"])
        if "window" in table:
            window = self._tokens(f"{place}.window", table["window"])
        fast = long = None
        above = 0
        if "fast" in table:
            fast = self._rates(f"{place}.fast", self._table(f"{place}.fast", table["fast"]))
        if "long" in table:
            inner = self._table(f"{place}.long", table["long"])
            long = self._rates(f"{place}.long", inner, {"above"})
            above = self._tokens(f"{place}.long.above", inner.get("above"))
        return Price(standard, fast, long, above, window, regional)

    def _rates(
        self, place: str, table: Mapping[str, Any], others: frozenset[str] | set[str] = frozenset()
    ) -> Rates:
        self._refuse_others(place, table, {*_RATES, *others})
        for name in _RATES:
            if name not in table:
                raise self._wrong(f"{place}.{name}", "is missing (USD per million tokens)")
        return Rates(**{name: self._amount(f"{place}.{name}", table[name]) for name in _RATES})

    def _tokens(self, place: str, value: Any) -> int:
        if type(value) is not int or value < 1:
            raise self._wrong(place, "must be a number of tokens")
        return value

    def _amount(self, place: str, value: Any) -> Decimal:
        if type(value) is int:
            value = Decimal(value)
        if not isinstance(value, Decimal) or not value.is_finite() or not 0 <= value <= _DEAREST:
            raise self._wrong(place, f"must be a number from 0 to {_DEAREST:,}")
        if value != round(value, _MOST_PLACES):
            raise self._wrong(place, f"must have at most {_MOST_PLACES} decimal places")
        return value

    def _table(self, place: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(place, "must be a table")
        return value

    def _refuse_others(self, place: str, table: Mapping[str, Any], known: set[str]) -> None:
        for name in table:
            if name not in known:
                where = f"{place}.{name}" if place else name
                raise self._wrong(where, f"is unknown; there are {', '.join(sorted(known))}")

    def _wrong(self, place: str, what: str) -> UsageError:
        return UsageError(f"the price list {self.name}: {place} {what}")
