"""How many of what there are."""

from collections.abc import Mapping


class OutOfStockError(Exception):
    """There is not enough of a product."""


class Stock:
    """Counts of products. An order is taken from it whole or not at all."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def take(self, order: Mapping[str, int]) -> None:
        """Take an order out of the stock.

        Raises:
            OutOfStockError: there is not enough of something; nothing was taken.
        """
        for product, wanted in order.items():
            if self.counts.get(product, 0) < wanted:
                raise OutOfStockError(product)
            self.counts[product] -= wanted
