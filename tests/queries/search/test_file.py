"""The index of a SQLite database, which is a file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import UnreachableError
from runner.queries.search.search import open_index
from runner.queries.search.sqlite import path_of
from runner.store.database import Database
from tests.queries.search.record import find, record
from tests.upgraded import Upgraded


@pytest.fixture
def database(tmp_path: Path, upgraded: Upgraded) -> Iterator[Database]:
    opened = _made(tmp_path / "runner.db", upgraded)
    yield opened
    opened.close()


def _made(path: Path, upgraded: Upgraded) -> Database:
    url = f"sqlite:///{path}"
    upgraded.copy_to(url)
    return Database(url)


def _find_again(database: Database) -> list[str]:
    """Search; what is said about the index."""
    told: list[str] = []
    assert find(database, "walnut", tell=told.append).total == 1
    return told


def test_it_lies_beside_its_database_and_only_its_user_reads_it(database: Database) -> None:
    record(database).say("walnut").store()
    find(database, "walnut")
    path = path_of(database)
    assert path.name == "runner.search.db"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_one_that_is_removed_is_made_anew(database: Database) -> None:
    record(database).say("walnut").store()
    assert _find_again(database) == []
    path_of(database).unlink()
    assert _find_again(database) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["all", "head", "middle", "tail"])
def test_a_damaged_one_is_made_anew_and_that_is_said(database: Database, where: str) -> None:
    run = record(database)
    for number in range(300):
        run.say(f"almond n{number} m{number * 7}")
    run.say("walnut").store()
    _find_again(database)
    path = path_of(database)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    _damage(path, where)
    told = _find_again(database)
    if told:
        assert told == [f"the search index {path} is made anew: it is damaged"]
    assert told or where in ("middle", "tail"), told
    assert _find_again(database) == []


def _damage(path: Path, where: str) -> None:
    size = path.stat().st_size
    start = {"all": 0, "head": 0, "middle": 4096, "tail": size // 2}[where]
    end = {"all": size, "head": 100, "middle": size, "tail": size}[where]
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * (end - start))


@pytest.mark.slow
def test_one_of_another_version_is_made_anew_and_that_is_said(database: Database) -> None:
    record(database).say("walnut").store()
    _find_again(database)
    with sqlite3.connect(path_of(database)) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    (told,) = _find_again(database)
    assert told.endswith("it is of another version of Runner")


@pytest.mark.slow
def test_one_of_another_database_is_made_anew_and_that_is_said(
    database: Database, tmp_path: Path, upgraded: Upgraded
) -> None:
    record(database).say("walnut").store()
    _find_again(database)
    (tmp_path / "other").mkdir()
    other = _made(tmp_path / "other" / "runner.db", upgraded)
    record(other).say("almond").say("a walnut").store()
    assert find(other, "almond").total == 1
    path_of(other).replace(path_of(database))
    (told,) = _find_again(database)
    assert told.endswith("it is of another database")
    other.close()


@pytest.mark.slow
def test_one_that_is_ahead_of_a_database_that_was_put_back_is_made_anew(
    database: Database, tmp_path: Path
) -> None:
    run = record(database).say("walnut").store()
    copy = tmp_path / "copy.db"
    with sqlite3.connect(database.url.database or "") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    run.say("almond").store()
    assert find(database, "almond").total == 1
    database.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{database.url.database}{suffix}").unlink(missing_ok=True)
    copy.replace(database.url.database or "")
    again = Database(database.url.render_as_string(hide_password=False))
    (told,) = _find_again(again)
    assert told.endswith("it is of another database")
    assert find(again, "almond").total == 0
    again.close()


def test_searching_what_is_indexed_waits_for_nobody_who_indexes(database: Database) -> None:
    record(database).say("walnut").store()
    _find_again(database)
    other = sqlite3.connect(path_of(database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert _find_again(database) == []
    other.close()


@pytest.mark.slow
def test_whoever_only_follows_leaves_it_to_others_who_index(database: Database) -> None:
    record(database).say("walnut").store()
    _find_again(database)
    record(database, "two").say("almond").store()
    other = sqlite3.connect(path_of(database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert open_index(database).follow() == 0
    other.close()
    assert open_index(database).follow() == 3


def test_a_place_that_cannot_be_written_to_is_said_in_one_line(
    database: Database, tmp_path: Path
) -> None:
    record(database).say("walnut").store()
    path_of(database).mkdir()
    with pytest.raises(UnreachableError, match=r"the search index .* cannot be used") as refused:
        find(database, "walnut")
    assert "\n" not in str(refused.value)
