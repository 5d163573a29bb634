"""Every question tells of what all of its filters say, and of nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from runner.queries.accesses import file_rows
from runner.queries.costs import cost_rows, model_rows
from runner.queries.decisions import approval_rows, decision_rows
from runner.queries.filters import Filters
from runner.queries.problems import error_rows, limit_rows
from runner.queries.rows import Rows
from runner.queries.timeline import timeline_rows
from runner.queries.tool_calls import command_rows, tool_rows
from runner.store.database import Database
from runner.store.tables import model_calls
from tests.store.attempts import claim, run_row
from tests.store.audit.played import (
    PLAYED,
    Job,
    bash,
    call_model_otherwise,
    call_rows,
    play,
    submit,
    turn,
)
from tests.store.examples import NOW
from tests.store.test_costs import PRICES

QUESTIONS: dict[str, Callable[[Database, Filters], Rows]] = {
    "tools": tool_rows,
    "commands": command_rows,
    "files": file_rows,
    "decisions": decision_rows,
    "each": lambda database, by: decision_rows(database, by, each=True),
    "approvals": approval_rows,
    "limits": limit_rows,
    "errors": error_rows,
    "costs": lambda database, by: cost_rows(database, by, PRICES),
    "models": lambda database, by: model_rows(database, by, PRICES),
}


def play_more(database: Database) -> tuple[Job, Job]:
    """Two jobs; a turn of the second's run is another model's."""
    job = play(database)
    other = submit(database, "b.py", by="bo")
    attempt = claim(database, other.runs[0], NOW + 1_000)
    turn(attempt, *bash("ls", "git status"), at=NOW + 1_010)
    turn(attempt, *bash("ls x"), at=NOW + 1_020)
    call_model_otherwise(database, other.runs[0], 2, "claude-other")
    summarise_with(database, other.runs[0], "claude-other")
    return job, other


def summarise_with(database: Database, run_id: str, model: str) -> None:
    """Before a run's first turn its context was summarised by a model."""

    def work(connection: Connection) -> None:
        first = select(model_calls).where(model_calls.c.run_id == run_id, model_calls.c.number == 1)
        row = dict(connection.execute(first).mappings().one())
        row |= {"number": 99, "purpose": "summary", "model": model}
        connection.execute(insert(model_calls).values(row))

    database.write(work)


_EACH = 17  # of so many combinations one is tried: it is prime to the numbers of choices


def some_filters(job: Job, other: Job) -> Iterator[dict[str, Any]]:
    """Combinations of filters, with each value of each of them."""
    choices: dict[str, list[Any]] = {
        "job_id": [None, job.id, other.id],
        "run_id": [None, job.runs[1]],
        "item": [None, "b.py"],
        "tool": [None, "Bash", "Read"],
        "model": [None, "claude-other"],
        "since": [None, NOW + 20],
        "until": [None, NOW + 1_020],
    }
    combined = list(itertools.product(*choices.values()))
    for values in combined[::_EACH]:
        yield dict(zip(choices, values, strict=True))
    for name, values in choices.items():
        for value in values[1:]:
            yield {**dict.fromkeys(choices), name: value}


@pytest.mark.slow
def test_calls_are_those_that_all_filters_let_through(database: Database) -> None:
    job, other = play_more(database)
    calls = call_rows(database)
    for chosen in some_filters(job, other):

        def fits(call: Any, chosen: dict[str, Any] = chosen) -> bool:
            at = call.started_at or call.ended_at
            of_other = (call.run_id, call.turn) == (other.runs[0], 2)
            return (
                chosen["job_id"] in (None, call.job_id)
                and chosen["run_id"] in (None, call.run_id)
                and chosen["item"] in (None, call.item_key)
                and chosen["tool"] in (None, call.name)
                and (chosen["model"] is None or of_other)
                and (chosen["since"] is None or at >= chosen["since"])
                and (chosen["until"] is None or at < chosen["until"])
            )

        expected = [call for call in calls if fits(call)]
        only = Filters(**chosen)
        assert sum(row["calls"] for row in tool_rows(database, only)) == len(expected), chosen
        assert sum(row["calls"] for row in decision_rows(database, only)) == len(expected)
        assert len(list(decision_rows(database, only, each=True))) == len(expected)
        of_bash = [call for call in expected if call.name == "Bash"]
        assert len(list(command_rows(database, only))) == len(of_bash)


NOTHING: tuple[dict[str, Any], ...] = (
    {"job_id": "job_none"},
    {"run_id": "run_none"},
    {"item": "none"},
    {"tool": "None"},
    {"model": "none"},
    {"since": NOW + 9_000},
    {"until": NOW - 9_000},
)


@pytest.mark.slow
def test_filter_that_nothing_meets_leaves_nothing(database: Database) -> None:
    spec = replace(PLAYED, limits=replace(PLAYED.limits, max_turns=1))
    play(database)
    turn(claim(database, submit(database, "c.py", spec=spec).runs[0]), *bash("ls"))
    for name, ask in QUESTIONS.items():
        assert list(ask(database, Filters())) != [], name
        for nothing in NOTHING:
            assert list(ask(database, Filters(**nothing))) == [], (name, nothing)


@pytest.mark.slow
def test_costs_with_a_tool_are_those_of_the_turns_that_called_it(database: Database) -> None:
    job = play(database)
    by_run = {
        row["run_id"]: row["calls"]
        for row in cost_rows(database, Filters(tool="Read"), PRICES, "run")
    }
    assert by_run == {job.runs[0]: 1}
    by_run = {
        row["run_id"]: row["calls"]
        for row in cost_rows(database, Filters(tool="Bash"), PRICES, "run")
    }
    assert by_run == dict.fromkeys(job.runs, 1)


@pytest.mark.slow
def test_timeline_takes_the_filters_too(database: Database) -> None:
    job = play(database)
    run_id = job.runs[0]

    def told(**only: Any) -> list[Any]:
        return list(timeline_rows(database, Filters(**only), run_id, PRICES))

    whole = told()
    assert told(job_id=job.id, run_id=run_id, item="a.py") == whole
    assert told(item="b.py") == told(job_id="job_none") == told(run_id=job.runs[1]) == []
    assert {row["tool"] for row in told(tool="Bash")} == {"Bash"}
    assert {row["event"] for row in told(model="claude-test")} == {
        "model_call_started",
        "model_call_ended",
    }
    middle = told(since=NOW + 20, until=NOW + 80)
    assert middle == [row for row in whole if NOW + 20 <= row["at"] < NOW + 80]
    assert run_row(database, run_id).event_count == len(whole)


def test_timeline_says_who_did_what_and_how_long_a_wait_lasted(database: Database) -> None:
    job = play(database)
    rows = list(timeline_rows(database, Filters(), job.runs[0], PRICES))
    people = [(row["event"], row["by"]) for row in rows if row["by"]]
    assert people == [("run_submitted", "ada"), ("approval_answered", "lena")]
    (waited,) = (row for row in rows if row["event"] == "waiting")
    assert waited["seconds"] == 70
