"""Searches of every kind, with words of the record itself."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median, quantiles
from typing import Any, NamedTuple

from sqlalchemy import select

import runner.audit
from bench.tables import held
from runner.store.database import Database
from runner.store.tables import blocks, jobs, runs

MOST_MILLISECONDS = 400.0
EACH, QUICK_EACH = 40, 10
_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"[a-z]+(?:[_/][a-z]+){2,}")
_DAY = 86_400.0

# The arguments of one search.
Search = dict[str, Any]


def search(url: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """A row for each kind of search, and one for all of them."""
    with closing(Database(url)) as database:
        mix = list(_mix(_Material(database, random.Random(3)), QUICK_EACH if quick else EACH))
    random.Random(4).shuffle(mix)
    done: dict[str, list[_Done]] = {}
    with runner.audit.open(url) as audit:
        list(audit.search("warmed up"))
        for kind, arguments in mix:
            done.setdefault(kind, []).append(_timed(audit, arguments))
    for kind, searches in sorted(done.items()):
        yield _row(kind, searches)
    every = [each for searches in done.values() for each in searches]
    p95 = _p95([each.ms for each in every])
    yield _row("all", every) | {"time": held(round(p95, 1), MOST_MILLISECONDS)}


class _Done(NamedTuple):
    ms: float
    cpu_ms: float
    found: int


def _timed(audit: runner.audit.Audit, arguments: Search) -> _Done:
    began, worked = time.perf_counter(), time.process_time()
    rows = list(audit.search(**arguments))
    cpu = time.process_time() - worked
    return _Done(1000 * (time.perf_counter() - began), 1000 * cpu, len(rows))


def _row(kind: str, searches: list[_Done]) -> dict[str, Any]:
    taken = [each.ms for each in searches]
    return {
        "search": kind,
        "searches": len(taken),
        "ms": median(taken),
        "p95": _p95(taken),
        "slowest": max(taken),
        "p95 cpu": _p95([each.cpu_ms for each in searches]),
        "found": sum(each.found for each in searches) / len(searches),
    }


def _p95(taken: list[float]) -> float:
    return quantiles(taken, n=20, method="inclusive")[-1]


class _Material:
    """Draws words, phrases and names from texts of the record."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self.chance = chance
        run_ids = database.read(lambda c: c.execute(select(runs.c.id)).scalars().all())
        self.jobs = database.read(lambda c: c.execute(select(jobs.c.id)).scalars().all())
        self.newest = database.read(
            lambda c: c.execute(select(runs.c.created_at).order_by(runs.c.id.desc())).scalar()
        )
        self._texts: list[str] = []
        for run_id in chance.sample(list(run_ids), k=min(150, len(run_ids))):
            query = select(blocks.c.content).where(blocks.c.run_id == run_id).limit(60)
            found = database.read(lambda c, query=query: c.execute(query).scalars().all())
            self._texts += [text for block in found if (text := _text_of(block))]

    def words(self, count: int, shortest: int = 1) -> list[str]:
        """Words that follow each other in one text."""
        while True:
            words = _WORD.findall(self.chance.choice(self._texts))
            if len(words) > count:
                first = self.chance.randrange(len(words) - count)
                drawn = words[first : first + count]
                if all(len(word) >= shortest for word in drawn):
                    return drawn

    def name(self) -> str:
        """A name or a path."""
        while True:
            names = _NAME.findall(self.chance.choice(self._texts))
            if names:
                return self.chance.choice(names)


def _text_of(block: dict[str, Any]) -> str:
    said = block.get("text") or block.get("thinking") or block.get("content") or ""
    return said if isinstance(said, str) else ""


def _mix(material: _Material, each: int) -> Iterator[tuple[str, Search]]:
    kinds: dict[str, Callable[[], Search]] = {
        "a word": lambda: {"text": material.words(1)[0]},
        "two words": lambda: {"text": " ".join(material.words(1) + material.words(1))},
        "a phrase": lambda: {"text": f'"{" ".join(material.words(3))}"'},
        "a prefix": lambda: {"text": f"{material.words(1, shortest=5)[0][:4]}*"},
        "without a word": lambda: {"text": f"{material.words(1)[0]} -{material.words(1)[0]}"},
        "exact, a name": lambda: {"exact": material.name()},
        "exact, inside names": lambda: {"exact": material.name()[2:-2]},
        "in tools' outputs": lambda: {
            "text": " ".join(material.words(2)),
            "sources": ("output",),
            "tool": "Bash",
        },
        "in a job": lambda: {
            "text": material.words(1)[0],
            "job": material.chance.choice(material.jobs),
        },
        "of a month": lambda: {
            "text": material.words(1)[0],
            "since": material.newest - 90 * _DAY,
            "until": material.newest - 60 * _DAY,
            "role": "assistant",
        },
    }
    for kind, arguments in kinds.items():
        for _ in range(each):
            yield kind, arguments()
