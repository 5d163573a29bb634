"""What of an index of a Postgres database is changed by more than adding to it."""

from __future__ import annotations

from itertools import groupby

from sqlalchemy import Connection, text

from runner.store.search.postgres.lists import GONE, STRETCH, packed

# "runner s": whoever changes the index holds it until the end of the transaction.
LOCK = 0x72756E6E65722073

_OF_RUN = text("DELETE FROM search_runs WHERE run_id = :run_id RETURNING number")
_DOCUMENTS = text("DELETE FROM search_documents WHERE run = :number RETURNING id")
_GONE = text(
    f"INSERT INTO search_large AS l VALUES ({GONE}, :first, :gone) "
    "ON CONFLICT (number, first) DO UPDATE SET list = l.list || excluded.list"
)


def lock(connection: Connection) -> None:
    """Wait until nobody else changes the index, and be the one."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=LOCK))


def forget(connection: Connection, run_id: str) -> None:
    """Have the index know nothing of a run, in the transaction that changes what it has looked at
    already: it is looked at anew. The lists keep its documents, as those that are gone."""
    lock(connection)
    number = connection.execute(_OF_RUN, {"run_id": run_id}).scalar()
    if number is None:
        return
    ids = sorted(connection.execute(_DOCUMENTS, {"number": number}).scalars())
    for stretch, of_stretch in groupby(ids, lambda each: each // STRETCH):
        gone = packed([each % STRETCH for each in of_stretch])
        connection.execute(_GONE, {"first": stretch * STRETCH, "gone": gone})
