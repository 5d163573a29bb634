"""Lists of documents as a Postgres database's index keeps them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.search.query import Term
from runner.store.database import Database
from runner.store.search.catching_up import searcher
from runner.store.search.index import MOST_MATCHES, Needs
from runner.store.search.postgres.lists import (
    STRETCH,
    TIMES,
    bits_in,
    bits_of,
    marked,
    packed,
    places_in,
)
from runner.store.search.postgres.looking import PostgresIndex
from runner.store.search.postgres.segments import Segments
from runner.store.search.postgres.vocabulary import PAIRS, Vocabulary, pair_of, pairs_of

_MOST = 2**31 - 1
_NUMBERS = st.one_of(st.integers(1, 300), st.integers(1, _MOST), st.just(_MOST))


@pytest.mark.parametrize("count", [0, 1, 299, 301, 1_499, 1_501, STRETCH])
def test_places_are_the_same_listed_and_marked(count: int) -> None:
    places = sorted(random.Random(count).sample(range(STRETCH), count))
    bits = bits_of(packed(places))
    assert places_in(bits) == places
    assert bits_in(marked(bits)) == bits
    assert bits_in(marked(bits) + marked(1)) == bits | 1


@given(st.lists(_NUMBERS))
def test_neighbours_have_the_number_of_their_pair(numbers: list[int]) -> None:
    assert list(pairs_of(numbers)) == [pair_of(*pair) for pair in pairwise(numbers)]


def test_of_pairs_that_a_text_does_not_have_few_seem_to_be_there() -> None:
    chance = random.Random(1)
    numbers = [20_000 + int(chance.paretovariate(0.6)) % 100_000 for _ in range(300)]
    there, has = set(pairwise(numbers)), set(pairs_of(numbers))
    drawn = {(chance.choice(numbers), chance.choice(numbers)) for _ in range(4_000)}
    others = drawn - there
    assert sum(pair_of(*pair) in has for pair in others) < len(others) / 30


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_documents_are_found_however_far_their_lists_are_put_together(database: Database) -> None:
    vocabulary, index, count = Vocabulary(), PostgresIndex(database), 0
    for lot in (3, 700, 400, 2_000, 9_000, 30_000, 23_300, 300, 900, 200):

        def add(connection: Any, first: int = count, end: int = count + lot) -> None:
            texts = [[f"w{n}" for n in (2, 3, 7, 5_000) if id % n == 0] for id in range(first, end)]
            segments = Segments(connection)
            listed = _numbers(vocabulary, connection, texts)
            for id, numbers in enumerate(listed, first):
                segments.add(len(numbers), float(id), set(numbers))
            segments.finish()

        database.write(add)
        count += lot
        for wanted, without in (((2, 3), ()), ((2,), (3, 7)), ((5_000, 3), ()), ((7,), (2,))):
            for since, until in ((None, None), (500.0, None), (60_000.0, 70_000.0)):
                expected = sum(
                    all(id % n == 0 for n in wanted) and all(id % n for n in without)
                    for id in range(int(since or 0), min(count, int(until or count)))
                )
                needs = Needs(_terms(wanted), (), _terms(without), since, until)
                assert index.matches(needs).count == min(expected, MOST_MATCHES + 1)
    assert count > STRETCH


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_no_word_has_the_number_of_a_pair_also_in_an_index_made_anew(database: Database) -> None:
    def number(connection: Any) -> int:
        return _numbers(Vocabulary(), connection, [["walnut"]])[0][0]

    assert database.write(number) > TIMES > PAIRS
    searcher(database).renew(lambda _done, _all: None)
    assert database.write(number) > TIMES


def _numbers(
    vocabulary: Vocabulary, connection: Any, texts: Sequence[Sequence[str]]
) -> list[list[int]]:
    vocabulary.begin(connection)
    numbers = [vocabulary.numbers(words) for words in texts]
    vocabulary.complete(connection)
    return numbers


def _terms(numbers: tuple[int, ...]) -> tuple[Term, ...]:
    return tuple(Term((f"w{number}",)) for number in numbers)
