"""Rows that cannot be read: all others are found, and it is said."""

from __future__ import annotations

import logging
import threading

import pytest
from sqlalchemy import text, update

from runner.engine.dispatcher import follow_index
from runner.logs import Outage
from runner.queries.rows import Rows
from runner.queries.search.search import open_index
from runner.store.database import Database
from runner.store.tables import blocks, tool_outputs
from tests.queries.search.record import find, record


def _damage_output(database: Database) -> None:
    damaged = update(tool_outputs).values(compressed=b"damaged")
    database.write(lambda connection: connection.execute(damaged))


def _nested(depth: int) -> str:
    return '{"input": ' + '{"a": ' * depth + '"deep"' + "}" * depth + "}"


def test_what_is_behind_a_damaged_output_is_found_and_that_is_said(database: Database) -> None:
    run = record(database)
    run.call("Bash", {"command": "cat walnut"}, "short", whole=b"a walnut").say("a walnut").store()
    _damage_output(database)
    told: list[str] = []
    found = find(database, "walnut", tell=told.append)
    assert found.total == 2
    assert "1 text could not be read" in found.note
    (line,) = told
    assert line.startswith(f"the output of {run.run_id} at 2.0 cannot be read (error: ")
    assert "\n" not in line
    found = find(database, "walnut", tell=told.append)
    assert (found.total, len(told)) == (2, 1)
    assert "1 text could not be read" in found.note


def test_it_is_not_said_where_something_else_is_searched(database: Database) -> None:
    record(database).call("Bash", {"command": "x"}, "short", whole=b"a walnut").store()
    other = record(database, "two").say("a walnut").store()
    _damage_output(database)
    assert find(database, "walnut", run_id=other.run_id).note == ""
    assert find(database, "walnut", sources=("text",)).note == ""
    assert find(database, "walnut", tool="Bash").note
    assert isinstance(find(database, "walnut").rows(), Rows)


def test_a_row_that_is_mended_is_found_after_reindex(database: Database) -> None:
    record(database).call("Bash", {"command": "x"}, "short", whole=b"a walnut").store()
    whole = database.read(lambda c: c.execute(tool_outputs.select()).one().compressed)
    _damage_output(database)
    assert find(database, "walnut").total == 0
    mended = update(tool_outputs).values(compressed=whole)
    database.write(lambda connection: connection.execute(mended))
    open_index(database).renew(lambda _done, _all: None)
    found = find(database, "walnut")
    assert (found.total, found.note) == (1, "")


def test_json_that_is_too_deep_or_none_is_left_out(database: Database) -> None:
    run = record(database)
    run.call("Bash", {"command": "one"}, "short").call("Bash", {"command": "two"}, "short")
    run.say("a walnut").store()

    def damage(message: int, content: str) -> None:
        where = "WHERE run_id = :run AND message = :message"
        statement = text(f"UPDATE {blocks.name} SET content = :content {where}")
        values = {"run": run.run_id, "message": message, "content": content}
        database.write(lambda connection: connection.execute(statement, values))

    damage(1, _nested(5_000))
    damage(3, _nested(985))
    found = find(database, "walnut")
    assert found.total == 1
    assert "2 texts could not be read" in found.note


def test_a_text_that_was_damaged_after_it_was_indexed_is_no_traceback(database: Database) -> None:
    record(database).call("Bash", {"command": "x"}, "short", whole=b"a walnut").store()
    assert find(database, "walnut").total == 1
    _damage_output(database)
    assert find(database, "walnut").hits == ()


def test_a_worker_follows_on_behind_a_damaged_row(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    record(database).call("Bash", {"command": "x"}, "short", whole=b"a walnut").store()
    _damage_output(database)
    stopping = threading.Event()
    logger = logging.getLogger("test")
    index = open_index(database, logger.warning)

    class Once:
        def follow(self) -> int:
            stopping.set()
            return index.follow()

    with caplog.at_level(logging.WARNING):
        follow_index(Once(), stopping, Outage("the database", logger), pause=0.001)
    (logged,) = caplog.records
    assert "cannot be read" in logged.getMessage()
    assert open_index(database).follow() == 0
    assert "1 text could not be read" in find(database, "walnut").note
