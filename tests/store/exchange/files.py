"""Files that exports are written to, as lines that can be changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import BytesIO, StringIO
from typing import Any

from runner.app.handle import App
from runner.app.transcript import transcript_of
from runner.app.transcript_page import page
from runner.cli import transcript as cli_transcript
from runner.cli.audit import say_rows
from runner.cli.terminal import wrapped
from runner.core.text import json_line
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import session_lines
from runner.llm.prices import load_prices
from runner.queries import decisions, transcript
from runner.queries.accesses import file_rows
from runner.queries.costs import cost_rows, known_costs, model_rows
from runner.queries.decisions import approval_rows, decision_rows
from runner.queries.filters import Filters
from runner.queries.problems import error_rows, limit_rows
from runner.queries.rows import Rows
from runner.queries.timeline import changes_of_job, timeline_rows
from runner.queries.tool_calls import command_rows, tool_rows
from runner.queries.transcript import show_run
from runner.settings import Settings
from runner.store import ids
from runner.store.database import Database
from runner.store.exports import export, load_recorded
from tests.store.attempts import blocks_of_run
from tests.store.examples import NOW

Lines = list[dict[str, Any]]

_IDS = re.compile(r"\b(job|run|apr)_[0-9a-z]{26}")


def lines_of(database: Database, job_id: str) -> Lines:
    """The export of a job, without its end."""
    file = BytesIO()
    export(database, job_id=job_id, write=file.write)
    return [json.loads(line) for line in file.getvalue().splitlines()][:-1]


def signed(lines: Lines) -> bytes:
    """A file of these lines whose end is right."""
    content = b"".join(map(json_line, lines))
    end = {"rows": len(lines) - 1, "sha256": hashlib.sha256(content).hexdigest()}
    return content + json_line({"end": end})


def renamed(lines: Lines) -> Lines:
    """The same with other ids, in the same order."""
    known = sorted({found.group() for found in _IDS.finditer(json.dumps(lines))})
    new = {old: ids.new(old[:3], NOW) for old in known}  # type: ignore[arg-type]
    found: Lines = json.loads(_IDS.sub(lambda match: new[match.group()], json.dumps(lines)))
    return found


PRICES = load_prices()
SETTINGS = Settings.load()


def look_everywhere(database: Database, run_id: str) -> None:
    """Read a run in every way: it is there and nothing is raised."""
    run = show_run(database, run_id)
    transcript.api_messages(database, run_id)
    blocks_of_run(database, run_id)
    transcript.compactions_of_run(database, run_id)
    decisions.denied_calls(database, run_id)
    changes_of_job(database, run["job_id"])
    recorded = load_recorded(database, run_id)
    costs = known_costs(database, PRICES, run_id)
    json.dumps(trajectory(replace(recorded, costs=costs), "1"))
    json.dumps(list(session_lines(recorded, "1")))
    read = transcript_of(App(SETTINGS, database), run_id, NOW)
    parts = list(read.parts)
    list(page(replace(read, parts=iter(parts))))
    for is_folded in (False, True):
        for line in cli_transcript.lines_of(replace(read, parts=iter(parts)), is_folded=is_folded):
            list(wrapped(line, 80))
    for rows in answers(database, run_id):
        for format in ("table", "csv", "json"):
            with redirect_stdout(StringIO()):
                say_rows(Rows(rows.columns, [tuple(row.values()) for row in rows]), format)


def answers(database: Database, run_id: str) -> Iterator[Rows]:
    """To all questions about it."""
    of_run = Filters(run_id=run_id)
    yield timeline_rows(database, of_run, run_id, PRICES)
    yield timeline_rows(database, Filters(tool="Bash", model="x"), run_id, PRICES)
    for question in (
        approval_rows,
        command_rows,
        decision_rows,
        error_rows,
        file_rows,
        limit_rows,
        tool_rows,
    ):
        yield question(database, of_run)
    yield decision_rows(database, of_run, each=True)
    yield model_rows(database, of_run, PRICES)
    yield cost_rows(database, of_run, PRICES)
