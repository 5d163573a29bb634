"""Searching: what the index finds, looked at again in the texts, the best first."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from runner.core.search.excerpt import Excerpt, excerpt
from runner.core.search.matching import Matcher
from runner.core.search.query import Query, Role, Source, Term
from runner.queries.filters import Filters
from runner.queries.find import descendant_ids
from runner.queries.rows import Column, Rows
from runner.store.database import Database
from runner.store.search.catching_up import Progress, Tell, nobody, nothing, searcher
from runner.store.search.documents import SOURCES, UNREAD, Place
from runner.store.search.index import MOST_MATCHES, Match, Matches, Unusable
from runner.store.search.needs import needs_of
from runner.store.search.texts import Found as FoundText
from runner.store.search.texts import call_ids, read_texts

# So many of the matches are looked at to find the best; fewer, if they have more words than these.
_LOOKED_AT, _LEAST_LOOKED_AT = 100, 20
_MOST_WORDS = 50_000
# And so many, where the index is not sure of them, for a page: with a job or a time they are fewer.
_MOST_LOOKED_AT = 20_000
_MOST_AT_ONCE = 2_000
_NO_END = 1_000_000_000
_UNREAD = Query((Term((UNREAD,)),))

COLUMNS = (
    Column("at", "time"),
    Column("job_id"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("message", "integer"),
    Column("position", "integer"),
    Column("source"),
    Column("role"),
    Column("tool"),
    Column("call_id"),
    Column("excerpt"),
    Column("marks", "json"),
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that was found. ``place.message`` and ``place.position`` name a block; ``call_id`` is
    Runner's id of the tool call that it is about."""

    place: Place
    at: float
    item: str | None
    turn: int | None
    role: str | None
    tool: str | None
    call_id: str | None
    excerpt: Excerpt

    @property
    def source(self) -> Source:
        return SOURCES[self.place.kind]

    @property
    def is_block(self) -> bool:
        """Whether it is a block of a conversation, and not something that stands beside."""
        return self.place.kind not in ("system", "compaction", "verification")


