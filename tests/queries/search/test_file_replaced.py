"""The index of a SQLite database that is replaced while it is used, or no longer fits its database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.core.search import Term
from runner.errors import UnreachableError
from runner.queries.search.index import Needs, Unusable
from runner.queries.search.search import nothing, open_index
from runner.queries.search.sqlite import identity_of, opened, path_of, replace
from runner.store.database import Database
from runner.store.tables import blocks
from tests.queries.search.record import Record, find, record
from tests.upgraded import Upgraded

WALNUT = Needs((Term(("walnut",)),))


@pytest.fixture
def database(tmp_path: Path, upgraded: Upgraded) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'runner.db'}"
    upgraded.copy_to(url)
    database = Database(url)
    yield database
    database.close()


def _nobody(_line: str) -> None:
    pass


@pytest.mark.slow
def test_what_was_caught_up_with_is_looked_into(database: Database) -> None:
    record(database).say("walnut").store()
    with open_index(database).up_to_date(nothing) as index:
        open_index(database).renew(nothing)
        replace(path_of(database), identity_of(path_of(database)), "", _nobody)
        assert len(index.find(WALNUT, 10)) == 1


@pytest.mark.slow
def test_searches_find_all_while_others_make_the_index_anew(
    database: Database, open_beside: Callable[[], Database]
) -> None:
    run = record(database)
    for number in range(60):
        run.say(f"walnut {number}")
    run.store()
    stopping = threading.Event()
    wrong: list[object] = []

    def reindex() -> None:
        own = open_index(open_beside())
        while not stopping.is_set():
            _guarded(lambda: own.renew(nothing))

    def look() -> None:
        own = open_beside()
        for _ in range(25):
            _guarded(lambda: wrong.extend({find(own, "walnut").total} - {60}))

    def _guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            wrong.append(error)

    reindexer = threading.Thread(target=reindex)
    seekers = [threading.Thread(target=look) for _ in range(2)]
    for thread in (reindexer, *seekers):
        thread.start()
    for thread in seekers:
        thread.join()
    stopping.set()
    reindexer.join()
    assert not wrong


@pytest.fixture
def open_beside(database: Database) -> Iterator[Callable[[], Database]]:
    opened_here: list[Database] = []

    def make() -> Database:
        opened_here.append(Database(database.url.render_as_string(hide_password=False)))
        return opened_here[-1]

    yield make
    for each in opened_here:
        each.close()


@pytest.mark.slow
def test_what_another_has_made_anew_already_stays(database: Database) -> None:
    record(database).say("walnut").store()
    find(database, "walnut")
    path = path_of(database)
    bad = identity_of(path)
    told: list[str] = []
    replace(path, bad, "it is damaged", told.append)
    made = identity_of(path)
    replace(path, bad, "it is damaged", told.append)
    assert bad != made == identity_of(path)
    assert len(told) == 1


def test_an_index_comes_to_its_place_whole_and_leaves_nothing_beside(database: Database) -> None:
    path = path_of(database)
    with opened(path, _nobody):
        pass
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        assert connection.execute("SELECT count(*) FROM documents").fetchone() == (0,)
    connection.close()
    assert sorted(each.name for each in path.parent.glob("*.new*")) == []


@pytest.mark.slow
def test_lengths_that_are_damaged_are_damage(database: Database) -> None:
    """SQLite takes them for a lack of memory."""
    record(database).say("walnut").store()
    find(database, "walnut")
    before = identity_of(path_of(database))
    with pytest.raises(Unusable, match="damaged"), opened(path_of(database), _nobody):
        raise MemoryError
    assert identity_of(path_of(database)) != before
    assert find(database, "walnut").total == 1


def test_trouble_with_a_file_that_is_still_there_is_no_reason_to_make_it_anew(
    database: Database,
) -> None:
    record(database).say("walnut").store()
    find(database, "walnut")
    before = identity_of(path_of(database))
    trouble = sqlite3.OperationalError("disk I/O error")
    trouble.sqlite_errorcode = sqlite3.SQLITE_IOERR
    with pytest.raises(UnreachableError), opened(path_of(database), _nobody):
        raise trouble
    assert identity_of(path_of(database)) == before


def test_trouble_with_a_file_that_is_gone_is_no_reason_to_give_up(database: Database) -> None:
    trouble = sqlite3.OperationalError("disk I/O error")
    trouble.sqlite_errorcode = sqlite3.SQLITE_IOERR

    def lose_it() -> None:
        path = path_of(database)
        replace(path, identity_of(path), "", _nobody)
        raise trouble

    with pytest.raises(Unusable, match="removed"), opened(path_of(database), _nobody):
        lose_it()


@pytest.mark.slow
@pytest.mark.parametrize("at", [1.7e9, 1.71e9])
def test_one_of_a_database_that_was_put_back_and_gone_on_with_is_made_anew(
    database: Database, tmp_path: Path, at: float
) -> None:
    run = record(database).say("walnut").store()
    copy = tmp_path / "copy.db"
    with sqlite3.connect(database.url.database or "") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    run.say("lost", at=1.7e9).store()
    assert find(database, "lost").total == 1
    database.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{database.url.database}{suffix}").unlink(missing_ok=True)
    copy.replace(database.url.database or "")
    again = Database(database.url.render_as_string(hide_password=False))
    Record(again, run.run_id, 2, 1).say("almond", at=at).store()
    told: list[str] = []
    assert find(again, "almond", tell=told.append).total == 1
    assert find(again, "lost").total == 0
    assert [line.rsplit(": ")[-1] for line in told] == ["it is of another database"]
    again.close()


def test_databases_in_one_folder_have_an_index_each(tmp_path: Path) -> None:
    names = ("runner.db", "runner.sqlite")
    found = [path_of(Database(f"sqlite:///{tmp_path / name}")).name for name in names]
    assert found == ["runner.search.db", "runner.sqlite.search.db"]


def test_it_stays_when_a_hook_replaces_a_result_that_it_holds(database: Database) -> None:
    record(database).call("Bash", {"command": "ls"}, "walnut").store()
    assert find(database, "walnut").total == 1
    given = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hidden"}
    results = update(blocks).where(blocks.c.type == "tool_result")
    database.write(lambda connection: connection.execute(results.values(content=given)))
    told: list[str] = []
    find(database, "walnut", tell=told.append)
    assert told == []
