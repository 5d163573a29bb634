"""All figures about the record, one database after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.audit.asking import ask
from bench.audit.generate import Generated, generate
from bench.audit.indexing import index
from bench.audit.searching import search
from bench.audit.sessions import QUICK_SESSIONS, SESSIONS, bring
from bench.audit.slowing import slow
from bench.stage.databases import Databases
from bench.tables import Table

BLOCKS = 1_000_000
QUICK_BLOCKS = 50_000


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """What the index costs, what searches and questions take, and what a turn is slowed by."""
    blocks = QUICK_BLOCKS if quick else BLOCKS
    indexed = Table("audit index", f"(h) the index of {blocks:,} blocks")
    searched = Table(
        "audit search", f"(h) milliseconds of a search's first page, {blocks:,} blocks"
    )
    asked = Table("audit questions", f"(h) seconds of a ready question, {blocks:,} blocks")
    most = QUICK_SESSIONS if quick else SESSIONS
    imported = Table(
        "audit sessions", f"(h) seconds of a ready question, {most:,} imported sessions"
    )
    slowed = Table(
        "audit turns", "(h) milliseconds per turn, with and without an indexer beside it"
    )
    for kind in databases.kinds:
        with databases.empty(kind) as url:
            made = _made(kind, url, blocks)
            indexed.rows.append({"database": kind, **index(url, made)})
            searched.rows += [{"database": kind, **row} for row in search(url, quick=quick)]
            asked.rows += [{"database": kind, **row} for row in ask(url)]
            with databases.empty(kind) as other:
                sessions = bring(url, other, most)
                imported.rows += [
                    {"database": kind, "sessions": sessions, **row} for row in ask(other)
                ]
        slowed.rows.append({"database": kind, **slow(databases, kind, folder, quick=quick)})
    indexed.notes += [
        "text: bytes that can be found; database: bytes with everything but the index",
        "cpu: blocks for each second of this process's processor time; Postgres' own is not in it",
    ]
    searched.notes += [
        "words are drawn from texts of the record, as often as they are there: 'the' is among them",
        "each with its first 20 places, excerpts included; p95 of all is held against the target",
        "cpu: this process's own; SQLite works in it, Postgres beside it",
    ]
    asked.notes += ["slowest of three times, the first of them with nothing read before"]
    slowed.notes += [
        "an attempt and an indexer in one process, as in a worker; conversations in turns"
    ]
    imported.notes += ["the newest runs of the same record, exported as sessions"]
    return [indexed, searched, asked, imported, slowed]


def _made(kind: str, url: str, blocks: int) -> Generated:
    began = time.monotonic()
    made = generate(url, blocks, tell=_progress(kind, blocks))
    print(f"\r{kind}: {made.blocks:,} blocks in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return made


def _progress(kind: str, blocks: int) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{kind}: {done:,} of {blocks:,} blocks", end="", file=sys.stderr)

    return tell
