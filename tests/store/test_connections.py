"""Connections of calls that were cut are stored once, and not while their run is being worked on."""

from __future__ import annotations

from dataclasses import replace

from runner.core.commands import Target
from runner.core.network import Connection
from runner.queries.accesses import connection_rows
from runner.queries.filters import Filters
from runner.store.changes import store_connections
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.ids import call_id
from tests.store.attempts import claim, submit_one, tool_use
from tests.store.examples import NOW

REFUSED = Connection("evil.test", 443, NOW + 0.123456789, "refused", "it is not on the list")


def test_connections_of_a_call_that_was_cut_are_stored_once(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(tool_use(1, path="a.py"), stop="tool_use")
    about, made = {"turn": 1, "call_index": 0}, [REFUSED, replace(REFUSED, at=NOW + 1, port=80)]
    assert not store_connections(database, run_id, about, made[:1], NOW)
    cancel(database, Target("run", run_id), NOW)
    for _ in range(2):
        assert store_connections(database, run_id, about, made, NOW)
    hook = {"turn": 1, "hook_run": 1, "event": "TurnEnd", "hook": "notify"}
    assert store_connections(database, run_id, hook, [replace(REFUSED, at=NOW + 2)], NOW)
    rows = list(connection_rows(database, Filters()))
    name = call_id(run_id, 1, 0)
    assert [(row["made_by"], row["port"], row["call_id"]) for row in rows] == [
        ("hook", 443, None),
        ("call", 80, name),
        ("call", 443, name),
    ]
    assert store_connections(database, "run_gone", about, made, NOW), "nothing to store it for"
