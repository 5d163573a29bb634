"""What an index can do, whichever database it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runner.core.search.query import Term
from runner.errors import RunnerError
from runner.store.search.documents import Place

# Beyond these nothing is ranked: a search that finds so much is to be narrowed.
MOST_MATCHES = 50_000


@dataclass(frozen=True, slots=True)
class Needs:
    """What a document must have: every term, one of each group, none of ``without``; and its time
    from ``since`` on and before ``until`` (seconds since the epoch, None for any)."""

    terms: tuple[Term, ...] = ()
    groups: tuple[tuple[Term, ...], ...] = ()
    without: tuple[Term, ...] = ()
    since: float | None = None
    until: float | None = None


class Match(NamedTuple):
    """A document that has what is needed, as the index knows it, with how many words it has; of the newest
    of too many 0."""

    place: Place
    at: float
    length: int


class Matches(Protocol):
    """The documents that have what is needed, as far as the index knows.

    ``count`` is at most ``MOST_MATCHES`` + 1; up to ``MOST_MATCHES`` the shortest come first (of those
    as long the newest), and else the newest. Where ``is_sure`` is false, words that are to stand side
    by side may stand apart, or some of a group be missing.
    """

    count: int
    is_sure: bool

    def part(self, start: int, stop: int) -> Sequence[Match]:
        """Those from the one numbered ``start``, from 0, and before ``stop``."""


class Unusable(RunnerError):  # noqa: N818 - it is no failure: the index is made anew
    """An index that is damaged, of another version, or of another database."""


class Index(Protocol):
    def words_with(self, part: str, most: int, *, at_end: bool = False) -> list[str]:
        """Words that have ``part`` (three characters at least) in them, or at their end; at most
        ``most`` + 1 of them."""

    def matches(self, needs: Needs) -> Matches:
        """What has all that is needed."""


# Told, in a line, what a person should know.
Tell = Callable[[str], None]

# Told how many rows were looked at, and how many there are.
Progress = Callable[[int, int], None]


class Search(Protocol):
    """A database's index, from outside."""

    def up_to_date(self, progress: Progress) -> AbstractContextManager[Index]:
        """The index with all that was committed before.

        Raises:
            UnreachableError: the database or the index does not answer.
        """

    def follow(self) -> int:
        """Add a little of what is not there yet, unless somebody else is adding to it; how many
        documents that were, 0 when there is nothing to do.

        Raises:
            UnreachableError: the database or the index does not answer.
        """

    def renew(self, progress: Progress) -> int:
        """Make the index anew; how many documents it has.

        Raises:
            UnreachableError: the database or the index does not answer.
        """

    def size(self) -> int:
        """The bytes that the index takes."""
