"""Where inputs with certain words in them are, by the index that searches use."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runner.core.search.query import Query, Term
from runner.errors import RunnerError
from runner.store.audit.filters import Filters
from runner.store.connection.database import Database
from runner.store.look.family.places import ids_below
from runner.store.search.catching_up import searcher
from runner.store.search.needs import needs_of

# With more of them, the newest calls are as likely to have what is looked for.
MOST_CANDIDATES = 20_000
# To index more takes longer than to look at every call.
MOST_LEFT = 5_000

Message = tuple[str, int]


class _TooFarBehindError(RunnerError):
    """The index lacks so much that nobody should wait for it here."""


def candidates(
    database: Database, filters: Filters, terms: Sequence[Term], tool: str | None = None
) -> list[Message] | None:
    """The replies that ask for a call with all of these in its input, and perhaps others.

    Args:
        filters: of these the job's and the run's count.
        terms: what the index is asked for; none: it cannot tell.
        tool: only calls of this one.

    Returns:
        The run and the number of each, or None where the index cannot tell: they are too many, or
        it is not there, does not answer, or is far behind.
    """
    if not terms:
        return None
    only = Filters(job_id=filters.job_id, run_id=filters.run_id, tool=tool)
    try:
        with searcher(database).up_to_date(_refuse_to_wait) as index:
            query = Query(tuple(terms))
            under = ids_below(database, only.run_id) if only.run_id else ()
            needs = needs_of(index, query, only, ["input"], "assistant", time.time(), run_ids=under)
            matches = index.matches(needs)
            if matches.count > MOST_CANDIDATES:
                return None
            found = matches.part(0, MOST_CANDIDATES)
    except RunnerError:  # whatever it is: every call can be looked at instead
        return None
    return list(dict.fromkeys((each.place.run_id, each.place.message) for each in found))


def _refuse_to_wait(done: int, all: int) -> None:
    if all - done > MOST_LEFT:
        raise _TooFarBehindError("the index of searches is far behind: see `runner db reindex`")
