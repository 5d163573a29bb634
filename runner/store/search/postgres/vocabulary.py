"""The numbers that words have in the index of a Postgres database, and those of pairs of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import cast

from sqlalchemy import Connection, text

# Words have numbers from 20,000 on. Pairs share those from 0 on: of the pairs that a text does not have few
# seem to be there, as a text has some hundreds of them.
PAIRS = 16_384

_MOST_KNOWN_WORDS = 500_000

_WORDS = text("SELECT word, id FROM search_words WHERE word = ANY(CAST(:words AS text[]))")
_NEW_WORDS = text(
    "INSERT INTO search_words (word) SELECT unnest(CAST(:words AS text[])) "
    "ON CONFLICT DO NOTHING RETURNING word, id"
)
_VOCABULARY = text("SELECT CAST(pg_relation_filenode('search_words') AS bigint)")


def numbers_of(connection: Connection, words: Iterable[str]) -> dict[str, int]:
    """The numbers of words, of those that have one."""
    rows = connection.execute(_WORDS, {"words": list(words)})
    return {row.word: row.id for row in rows}


def pair_of(first: int, second: int) -> int:
    """The number for a word that stands before another one; others may have the same."""
    return pairs_of((first, second))[0]


def pairs_of(numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers of all neighbours, given the numbers of words in order.

    All are made at once, each in 64 bits of a long number: no product grows out of them.

    Args:
        numbers: below 2 to the power of 31.
    """
    count = len(numbers) - 1
    if count < 1:
        return ()
    every = int.from_bytes(struct.pack(f"<{count + 1}Q", *numbers), "little")
    mixed = every * 0x9E3779B1 + (every >> 64) * 0x85EBCA77
    low = int.from_bytes(_LOW_14 * count, "little")
    return struct.unpack(f"<{count}Q", (mixed >> 17 & low).to_bytes(8 * count, "little"))


_LOW_14 = struct.pack("<Q", PAIRS - 1)


class Vocabulary:
    """What is known of the words that have numbers, by who adds to them. What a transaction that failed
    has added is to be forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._lacking: list[tuple[str, list[int], int]] = []
        self._of = 0

    def begin(self, connection: Connection) -> None:
        """Begin to add, in a transaction in which nobody else does. What is known is of the vocabulary
        that was there then: emptied, it is another file, and nothing of it is known."""
        now_of: int = connection.execute(_VOCABULARY).scalar_one()
        if now_of != self._of:
            self.forget()
        self._of = now_of

    def numbers(self, words: Sequence[str]) -> list[int]:
        """The numbers of words, in order. Those that are not known come with ``complete``."""
        numbers = list(map(self._known.get, words))
        known = cast(list[int], numbers)
        if None in numbers:
            self._lacking += [
                (words[place], known, place)
                for place, number in enumerate(numbers)
                if number is None
            ]
        return known

    def complete(self, connection: Connection) -> None:
        """Put all numbers that were not known in their places, given to words that have none."""
        words = sorted({word for word, _, _ in self._lacking})
        if words:
            self._known |= numbers_of(connection, words)
            new = [word for word in words if word not in self._known]
            rows = connection.execute(_NEW_WORDS, {"words": new})
            self._known |= {row.word: row.id for row in rows}
        for word, numbers, place in self._lacking:
            numbers[place] = self._known[word]
        self._lacking.clear()
        if len(self._known) > _MOST_KNOWN_WORDS:
            self._known.clear()

    def forget(self) -> None:
        """Know nothing: what was added is not there after all."""
        self._known.clear()
        self._lacking.clear()
