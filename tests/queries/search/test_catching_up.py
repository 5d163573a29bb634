from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import insert, update

from runner.core.search import parse
from runner.queries.search.search import nothing, open_index, search
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.tables import blocks, compactions, runs, tool_outputs, verifications
from tests.queries.search.record import excerpts, find, record
from tests.store.attempts import claim, submit_one, text, tool_use
from tests.store.examples import NOW

pytestmark = pytest.mark.dialect


@pytest.mark.slow
def test_what_is_stored_later_is_found(database: Database) -> None:
    run = record(database).say("a walnut").store()
    assert find(database, "walnut").total == 1
    run.say("another walnut").store()
    record(database, "two").say("a third walnut").store()
    assert find(database, "walnut").total == 3


@pytest.mark.slow
def test_results_of_one_reply_are_found_in_whatever_order_they_come(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(*(tool_use(number, path=f"p{number}") for number in range(3)), stop="tool_use")
    assert find(database, "walnut").total == 0
    message = len(attempt.state.messages)
    for position in (2, 0, 1):
        _add_result(database, run_id, message, position, f"walnut {position}")
        assert f"walnut {position}" in excerpts(find(database, "walnut"))
    assert find(database, "walnut").total == 3


def _add_result(database: Database, run_id: str, message: int, position: int, content: str) -> None:
    block = {"type": "tool_result", "tool_use_id": f"toolu_{position}", "content": content}
    row = {
        "run_id": run_id,
        "message": message,
        "position": position,
        "role": "user",
        "type": "tool_result",
        "turn": 1,
        "content": block,
        "created_at": NOW,
    }

    def work(connection: Any) -> None:
        connection.execute(insert(blocks).values(**row))
        grown = {"revision": runs.c.revision + 1}
        connection.execute(update(runs).where(runs.c.id == run_id).values(**grown))

    database.write(work)


@pytest.mark.slow
def test_what_an_attempt_appends_is_found(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply(text("I look."), tool_use(1, path="walnut.py"), stop="tool_use")
    assert find(database, "walnut").total == 1
    attempt.finish("a walnut")
    assert find(database, "walnut").total == 2


@pytest.mark.slow
def test_the_messages_of_a_fork_are_found_in_it(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    attempt.reply(text("walnut"))
    assert find(database, "walnut").total == 1
    forked = fork(database, run_id, 1, NOW, text="go on")
    assert find(database, "walnut", run_id=forked.id).total == 1
    assert find(database, "walnut").total == 2


@pytest.mark.slow
def test_what_stands_in_for_messages_is_found(database: Database) -> None:
    run = record(database)
    row = {
        "run_id": run.run_id,
        "number": 1,
        "kind": "summary",
        "first_message": 1,
        "last_message": 2,
        "text": "They spoke of walnuts.",
        "clips": [],
        "tokens_before": 10,
        "tokens_after": 5,
        "turn": 3,
        "made_by_call": None,
        "first_sent_in": 1,
        "created_at": NOW,
    }
    run.rows.append((compactions, row))
    run.store()
    (hit,) = find(database, "walnuts").hits
    assert (hit.place.kind, hit.place.message, hit.source, hit.turn) == ("compaction", 1, "text", 3)


@pytest.mark.slow
def test_a_verification_is_found_when_it_has_ended(database: Database) -> None:
    run = record(database)
    key = {"run_id": run.run_id, "number": 1}
    run.rows.append((verifications, {**key, "turn": 1, "attempt": 1, "started_at": NOW}))
    run.store()
    assert find(database, "walnut").total == 0
    other = record(database, "two").say("almond").store()
    assert find(database, "almond").total == 1

    def end(connection: Any) -> None:
        ended = {"ended_at": NOW + 5, "command": "make walnut", "content": "no rule"}
        number = verifications.c.run_id == run.run_id
        connection.execute(update(verifications).where(number).values(**ended))

    database.write(end)
    run.store()
    other.say("more").store()
    (hit,) = find(database, '"make walnut" "no rule"').hits
    assert (hit.place.kind, hit.source, hit.at) == ("verification", "output", NOW + 5)


@pytest.mark.slow
def test_many_rows_are_indexed_batch_by_batch(database: Database) -> None:
    first, second = record(database), record(database, "two")
    for number in range(10):
        first.say(f"walnut {number}")
        second.call("Bash", {"number": number}, "a walnut")
    first.store()
    second.store()
    told: list[tuple[int, int]] = []
    index = open_index(database, batch=3)
    assert 0 < index.follow() <= 12
    with index.up_to_date(lambda *far: told.append(far)):
        pass
    assert find(database, "walnut").total == 20
    assert len(told) > 3
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]
    assert index.follow() == 0


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_more_jobs_and_runs_than_come_together_are_all_found(
    database: Database, batch: int
) -> None:
    """In batches that end in the middle of a run."""
    for number in range(5):
        run = record(database, f"run {number}")
        for _ in range(3):
            run.say("walnut")
        run.store()
    with open_index(database, batch=batch).up_to_date(nothing):
        pass
    assert open_index(database).follow() == 0
    assert find(database, "walnut").total == 15


@pytest.mark.slow
def test_a_batch_that_fails_leaves_nothing_and_keeps_those_before(database: Database) -> None:
    """Some rows of it were given to the index already."""
    run = record(database)
    run.call("Bash", {"command": "x"}, "short", whole=b"almond")
    for number in range(10):
        run.say(f"walnut {number}")
    run.call("Bash", {"command": "y"}, "short", whole=b"almond").store()
    whole = database.read(lambda c: c.execute(tool_outputs.select()).first()).compressed
    _set_outputs(database, b"damaged")

    def interrupt(line: str) -> None:
        if " at 14." in line:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        open_index(database, interrupt, batch=7).up_to_date(nothing),
    ):
        pass
    held = _everything_in_the_index(database)
    assert "walnut" in held
    _set_outputs(database, whole)
    assert find(database, "walnut").total == 10
    assert find(database, "almond").total == 1


def _set_outputs(database: Database, compressed: bytes) -> None:
    change = update(tool_outputs).values(compressed=compressed)
    database.write(lambda connection: connection.execute(change))


@pytest.mark.slow
def test_a_search_never_misses_what_was_stored_before_it(
    open_database: Callable[[], Database], database: Database
) -> None:
    """While others write, follow and search."""
    stored: dict[str, int] = {}
    stopping = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                stopping.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(name: str) -> None:
        run = record(open_database(), name)
        for number in range(1, 21):
            run.say(f"walnut {name} {number}").store()
            stored[name] = number

    def follow() -> None:
        index = open_index(open_database())
        while not stopping.is_set():
            index.follow()

    def look() -> None:
        own = open_database()
        while not stopping.is_set():
            for name, number in list(stored.items()):
                found = search(own, parse(f"walnut {name}"), limit=1)
                assert found.total >= number, (name, number, found.total)

    others = [guarded(follow), guarded(follow), guarded(look), guarded(look)]
    writers = [guarded(lambda name=name: write(name)) for name in ("ada", "bo")]  # type: ignore[misc]
    for thread in writers:
        thread.join()
    stopping.set()
    for thread in others:
        thread.join()
    assert not failures, failures
    assert find(database, "walnut").total == 40
    places = [hit.place for hit in find(database, "walnut", limit=None).hits]
    assert len(set(places)) == 40


@pytest.mark.slow
def test_an_index_is_made_anew_when_asked_to(database: Database) -> None:
    record(database).say("walnut").store()
    assert find(database, "walnut").total == 1
    index = open_index(database)
    assert index.renew(lambda _done, _all: None) == 3
    assert find(database, "walnut").total == 1
    assert index.size() > 0


@pytest.mark.slow
def test_an_index_that_another_process_made_anew_is_followed_on(
    database: Database, open_database: Callable[[], Database]
) -> None:
    """Whoever added to the one before knows nothing of this one."""
    follower = open_index(open_database())
    run = record(database).say("walnut").store()
    follower.follow()
    record(database, "two").say("an aardvark").store()
    open_index(database).renew(lambda _done, _all: None)
    run.say("a walnut tree").store()
    while follower.follow():
        pass
    assert find(database, "walnut").total == 2
    assert find(database, exact="alnu").total == 2


def test_the_index_holds_no_text(database: Database) -> None:
    """Words, but not what was said with them."""
    record(database).say("THE-Walnut, says: hi").store()
    assert find(database, "walnut").total == 1
    assert "THE-Walnut" not in _everything_in_the_index(database)
    assert "the walnut says hi" not in _everything_in_the_index(database)


def _everything_in_the_index(database: Database) -> str:
    if database.dialect == "sqlite":
        from runner.queries.search.sqlite import path_of

        path = path_of(database)
        files = [path, path.with_name(path.name + "-wal")]
        return "".join(file.read_bytes().decode("latin-1") for file in files if file.exists())

    def work(connection: Any) -> str:
        tables = ("search_documents", "search_words", "search_runs")
        rows = [connection.exec_driver_sql(f"SELECT * FROM {table}").all() for table in tables]
        return str(rows)

    return database.read(work)
