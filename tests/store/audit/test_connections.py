"""The hosts that calls reached: which run asked for which, when, and what came of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from runner.core.conversation import ToolResult
from runner.core.entries import ToolFinished
from runner.core.network import Connection
from runner.core.steps import RunTools
from runner.queries.accesses import connection_rows
from runner.queries.filters import Filters
from runner.queries.timeline import timeline_rows
from runner.store.database import Database
from runner.store.tables import events
from tests.store.attempts import claim, text
from tests.store.audit.played import Job, bash, submit
from tests.store.examples import NOW
from tests.store.test_costs import PRICES

pytestmark = pytest.mark.dialect

MADE = (
    Connection("packages.example.org", 443, NOW + 1, sent=12, received=3_400, count=2),
    Connection("evil.test", 8443, NOW + 2, "refused", "it is not on the job's list of hosts"),
)


def connect(database: Database) -> Job:
    """A run whose first call connects to two hosts, and another to one."""
    job = submit(database, "a.py", "b.py")
    for run_id, made in zip(job.runs, (MADE, MADE[:1]), strict=True):
        attempt = claim(database, run_id)
        attempt.reply(text("So."), *bash("ls a", "ls b"), stop="tool_use")
        assert isinstance(attempt.effect, RunTools)
        attempt.append(ToolFinished(0, ToolResult("ok", connections=made)))
    return job


def found(database: Database, pattern: str | None = None, **only: Any) -> list[tuple[str, str]]:
    rows = connection_rows(database, Filters(**only), pattern)
    return [(row["item"], row["host"]) for row in rows]


def test_a_row_says_which_call_of_which_run_reached_which_host(database: Database) -> None:
    job = connect(database)
    rows = {row["host"]: row for row in connection_rows(database, Filters(run_id=job.runs[0]))}
    assert rows["packages.example.org"] == {
        "at": NOW + 1,
        "run_id": job.runs[0],
        "item": "a.py",
        "turn": 1,
        "label": "1",
        "call_id": f"call_{job.runs[0][4:]}_1_1",
        "made_by": "call",
        "tool": "Bash",
        "host": "packages.example.org",
        "port": 443,
        "outcome": "allowed",
        "why": "",
        "connections": 2,
        "sent_bytes": 12,
        "received_bytes": 3_400,
    }
    refused = rows["evil.test"]
    assert (refused["outcome"], refused["why"]) == ("refused", MADE[1].why)
    what = [row["what"] for row in timeline_rows(database, Filters(), job.runs[0], PRICES)]
    assert "refused: evil.test: 8443: it is not on the job's list of hosts" in what


def test_connections_are_found_by_host_and_by_the_common_filters(database: Database) -> None:
    job = connect(database)
    assert len(found(database)) == 3
    assert found(database, "*.TEST") == found(database, "evil.test:8443") == [("a.py", "evil.test")]
    assert found(database, "evil.test:443") == []
    assert found(database, run_id=job.runs[1]) == [("b.py", "packages.example.org")]
    assert found(database, since=NOW + 2) == [("a.py", "evil.test")]
    assert len(found(database, until=NOW + 2)) == 2
    assert found(database, tool="Read") == found(database, model="another") == []
    assert len(found(database, tool="Bash", model="claude-test", job_id=job.id)) == 3
    limited = connection_rows(database, Filters(limit=1))
    assert (len(list(limited)), "more" in limited.note) == (1, True)


@pytest.mark.parametrize(
    "data", [{"port": "x", "at": "y", "host": 3, "turn": [], "name": {}}, [], "x"]
)
def test_an_imported_event_of_any_shape_spoils_no_answer(database: Database, data: Any) -> None:
    job = connect(database)
    row = {"run_id": job.runs[0], "number": 900, "at": NOW, "attempt": 1, "type": "connection"}
    database.write(lambda c: c.execute(insert(events).values(**row, data=data)))
    assert len(found(database)) == 4
