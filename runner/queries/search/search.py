"""Searching: the index gives candidates, the texts decide, the best come first."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

from runner.core import search as wording
from runner.core.search import Excerpt, Matcher, Query, Role, Source, Term, excerpt
from runner.errors import UsageError
from runner.queries.filters import Filters, descendant_ids
from runner.queries.rows import Rows, columns
from runner.queries.search.documents import Document, Place, Tell, call_ids, read_documents
from runner.queries.search.index import (
    AHEAD,
    DAY_SECONDS,
    UNREAD,
    Group,
    Match,
    Needs,
    Progress,
    again_if_unusable,
    day_of,
)
from runner.queries.search.postgres import PostgresIndex, PostgresLookup
from runner.queries.search.sqlite import SqliteIndex, SqliteLookup
from runner.store.database import Database

# The limits of a search: the newest matches are ranked by length, and the texts of the first are
# read and scored (fewer if they are long).
MOST_RANKED = 1_000
MOST_SCORED, _LEAST_SCORED, _MOST_WORDS_SCORED = 100, 20, 50_000
# The most texts that are read for a page if the index is not sure of its matches.
MOST_READ = 20_000
_MOST_AT_ONCE = 2_000

_NO_END = sys.maxsize
_UNREAD = Query((Term((UNREAD,)),))

_COLUMNS = columns(
    "at:time job_id run_id item turn:integer message:integer position:integer source role tool call_id "
    "excerpt marks:json"
)


Index: TypeAlias = SqliteIndex | PostgresIndex
Lookup: TypeAlias = SqliteLookup | PostgresLookup


def nothing(_done: int, _all: int) -> None:
    """Show no progress."""


def open_index(
    database: Database, tell: Tell = lambda _line: None, *, batch: int | None = None
) -> Index:
    """Return the index of a database. ``tell`` receives a line when the index has to be made again, or a
    text cannot be read; ``batch`` is how many documents are indexed in one transaction."""
    if database.dialect == "sqlite":
        return SqliteIndex(database, tell, batch)
    return PostgresIndex(database, tell, batch)


@dataclass(frozen=True, slots=True)
class Hit:
    place: Place  # message and position name a block of a conversation
    at: float
    item: str | None
    turn: int | None
    role: str | None
    tool: str | None
    call_id: str | None  # Runner's id of the tool call that the text is about
    excerpt: Excerpt

    @property
    def source(self) -> Source:
        return self.place.source

    @property
    def is_block(self) -> bool:
        """True for a block of a conversation."""
        return self.place.kind not in ("system", "compaction", "verification", "session")

    def row(self) -> tuple[Any, ...]:
        _, job_id, run_id, *of_block = self.place
        return (
            *(self.at, job_id, run_id or None, self.item, self.turn),
            *(of_block if self.is_block else (None, None)),
            *(self.source, self.role, self.tool, self.call_id, self.excerpt.text),
            [list(mark) for mark in self.excerpt.marks],
        )


@dataclass(frozen=True, slots=True)
class Found:
    hits: tuple[Hit, ...]
    total: int  # matches on all pages
    query: Query
    is_least: bool = False  # there may be more matches
    is_bounded: bool = False  # only the newest matches were ranked
    is_cut: bool = False  # not all texts that may match were read
    unread: int = 0  # texts that could not be read when indexed, and may match too

    @property
    def count(self) -> str:
        if not self.is_least:
            return f"{self.total:,}"
        return f"{'more than' if self.total == MOST_RANKED else 'at least'} {self.total:,}"

    @property
    def note(self) -> str:
        """A note about the page for the reader, or empty."""
        notes = []
        if self.is_bounded:
            notes.append(
                f"more than {MOST_RANKED:,} texts have these words: the best of the newest "
                f"{MOST_RANKED:,} come first, then older ones"
            )
        if self.is_cut:
            notes.append(
                f"only the first {MOST_READ:,} texts with these words were looked at: narrow it to "
                "a job, a run or a time, or take --limit 0"
            )
        if self.unread:
            texts = "1 text" if self.unread == 1 else f"{self.unread:,} texts"
            notes.append(
                f"{texts} could not be read when indexed, and may match too "
                "(`runner db reindex` tries again, and says which)"
            )
        return "; ".join(notes)

    def rows(self) -> Rows:
        """Return the hits as rows. ``marks`` are the start and end of each match in ``excerpt``."""
        return Rows(_COLUMNS, (hit.row() for hit in self.hits), self.note)


def search(
    database: Database,
    query: Query,
    filters: Filters = Filters(),  # noqa: B008 - it is frozen
    *,
    sources: Collection[Source] = (),  # kinds of texts; all by default
    role: Role | None = None,  # only texts of the user (tool results too), the model, a person …
    limit: int | None = 20,  # hits on the page; None for no end
    offset: int = 0,
    tell: Tell = lambda _line: None,  # receives a line when the index has to be made again
    progress: Progress = nothing,  # called while it takes long
) -> Found:
    """Search all that was committed before. What the index lacks is added first. Raises ``UsageError`` if
    the index would have to be asked for too many words, and ``UnreachableError`` if the database or the
    index does not answer."""
    index = open_index(database, tell)

    def look() -> Found:
        with index.up_to_date(progress) as lookup:
            now = time.time()
            below = descendant_ids(database, filters.run_id) if filters.run_id else ()
            only = replace(filters, tool=None, model=None)  # unknown where a text cannot be read
            unread = needs_of(lookup, _UNREAD, only, sources, None, now, below)
            missing = len(lookup.find(unread, MOST_RANKED))
            needs = needs_of(lookup, query, filters, sources, role, now, below)
            return replace(_page(database, query, lookup, needs, limit, offset), unread=missing)

    return again_if_unusable(look)


def _page(
    database: Database, query: Query, lookup: Lookup, needs: Needs, limit: int | None, offset: int
) -> Found:
    newest = lookup.find(needs, MOST_RANKED + 1)
    is_bounded = len(newest) > MOST_RANKED
    is_phrase = any(len(term.words) > 1 for term in (*query.wanted, *query.unwanted))
    is_sure = query.exact is None and (lookup.knows_phrases or not is_phrase)
    end = _NO_END if limit is None else offset + limit
    page: list[Document] = []
    matcher = Matcher(query)
    matches = read = 0
    is_complete, is_cut = True, False
    for number, part in enumerate(_in_order(lookup, needs, newest)):
        is_cut = not is_sure and limit is not None and read >= MOST_READ
        if matches >= end or is_cut:
            is_complete = False
            break
        first, last = max(0, offset - matches), min(len(part), max(0, end - matches))
        if is_sure and (number > 0 or first >= len(part)):
            page += _read(database, part[first:last])
            matches += len(part)
            continue
        scores = [(matcher.score(each.text or ""), each) for each in _read(database, part)]
        scored = [(score, each) for score, each in scores if score is not None]
        if number == 0:  # the best first
            scored.sort(key=lambda each: -each[0])
        read += len(part)
        page += [each for _, each in scored[first:last]]
        matches += len(part) if is_sure else len(scored)
    if not is_complete and is_sure:
        matches = min(len(newest), MOST_RANKED)
    return Found(
        _hits(database, query, page),
        matches,
        query,
        is_least=not is_complete and (is_bounded or not is_sure),
        is_bounded=is_bounded and not is_complete,
        is_cut=is_cut,
    )


def _in_order(lookup: Lookup, needs: Needs, newest: Sequence[Match]) -> Iterator[Sequence[Match]]:
    """Yield all matches in parts: those to be scored, other ranked ones by length, older ones."""
    ranked = sorted(newest[:MOST_RANKED], key=lambda match: (match.length, -match.number))
    words = accumulate(match.length for match in ranked)
    scored = max(sum(count <= _MOST_WORDS_SCORED for count in words), _LEAST_SCORED)
    start, stop = 0, min(scored, MOST_SCORED)
    while start < len(ranked):
        yield ranked[start:stop]
        start, stop = stop, stop + min(2 * stop, _MOST_AT_ONCE)
    older = newest[:MOST_RANKED] if len(newest) > MOST_RANKED else ()
    while older and (older := lookup.find(needs, _MOST_AT_ONCE, before=older[-1].number)):
        yield older


def _read(database: Database, matches: Sequence[Match]) -> list[Document]:
    places = [match.place for match in matches]
    found = read_documents(database, places)
    return [found[place] for place in places if place in found]


def _hits(database: Database, query: Query, documents: Sequence[Document]) -> tuple[Hit, ...]:
    calls = call_ids(database, documents)
    return tuple(
        Hit(
            place=document.place._replace(position=document.position),
            at=document.at,
            item=document.item,
            turn=document.turn,
            role=document.role,
            tool=document.tool,
            call_id=calls.get(document.place),
            excerpt=excerpt(document.text or "", query),
        )
        for document in documents
    )


# --- The needs of a search ---

# The most words that one part of an exact text may match in the index.
MOST_WORDS = 1_000
_MOST_OPTIONAL_WORDS = 100
_MOST_DAYS = 100


def needs_of(
    lookup: Lookup,
    query: wording.Query,
    filters: Filters,
    sources: Collection[wording.Source],
    role: wording.Role | None,
    now: float,  # seconds since the epoch
    below: Collection[str] = (),  # the runs below the run of the filters
) -> Needs:
    """Return the needs of a query. Those of an exact text match other documents too. Raises ``UsageError``
    if too many words contain it."""
    runs = (filters.run_id, *sorted(below)) if filters.run_id is not None else ()
    days = sorted(set(_days(filters.since, filters.until, now)))
    given: dict[str, Sequence[str | None]] = {
        "r": runs,
        "j": (filters.job_id,),
        "t": (filters.tool,),
        "m": (filters.model,),
        "i": (filters.item,),
        "o": (role,),
        "s": sorted(sources),
        "d": days,
    }
    groups = [
        _any_of(wording.facet(letter, value) for value in values if value is not None)
        for letter, values in given.items()
    ]
    if query.exact is not None:
        groups += _exact(lookup, wording.parts_of(query.exact))
    return Needs(
        *(query.wanted, tuple(filter(None, groups)), query.unwanted, filters.since, filters.until)
    )


def _any_of(words: Iterable[str]) -> Group:
    return tuple(wording.Term((word,)) for word in words)


def _days(since: float | None, until: float | None, now: float) -> Iterator[str]:
    """Yield the days of a period, or none if they are many. The exact times are compared later."""
    if since is None:
        return
    end = now + DAY_SECONDS if until is None else min(until, now + DAY_SECONDS)
    if end - since > _MOST_DAYS * DAY_SECONDS:
        return
    yield AHEAD
    for number in range(int(max(end - since, 0.0) / DAY_SECONDS) + 2):
        yield day_of(since + number * DAY_SECONDS, now)


def _exact(lookup: Lookup, parts: wording.Parts) -> Iterator[Group]:
    """Yield the terms that a text with the exact text must contain: its whole words side by side, and at
    each end a word that ends or starts like it. Very long words are indexed in pieces, so any text that
    has one may contain it."""
    if parts.inner:
        words = lookup.words_with(parts.inner, MOST_WORDS)
        if len(words) > MOST_WORDS:
            raise UsageError(
                f"too many words have {parts.inner!r} in them: give more of the text, or a word too"
            )
        yield _any_of((*words, wording.LONG))
        return
    whole, last = parts.whole, tuple(wording.pieces(parts.last))
    is_cut = bool(last)
    if last and len(last[-1]) < wording.SHORTEST_PART:  # too many words start so
        last, is_cut = last[:-1], False
    firsts = _words_ending(lookup, parts.first, is_needed=not whole and not last)
    if firsts is not None:
        following, may_go_on = (whole[:1], False) if whole else (last, is_cut)
        found = (wording.Term((first, *following), may_go_on) for first in firsts)
        yield (*found, wording.Term((wording.LONG,)))
    if len(whole) > 1 or (whole and not last):
        yield (wording.Term(whole),)
    if last and (whole or firsts is None):
        yield (wording.Term((*whole[-1:], *last), is_cut),)


def _words_ending(lookup: Lookup, part: str, *, is_needed: bool) -> list[str] | None:
    """Return the words that end with ``part``, or None if it is not worth asking for them."""
    if len(part) < wording.SHORTEST_PART:
        return None
    most = MOST_WORDS if is_needed else _MOST_OPTIONAL_WORDS
    words = lookup.words_with(part, most, at_end=True)
    if is_needed and len(words) > most:
        raise UsageError(f"too many words end with {part!r}: give more of the text, or a word too")
    return words if len(words) <= most else None
