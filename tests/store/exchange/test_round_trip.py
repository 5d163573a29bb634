"""An export brought into another database, and taken out of it again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Connection, select, update

from runner.core.budget import Budget
from runner.core.commands import Target
from runner.core.run import Author
from runner.errors import NotFoundError, UsageError
from runner.store import imports
from runner.store.database import Database
from runner.store.due_runs import due_to_notify
from runner.store.exports import export
from runner.store.fork import fork
from runner.store.import_checks import Section
from runner.store.imports import import_file
from runner.store.jobs import submit
from runner.store.retry import retry, say
from runner.store.tables import approvals, events, job_budgets, job_events, jobs, run_items, runs
from tests.store.attempts import claim, event_types, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC, submission
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.files import lines_of, renamed, signed
from tests.store.exchange.stories import UNENDED, Rows, rows_of, store, stories

ANN = Author("ann", "to look at it")
KINDS = ("sqlite", "postgresql")


def stored(database: Database, column: Any, *conditions: Any) -> list[Any]:
    query = select(column).where(*conditions)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def exported(database: Database, **of: str) -> bytes:
    file = BytesIO()
    export(database, write=file.write, **of)
    return file.getvalue()


def brought(database: Database, content: bytes) -> list[tuple[str, str]]:
    found = import_file(database, BytesIO(content), "runs.jsonl", ANN, NOW + 900)
    return [(each.what, each.state) for each in found]


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
def test_an_ended_run_is_the_same_in_another_database(
    make_database: MakeDatabase, here: str, there: str
) -> None:
    first, second = make_database(here), make_database(there)
    run_id = submit_one(first)
    attempt = claim(first, run_id).reply(tool_use(1, file_path="a"), stop="tool_use")
    attempt.finish("read", output=b"all of it" * 1000).reply(text("Done."))
    content = exported(first, run_id=run_id)
    assert brought(second, content) == [("imported", "succeeded")]
    assert exported(second, run_id=run_id) == content
    assert brought(second, content) == [("there", "succeeded")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "item",
    [3.0, 0.0, 0.5, -7, 1e300, 9703959435228426.0, -1e19, 2**63 - 1, -(2**63), 2**64 + 1, 5e-324],
)
def test_an_item_that_is_a_number_is_exported_the_same_after_an_import(
    make_database: MakeDatabase, item: float
) -> None:
    first, second = make_database("postgresql"), make_database("sqlite")
    run_id = submit_one(first)
    claim(first, run_id).reply(text("Done."))
    first.write(lambda c: c.execute(update(run_items).values(item=item)))
    content = exported(first, run_id=run_id)
    assert brought(second, content) == [("imported", "succeeded")]
    assert exported(second, run_id=run_id) == content


def test_an_item_that_no_database_can_hold_is_refused(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    lines = renamed(lines_of(database, run_row(database, run_id).job_id))
    rows_of_item = [line["row"] for line in lines if line.get("table") == "run_items"]
    rows_of_item[0]["item"] = 10**400
    with pytest.raises(UsageError, match=r"run_items\.item: it is a number that is too large"):
        brought(database, signed(lines))


# One database serves all examples: each has ids of its own.
_examples = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize(("here", "there"), [KINDS, KINDS[::-1]])
def test_whatever_is_recorded_of_a_job_is_exported_the_same_after_an_import(
    make_database: MakeDatabase, here: str, there: str
) -> None:
    first, second = make_database(here), make_database(there)

    @_examples
    @given(stories())
    def round_trip(story: tuple[str, Rows]) -> None:
        job_id, rows = story
        store(first, rows)
        content = exported(first, job_id=job_id)
        runs = rows_of(rows, "runs")
        assert brought(second, content) == [("imported", run["state"]) for run in runs]
        assert exported(second, job_id=job_id) == content
        assert brought(second, content) == [("there", run["state"]) for run in runs]
        for run in runs:
            assert exported(second, run_id=run["id"]) == exported(first, run_id=run["id"])

    round_trip()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_had_not_ended_is_cancelled_where_it_is_imported(
    make_database: MakeDatabase, kind: str
) -> None:
    first, second = make_database("sqlite"), make_database(kind)

    @_examples
    @given(stories(states=UNENDED))
    def imports(story: tuple[str, Rows]) -> None:
        job_id, rows = story
        store(first, rows)
        content = exported(first, job_id=job_id)
        states = [("imported", "cancelled") for _ in rows_of(rows, "runs")]
        assert brought(second, content) == states
        assert brought(second, content) == [("there", "cancelled") for _ in states]
        assert due_to_notify(second, 100, 1e11) == []
        for run in rows_of(rows, "runs"):
            assert stored(second, runs.c.state, runs.c.id == run["id"]) == ["cancelled"]
            assert None not in stored(second, approvals.c.answer, approvals.c.run_id == run["id"])

    imports()


def test_the_import_of_a_run_that_had_not_ended_is_an_event_that_says_by_whom(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = submit_one(first)
    claim(first, run_id)
    brought(second, exported(first, run_id=run_id))
    here = events.c.run_id == run_id
    assert event_types(second, run_id)[-5:-3] == ["imported", "cancelled"]
    imported = stored(second, events.c.data, here, events.c.type == "imported")[0]
    assert (imported["by"], imported["why"]) == ("ann", "to look at it")
    assert (imported["state"], imported["reason"]) == ("running", "")


def test_a_call_that_was_open_is_charged_to_the_budget_of_the_job(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = submit_one(first, spec=replace(SPEC, budget=Budget(tokens=50_000_000)))
    claim(first, run_id)
    brought(second, exported(first, run_id=run_id))
    (reserved,) = stored(first, job_budgets.c.reserved_tokens)
    assert reserved > 0
    assert stored(second, job_budgets.c.reserved_tokens) == [0]
    assert stored(second, job_budgets.c.spent_tokens) == [reserved]
    assert brought(second, exported(first, run_id=run_id)) == [("there", "cancelled")]


def test_who_imported_a_job_is_recorded_and_leaves_its_export_as_it_was(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    claim(first, submit_one(first)).reply(text("Done."))
    (job_id,) = stored(first, jobs.c.id)
    content = exported(first, job_id=job_id)
    brought(second, content)
    *_, imported = stored(second, job_events.c.data, job_events.c.type == "imported")
    assert (imported["by"], imported["why"], imported["new"]["runs"]) == ("ann", "to look at it", 1)
    assert exported(second, job_id=job_id) == content


@pytest.mark.slow
def test_a_run_is_exported_with_those_that_it_came_from(make_database: MakeDatabase) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = submit_one(first)
    claim(first, run_id).reply(text("Done."))
    (fresh,) = retry(first, Target("run", run_id), NOW + 1, fresh=True)
    later = fork(first, fresh.id, 0, NOW + 2)
    content = exported(first, run_id=later.id)
    states = [("imported", "succeeded"), ("imported", "cancelled"), ("imported", "cancelled")]
    assert brought(second, content) == states
    assert sorted(stored(second, runs.c.id)) == [run_id, fresh.id, later.id]


@pytest.mark.slow
def test_runs_of_a_job_come_in_one_after_the_other(make_database: MakeDatabase) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    job_id = submit(first, submission("a", "b"), NOW)
    one, other = sorted(stored(first, runs.c.id))
    for run_id in (one, other):
        claim(first, run_id, NOW + 5).reply(text("Done."))
    for run_id in (one, other):
        assert brought(second, exported(first, run_id=run_id)) == [("imported", "succeeded")]
    assert exported(second, job_id=job_id) == exported(first, job_id=job_id)


def test_a_run_that_has_changed_since_is_refused_and_nothing_is_stored(
    make_database: MakeDatabase,
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    submit(first, submission("a", "b"), NOW)
    one, other = sorted(stored(first, runs.c.id))
    claim(first, other, NOW + 5).reply(text("Done."))
    brought(second, exported(first, run_id=other))
    claim(first, one, NOW + 5).reply(text("Done."))
    say(first, other, "And now?", NOW + 6)
    (job_id,) = stored(first, jobs.c.id)
    with pytest.raises(UsageError, match=f"{other} is here already and is not the same"):
        brought(second, exported(first, job_id=job_id))
    assert stored(second, runs.c.id) == [other]


def test_a_key_that_another_job_has_is_refused(make_database: MakeDatabase) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    job_id = submit(first, submission("a"), NOW, "nightly")
    holder = submit(second, submission("b"), NOW, "nightly")
    with pytest.raises(UsageError, match=f"{holder} has the key 'nightly' here already"):
        brought(second, exported(first, job_id=job_id))
    assert stored(second, jobs.c.id) == [holder]


def test_what_does_not_exist_is_not_exported(make_database: MakeDatabase) -> None:
    with pytest.raises(NotFoundError, match="no run is named run_1"):
        exported(make_database("sqlite"), run_id="run_1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_many_rows_is_read_and_stored_page_by_page(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first, second = make_database(kind), make_database(kind)
    run_id = submit_one(first)
    attempt = claim(first, run_id)
    for number in range(4):
        attempt.reply(text("So."), tool_use(number, file_path="a"), stop="tool_use").finish("read")
    attempt.reply(text("Done."))
    content = exported(first, run_id=run_id)
    monkeypatch.setattr("runner.store.exports.ROWS_AT_ONCE", 2)
    monkeypatch.setattr("runner.store.imports.ROWS_AT_ONCE", 2)
    assert exported(first, run_id=run_id) == content
    assert brought(second, content) == [("imported", "succeeded")]
    assert exported(second, run_id=run_id) == content


def test_what_is_stored_while_an_export_is_written_is_not_half_in_it(database: Database) -> None:
    run_id = submit_one(database)
    attempt = claim(database, run_id)
    before = exported(database, run_id=run_id)
    file = BytesIO()

    def write(line: bytes) -> None:
        file.write(line)
        if file.tell() == len(line):
            attempt.reply(text("Done."))

    export(database, run_id=run_id, write=write)
    assert file.getvalue() == before != exported(database, run_id=run_id)


@pytest.mark.parametrize("kind", KINDS)
def test_two_imports_of_one_file_at_a_time_store_it_once(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first, second = make_database("sqlite"), make_database(kind)
    run_id = submit_one(first)
    claim(first, run_id).reply(text("Done."))
    content = exported(first, run_id=run_id)
    look = imports.missing_sections

    def be_slower(connection: Connection, sections: list[Section], source: str) -> set[Section]:
        missing = look(connection, sections, source)
        monkeypatch.setattr(imports, "missing_sections", look)
        with closing(Database(second.url.render_as_string(hide_password=False))) as other:
            assert brought(other, content) == [("imported", "succeeded")]
        return missing

    monkeypatch.setattr(imports, "missing_sections", be_slower)
    with pytest.raises(UsageError, match="import it again when they are done"):
        brought(second, content)
    assert stored(second, runs.c.id) == [run_id]
    assert brought(second, content) == [("there", "succeeded")]
