"""The record from Python."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import runner.audit
from runner.audit import Audit, Column, Rows
from runner.errors import NotFoundError, UsageError
from runner.llm.prices import load_prices
from runner.queries.filters import Filters
from runner.queries.tool_calls import tool_rows
from runner.store.database import Database
from tests.store.examples import NOW

QUESTIONS = (
    *(
        "tools",
        "commands",
        "files",
        "decisions",
        "approvals",
        "limits",
        "errors",
        "costs",
        "models",
    ),
)


@pytest.fixture
def audit(record: Database, folder: Path) -> Iterator[Audit]:
    with runner.audit.open(record.url.render_as_string(hide_password=False)) as audit:
        yield audit


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_can_be_asked(audit: Audit, question: str) -> None:
    found = list(getattr(audit, question)())
    assert found
    assert list(getattr(audit, question)(limit=1)) == found[:1]
    assert list(getattr(audit, question)(job=_job(audit, "mend"), until=1.0)) == []


def _job(audit: Audit, name: str) -> str:
    rows = audit.sql(f"SELECT job_id FROM v_runs WHERE job = '{name}' ORDER BY job_id")
    return str(next(iter(rows))["job_id"])


def test_answers_are_those_of_the_store(audit: Audit, record: Database) -> None:
    assert list(audit.tools(tool="Bash")) == list(tool_rows(record, Filters(tool="Bash")))


def test_filters_take_short_ids_and_datetimes(audit: Audit) -> None:
    job = _job(audit, "mend-tests")
    whole = list(audit.commands(job=job))
    assert whole
    assert list(audit.commands(job=job[-12:])) == whole
    assert list(audit.commands(job=job, since=AT)) == whole
    assert list(audit.commands(job=job, until=AT)) == []


@pytest.mark.slow
def test_search_finds_a_place(audit: Audit) -> None:
    found = list(audit.search("shall look", job=_job(audit, "mend-tests")))
    assert {row["item"] for row in found} == {"src/a.py", "src/b.py"}
    assert list(audit.search(exact="I shall l", limit=1))
    with pytest.raises(UsageError):
        audit.search("NOT only")


def test_timeline_tells_of_one_run(audit: Audit) -> None:
    (row, *_) = audit.sql("SELECT run_id FROM v_runs WHERE job = 'release'")
    assert len(list(audit.timeline(row["run_id"]))) > len(
        list(audit.timeline(row["run_id"], limit=2))
    )


def test_unknown_run_is_said(audit: Audit) -> None:
    with pytest.raises(NotFoundError):
        audit.timeline("run_nowhere")
    with pytest.raises(NotFoundError):
        audit.tools(job="job_nowhere")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e12])
def test_time_that_none_can_have_is_refused(audit: Audit, timeout: float) -> None:
    with pytest.raises(UsageError, match="a year at most"):
        audit.sql("SELECT 1", timeout=timeout)


def test_every_time_up_to_a_year_can_be_had(audit: Audit) -> None:
    assert list(audit.sql("SELECT 1 AS one", timeout=365 * 86_400.0)) == [{"one": 1}]


@pytest.mark.parametrize("limit", [0, -1, 2**31, 2**64])
def test_limit_that_is_none_is_refused(audit: Audit, limit: int) -> None:
    (run, *_) = audit.sql("SELECT run_id FROM v_runs", limit=1)
    asked: list[Any] = [getattr(audit, question) for question in QUESTIONS]
    asked += [partial(audit.sql, "SELECT 1"), partial(audit.search, "look")]
    asked.append(partial(audit.timeline, run["run_id"]))
    for ask in asked:
        with pytest.raises(UsageError, match="limit="):
            ask(limit=limit)
    with pytest.raises(UsageError, match="offset="):
        audit.search("look", offset=limit or -1)


@pytest.mark.parametrize("name", ["a\0b", "half \ud83d", "not utf-8 \udcff"])
def test_name_that_is_none_is_refused(audit: Audit, name: str) -> None:
    for option in ("job", "run", "item", "tool", "model"):
        with pytest.raises(UsageError, match=f"{option}="):
            audit.tools(**{option: name})
    with pytest.raises(UsageError, match="run="):
        audit.timeline(name)


def test_since_that_is_no_time_is_refused(audit: Audit) -> None:
    with pytest.raises(UsageError, match="not a time"):
        audit.tools(since=float("nan"))


@pytest.mark.slow
def test_sql_has_the_prices_that_are_given(record: Database) -> None:
    query = "SELECT sum(usd) AS usd, count(usd) AS priced FROM v_costs WHERE basis <> 'scripted'"
    (row,) = Audit(record, load_prices()).sql(query)
    (without,) = Audit(record, replace(load_prices(), models={})).sql(query)
    assert row["usd"] > 0
    assert without["usd"] == 0 < without["priced"]  # calls that were refused


def test_who_cannot_store_prices_can_ask(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import ProgrammingError

    def refuse(*_: Any) -> None:
        raise ProgrammingError("INSERT", {}, Exception("permission denied"))

    monkeypatch.setattr("runner.audit.store_prices", refuse)
    rows = audit.sql("SELECT 1 AS one UNION ALL SELECT 2", limit=1)
    assert rows.note == (
        "only the first 1 rows: there are more; "
        "v_costs has an older price list: this user may not store the newer one"
    )


def test_database_that_is_not_there_is_not_made(folder: Path) -> None:
    with pytest.raises(UsageError, match="no database"):
        runner.audit.open(f"sqlite:///{folder / 'none.db'}")
    with pytest.raises(UsageError, match="no database"):
        runner.audit.open()
    assert list(folder.iterdir()) == []


def test_record_is_found_where_the_commands_find_it(
    record: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_DATABASE_URL", record.url.render_as_string(hide_password=False))
    with runner.audit.open() as audit:
        assert list(audit.models())


COLUMNS = (
    Column("name"),
    Column("calls", "integer"),
    Column("share", "real"),
    Column("is_open", "boolean"),
    Column("at", "time"),
    Column("took", "seconds"),
    Column("cost", "usd"),
    Column("data", "json"),
)
ROWS = (
    ("a", 2, 0.5, True, NOW, 1.5, 0.25, {"é": [1]}),
    (None, None, None, None, None, None, None, None),
    (7, 2**62, 1, 0, NOW + 0.000001, 2, 1, "text"),
)
AT = datetime.fromtimestamp(NOW, UTC)


@pytest.mark.slow
def test_rows_become_a_pandas_frame() -> None:
    frame = Rows(COLUMNS, ROWS).pandas()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "name": "object",
        "calls": "Int64",
        "share": "float64",
        "is_open": "boolean",
        "at": "datetime64[us, UTC]",
        "took": "float64",
        "cost": "float64",
        "data": "object",
    }
    first, nothing, last = frame.to_dict("records")
    assert first["at"] == AT
    assert (first["name"], first["data"], last["name"]) == ("a", '{"é": [1]}', "7")
    assert last["calls"] == 2**62
    assert frame.isna().iloc[1].all(), nothing
    assert list(Rows(COLUMNS, ()).pandas().columns) == [column.name for column in COLUMNS]


@pytest.mark.slow
def test_rows_become_a_polars_frame() -> None:
    frame = Rows(COLUMNS, ROWS).polars()
    assert {name: str(kind) for name, kind in frame.schema.items()} == {
        "name": "String",
        "calls": "Int64",
        "share": "Float64",
        "is_open": "Boolean",
        "at": "Datetime(time_unit='us', time_zone='UTC')",
        "took": "Float64",
        "cost": "Float64",
        "data": "String",
    }
    first, nothing, last = frame.to_dicts()
    assert first["at"] == AT
    assert (first["data"], last["name"], last["calls"]) == ('{"é": [1]}', "7", 2**62)
    assert set(nothing.values()) == {None}
    assert Rows(COLUMNS, ()).polars().columns == [column.name for column in COLUMNS]


@pytest.mark.slow
@pytest.mark.parametrize("value", [NOW * 1000, -1e12, 1e18, 1e300, -1e300, 2**63 - 1])
def test_column_with_a_number_that_is_no_time_stays_numbers(value: float) -> None:
    columns = (Column("at", "time"), Column("ended_at", "time"))
    rows = ((value, NOW), (NOW, None))
    frame = Rows(columns, rows).pandas()
    assert list(frame["at"]) == [float(value), NOW]
    assert frame["ended_at"].iloc[0] == AT
    assert Rows(columns, rows).polars().rows() == [(float(value), AT), (NOW, None)]


@pytest.mark.slow
def test_first_and_last_time_are_times() -> None:
    ends = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    rows = [(each.timestamp(),) for each in ends]
    assert list(Rows((Column("at", "time"),), rows).pandas()["at"]) == list(ends)
    assert [at for (at,) in Rows((Column("at", "time"),), rows).polars().rows()] == list(ends)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_answer_becomes_a_frame(audit: Audit, question: str) -> None:
    count = len(list(getattr(audit, question)()))
    assert len(getattr(audit, question)().pandas()) == count
    assert len(getattr(audit, question)().polars()) == count


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, library, raising=False)
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == library:
            raise ImportError(name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=f"pip install {library}"):
        getattr(Rows(COLUMNS, ROWS), library)()
