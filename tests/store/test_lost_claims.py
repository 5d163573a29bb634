"""A claim on Postgres is not flushed to disk: a crash of the server undoes at most the claim."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
from sqlalchemy import delete, text, update

from runner.core.commands import Target
from runner.core.fold import Applied
from runner.core.run import Lease
from runner.core.state import RunState
from runner.core.workspace import Workspace
from runner.errors import LeaseLost
from runner.store import due_runs as runs_store
from runner.store import migrate
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.retry import say
from runner.store.tables import events, runs
from runner.store.workspaces import WorkspaceRecord, save_record
from tests.postgres import postgres_server
from tests.store.attempts import (
    WORKER,
    add_worker,
    claim,
    decide,
    event_types,
    free,
    run_row,
    submit_one,
)
from tests.store.examples import NOW, SPEC

ON_POSTGRES = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
COPY = replace(SPEC, workspace=Workspace("/project", "copy"))
RECORD = WorkspaceRecord("here", "/home/workspaces/1", "runner/mend/one", "5ta47")


def _claimed(database: Database, run_id: str, worker_id: str) -> Lease:
    run = runs_store.look_at(database, run_id, NOW)
    assert run is not None
    lease = runs_store.claim(database, run, worker_id, NOW)
    assert lease is not None
    return lease


@pytest.mark.dialect
def test_a_worker_whose_claim_was_undone_can_append_nothing_once_another_has_the_run(
    database: Database,
) -> None:
    run_id = submit_one(database)
    journal = StoredJournal(database, lambda: NOW, free)
    add_worker(database)
    lost = _claimed(database, run_id, WORKER)
    state = journal.load(lost)
    queued = {"state": "queued", "worker_id": None, "due_at": NOW, "attempt": 0}
    started = (events.c.run_id == run_id) & (events.c.type == "attempt_started")
    database.execute(delete(events).where(started))
    database.execute(update(runs).values(**queued, event_count=runs.c.event_count - 1))
    with pytest.raises(LeaseLost):
        journal.commit(lost, state, [], decide)
    lease = _claimed(database, run_id, "worker_2")
    assert lease.attempt == lost.attempt
    for write in (
        lambda: journal.load(lost),
        lambda: journal.commit(lost, state, [], decide),
        lambda: save_record(database, lost, RECORD, None, NOW),
    ):
        with pytest.raises(LeaseLost):
            write()
    journal.commit(lease, journal.load(lease), [], decide)
    assert event_types(database, run_id)[:2] == ["run_submitted", "attempt_started"]


@pytest.mark.slow
def test_a_crash_of_the_server_undoes_a_claim_alone_and_no_intent() -> None:
    with postgres_server() as server:
        database = Database(server.get_uri())
        migrate.upgrade(database)
        # A vacuum would flush the claim, too.
        for statement in (
            "ALTER SYSTEM SET autovacuum = off",
            "SELECT pg_reload_conf()",
            "CHECKPOINT",
        ):
            database.execute(text(statement))
        begun, own, taken = (submit_one(database, key, spec=spec) for key, spec in _SPECS.items())
        add_worker(database)
        (writer,) = (each for each in _processes(database) if _is_wal_writer(each))
        writer.suspend()  # it would flush the claim a moment later
        intent = claim(database, begun)
        StoredJournal(database, lambda: NOW, free).load(_claimed(database, own, WORKER))
        lost = _claimed(database, taken, WORKER)
        state = StoredJournal(database, lambda: NOW, free).load(lost)
        for process in _processes(database):
            with suppress(psutil.NoSuchProcess):  # they end by themselves when the first one has
                process.kill()
        psutil.wait_procs([writer])
        database.close()
        server.ensure_postgres_running()
        intent.database = database = Database(server.get_uri())
        assert [run_row(database, each).state for each in (begun, own)] == ["running"] * 2
        assert intent.reply({"type": "text", "text": "Done."}).state.outcome is not None
        assert event_types(database, taken) == ["run_submitted"]
        assert run_row(database, taken).state == "queued"
        with pytest.raises(LeaseLost):
            StoredJournal(database, lambda: NOW, free).commit(lost, state, [], decide)
        claim(database, taken)
        database.close()


_SPECS = {"begun": SPEC, "own": COPY, "taken": SPEC}


def _is_wal_writer(process: psutil.Process) -> bool:
    try:
        return "walwriter" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # some come and go
        return False


def _processes(database: Database) -> list[psutil.Process]:
    """The server's processes, the first one first."""
    ((pid,),) = database.rows(text("SELECT pg_backend_pid()"))  # type: ignore[arg-type]
    parent = psutil.Process(pid).parent()
    assert parent is not None
    return [parent, *parent.children()]


@ON_POSTGRES
def test_a_message_that_comes_while_a_step_is_decided_is_decided_on(database: Database) -> None:
    run_id, seen = submit_one(database), list[int]()

    def say_once(state: RunState, now: float) -> tuple[Sequence[Applied], Any]:
        if not seen:
            say(database, run_id, "And the tests.", NOW)
        seen.append(len(state.inbox.messages))
        return decide(state, now)

    journal = StoredJournal(database, lambda: NOW, free)
    lease = _claimed(database, run_id, WORKER)
    journal.commit(lease, journal.load(lease), [], say_once)
    assert seen == [0, 1], "the first decision is not stored"
    told = event_types(database, run_id)
    assert told.count("model_called") <= 1
    assert told.index("message_queued") == 2


@ON_POSTGRES
def test_a_run_that_is_cancelled_while_a_step_is_decided_stores_nothing(database: Database) -> None:
    run_id = submit_one(database)

    def cancel_it(state: RunState, now: float) -> tuple[Sequence[Applied], Any]:
        cancel(database, Target("run", run_id), NOW)
        return decide(state, now)

    journal = StoredJournal(database, lambda: NOW, free)
    lease = _claimed(database, run_id, WORKER)
    state = journal.load(lease)
    with pytest.raises(LeaseLost):
        journal.commit(lease, state, [], cancel_it)
    assert run_row(database, run_id).state == "cancelled"
    assert event_types(database, run_id)[2:] == ["cancelled", "attempt_ended", "done"]
