"""Transactions: whole or not at all, whoever shares a commit, whatever goes wrong."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sqlalchemy import Connection, Integer, event, func, literal, select, text
from sqlalchemy.exc import IntegrityError

from runner.errors import UnreachableError, UsageError
from runner.store.database import Database, DatabaseClock, to_json
from runner.store.statements import Writes
from runner.store.tables import events, workers

pytestmark = pytest.mark.dialect

ROW: dict[str, Any] = {
    "host_id": "h",
    "hostname": "h",
    "pid": 1,
    "slots": 1,
    "started_at": 0.0,
    "lease_expires_at": 0.0,
}


def add(connection: Connection, worker_id: str) -> str:
    writes = Writes()
    writes.insert(workers, [ROW | {"id": worker_id}])
    writes.run(connection)
    return worker_id


def add_event_of_nobody(connection: Connection) -> None:
    row = {"run_id": "nobody", "number": 1, "at": 0.0, "attempt": 0, "type": "x", "data": {}}
    writes = Writes()
    writes.insert(events, [row])
    writes.run(connection)


def count(database: Database) -> int:
    query = select(func.count()).select_from(workers)
    return database.read(lambda connection: connection.execute(query).scalar_one())


def test_what_fails_leaves_nothing(database: Database) -> None:
    def work(connection: Connection) -> None:
        add(connection, "worker_1")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        database.write(work)
    assert count(database) == 0


def test_a_broken_constraint_is_no_outage_and_spoils_no_connection(database: Database) -> None:
    def work(connection: Connection) -> None:
        add(connection, "worker_1")
        add_event_of_nobody(connection)

    for _ in range(10):  # more than there are connections
        with pytest.raises(IntegrityError):
            database.write(work)
    assert count(database) == 0
    assert database.write(lambda connection: add(connection, "worker_2")) == "worker_2"
    assert count(database) == 1


def test_one_that_fails_does_not_spoil_the_commit_that_it_shares(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold_up(connection: Connection) -> None:
        begun.set()
        go_on.wait(60)

    def work(number: int) -> str:
        if number == 5:
            return database.write(lambda connection: add(connection, "worker_0"))
        return database.write(lambda connection: add(connection, f"worker_{number}"))

    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(database.write, hold_up)
        assert begun.wait(60)
        rest = [pool.submit(work, number) for number in range(10)]
        go_on.set()
        failed = [one for one in rest if one.exception() is not None]
        first.result()
    assert len(failed) == 1
    assert isinstance(failed[0].exception(), IntegrityError)
    assert count(database) == 9


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_writers_that_wait_share_a_commit(database: Database) -> None:
    commits: list[str] = []
    event.listen(database.writer, "commit", lambda connection: commits.append("commit"))
    begun, go_on = threading.Event(), threading.Event()

    def hold_up(connection: Connection) -> None:
        begun.set()
        go_on.wait(60)

    with ThreadPoolExecutor(80) as pool:
        first = pool.submit(database.write, hold_up)
        assert begun.wait(60)
        rest = [
            pool.submit(database.write, lambda c, n=number: add(c, f"worker_{n}"))
            for number in range(70)
        ]
        while len(database._commits._waiting) < 70:  # type: ignore[union-attr]
            assert not first.done()
        go_on.set()
        assert [one.result() for one in rest] == [f"worker_{n}" for n in range(70)]
    assert len(commits) == 3  # 64 share one at most


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_a_writer_that_is_interrupted_while_it_waits_holds_nobody_up(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold_up(connection: Connection) -> None:
        begun.set()
        go_on.wait(60)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def signal_once_it_waits() -> None:
        while not database._commits._waiting:  # type: ignore[union-attr]
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(database.write, hold_up)
        assert begun.wait(60)
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            signalling = pool.submit(signal_once_it_waits)
            with pytest.raises(KeyboardInterrupt):
                database.write(lambda connection: add(connection, "worker_1"))
            signalling.result()
        finally:
            signal.signal(signal.SIGUSR1, before)
        second = pool.submit(database.write, lambda connection: add(connection, "worker_2"))
        go_on.set()
        first.result()
        assert second.result(60) == "worker_2"
    assert count(database) == 1


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_a_process_that_writes_all_the_time_lets_another_have_its_turns(
    database: Database, open_database: Callable[[], Database]
) -> None:
    busy, other = database, open_database()
    writing, stopping, commits = threading.Event(), threading.Event(), 0

    def writes_on() -> None:
        nonlocal commits
        while not stopping.is_set():
            busy.write(lambda connection: time.sleep(0.005))
            commits += 1
            writing.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(writes_on)
        try:
            assert writing.wait(60)
            waited = []
            for number in range(20):
                before = commits
                other.write(lambda connection, number=number: add(connection, f"worker_{number}"))  # type: ignore[misc]
                waited.append(commits - before)
        finally:
            stopping.set()
    assert median(waited) <= 2  # a thread that is not scheduled for a while waits for more


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_a_process_that_is_frozen_when_it_is_the_next_to_write_holds_nobody_up(
    database: Database,
) -> None:
    folder = Path(database.url.database or "").parent
    turn = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for number in range(3):
            database.write(lambda connection, number=number: add(connection, f"worker_{number}"))  # type: ignore[misc]
    finally:
        os.close(turn)
    assert count(database) == 3


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_cut_connection_is_an_outage_that_passes(database: Database) -> None:
    def cut(connection: Connection) -> None:
        mine = connection.execute(select(func.pg_backend_pid())).scalar_one()
        kill = select(func.pg_terminate_backend(literal(mine, Integer)))
        database.read(lambda other: other.execute(kill))
        add(connection, "worker_1")

    with pytest.raises(UnreachableError):
        database.write(cut)
    assert database.write(lambda connection: add(connection, "worker_2")) == "worker_2"
    assert count(database) == 1


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("state", ["42501", "XX001", "25006", "53100", "55P03"])
def test_a_server_that_is_damaged_full_or_refuses_its_user_is_an_outage(
    database: Database, state: str
) -> None:
    trouble = text(f"DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END $$")
    with pytest.raises(UnreachableError, match="not now"):
        database.write(lambda connection: connection.execute(trouble))


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_whoever_sets_the_clock_of_a_host_moves_no_time_of_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = DatabaseClock(database)
    clock.measure()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now() - before < 600


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_a_file_that_is_replaced_while_it_is_open_is_told(database: Database) -> None:
    database.require_in_place()
    database.write(lambda connection: add(connection, "worker_1"))
    database.require_in_place()
    path = Path(str(database.url.database))
    aside = path.rename(path.with_name("aside"))
    database.require_in_place()
    path.write_bytes(aside.read_bytes())
    with pytest.raises(UsageError, match="was replaced while it was open"):
        database.require_in_place()
    aside.rename(path)
    database.require_in_place()


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://me@host/db", "sqlite://", "sqlite:///:memory:"]
)
def test_a_url_that_cannot_be_used_is_said(url: str) -> None:
    with pytest.raises(UsageError):
        Database(url)


@pytest.mark.parametrize("text", ["é\u2028", "\u0000", "\ud800", "\U0001f600"])
def test_json_keeps_its_order_and_every_text(text: str) -> None:
    content = {"b": text, "a": 2}
    encoded = to_json(content).encode()
    assert list(json.loads(encoded).items()) == list(content.items())


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_session_that_sleeps_in_a_transaction_is_ended(database: Database) -> None:
    query = text("SHOW idle_in_transaction_session_timeout")
    assert database.read(lambda connection: connection.execute(query).scalar_one()) == "15s"


def backend(connection: Connection) -> int:
    return int(connection.execute(select(func.pg_backend_pid())).scalar_one())


def end_backend(watching: Connection, pid: int) -> None:
    watching.execute(select(func.pg_terminate_backend(literal(pid, Integer), 10_000)))


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_connection_cut_before_its_commit_is_an_outage_that_passes(database: Database) -> None:
    def cut(connection: Connection) -> None:
        add(connection, "worker_1")
        with database.reader.connect() as watching:
            end_backend(watching, backend(connection))

    with pytest.raises(UnreachableError):
        database.write(cut)
    assert database.write(lambda connection: add(connection, "worker_2")) == "worker_2"
    assert count(database) == 1


@pytest.mark.slow
@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_connection_cut_while_nobody_has_it_is_an_outage_that_passes(database: Database) -> None:
    database.close()  # no connection is open but these two
    with database.reader.connect() as watching:
        backend(watching)
        end_backend(watching, database.read(backend))
        with pytest.raises(UnreachableError):
            database.write(lambda connection: add(connection, "worker_1"))
        assert database.write(lambda connection: add(connection, "worker_2")) == "worker_2"
    assert count(database) == 1


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_threads_get_connections_in_the_order_in_which_they_ask(empty_url: str) -> None:
    database, served = Database(empty_url, connections=1), list[int]()

    def ask(number: int) -> None:
        with database.reading():
            served.append(number)

    with ThreadPoolExecutor(3) as pool:
        with database.reading():
            for number in range(3):
                pool.submit(ask, number)
                while len(database._lent._waiting) <= number:
                    time.sleep(0.001)
        ask(3)  # the pool itself would serve this one first: its connection is free now
    database.close()
    assert served == [0, 1, 2, 3]


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_thread_that_is_interrupted_while_it_waits_for_a_connection_loses_it_to_nobody(
    empty_url: str,
) -> None:
    database, waiting = Database(empty_url, connections=1), threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def signal_once_it_waits() -> None:
        while not database._lent._waiting:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)
        waiting.set()

    before = signal.signal(signal.SIGUSR1, interrupt)
    with ThreadPoolExecutor(2) as pool:
        with database.reading():
            pool.submit(signal_once_it_waits)
            with pytest.raises(KeyboardInterrupt), database.reading():
                raise AssertionError("there is one connection")
            assert waiting.wait(60)
        again = pool.submit(database.rows, select(literal(1)))
        assert again.result(timeout=60)
    signal.signal(signal.SIGUSR1, before)
    database.close()
