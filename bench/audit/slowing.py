"""How much slower a turn is while an indexer follows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.stage.databases import Databases
from bench.stage.material import make_workspace
from bench.stage.server import serving
from bench.stage.sides import Side, attempts
from bench.tables import held
from runner.engine.dispatcher import follow_index
from runner.queries.search.search import open_index
from runner.store.database import Database

MOST_PERCENT = 5.0
TURNS = 300
ROUNDS, QUICK_ROUNDS = 11, 3


def slow(databases: Databases, kind: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Conversations with and without an indexer, each a pair."""
    place = folder / f"slowed-{kind}"
    place.mkdir()
    with ExitStack() as opened:
        server = opened.enter_context(serving())
        workspace = make_workspace(place)
        database = Database(opened.enter_context(databases.empty(kind)))
        opened.callback(database.close)
        side = opened.enter_context(attempts(database, workspace, server.url))
        side("warm0", TURNS)
        pairs = [
            _pair(database, side, number) for number in range(QUICK_ROUNDS if quick else ROUNDS)
        ]
    alone, beside = ([pair[at] for pair in pairs] for at in (0, 1))
    slower = 100 * (median(one / other for other, one in pairs) - 1)
    return {
        "turns": TURNS,
        "rounds": len(pairs),
        "ms alone": 1000 * median(alone) / TURNS,
        "ms with": 1000 * median(beside) / TURNS,
        "slower %": slower,
        "time": held(round(slower, 1), MOST_PERCENT),
    }


def _pair(database: Database, side: Side, number: int) -> tuple[float, float]:
    """Seconds alone and with an indexer; which comes first takes turns."""
    taken = {}
    for with_indexer in (False, True) if number % 2 else (True, False):
        key = f"{'beside' if with_indexer else 'alone'}{number}"
        if with_indexer:
            with _indexing(database):
                taken[with_indexer] = side(key, TURNS)
        else:
            taken[with_indexer] = side(key, TURNS)
    return taken[False], taken[True]


@contextmanager
def _indexing(database: Database) -> Iterator[None]:
    """An indexer that follows, from all that is there."""
    searches = open_index(database)
    with searches.up_to_date(lambda done, all: None):
        pass
    stopping = threading.Event()
    thread = threading.Thread(target=follow_index, args=(searches, stopping), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
