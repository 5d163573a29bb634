"""Entries of an index, the needs of a search, and the interface of both indexes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Connection, Select, bindparam, or_, select

from runner.core import search as wording
from runner.core.agents import item_of
from runner.errors import RunnerError
from runner.queries.search.documents import (
    BLOCKS,
    COMPACTIONS,
    SESSION_ROWS,
    SYSTEMS,
    VERIFICATIONS,
    Document,
    Origin,
    Place,
    Reader,
    Tell,
    unread,
)
from runner.store.jobs import SESSIONS
from runner.store.tables import blocks, compactions, jobs, verifications

# Marks a document that could not be read: it has no words.
UNREAD = f"{wording.MARK}unread"

DAY_SECONDS = 86_400.0
AHEAD = "ahead"


# The most characters of a batch for each of its documents, beside one long text.
CHARACTERS_EACH = 2_000

# Receives how many rows are indexed, and how many there are.
Progress = Callable[[int, int], None]


T = TypeVar("T")
Group = tuple[wording.Term, ...]


class Entry(NamedTuple):
    place: Place
    at: float
    facets: list[str]  # words for its properties; they start with MARK
    words: Sequence[str]  # the words of its text, in order


def entry_of(document: Document, now: float, tell: Tell) -> Entry:
    """Return the index entry of a document. ``now`` is in seconds since the epoch."""
    try:
        return _entry_of(document, now)
    except Exception as error:  # the row holds anything: all others are still to be found
        return _entry_of(unread(document.place, document.at, error, tell), now)


def _entry_of(document: Document, now: float) -> Entry:
    place, item = document.place, document.item
    given: list[tuple[str, str | None]] = [
        *(("s", place.source), ("j", place.job_id), ("d", day_of(document.at, now))),
        *(("r", place.run_id or None), ("o", document.role), ("o", document.spoken_by)),
        *(("t", document.tool), ("m", document.model)),
    ]
    if item is not None:
        # The item of a sub-agent is found by the item that its tree works on, too.
        given += [("i", each) for each in {item, item_of(place.run_id, item)}]
    facets = [wording.facet(letter, value) for letter, value in given if value is not None]
    if document.text is None:
        facets.append(UNREAD)
    folded = wording.fold(document.text or "")
    words = folded.split()
    if max(map(len, words), default=0) >= wording.LONGEST_WORD:
        words = wording.split(folded)
        facets.append(wording.LONG)
    return Entry(place, document.at, facets, words)


def day_of(at: float, now: float) -> str:
    """Return the day of a time in UTC, as ``2026-11-22``, or ``AHEAD`` for a time to come."""
    if at >= now + DAY_SECONDS:
        return AHEAD
    return _day(int(max(at, 0.0) // DAY_SECONDS))


@lru_cache(maxsize=1024)
def _day(number: int) -> str:
    return str(datetime.fromtimestamp(number * DAY_SECONDS, UTC).date())


@dataclass(frozen=True, slots=True)
class Needs:
    """Conditions on a document that a search finds."""

    terms: tuple[wording.Term, ...] = ()  # all of these
    groups: tuple[Group, ...] = ()  # one of each group
    without: tuple[wording.Term, ...] = ()  # none of these
    since: float | None = None  # seconds since the epoch
    until: float | None = None


class Match(NamedTuple):
    number: int  # documents that are indexed later have higher numbers
    place: Place
    at: float
    length: int  # in words


class Unusable(RunnerError):  # noqa: N818 - it is no failure: the index is made again
    """The index is damaged, of another version, or of another database."""


def again_if_unusable(work: Callable[[], T]) -> T:
    """Do the work, and once more if another index had to take the place of the first."""
    try:
        return work()
    except Unusable:
        return work()


# --- What an index lacks ---


# A function that runs SQL where ``runs`` and ``search_runs`` are both visible, and returns the rows.
Ask = Callable[[str, Mapping[str, Any]], Sequence[Any]]

_ROWS_AT_ONCE = 20

# Anything added to a run increases one of its counters.
_COUNTED = "r.revision + r.event_count + r.message_count"
_CHANGED = f"""
FROM runs AS r LEFT JOIN search_runs AS s ON s.run_id = r.id AND s.job_id = r.job_id
WHERE (s.number IS NULL OR s.seen <> {_COUNTED})
"""
_CHANGED_RUNS = f"""
SELECT r.id, r.job_id, (SELECT source FROM jobs WHERE jobs.id = r.job_id), {_COUNTED} AS counted,
    CASE WHEN r.ended_at IS NULL THEN r.message_count END,
    r.compaction_count, EXISTS (SELECT 1 FROM verifications AS v WHERE v.run_id = r.id),
    s.number, s.seen, s.message, s.positions, s.compactions, s.verifications
{_CHANGED} AND r.id > :after ORDER BY r.id LIMIT 100
"""
_NEW_JOBS = """
SELECT id FROM jobs AS j WHERE id > :after
    AND NOT EXISTS (SELECT 1 FROM search_runs AS s WHERE s.run_id = '' AND s.job_id = j.id)
