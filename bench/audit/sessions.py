"""Sessions of Claude Code, imported: the runs of a made-up record, exported as sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from sqlalchemy import select

from bench.audit.generate import NEWEST
from runner.core.run import Author
from runner.core.text import json_line
from runner.exchange.claude_code import session_lines
from runner.exchange.sessions import EmptySessionError
from runner.store.database import Database
from runner.store.exports import load_recorded
from runner.store.sessions import import_session
from runner.store.tables import runs

SESSIONS = 1_000
QUICK_SESSIONS = 50


def bring(record: str, url: str, most: int) -> int:
    """Import the newest runs of the record at one URL as sessions into the database at another, and
    return how many sessions were imported: at most ``most``."""
    author, brought = Author("bench"), 0
    with closing(Database(url)) as database:
        for run_id, lines in _sessions_of(record):
            try:
                import_session(database, {"": lines}, run_id, author, NEWEST)
            except EmptySessionError:
                continue
            brought += 1
            if brought == most:
                break
    return brought


def _sessions_of(record: str) -> Iterator[tuple[str, list[bytes]]]:
    with closing(Database(record)) as database:
        query = select(runs.c.id).where(runs.c.parent_run.is_(None)).order_by(runs.c.id.desc())
        for row in database.rows(query):
            recorded = load_recorded(database, row.id)
            yield row.id, [json_line(line).strip() for line in session_lines(recorded, "bench")]
