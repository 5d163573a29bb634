"""What an index costs: the time to make it, and its size."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import text

from bench.audit.generate import Generated
from bench.tables import held, reached
from runner.queries.search.search import nothing, open_index
from runner.store.database import Database

LEAST_BLOCKS_A_SECOND = 2_000
MOST_SHARE = 120.0
_MB = 1e6


def index(url: str, made: Generated) -> dict[str, Any]:
    """Index a whole database that is not indexed yet."""
    with closing(Database(url)) as database:
        size = _bytes(database)
        searches = open_index(database)
        began, worked = time.perf_counter(), time.process_time()
        with searches.up_to_date(nothing):
            seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        taken = searches.size()
    rate, share = made.blocks / seconds, 100 * taken / made.text
    return {
        "text MB": made.text / _MB,
        "database MB": size / _MB,
        "index MB": taken / _MB,
        "index / text %": share,
        "size": held(round(share, 1), MOST_SHARE),
        "blocks / s": rate,
        "rate": reached(round(rate), LEAST_BLOCKS_A_SECOND),
        "blocks / s cpu": made.blocks / cpu,
    }


def _bytes(database: Database) -> int:
    path = database.url.database
    if database.dialect == "sqlite":
        assert path is not None
        return Path(path).stat().st_size
    query = text("SELECT pg_database_size(current_database())")
    return int(database.read(lambda connection: connection.execute(query).scalar_one()))