ORDER BY id LIMIT 100
"""
# About how many blocks the index lacks.
_MISSING = f"""
SELECT sum(CASE WHEN r.message_count > s.message THEN r.message_count - s.message
    WHEN s.message IS NULL THEN r.message_count ELSE 1 END) {_CHANGED}
"""

# Stores how much of a run is indexed.
NOTE = """
INSERT INTO search_runs
    (number, job_id, run_id, seen, message, positions, compactions, verifications)
VALUES (:number, :job_id, :run_id, :seen, :message, :positions, :compactions, :verifications)
ON CONFLICT (number) DO UPDATE SET seen = excluded.seen, message = excluded.message,
    positions = excluded.positions, compactions = excluded.compactions,
    verifications = excluded.verifications
"""


# Indexed runs and jobs that the database no longer has.
GONE = """
SELECT s.number FROM search_runs AS s
WHERE NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.id = s.run_id)
    AND NOT (s.run_id = '' AND EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = s.job_id)) LIMIT 100
"""


def _new(origin: Origin, *conditions: ColumnElement[bool]) -> Select[Any]:
    run_id, *key = origin.table.primary_key.columns
    query = origin.query.where(run_id == bindparam("run_id"), *conditions)
    return query.order_by(*key).limit(_ROWS_AT_ONCE)


_LAST: BindParameter[int] = bindparam("message")
_MESSAGE = blocks.c.message
_IS_NEW_THERE = blocks.c.position.not_in(bindparam("positions", expanding=True))
_IS_FINAL = or_(blocks.c.type != "tool_result", bindparam("final") > _MESSAGE)
_ALL_FINAL = 2**31 - 1
# By table: the rows of a run that the index lacks.
_NEW_ROWS = {
    BLOCKS: _new(BLOCKS, _MESSAGE >= _LAST, or_(_MESSAGE > _LAST, _IS_NEW_THERE), _IS_FINAL),
    COMPACTIONS: _new(COMPACTIONS, compactions.c.number > bindparam("compactions")),
    VERIFICATIONS: _new(
        VERIFICATIONS,
        verifications.c.ended_at.is_not(None),
        verifications.c.number.not_in(bindparam("verifications", expanding=True)),
    ),
}


def is_up_to_date(ask: Ask) -> bool:
    return not any(ask(query, {"after": ""}) for query in (_NEW_JOBS, _CHANGED_RUNS))


def add_all(add: Callable[[Progress], int], progress: Progress) -> int:
    """Add batches until one is empty, and return how many documents were added."""
    total = 0

    def tell(done: int, all: int) -> None:
        progress(total + done, total + all)

    while added := add(tell):
        total += added
    progress(total, total)
    return total


@dataclass(slots=True)
class _Seen:
    """The indexed part of a run."""

    number: int  # of the run in the index
    job_id: str
    run_id: str = ""  # empty for a system prompt
    seen: int = 0  # the sum of the run's counters; negative until all of it is indexed
    message: int = 0  # the last message; it may grow, as results of one reply come in any order
    positions: list[int] = field(default_factory=list)  # the blocks of that message
    compactions: int = 0
    verifications: list[int] = field(default_factory=list)

    def add(self, origin: Origin, row: Any) -> None:
        if origin is COMPACTIONS:
            self.compactions = row.number
        elif origin is VERIFICATIONS:
            self.verifications.append(row.number)
        elif row.message == self.message:
            self.positions.append(row.position)
        else:
            self.message, self.positions = row.message, [row.position]


class Additions:
    """Reads the documents that an index lacks: system prompts of new jobs, and texts of runs whose counters
    have changed (the counters are read first).

    Args:
        source: a connection that sees one snapshot of the data.
        most: limits the documents.
        progress: receives the number of documents read, and of all that were lacking.
    """

    def __init__(
        self, ask: Ask, source: Connection, most: int, tell: Tell, progress: Progress | None = None
    ) -> None:
        self._ask, self._source, self._tell = ask, source, tell
        self._reader = Reader(source, tell)
        self._done, self._most, self._room = 0, most, most * CHARACTERS_EACH
        self._progress = progress
        self._missing = int(ask(_MISSING, {})[0][0] or 0) if progress else 0
        self._now = time.time()
        self._next_run = ask("SELECT coalesce(max(number), 0) + 1 FROM search_runs", {})[0][0]
        self._seen: list[_Seen] = []
        self._replacing: dict[str, bool] = {}  # by job
        self.forgotten: list[int] = []  # numbers of runs to index again from the start

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield the missing entries, each with the number of its run."""
        for (job_id,) in self._pages(_NEW_JOBS):
            seen = self._new(job_id)
            for row in SYSTEMS.rows(self._source, [(job_id,)]):
                yield from self._taken(seen, SYSTEMS, row)
            self._seen.append(seen)
        for row in self._pages(_CHANGED_RUNS):
            yield from self._of_run(row)

    def notes(self) -> list[dict[str, Any]]:
        """Return the values for ``NOTE`` after all entries were added."""
        lists = ("positions", "verifications")
        return [
            asdict(seen) | {name: json.dumps(getattr(seen, name)) for name in lists}
            for seen in self._seen
        ]

    def _of_run(self, changed: Sequence[Any]) -> Iterator[tuple[int, Entry]]:
        """Yield the missing entries of a run, a row of ``_CHANGED_RUNS``."""
        run_id, job_id, source, counted, messages, compacted, verified, *known = changed
        number, before, *held = known
        seen = self._new(job_id, run_id) if number is None else _Seen(number, job_id, run_id)
        if number is not None and source == SESSIONS and before != -counted:
            self.forgotten.append(number)  # an imported session may grow anywhere
        elif number is not None:
            seen.message, positions, seen.compactions, checked = held
            seen.positions, seen.verifications = json.loads(positions), json.loads(checked)
        self._seen.append(seen)
        seen.seen = -counted
        if source == SESSIONS and not (seen.message or seen.positions):
            for row in SESSION_ROWS.rows(self._source, [(run_id,)]):
                yield from self._taken(seen, SESSION_ROWS, row)
        is_open = messages is not None and self._replaces_results(job_id)
        final = {"final": messages if is_open else _ALL_FINAL}
        for origin, has_any in (
            (BLOCKS, True),
            (COMPACTIONS, compacted),
            (VERIFICATIONS, verified),
        ):
            new = _NEW_ROWS[origin]
            rows: Sequence[Any] = range(_ROWS_AT_ONCE if has_any else 0)
            while len(rows) == _ROWS_AT_ONCE:
                rows = self._source.execute(new, asdict(seen) | final).all()
                for row in rows:
                    yield from self._taken(seen, origin, row)
                    seen.add(origin, row)
                    if self._is_full:
                        return
        seen.seen = counted

    def _replaces_results(self, job_id: str) -> bool:
        """True if a job's hooks may replace results until these are part of the conversation."""
        if job_id not in self._replacing:
            # The whole value: Postgres reads no part of JSON that holds a null character.
            spec = self._source.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
            events = [hook["event"] for hook in spec.get("hooks", ())]
            self._replacing[job_id] = "PostToolUse" in events
        return self._replacing[job_id]

    def _new(self, job_id: str, run_id: str = "") -> _Seen:
        self._next_run += 1
        return _Seen(self._next_run - 1, job_id, run_id)

    @property
    def _is_full(self) -> bool:
        return self._done >= self._most or self._room <= 0

    def _taken(self, seen: _Seen, origin: Origin, row: Any) -> Iterator[tuple[int, Entry]]:
        for document in self._reader.documents(origin, row):
            self._done += 1
            self._room -= len(document.text or "")
            if self._progress is not None:
                self._progress(self._done, max(self._done, self._missing))
            yield seen.number, entry_of(document, self._now, self._tell)

    def _pages(self, query: str) -> Iterator[Any]:
        """Yield the rows of a query in order of their ids, until enough documents were read."""
        after = ""
        while rows := self._ask(query, {"after": after}):
            for row in rows:
                if self._is_full:
                    return
                yield row
            after = rows[-1][0]
