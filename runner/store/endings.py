"""Which runs have ended, and how."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from runner.core.conversation import Usage
from runner.core.run import ENDED, Ended
from runner.ports import Ending
from runner.store.connection.database import Database
from runner.store.tables import runs

_COLUMNS = (
    runs.c.id,
    runs.c.last_worker_id,
    runs.c.state,
    runs.c.reason,
    runs.c.detail,
    runs.c.ended_at,
    runs.c.input_tokens,
    runs.c.cache_read_tokens,
    runs.c.cache_creation_tokens,
    runs.c.output_tokens,
)


def endings(database: Database, run_ids: Sequence[str]) -> list[Ending]:
    """Of these runs, those that have ended.

    Raises:
        UnreachableError: the database does not answer.
    """
    query = select(*_COLUMNS).where(runs.c.id.in_(run_ids), runs.c.state.in_(sorted(ENDED)))
    rows = database.read(lambda connection: connection.execute(query).all())
    return [
        Ending(
            run_id,
            worker_id,
            Ended(state, reason, detail),
            at,
            Usage(*tokens),
        )
        for run_id, worker_id, state, reason, detail, at, *tokens in rows
    ]
