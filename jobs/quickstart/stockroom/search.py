"""Finding products by words."""

from collections.abc import Iterable


def matches(product: str, query: str) -> bool:
    """Whether every word of the query is in the product's name, whatever the case."""
    name = product.casefold()
    return any(word in name for word in query.casefold().split())


def find(products: Iterable[str], query: str) -> list[str]:
    """The products that match, in order."""
    return [product for product in products if matches(product, query)]
