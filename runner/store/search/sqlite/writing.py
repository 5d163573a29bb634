"""Adding to the index of a SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from runner.core.search.words import MARK
from runner.store.search.documents import KINDS, Entry
from runner.store.search.sqlite.reading import Last, Open

# What of the vocabulary is known to be there is not asked for again.
_MOST_KNOWN_WORDS = 500_000
_SHORTEST_PART = 3


class Writer:
    """Adds to an index, in the transaction that its caller has begun. Of no use after one that failed."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        """Add documents, after those that are there."""
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM documents").fetchone()
        homes = _homes(connection, {(e.place.run_id, e.place.job_id) for e in entries})
        numbered = list(enumerate(entries, last + 1))
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    homes[entry.place.run_id, entry.place.job_id],
                    KINDS.index(entry.place.kind),
                    entry.place.message,
                    entry.place.position,
                    entry.at,
                    entry.length,
                )
                for number, entry in numbered
            ],
        )
        connection.executemany(
            "INSERT INTO texts (rowid, words) VALUES (?, ?)",
            [(number, " ".join(entry.words)) for number, entry in numbered],
        )
        self._add_words(connection, entries)

    def _add_words(self, connection: sqlite3.Connection, entries: Iterable[Entry]) -> None:
        if len(self._known) > _MOST_KNOWN_WORDS:
            self._known.clear()
        found: set[str] = set()
        for entry in entries:
            found.update(entry.words)
        new = sorted(w for w in found - self._known if len(w) >= _SHORTEST_PART and w[0] != MARK)
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM words").fetchone()
        connection.executemany(
            "INSERT OR IGNORE INTO words (word) VALUES (?)", [(word,) for word in new]
        )
        connection.execute(
            "INSERT INTO parts (rowid, word) SELECT id, word FROM words WHERE id > ?", (last,)
        )
        self._known |= found


def _homes(
    connection: sqlite3.Connection, ids: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """The numbers of runs (and of jobs, for their own texts), given where there are none."""
    rows = sorted(ids)
    connection.executemany("INSERT OR IGNORE INTO homes (run_id, job_id) VALUES (?, ?)", rows)
    query = "SELECT number FROM homes WHERE run_id = ? AND job_id = ?"
    return {row: connection.execute(query, row).fetchone()[0] for row in rows}


def read_last(connection: sqlite3.Connection) -> dict[str, Last]:
    """The rows of the database that the index has looked at last, by table."""
    rows = connection.execute("SELECT name, last, key FROM held")
    return {name: Last(number, key) for name, number, key in rows}


def read_unended(connection: sqlite3.Connection) -> frozenset[Open]:
    """The rows that are to be looked at again."""
    return frozenset(connection.execute("SELECT name, run_id, number FROM unended"))


def note_looked_at(
    connection: sqlite3.Connection, last: Mapping[str, Last], unended: frozenset[Open]
) -> None:
    """Note how far the index has come."""
    connection.executemany(
        "INSERT OR REPLACE INTO held VALUES (?, ?, ?)",
        [(name, noted.number, noted.key) for name, noted in last.items()],
    )
    connection.execute("DELETE FROM unended")
    connection.executemany("INSERT INTO unended VALUES (?, ?, ?)", sorted(unended))
