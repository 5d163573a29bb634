"""What a search needs a document to have: words, and facets for what it is narrowed to."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runner.core.search.query import SHORTEST_PART, Parts, Query, Role, Source, Term, parts_of
from runner.core.search.words import LONG, facet, pieces
from runner.errors import UsageError
from runner.queries.filters import Filters
from runner.store.search.documents import AHEAD, DAY_SECONDS, day_of
from runner.store.search.index import Index, Needs

_MOST_WORDS = 1_000
_MOST_PAIRED = 50
_MOST_DAYS = 100

_Group = tuple[Term, ...]


def needs_of(
    index: Index,
    query: Query,
    filters: Filters,
    sources: Collection[Source],
    role: Role | None,
    now: float,
    *,
    run_ids: Collection[str] = (),
) -> Needs:
    """What a document must have to be found, perhaps with others that the texts themselves rule out.

    Args:
        now: seconds since the epoch.
        run_ids: what is below the run of the filters.

    Raises:
        UsageError: too many words of the index have the exact text in them.
    """
    groups = list(_narrowed(filters, sources, role, run_ids))
    days = sorted(set(_days(filters.since, filters.until, now)))
    if days:
        groups.append(_any_of(*(facet("day", day) for day in days)))
    if query.exact is not None:
        groups += _exact(index, parts_of(query.exact))
    return Needs(query.wanted, tuple(groups), query.unwanted, filters.since, filters.until)


def _narrowed(
    filters: Filters, sources: Collection[Source], role: Role | None, run_ids: Collection[str]
) -> Iterator[_Group]:
    if filters.run_id is not None:
        yield _any_of(*(facet("run", run) for run in (filters.run_id, *sorted(run_ids))))
    for kind, value in (
        ("job", filters.job_id),
        ("tool", filters.tool),
        ("model", filters.model),
        ("item", filters.item),
        ("role", role),
    ):
        if value is not None:
            yield _any_of(facet(kind, value))
    if sources:
        yield _any_of(*(facet("in", source) for source in sorted(sources)))


def _any_of(*words: str) -> _Group:
    return tuple(Term((word,)) for word in words)


def _days(since: float | None, until: float | None, now: float) -> Iterator[str]:
    """The days that a time can be of, where they are few; the times themselves are looked at later."""
    if since is None:
        return
    end = now + DAY_SECONDS if until is None else min(until, now + DAY_SECONDS)
    if end - since > _MOST_DAYS * DAY_SECONDS:
        return
    yield AHEAD
    for number in range(int(max(end - since, 0.0) / DAY_SECONDS) + 2):
        yield day_of(since + number * DAY_SECONDS, now)


def _exact(index: Index, parts: Parts) -> Iterator[_Group]:
    """What a text has if an exact text is in it: the whole words side by side, and at each end one of
    the words that are there in part. They are asked for one by one, as a phrase for each pair of
    words at the ends would be many."""
    if parts.inner:
        words = index.words_with(parts.inner, _MOST_WORDS)
        if len(words) > _MOST_WORDS:
            raise UsageError(
                f"too many words have {parts.inner!r} in them: give more of the text, or a word too"
            )
        yield _any_of(*words, LONG)
        return
    whole, (last, is_cut) = parts.whole, _beginning(parts.last)
    firsts = _firsts(index, parts.first, is_needed=not whole and not last)
    if firsts and not whole and len(firsts) <= _MOST_PAIRED:
        yield (*(Term((first, *last), is_cut) for first in firsts), *_any_of(LONG))
        return
    if firsts is not None:
        yield (*(Term((first, *whole[:1])) for first in firsts), *_any_of(LONG))
    if len(whole) > 1 or (whole and not last):
        yield (Term(whole),)
    if last:
        yield (Term((*whole[-1:], *last), is_cut),)


def _firsts(index: Index, part: str, *, is_needed: bool) -> list[str] | None:
    """The words that end so; None where they are too many to ask for, and need not be asked for."""
    if len(part) < SHORTEST_PART:
        return None
    words = index.words_with(part, _MOST_WORDS, at_end=True)
    if len(words) <= _MOST_WORDS:
        return words
    if is_needed:
        raise UsageError(f"too many words end with {part!r}: give more of the text, or a word too")
    return None


def _beginning(part: str) -> tuple[tuple[str, ...], bool]:
    """What a text has in a row where a word begins so, and whether the last of it is to be cut."""
    words = tuple(pieces(part))
    if words and len(words[-1]) < SHORTEST_PART:
        return words[:-1], False  # too many words begin so
    return words, bool(words)