@dataclass(frozen=True, slots=True)
class Found:
    """One page of what was found. ``total`` is of all pages; where ``is_least`` is set there may be
    more. ``unread`` is how many texts could not be read and may be matches too; ``is_cut``: not all
    that may be matches were looked at. ``note`` is what the reader must know of it, or empty."""

    hits: tuple[Hit, ...]
    total: int
    is_least: bool = False
    newest_first: bool = False
    unread: int = 0
    is_cut: bool = False

    @property
    def note(self) -> str:
        notes = []
        if self.newest_first:
            notes.append(
                f"more than {MOST_MATCHES:,} matches: those indexed last are first, not the best"
            )
        if self.is_cut:
            notes.append(
                f"only the first {_MOST_LOOKED_AT:,} texts with these words were looked at: narrow it to "
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
        """The hits as rows. ``marks`` are where what was looked for begins and ends in ``excerpt``."""
        return Rows(COLUMNS, map(_row, self.hits), self.note)


def _row(hit: Hit) -> tuple[Any, ...]:
    place, is_block = hit.place, hit.is_block
    return (
        hit.at,
        place.job_id,
        place.run_id or None,
        hit.item,
        hit.turn,
        place.message if is_block else None,
        place.position if is_block else None,
        hit.source,
        hit.role,
        hit.tool,
        hit.call_id,
        hit.excerpt.text,
        [list(mark) for mark in hit.excerpt.marks],
    )


def search(
    database: Database,
    query: Query,
    filters: Filters = Filters(),  # noqa: B008 - it is frozen
    *,
    sources: Collection[Source] = (),
    role: Role | None = None,
    limit: int | None = 20,
    offset: int = 0,
    tell: Tell = nobody,
    progress: Progress = nothing,
) -> Found:
    """What a query finds in all that was committed before; the index is brought up to that first.

    Args:
        filters: what it is limited to.
        sources: kinds of texts, all by default.
        role: whose texts: the user's (results of tools too) or the model's.
        limit, offset: which page, in hits; None for no end.
        tell: is told in a line when the index has to be made anew.
        progress: is told how many rows were indexed, and how many there are, while it takes long.

    Raises:
        UsageError: it asks for too much of the index. UnreachableError: the database, or the index,
            does not answer.
    """
    most = _NO_END if limit is None else limit
    catching_up = searcher(database, tell)

    def look() -> Found:
        with catching_up.up_to_date(progress) as index:
            now = time.time()
            under = descendant_ids(database, filters.run_id) if filters.run_id else ()
            only = replace(filters, tool=None, model=None)  # nobody knows them of what is unread
            unread = needs_of(index, _UNREAD, only, sources, None, now, run_ids=under)
            missing = index.matches(unread).count
            needs = needs_of(index, query, filters, sources, role, now, run_ids=under)
            found = _found(database, query, index.matches(needs), most, offset)
            return replace(found, unread=missing)

    try:
        return look()
    except Unusable:  # found out only where it was looked into: another one is in its place now
        return look()


def _found(database: Database, query: Query, matches: Matches, limit: int, offset: int) -> Found:
    if query.exact is not None or not matches.is_sure:
        return _checked(database, query, matches, limit, offset)
    if matches.count > MOST_MATCHES:
        newest = matches.part(offset, offset + limit)
        hits = _hits(database, query, _texts(database, newest))
        return Found(hits, MOST_MATCHES, is_least=True, newest_first=True)
    return Found(_ranked(database, query, matches, limit, offset), matches.count)


def _ranked(
    database: Database, query: Query, matches: Matches, limit: int, offset: int
) -> tuple[Hit, ...]:
    """A page of matches that need no second look: the best of the first ones, then the others."""
    page: list[_Text] = []
    first = _first(matches)
    if offset < len(first):
        best = _best_first(query, _texts(database, first))
        page = best[offset : offset + limit]
    if offset + limit > len(first):
        others = matches.part(max(offset, len(first)), offset + limit)
        page += _texts(database, others)
    return _hits(database, query, page)


def _first(matches: Matches) -> Sequence[Match]:
    """Those that are looked at to find the best."""
    first = matches.part(0, _LOOKED_AT)
    words = accumulate(match.length for match in first)
    count = sum(so_far <= _MOST_WORDS for so_far in words)
    return first[: max(count, _LEAST_LOOKED_AT)]


def _checked(database: Database, query: Query, matches: Matches, limit: int, offset: int) -> Found:
    """A page of matches that the index is not sure of: their texts are read until it is full."""
    newest_first = matches.count > MOST_MATCHES
    good: list[_Text] = []
    is_cut = False
    start, size = 0, _LOOKED_AT
    part = _first(matches)
    while part:
        texts = _texts(database, part)
        fitting = _best_first(query, texts)
        if start > 0 or newest_first:  # only those that come first are ranked
            chosen = {text.match.place for text in fitting}
            fitting = [text for text in texts if text.match.place in chosen]
        good += fitting
        if len(good) >= offset + limit:
            break
        start, size = start + len(part), min(2 * size, _MOST_AT_ONCE)
        if start >= _MOST_LOOKED_AT and limit < _NO_END:
            is_cut = True
            break
        part = matches.part(start, start + size)
    hits = _hits(database, query, good[offset : offset + limit])
    return Found(
        hits,
        len(good),
        is_least=bool(part),
        newest_first=newest_first and bool(part),
        is_cut=is_cut,
    )


@dataclass(frozen=True, slots=True)
class _Text:
    match: Match
    found: FoundText


def _texts(database: Database, matches: Sequence[Match]) -> list[_Text]:
    """Matches with their texts, in the same order."""
    places = [match.place for match in matches]
    texts = database.read(lambda connection: read_texts(connection, places))
    return [_Text(match, texts[match.place]) for match in matches if match.place in texts]


def _best_first(query: Query, texts: Sequence[_Text]) -> list[_Text]:
    """Those that hold what is asked for."""
    matcher = Matcher(query)
    scored = ((matcher.score(text.found.text), text) for text in texts)
    fitting = [(score, text) for score, text in scored if score is not None]
    fitting.sort(key=lambda each: -each[0])
    return [text for _, text in fitting]


def _hits(database: Database, query: Query, texts: Sequence[_Text]) -> tuple[Hit, ...]:
    about = [(text.match.place, text.found) for text in texts]
    calls = database.read(lambda connection: call_ids(connection, about))
    return tuple(
        Hit(
            place=text.match.place,
            at=text.match.at,
            item=text.found.item,
            turn=text.found.turn,
            role=text.found.role,
            tool=text.found.tool,
            call_id=calls.get(text.match.place),
            excerpt=excerpt(text.found.text, query),
        )
        for text in texts
    )
