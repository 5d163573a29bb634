"""Looking in the index of a SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from runner.core.search.query import Term
from runner.core.search.words import MARK
from runner.store.search.documents import KINDS, Place
from runner.store.search.index import MOST_MATCHES, Match, Needs

# A prefix that fewer words have is looked up as these words: FTS5 itself first puts the lists of all of
# them together, whole. Of more words, rare ones mostly, that is faster.
_MOST_BEGUN = 4_000
_MOST_BEGUN_TOGETHER = 10_000
_MOST_PHRASES = 20
_MOST_PHRASES_ANCHORED = 100
_TOGETHER = 32


class SqliteIndex:
    """``Index`` over the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """See the port."""
        trigrams = {part[at : at + 3] for at in range(len(part) - 2)}
        found = self._connection.execute(
            "SELECT word FROM words WHERE id IN (SELECT rowid FROM parts WHERE parts MATCH ?) "
            "AND instr(word, ?) AND (NOT ? OR substr(word, -?) = ?) LIMIT ?",
            (_all(trigrams), part, at_end, len(part), part, most + 1),
        )
        return [word for (word,) in found]

    def matches(self, needs: Needs) -> SqliteMatches:
        """See the port."""
        return SqliteMatches(self._connection, needs)


class SqliteMatches:
    """``Matches`` in the file."""

    def __init__(self, connection: sqlite3.Connection, needs: Needs) -> None:
        self._connection = connection
        expression, self.is_sure = _expression(connection, needs)
        self._values = {"needed": expression, "since": needs.since, "until": needs.until}
        self._newest = "rowid"
        self._all = "SELECT rowid AS id FROM texts WHERE texts MATCH :needed"
        if needs.since is not None or needs.until is not None:
            self._newest = "t.id"
            self._all = (
                f"SELECT d.id FROM ({self._all} ORDER BY rowid DESC) AS t "
                "CROSS JOIN documents AS d ON d.id = t.id "
                "WHERE (:since IS NULL OR d.at >= :since) AND (:until IS NULL OR d.at < :until)"
            )
        connection.execute("DROP TABLE IF EXISTS temp.found")
        connection.execute("CREATE TEMP TABLE found (id INTEGER PRIMARY KEY)")
        few = f"{self._all} LIMIT {MOST_MATCHES + 1}"
        self.count = connection.execute(f"INSERT INTO found {few}", self._values).rowcount

    def part(self, start: int, stop: int) -> list[Match]:
        """See the port."""
        found, order, page = "found", "d.length, d.id DESC", "LIMIT :most OFFSET :start"
        if self.count > MOST_MATCHES:
            found, order = f"({self._all} ORDER BY {self._newest} DESC {page})", "d.id DESC"
            page = ""
        rows = self._connection.execute(
            f"SELECT h.job_id, h.run_id, d.kind, d.message, d.position, d.at, d.length "
            f"FROM {found} AS t "
            "CROSS JOIN documents AS d ON d.id = t.id CROSS JOIN homes AS h ON h.number = d.home "
            f"ORDER BY {order} {page}",
            self._values | {"start": start, "most": stop - start},
        )
        return [
            Match(Place(KINDS[kind], job_id, run_id, message, position), at, length)
            for job_id, run_id, kind, message, position, at, length in rows
        ]


def _expression(connection: sqlite3.Connection, needs: Needs) -> tuple[str, bool]:
    """What is needed, as FTS5 has it (https://sqlite.org/fts5.html#full_text_query_syntax), and whether
    it is all that is needed."""
    wanted = [_phrases(connection, (term,)) for term in needs.terms]
    groups = [_phrases(connection, group) for group in needs.groups]
    kept = [*wanted, *_worthwhile(groups)]
    unwanted = (_phrases(connection, (term,)) for term in needs.without)
    expression = f"({' AND '.join(map(_any, kept))}){''.join(f' NOT {_any(p)}' for p in unwanted)}"
    return expression, len(kept) == len(wanted) + len(groups)


def _worthwhile(groups: Sequence[list[str]]) -> list[list[str]]:
    """Groups but for those of many phrases, of which the least is kept unless it has very many and there
    is a phrase that must be there anyway: to look for the others costs more than to look again at the
    texts that they would rule out."""
    of_phrases = [group for group in groups if any(" " in each for each in group)]
    costly = sorted((group for group in of_phrases if len(group) > 1), key=len)
    is_anchored = len(costly) < len(of_phrases)
    most = [_MOST_PHRASES_ANCHORED if is_anchored else _MOST_BEGUN_TOGETHER]
    most += [_MOST_PHRASES] * len(costly)
    left_out = [group for group, limit in zip(costly, most, strict=False) if len(group) > limit]
    return [group for group in groups if group not in left_out]


def _phrases(connection: sqlite3.Connection, terms: Sequence[Term]) -> list[str]:
    """Terms as phrases, one of which a text has if it has one of the terms."""
    phrases: list[str] = []
    for term in terms:
        *words, last = term.words
        most = min(_MOST_BEGUN, _MOST_BEGUN_TOGETHER // len(terms))
        begun = _begun(connection, last, most) if term.is_prefix else [last]
        phrases += [f'"{" ".join((*words, word))}"' for word in begun]
        if not begun:
            phrases.append(f'"{" ".join(term.words)}" *')
    return phrases


def _begun(connection: sqlite3.Connection, beginning: str, most: int) -> list[str]:
    """The words that begin so; none where they are not fewer than ``most``."""
    # By their bytes, which words are in the order of: no character comes after the last one.
    query = "SELECT word FROM words WHERE word >= ? AND word < ? LIMIT ?"
    values = (beginning, beginning + chr(0x10FFFF), most)
    found = [word for (word,) in connection.execute(query, values)]
    # Words of two letters are not kept there.
    return sorted({beginning, *found}) if len(found) < most else []


def _any(phrases: Sequence[str]) -> str:
    """One of some phrases. For each match FTS5 goes through all that stand in one OR, and makes one OR of
    several, however they are nested, unless something keeps them apart: here a word that no text has."""
    if len(phrases) <= _TOGETHER:
        return f"({' OR '.join(phrases)})"
    parts = (phrases[start : start + _TOGETHER] for start in range(0, len(phrases), _TOGETHER))
    return f"({' OR '.join(f'({_any(part)} NOT {MARK})' for part in parts)})"


def _all(words: Iterable[str]) -> str:
    return " AND ".join(f'"{word}"' for word in sorted(words))
