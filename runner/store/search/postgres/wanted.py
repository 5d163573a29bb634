"""What a document must have, as numbers that the lists of a Postgres database are kept for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from sqlalchemy import Connection, text

from runner.core.search.query import Term
from runner.core.search.words import LONG
from runner.store.search.index import Needs
from runner.store.search.postgres.vocabulary import numbers_of, pair_of

# More ways for words to stand side by side are not asked for one by one.
_MOST_PAIRS = 300

_BEGUN = text("SELECT id FROM search_words WHERE word >= :first AND word < :last")

# The numbers that each word of a term can have.
_Chain = list[list[int]]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A document has one of some numbers."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Together:
    """A document has all of some things, or, where ``one`` is set, one of them."""

    parts: tuple[Condition, ...]
    one: bool = False


Condition = AnyOf | Together


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a document must have, and what it must not. ``is_sure``: that is all that is needed."""

    condition: Condition
    without: AnyOf
    is_sure: bool


def leaves_of(condition: Condition) -> Iterator[AnyOf]:
    """All that lists have to be read for."""
    if isinstance(condition, AnyOf):
        yield condition
    else:
        for part in condition.parts:
            yield from leaves_of(part)


def bits_for(condition: Condition, read: Callable[[AnyOf], int]) -> int:
    """What meets a condition of the documents of which ``read`` gives those that have a number."""
    if isinstance(condition, AnyOf):
        return read(condition)
    first, *others = (bits_for(part, read) for part in condition.parts)
    for each in others:
        first = first | each if condition.one else first & each
    return first


def wanted_by(connection: Connection, needs: Needs) -> Wanted | None:
    """What is needed but for its time, None where no document can have it."""
    return _Reading(connection, needs).wanted()


class _Reading:
    """Looks the words of what is needed up."""

    def __init__(self, connection: Connection, needs: Needs) -> None:
        self._connection, self._needs = connection, needs
        self._beginnings: dict[str, list[int]] = {}
        terms = [*needs.terms, *needs.without, *(term for group in needs.groups for term in group)]
        words = {LONG, *(word for term in terms for word in term.words)}
        self._known = numbers_of(connection, words)

    def wanted(self) -> Wanted | None:
        parts: list[Condition] = []
        for group in (*((term,) for term in self._needs.terms), *self._needs.groups):
            chains = [chain for chain in map(self._chain, group) if chain is not None]
            if not chains:
                return None
            parts += self._words(chains)
            parts += self._side_by_side(chains)
        terms, without = self._needs.terms, self._needs.without
        single = [term for term in without if len(term.words) == 1]
        is_sure = len(single) == len(without) and all(len(term.words) == 1 for term in terms)
        chains = [chain for chain in map(self._chain, single) if chain is not None]
        unwanted = frozenset(number for (numbers,) in chains for number in numbers)
        return Wanted(Together(tuple(dict.fromkeys(parts))), AnyOf(unwanted), is_sure)

    def _chain(self, term: Term) -> _Chain | None:
        """For each word of a term the numbers it can have; None when no document has one of them."""
        chain = [
            self._begun(word)
            if term.is_prefix and place == len(term.words) - 1
            else [self._known[word]]
            if word in self._known
            else []
            for place, word in enumerate(term.words)
        ]
        return chain if all(chain) else None

    def _begun(self, beginning: str) -> list[int]:
        """The numbers of the words that begin so."""
        if beginning not in self._beginnings:
            # By their bytes, which words are in the order of: no character comes after the last one.
            values = {"first": beginning, "last": beginning + chr(0x10FFFF)}
            found = self._connection.execute(_BEGUN, values).scalars()
            self._beginnings[beginning] = list(found)
        return self._beginnings[beginning]

    def _words(self, chains: Sequence[_Chain]) -> Iterator[Condition]:
        """That a document has the words of a chain; of more than one, those at their ends."""
        if len(chains) > 1:
            yield AnyOf(frozenset(number for chain in chains for number in chain[0]))
            yield AnyOf(frozenset(number for chain in chains for number in chain[-1]))
            return
        (chain,) = chains
        yield from (AnyOf(frozenset(numbers)) for numbers in chain)

    def _side_by_side(self, chains: Sequence[_Chain]) -> Iterator[Condition]:
        """That words of a chain seem to stand side by side, where they are few enough to ask."""
        long = [[self._known.get(LONG)]]
        ways = [list(pairwise(chain)) for chain in chains if chain != long]
        pairs = sum(len(firsts) * len(seconds) for way in ways for firsts, seconds in way)
        if pairs > _MOST_PAIRS or not all(ways):
            return
        alone = [pair for (pair, *others) in ways if not others]
        numbers = {number for pair in alone for number in _near(pair).numbers}
        if len(ways) < len(chains):
            numbers.add(self._known[LONG])
        tried: list[Condition] = [Together(tuple(map(_near, way))) for way in ways if len(way) > 1]
        if numbers:
            tried.append(AnyOf(frozenset(numbers)))
        if tried:
            yield Together(tuple(tried), one=True)


def _near(pair: tuple[list[int], list[int]]) -> AnyOf:
    """That one of some words seems to stand before one of others."""
    return AnyOf(frozenset(pair_of(*numbers) for numbers in product(*pair)))
