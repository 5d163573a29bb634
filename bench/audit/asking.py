"""The ready questions, asked of the whole record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import select

import runner.audit
from bench.tables import held
from runner.store.database import Database
from runner.store.tables import runs

MOST_SECONDS = 1.0
TIMES = 3
_LIMIT = 100
_DAY = 86_400.0

Question = Callable[[], Iterable[Any]]


def ask(url: str) -> Iterator[dict[str, Any]]:
    """A row for each question."""
    with closing(Database(url)) as database:
        longest = select(runs.c.id, runs.c.job_id, runs.c.ended_at).order_by(runs.c.turns.desc())
        run = database.read(lambda connection: connection.execute(longest.limit(1)).one())
    with runner.audit.open(url) as audit:
        list(audit.search("warmed up"))
        for name, question in _questions(audit, run).items():
            taken, cpu, rows = [], [], 0
            for _ in range(TIMES):
                began, worked = time.perf_counter(), time.process_time()
                rows = sum(1 for _ in question())
                taken.append(time.perf_counter() - began)
                cpu.append(time.process_time() - worked)
            yield {
                "question": name,
                "rows": rows,
                "fastest": min(taken),
                "slowest": max(taken),
                "cpu": max(cpu),
                "time": held(round(max(taken), 3), MOST_SECONDS),
            }


def _questions(audit: runner.audit.Audit, run: Any) -> dict[str, Question]:
    since = run.ended_at - 30 * _DAY
    return {
        "tools": lambda: audit.tools(limit=_LIMIT),
        "tools, of a month": lambda: audit.tools(limit=_LIMIT, since=since, until=run.ended_at),
        "commands": lambda: audit.commands(limit=_LIMIT),
        "commands 'git diff *'": lambda: audit.commands("git diff *", limit=_LIMIT),
        "commands 'nobody ran this'": lambda: audit.commands("nobody ran this", limit=_LIMIT),
        "files": lambda: audit.files(limit=_LIMIT),
        "files 'src/ledger/**'": lambda: audit.files("src/ledger/**", limit=_LIMIT),
        "decisions": lambda: audit.decisions(limit=_LIMIT),
        "decisions, of a job": lambda: audit.decisions(limit=_LIMIT, job=run.job_id),
        "approvals": lambda: audit.approvals(limit=_LIMIT),
        "limits": lambda: audit.limits(limit=_LIMIT),
        "errors": lambda: audit.errors(limit=_LIMIT),
        "costs": lambda: audit.costs(limit=_LIMIT),
        "models": lambda: audit.models(limit=_LIMIT),
        "timeline, the longest run": lambda: audit.timeline(run.id),
    }
