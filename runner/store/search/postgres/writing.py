"""Adding to the index of a Postgres database.

A document has numbers: those of its words, and of the pairs of words that stand side by side. Many pairs
have the same number: what is found by them is looked up in the texts. Which documents have a number is
in lists (``segments``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from runner.store.search.documents import KINDS, Entry
from runner.store.search.postgres.reading import Seen
from runner.store.search.postgres.segments import Segments, copying
from runner.store.search.postgres.vocabulary import Vocabulary, pairs_of

_NOTE = text(
    "INSERT INTO search_runs "
    "(job_id, run_id, seen, message, positions, compactions, verifications) "
    "VALUES (:job_id, :run_id, :seen, :message, CAST(:positions AS integer[]), :compactions, "
    "CAST(:verifications AS integer[])) ON CONFLICT (run_id, job_id) DO UPDATE SET "
    "seen = excluded.seen, message = excluded.message, positions = excluded.positions, "
    "compactions = excluded.compactions, verifications = excluded.verifications "
    "RETURNING number"
)


class Writer:
    """Adds to an index, in a transaction of its caller, who is the only one to do so."""

    def __init__(self, connection: Connection, vocabulary: Vocabulary) -> None:
        self._connection, self._vocabulary = connection, vocabulary
        self._segments = Segments(connection)

    def add(self, entries: Sequence[Entry], seen: Sequence[Seen]) -> None:
        """Add documents, after those that are there, and note how far the index has come."""
        runs = {
            (each.run_id, each.job_id): self._connection.execute(_NOTE, _values(each)).scalar_one()
            for each in seen
        }
        with copying(
            self._connection, "search_documents (at, id, run, message, position, kind)"
        ) as copy:
            for number, entry in enumerate(entries, self._segments.next):
                place = entry.place
                copy.write(
                    f"{entry.at!r}\t{number}\t{runs[place.run_id, place.job_id]}\t"
                    f"{place.message}\t{place.position}\t{KINDS.index(place.kind)}\n"
                )
        listed = self._vocabulary.numbers(self._connection, [entry.words for entry in entries])
        for entry, numbers in zip(entries, listed, strict=True):
            pairs = pairs_of(numbers[len(numbers) - entry.length :])
            self._segments.add(entry.length, entry.at, {*numbers, *pairs})

    def finish(self) -> None:
        """Write what is not written yet: the last of the transaction."""
        self._segments.finish()


def _values(seen: Seen) -> dict[str, Any]:
    return {
        "job_id": seen.job_id,
        "run_id": seen.run_id,
        "seen": seen.seen,
        "message": seen.message,
        "positions": list(seen.positions),
        "compactions": seen.compactions,
        "verifications": list(seen.verifications),
    }
