from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, select, text

from bench.audit import generate as generating
from bench.audit.generate import Generated, generate
from bench.audit.record import repository
from runner.store.database import Database
from runner.store.tables import metadata

BLOCKS = 400


def rows_of(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a database, by table."""
    engine = create_engine(url)
    with engine.connect() as connection:
        there = set(inspect(connection).get_table_names())
        rows = {
            table.name: [tuple(row) for row in connection.execute(_in_order(table))]
            for table in metadata.sorted_tables
            if table.name in there
        }
    engine.dispose()
    return rows


def _in_order(table: Any) -> Any:
    return select(table).order_by(*table.primary_key.columns)


@pytest.fixture(scope="module", autouse=True)
def small_repositories() -> Iterator[None]:
    """A record of a million blocks needs many files, and most of the time is theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generating, "REPOSITORIES", ("ledger", "mobile"))
        patch.setattr(repository, "FILES", 60)
        yield


@pytest.fixture(scope="module")
def example(
    small_repositories: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Generated, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('record') / 'example.db'}"
    return generate(url, BLOCKS), url


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows_on_both_databases(
    example: tuple[Generated, str], empty_url: str
) -> None:
    made, url = example
    assert generate(empty_url, BLOCKS) == made
    assert rows_of(empty_url) == rows_of(url)


@pytest.mark.slow
def test_another_seed_gives_other_rows(example: tuple[Generated, str], tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    generate(other, BLOCKS, seed=2)
    assert rows_of(other)["blocks"] != rows_of(example[1])["blocks"]


def test_what_is_counted_is_there_and_refers_to_what_is_there(
    example: tuple[Generated, str],
) -> None:
    made, url = example
    rows = rows_of(url)
    assert made.blocks == len(rows["blocks"]) >= BLOCKS
    assert made.calls == len(rows["tool_calls"])
    assert made.runs == len(rows["runs"])
    database = Database(url)
    broken = database.read(
        lambda connection: connection.execute(text("PRAGMA foreign_key_check")).all()
    )
    database.close()
    assert broken == []
    answered = {(block.run_id, block.message, block.position) for block in _results(url)}
    asked = {(row[0], row[1] + 1, row[2]) for row in rows["tool_calls"]}
    assert answered == asked


def _results(url: str) -> list[Any]:
    engine = create_engine(url)
    blocks = metadata.tables["blocks"]
    with engine.connect() as connection:
        found = connection.execute(select(blocks).where(blocks.c.type == "tool_result")).all()
    engine.dispose()
    return list(found)
