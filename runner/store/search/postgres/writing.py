"""Adding to the index of a Postgres database.

A document has numbers: those of its words, and of the pairs of words that stand side by side. Many pairs
have the same number: what is found by them is looked up in the texts. Which documents have a number is
in lists (``segments``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from runner.store.search.documents import KINDS, Entry
from runner.store.search.postgres.reading import Seen, search_runs
from runner.store.search.postgres.segments import Segments, copying
from runner.store.search.postgres.vocabulary import Vocabulary, pairs_of

_NEW = insert(search_runs)
_KEY = (search_runs.c.run_id, search_runs.c.job_id)
_NOTE = _NEW.on_conflict_do_update(
    index_elements=_KEY,
    set_={each.name: each for each in _NEW.excluded if each.name in Seen.__slots__},
).returning(search_runs.c.number, *_KEY)

# The types of the columns of a document's row.
_DOCUMENT = ("float8", "int4", "int4", "int4", "int4", "int2")


class Numbered(NamedTuple):
    """A document with the numbers of its words, in order, those of its facets before them; ``length``
    is without these."""

    length: int
    at: float
    numbers: list[int]


class Writer:
    """Adds to an index, in a transaction of its caller, who is the only one to do so."""

    def __init__(self, connection: Connection, vocabulary: Vocabulary) -> None:
        self._connection, self._vocabulary = connection, vocabulary
        self._segments = Segments(connection)
        self._next = self._segments.next
        vocabulary.begin(connection)

    def number(self, entries: Iterable[Entry], seen: Sequence[Seen]) -> list[Numbered]:
        """Store documents, after those that are there, give numbers to their words, and note how far
        the index has come. What is given is to be gathered."""
        noted = self._connection.execute(_NOTE, [asdict(each) for each in seen])
        runs = {(row.run_id, row.job_id): row.number for row in noted}
        numbered = []
        with copying(self._connection, "search_documents", _DOCUMENT) as copy:
            for place, at, words, length in entries:
                run = runs[place.run_id, place.job_id]
                kind = KINDS.index(place.kind)
                copy.write_row((at, self._next, run, place.message, place.position, kind))
                numbered.append(Numbered(length, at, self._vocabulary.numbers(words)))
                self._next += 1
        self._vocabulary.complete(self._connection)
        return numbered

    def gather(self, documents: Sequence[Numbered]) -> None:
        """Take documents, in the order in which they were numbered, into the lists that are to be
        written: without the database, which may work on the next ones."""
        for length, at, numbers in documents:
            pairs = pairs_of(numbers[len(numbers) - length :])
            self._segments.add(length, at, set(numbers), set(pairs))

    def finish(self) -> None:
        """Write what was gathered: the last of the transaction."""
        self._segments.finish()
