"""The views: the same on both databases, and what the rest of Runner says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select, text

from runner.audit import Audit
from runner.core.prices import Price, PriceList, Rates, Spending
from runner.llm.prices import load_prices
from runner.queries.costs import call_costs, costs_by
from runner.queries.sql.ask import store_prices
from runner.queries.sql.views import VIEWS
from runner.queries.timeline import events_after
from runner.queries.transcript import show_call
from runner.store.database import Database
from runner.store.ids import call_id
from runner.store.tables import prices as price_table
from runner.store.tables import runs
from tests.audit.story import ODD
from tests.store.attempts import blocks_of_run

pytestmark = pytest.mark.dialect

CHEAP = Rates(Decimal("1.1"), Decimal("1.25"), Decimal(2), Decimal("0.13"), Decimal(5))
PRICES = PriceList(
    date(2026, 11, 10),
    "a page",
    {
        "claude-test": Price(
            CHEAP, fast=CHEAP.times(Decimal(6)), long=CHEAP.times(Decimal(2)), long_above=200_000
        ),
        "claude-opus-5": Price(CHEAP, long=CHEAP.times(Decimal(3)), long_above=100_000),
        "claude-opus-5-latest": Price(CHEAP.times(Decimal(7))),
        "claude-cheap": Price(CHEAP.times(Decimal("0.1"))),
    },
    us_inference=Decimal("1.1"),
)


def rows_of(database: Database, view: str) -> list[Mapping[str, Any]]:
    found = database.read(lambda c: c.execute(text(f"SELECT * FROM {view}")).mappings().all())
    return sorted((dict(row) for row in found), key=repr)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_view_says_the_same_on_both_databases(both: dict[str, Database], view: Any) -> None:
    for database in both.values():
        store_prices(database, PRICES)
    found = {name: rows_of(database, view.name) for name, database in both.items()}
    assert found["sqlite"] == found["postgresql"]
    types = {
        name: [{key: type(value) for key, value in row.items()} for row in rows]
        for name, rows in found.items()
    }
    assert types["sqlite"] == types["postgresql"]
    assert found["sqlite"]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_view_has_the_columns_that_are_said(record: Database, view: Any) -> None:
    (row, *_) = rows_of(record, view.name)
    assert list(row) == [column.name for column in view.columns]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_columns_hold_what_their_kind_says(record: Database, view: Any) -> None:
    store_prices(record, PRICES)
    kinds = {"text": str, "integer": int, "time": float, "seconds": float, "usd": float}
    for row in rows_of(record, view.name):
        for column in view.columns:
            value = row[column.name]
            assert value is None or type(value) is kinds[column.kind], (column, value)


def test_a_column_of_one_name_is_of_one_kind() -> None:
    kinds: dict[str, set[str]] = {}
    for view in VIEWS:
        for column in view.columns:
            kinds.setdefault(column.name, set()).add(column.kind)
    assert {name for name, of in kinds.items() if len(of) > 1} == set()


def test_every_column_has_a_value_somewhere(record: Database) -> None:
    """Else nothing would be known of what it says."""
    store_prices(record, PRICES)
    for view in VIEWS:
        rows = rows_of(record, view.name)
        seen = {name for row in rows for name, value in row.items() if value is not None}
        assert seen == {column.name for column in view.columns}


@pytest.mark.slow
def test_costs_are_those_of_the_costs_command(record: Database) -> None:
    store_prices(record, PRICES)
    for by in ("job", "run", "model", "purpose"):
        expected = {each.key: each.spending for each in costs_by(record, PRICES, by)}  # type: ignore[arg-type]
        column = {"job": "job_id", "run": "run_id"}.get(by, by)
        found: dict[str, Spending] = {}
        for row in rows_of(record, "v_costs"):
            found[row[column]] = found.get(row[column], Spending()) + _spending(row)
        assert found.keys() == expected.keys()
        for key, spent in expected.items():
            assert found[key].calls == spent.calls
            assert found[key].scripted == spent.scripted
            assert float(found[key].usd) == pytest.approx(float(spent.usd), rel=1e-12)
            assert float(found[key].at_most) == pytest.approx(float(spent.at_most), rel=1e-12)
            assert {name.split()[0] for name in spent.unpriced} == found[key].unpriced


def _spending(row: Mapping[str, Any]) -> Spending:
    return Spending(
        calls=1,
        scripted=row["basis"] == "scripted",
        usd=Decimal(row["usd"] or 0),
        at_most=Decimal(row["usd_at_most"] or 0),
        unpriced=frozenset({row["model"]} if row["basis"] == "no price" else ()),
    )


@pytest.mark.slow
def test_each_call_costs_what_it_is_said_to(record: Database) -> None:
    store_prices(record, PRICES)
    ids = record.read(lambda c: c.execute(select(runs.c.id)).scalars().all())
    expected = {
        (run_id, call.number): float(call.spending.usd)
        for run_id in ids
        for call in call_costs(record, PRICES, run_id)
    }
    rows = rows_of(record, "v_costs")
    assert {row["basis"] for row in rows} == {"usage", "at most", "no price", "scripted"}
    for row in rows:
        place = (row["run_id"], row["number"])
        assert (row["usd"] or 0) == pytest.approx(expected[place], rel=1e-12)


def test_prices_are_written_only_when_they_changed(record: Database) -> None:
    store_prices(record, PRICES)
    written: list[int] = []
    write = record.write
    record.write = lambda work: written.append(1) or write(work)  # type: ignore[method-assign, assignment, func-returns-value]
    try:
        store_prices(record, PRICES)
        assert written == []
        store_prices(record, load_prices())
        store_prices(record, PRICES)
        assert written == [1, 1]
    finally:
        record.write = write  # type: ignore[method-assign]
    models = select(price_table.c.model).distinct()
    stored = record.read(lambda c: c.execute(models).scalars().all())
    assert set(stored) == set(PRICES.models)


@pytest.mark.slow
def test_call_is_named_and_shown_as_everywhere(record: Database) -> None:
    for row in rows_of(record, "v_tool_calls"):
        call = show_call(record, row["call_id"])
        assert (call["run_id"], call["message"]) == (row["run_id"], row["message"])
        assert (call["name"], call["position"]) == (row["tool"], row["position"])
        if isinstance(command := call["input"].get("command"), str):
            assert row["command"] == _readable(command)
        if isinstance(call["result"], str):
            assert row["output"] == _readable(call["result"])


def test_what_a_sub_agent_is_called_and_works_by(record: Database) -> None:
    runs = [row for row in rows_of(record, "v_runs") if row["agent_type"]]
    root = next(row["root_run"] for row in runs if row["label"] == "2.1")
    runs_of = {row["label"]: row for row in runs if row["root_run"] == root}
    assert set(runs_of) == {"1", "2", "2.1"}
    assert (runs_of["2.1"]["parent_run"], runs_of["2.1"]["depth"]) == (f"{root}.2", 2)
    assert (runs_of["1"]["model"], runs_of["2"]["model"]) == ("claude-test", "claude-small")
    name = root.removeprefix("run_")
    assert runs_of["2"]["parent_call"] == f"call_{name}_1_2"
    assert runs_of["2.1"]["parent_call"] is None


@pytest.mark.slow
def test_calls_and_hooks_are_called_what_the_events_call_them(record: Database) -> None:
    labels = {row["call_id"]: row["label"] for row in rows_of(record, "v_tool_calls")}
    told = {}
    for run in rows_of(record, "v_runs"):
        for event in events_after(record, run["run_id"]):
            if "call_index" in event["data"] and event["type"] == "tool_done":
                turn, index = event["data"]["turn"], event["data"]["call_index"]
                told[call_id(run["run_id"], turn, index)] = event["label"]
    assert told.items() <= labels.items()
    assert "2.1.2" in told.values()
    decided = {row["call_id"]: row["label"] for row in rows_of(record, "v_decisions")}
    assert decided.items() <= labels.items()
    about = {(row["event"], row["label"]) for row in rows_of(record, "v_hooks")}
    assert about >= {("PreToolUse", "1.2"), ("RunEnd", "1")}


def test_texts_that_no_column_holds_are_readable(record: Database) -> None:
    said = {row["text"] for row in rows_of(record, "v_messages") if row["type"] == "text"}
    assert {_readable(f"said {odd}") for odd in ODD} <= said
    assert "said whole 😀" in said
    assert "said nul \\u0000 here" in said
    assert "said half \\udc00 and a whole \\ud83d\\ude00" in said


def _readable(text: str) -> str:
    """A text as the views give it."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        units = text.encode("utf-16-be", "surrogatepass")
        codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
        text = "".join(f"\\u{c:04x}" if 0xD800 <= c <= 0xDFFF else chr(c) for c in codes)
    return text.replace("\0", "\\u0000")


