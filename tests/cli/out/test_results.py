"""``results``: what runs have submitted, as data that nothing in it can turn into something else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from runner.cli.outputs import _cell
from runner.core.commands import Target
from runner.core.spec import JobSpec
from runner.core.workspace import RESULT_TOOL, result_tool
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.retry import retry, say
from runner.store.tables import runs
from tests.cli.conftest import Result
from tests.cli.test_terminal import HOSTILE, steers
from tests.store.attempts import Attempt, claim, submit_one, tool_use
from tests.store.examples import NOW, SPEC, submission

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "score": {"type": "integer"}, "tags": {}},
    "required": ["title"],
}
ASKS = replace(SPEC, tools=(*SPEC.tools, result_tool(SCHEMA)), rules=(Rule("allow", "*"),))


def submit(database: Database, *keys: str, spec: JobSpec = ASKS) -> tuple[str, list[str]]:
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW)
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return job_id, list(database.read(lambda c: c.execute(query).scalars().all()))


def give(database: Database, run_id: str, *results: Mapping[str, Any]) -> Attempt:
    """The model submits these in one reply."""
    calls = (tool_use(n, RESULT_TOOL, **result) for n, result in enumerate(results))
    return claim(database, run_id).reply(*calls, stop="tool_use")


def table(content: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content, newline="")))


def test_each_run_has_a_line_with_its_result(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, (first, second) = submit(database, "a", "b")
    give(database, first, {"title": "Good", "score": 3}, {"title": "not taken"})
    told = command("results", job_id)
    assert told.code == 0
    assert "1 of 2 runs have submitted a result" in told.err
    assert [json.loads(line) for line in told.out.splitlines()] == [
        {
            "run_id": first,
            "item_key": "a",
            "state": "succeeded",
            "reason": "submitted",
            "fork_of": None,
            "result": {"title": "Good", "score": 3},
        },
        {
            "run_id": second,
            "item_key": "b",
            "state": "queued",
            "reason": "",
            "fork_of": None,
            "result": None,
        },
    ]
    as_json = command("results", job_id, "--format", "json").json
    assert as_json == [json.loads(line) for line in told.out.splitlines()]


def test_the_last_result_is_the_run_s(command: Callable[..., Result], database: Database) -> None:
    job_id, (run_id,) = submit(database, "a")
    give(database, run_id, {"title": "first"})
    say(database, run_id, "Once more.", NOW)
    give(database, run_id, {"title": "second"})
    assert json.loads(command("results", job_id).out)["result"] == {"title": "second"}


def test_a_fork_has_not_submitted_what_its_origin_did(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, (run_id,) = submit(database, "a")
    give(database, run_id, {"title": "the origin's"})
    forked = fork(database, run_id, 1, NOW, text="Go on.", model=None)
    lines = [json.loads(line) for line in command("results", job_id).out.splitlines()]
    assert [(line["fork_of"], line["result"]) for line in lines] == [
        (None, {"title": "the origin's"}),
        (run_id, None),
    ]
    assert lines[1]["run_id"] == forked.id


def test_a_run_that_was_begun_afresh_is_left_out(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, (run_id,) = submit(database, "a")
    target = Target("run", run_id)
    cancel(database, target, NOW)
    retry(database, target, NOW, fresh=True)
    (line,) = command("results", job_id).out.splitlines()
    assert json.loads(line)["run_id"] != run_id


def test_a_csv_has_a_column_for_each_property(
    command: Callable[..., Result], database: Database, folder: Path
) -> None:
    job_id, (first, second) = submit(database, "a", "-b")
    give(database, first, {"title": 'x, "y"\nz', "score": -3, "tags": ["p", None], "more": True})
    told = command("results", job_id, "-o", "out.csv")
    assert (told.code, told.out) == (0, "")
    heads, *lines = table((folder / "out.csv").read_bytes().decode())
    of_run = ["run_id", "item_key", "state", "reason", "fork_of"]
    assert heads == [*of_run, "result.title", "result.score", "result.tags", "result.more"]
    assert lines == [
        [first, "a", "succeeded", "submitted", "", 'x, "y"\nz', "-3", '["p", null]', "true"],
        [second, "'-b", "queued", "", "", "", "", "", ""],
    ]
    assert [each.name for each in folder.iterdir() if each.name.startswith((".out", "out"))] == [
        "out.csv"
    ]


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1")


@pytest.mark.slow
def test_no_cell_of_a_csv_is_a_formula(command: Callable[..., Result], database: Database) -> None:
    job_id, found = submit(database, *FORMULAS)
    for run_id, formula in zip(found, FORMULAS, strict=True):
        give(database, run_id, {"title": formula, formula: "x"})
    for row in table(command("results", job_id, "--format", "csv").out):
        assert not any(cell.lstrip(" ").startswith(tuple("=+-@\t\r＝")) for cell in row), row


@pytest.mark.slow
@given(st.text())
def test_a_defused_cell_is_the_text_behind_one_quote(text: str) -> None:
    assert _cell(text).replace("'", "") == text.replace("'", "")


@pytest.mark.parametrize("shape", ["csv", "json", "jsonl"])
def test_nothing_at_a_terminal_is_obeyed(
    command: Callable[..., Result], database: Database, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    job_id, (run_id,) = submit(database, "a")
    give(database, run_id, {"title": HOSTILE})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    told = command("results", job_id, "--format", shape)
    assert told.code == 0
    assert not any(map(steers, told.out.replace("\n", "")))


def test_a_job_without_a_schema_says_what_is_missing(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, _ = submit(database, "a", spec=SPEC)
    told = command("results", job_id)
    assert (told.code, told.out) == (2, "")
    assert "output_schema" in told.err


def test_a_file_that_cannot_be_written_is_told(
    command: Callable[..., Result], database: Database
) -> None:
    job_id, _ = submit(database, "a")
    told = command("results", job_id, "-o", "nowhere/out.csv")
    assert told.code == 2
    assert "nowhere/out.csv cannot be written: No such file or directory" in told.err


@pytest.mark.slow
def test_show_and_list_tell_of_it(command: Callable[..., Result], database: Database) -> None:
    run_id = submit_one(database, spec=ASKS)
    give(database, run_id, {"title": HOSTILE})
    assert command("show", run_id, "--json").json["result"] == {"title": HOSTILE}
    shown = command("show", run_id).out
    assert "result " in shown
    assert not any(map(steers, shown.replace("\n", "")))
