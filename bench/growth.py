"""(b) What a turn adds to the database, and what is written for it, early and late in a run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event, select, text

from bench.stage.databases import Databases
from bench.stage.material import make_workspace
from bench.stage.server import serving
from bench.stage.sides import attempts
from bench.tables import Table, held
from runner.core.conversation import ModelReply, ModelRequest
from runner.ports import Interrupt, Model
from runner.store.database import Database
from runner.store.tables import blocks

MOST_COMMITS = 4
MOST_WAL_KB = 100
KB = 1024
WINDOWS = ((10, 30), (190, 210))
LENGTH = WINDOWS[-1][1] + 2


@dataclass(frozen=True)
class Written:
    """What a database has written and holds: bytes, and commits."""

    held: int
    wal: int
    commits: int


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Bytes held and written and commits per turn around turn 20 and turn 200."""
    workspace = make_workspace(folder)
    table = Table("growth", "(b) what a turn adds to the database, and writes")
    for kind in databases.kinds:
        with serving(replay=True) as server, databases.empty(kind) as url:
            table.rows += _rows(kind, Database(url), workspace, server.url)
    table.notes += [
        "means over 20 turns; content: the blocks as JSON",
        "held: SQLite the file after a checkpoint, Postgres pg_total_relation_size of its tables",
        "wal: SQLite the log without a checkpoint in between, Postgres pg_current_wal_lsn",
        "commits: SQLite commit frames in the log, Postgres those of the attempt's process",
    ]
    return [table]


def _rows(kind: str, database: Database, workspace: Path, url: str) -> list[dict[str, Any]]:
    meter = SqliteMeter(database) if kind == "sqlite" else PostgresMeter(database)
    seen: dict[int, Written] = {}
    edges = {turn for window in WINDOWS for turn in window}

    def look(turn: int) -> None:
        if turn in edges:
            seen[turn] = meter.read()

    with attempts(database, workspace, url, lambda model: Watched(model, look)) as attempt:
        attempt("growth", LENGTH)
    rows = []
    for first, last in WINDOWS:
        turns = last - first
        content = _content(database, first, last) / turns
        added = (seen[last].held - seen[first].held) / turns
        wal = (seen[last].wal - seen[first].wal) / turns / KB
        commits = (seen[last].commits - seen[first].commits) / turns
        most = content * 1.2 + 4 * KB
        rows.append(
            {
                "database": kind,
                "turns": f"{first}-{last}",
                "content B": content,
                "held B": added,
                "held / content": added / content,
                "held": held(round(added), round(most)),
                "wal KB": wal,
                "wal": held(wal, MOST_WAL_KB),
                "commits": commits,
                "number": held(commits, MOST_COMMITS),
            }
        )
    database.close()
    return rows


class Watched:
    """A model that tells before each call which turn it begins (from 0)."""

    def __init__(self, model: Model, look: Callable[[int], None]) -> None:
        self._model = model
        self._look = look

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        self._look(request.reply_number)
        return self._model.complete(request, interrupt, on_text)

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        return self._model.count(request, interrupt)

    def window(self, model: str) -> int | None:
        return self._model.window(model)


def _content(database: Database, first: int, last: int) -> int:
    """Bytes of the blocks of the turns after ``first``, up to ``last``."""
    query = select(blocks.c.content).where(blocks.c.turn > first, blocks.c.turn <= last)
    found = database.read(lambda connection: connection.execute(query).scalars().all())
    return sum(
        len(json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode())
        for block in found
    )


class SqliteMeter:
    """Reads the file and its write-ahead log, which nobody else checkpoints meanwhile.

    Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
    """

    _HEADER = 32
    _FRAME_HEADER = 24

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = Path(f"{database.url.database}-wal")
        self._wal = self._commits = 0
        database.close()
        for engine in (database.writer, database.reader):
            event.listen(engine, "connect", _checkpoint_never)

    def read(self) -> Written:
        """What is there now; empties the log."""
        log = self._log.read_bytes()
        page = int.from_bytes(log[8:12])
        frame = self._FRAME_HEADER + page
        self._wal += max(0, len(log) - self._HEADER)
        self._commits += sum(
            1
            for at in range(self._HEADER, len(log), frame)
            if int.from_bytes(log[at + 4 : at + 8])  # the database's size, in a commit's last frame
        )

        path = self._database.url.database
        assert path is not None
        with closing(sqlite3.connect(path)) as connection:
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError("the log could not be emptied: a transaction was open")
        return Written(Path(path).stat().st_size, self._wal, self._commits)


def _checkpoint_never(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA wal_autocheckpoint=0")


class PostgresMeter:
    """Asks the server, and counts the commits of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._commits = 0
        event.listen(database.writer, "commit", self._count)

    def _count(self, _connection: Any) -> None:
        self._commits += 1

    def read(self) -> Written:
        """What is there now."""
        commits = self._commits
        query = text(
            "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal, (SELECT sum(pg_total_relation_size(oid))"
            " FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace) AS held"
        )
        row = self._database.read(lambda connection: connection.execute(query).one())
        self._commits = commits
        return Written(int(row.held), int(row.wal), commits)