def test_times_are_said_in_utc(record: Database) -> None:
    (first, *_) = rows_of(record, "v_runs")
    assert first["created_at_text"] == "2023-11-14T22:13:20Z"


COPIES = "JOIN runs r ON r.id = run_id WHERE turn <= r.fork_turn"


def test_calls_that_a_fork_was_copied_with_are_in_the_conversation_alone(record: Database) -> None:
    def count(query: str) -> Any:
        return record.read(lambda c: c.execute(text(f"SELECT count(*) FROM {query}")).scalar())

    copies = count(f"tool_calls {COPIES}")
    assert copies > 2
    assert count("v_tool_calls") == count("tool_calls") - copies
    for view in ("v_turns", "v_tool_calls", "v_decisions"):
        assert count(f"{view} {COPIES.replace('turn <=', f'{view}.turn <=')}") == 0
    forks = [row for row in rows_of(record, "v_runs") if row["fork_of"]]
    assert len(forks) > 1
    for run in forks:
        of_run = [row for row in rows_of(record, "v_messages") if row["run_id"] == run["run_id"]]
        copied = {(row["message"], row["position"]) for row in of_run if row["copied"]}
        said = set(first_sent(record, run["fork_of"], run["fork_turn"]))
        assert copied == said
        assert "Try again." not in {row["text"] for row in of_run if row["copied"]}
    assert not [
        row
        for row in rows_of(record, "v_messages")
        if row["copied"] and row["run_id"] not in {run["run_id"] for run in forks}
    ]


