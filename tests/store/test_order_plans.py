"""The cost of choosing the next runs does not grow with the number of queued runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection

from runner.store import due_runs, jobs, times
from runner.store.database import Database
from runner.store.statements import execute
from tests.store.attempts import claim, submit_one
from tests.store.examples import NOW, submission

QUEUED = 20_000
MOST = 32
LOOKS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "lines": (due_runs._WAITING_BY_JOB, {"most": MOST, "now": NOW}),
    "in hand": (due_runs._IN_HAND_BY_JOB, {}),
    "take": (due_runs._TAKE, {"job": "", "rank": 2, "most": MOST, "now": NOW}),
    "window": (
        times._BEGIN_LATER,
        {
            "job": "",
            "rank": 2,
            "most": MOST,
            "now": NOW,
            "opens": NOW + 9,
            "deadline": 9.0,
            "why": "",
        },
    ),
    "lost messages": (due_runs._LOST, {"before": NOW - 15, "now": NOW}),
}
_COLUMNS = "id, job_id, item_key, state, created_at, due_at, max_turns, token_ceiling, progress"
_NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})",
    "postgresql": "WITH numbers AS (SELECT n FROM generate_series(1, {}) AS n)",
}


def add_runs(database: Database, job_id: str, count: int, state: str) -> None:
    """Many runs at once, as a submission or the work of days leaves them."""
    due = NOW if state == "queued" else "NULL"
    row = f"'{job_id}_' || n, '{job_id}', 'k', '{state}', {NOW}, {due}, 5, 1000, '{{}}'"
    numbers = _NUMBERS[database.dialect].format(count)
    fill = f"INSERT INTO runs ({_COLUMNS}) {numbers} SELECT {row} FROM numbers"
    if database.dialect == "sqlite":  # its WITH comes first
        fill = f"{numbers} INSERT INTO runs ({_COLUMNS}) SELECT {row} FROM numbers"
    database.write(lambda connection: connection.exec_driver_sql(fill))


def visited(connection: Connection, definition: Any, values: Mapping[str, Any]) -> int:
    """How many rows Postgres, or instructions SQLite, needs for a statement."""
    if connection.dialect.name == "sqlite":
        steps = iter(range(10**9))
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: next(steps) < 0, 1)
        execute(connection, definition, values)
        driver.set_progress_handler(None, 1)
        return next(steps) // 20  # about as many as for a row that is read
    compiled: Any = definition.compile(dialect=connection.dialect)
    text = str(compiled)
    for number, name in reversed([*enumerate(compiled.positiontup, 1)]):
        text = text.replace(f"${number}", repr(values[name]))
    plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}").scalar_one()
    return sum(rows_of(json.loads(plan) if isinstance(plan, str) else plan))


def rows_of(plan: Any) -> Iterator[int]:
    """The rows that each scan of a plan reads."""
    if isinstance(plan, list):
        for each in plan:
            yield from rows_of(each)
    elif isinstance(plan, dict):
        if plan.get("Node Type", "").endswith("Scan"):
            read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
            yield int(read * plan["Actual Loops"])
        for each in plan.values():
            yield from rows_of(each)


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", ["never", "before", "after"])
def test_choosing_reads_no_more_rows_the_more_are_queued(database: Database, analyzed: str) -> None:
    """Whatever the statistics say: none, those of a time when little was queued, or true ones."""
    done = jobs.submit(database, submission("x"), NOW - 1)
    add_runs(database, done, QUEUED, "succeeded")
    if analyzed == "before":
        database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    large = jobs.submit(database, submission(*map(str, range(1_000))), NOW)
    jobs.submit(database, submission("x"), NOW)
    add_runs(database, large, QUEUED, "queued")
    claim(database, submit_one(database))
    assert len(due_runs.due_to_notify(database, MOST, NOW)) == MOST
    if analyzed == "after":
        database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    for name, (definition, values) in LOOKS.items():
        given = values | ({"job": large} if "job" in values else {})
        cost = database.write(lambda c, d=definition, v=given: visited(c, d, v))
        assert cost < 500, name


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)  # Postgres plans by what is stored
@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lines", "SEARCH behind USING INDEX ix_runs_job_id_rank_due_at_id (job_id>?)"),
        ("lines", "SEARCH rank_2 USING INDEX ix_runs_job_id_rank_due_at_id (job_id=? AND rank=?"),
        ("in hand", "SEARCH runs USING INDEX ix_runs_rung_at"),
        ("take", "SEARCH runs USING INDEX ix_runs_job_id_rank_due_at_id (job_id=? AND rank=?"),
        ("window", "SEARCH runs USING INDEX ix_runs_job_id_rank_due_at_id (job_id=? AND rank=?"),
    ],
)
def test_choosing_looks_into_an_index_of_what_waits(
    database: Database, name: str, index: str
) -> None:
    definition, values = LOOKS[name]
    compiled = definition.compile(dialect=database.writer.dialect)
    given = tuple({**compiled.params, **values}[each] for each in compiled.positiontup)
    plan = database.read(
        lambda connection: connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", given).all()
    )
    assert any(row.detail.startswith(index) for row in plan), plan