def first_sent(database: Database, run_id: str, turn: int) -> Iterator[tuple[int, int]]:
    """The places of the blocks of a run up to a turn's end."""
    for row in rows_of(database, "v_messages"):
        if row["run_id"] == run_id and (row["turn"] or 0) <= turn:
            yield row["message"], row["position"]


def test_calls_are_counted_as_the_ready_questions_do(record: Database) -> None:
    asked = Audit(record, PRICES)
    calls: Counter[Any] = Counter()
    for row in rows_of(record, "v_tool_calls"):
        calls[row["tool"], row["outcome"]] += row["outcome"] is not None
    said = {(row["tool"], row["outcome"]): row["calls"] for row in asked.tools()}
    assert {key: count for key, count in calls.items() if count} == {
        key: count for key, count in said.items() if key in calls
    }
    decided = Counter(row["decision"] for row in rows_of(record, "v_decisions"))
    told: Counter[Any] = Counter()
    for row in asked.decisions():
        told[row["decision"]] += row["calls"]
    assert decided == {decision: count for decision, count in told.items() if decision}


def test_every_block_and_every_event_is_there(record: Database) -> None:
    counts = {"v_messages": "blocks", "v_runs": "runs"}
    for view, table in counts.items():
        query = text(f"SELECT (SELECT count(*) FROM {view}), (SELECT count(*) FROM {table})")
        seen, stored = record.read(lambda c, q=query: c.execute(q).one())  # type: ignore[misc]
        assert seen == stored
    (run_id, *_) = [row["run_id"] for row in rows_of(record, "v_messages")]
    blocks = [row for row in rows_of(record, "v_messages") if row["run_id"] == run_id]
    assert len(blocks) == len(blocks_of_run(record, run_id))
    query = text("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM job_events)")
    assert len(rows_of(record, "v_events")) == record.read(lambda c: c.execute(query).scalar())
