"""All that people and programs read of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

from runner.app.page import page
from runner.cli.audit.formats import say_rows
from runner.cli.look.reading.compose import reading
from runner.cli.terminal import wrapped
from runner.cli.transcript_text import lines_of
from runner.core.rows import Rows
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import session_lines
from runner.llm.prices import load_prices
from runner.settings import Settings
from runner.store.audit.approvals import approvals
from runner.store.audit.commands import commands
from runner.store.audit.costs import costs
from runner.store.audit.decisions import decisions as decided
from runner.store.audit.errors import errors
from runner.store.audit.files import files
from runner.store.audit.filters import Filters
from runner.store.audit.limits import limits
from runner.store.audit.models import models
from runner.store.audit.timeline import timeline
from runner.store.audit.tools import tools
from runner.store.connection.database import Database
from runner.store.exchange.recorded import load_recorded
from runner.store.look import decisions, queries, transcript
from runner.store.look.changes import changes_of
from tests.store.examples import NOW

PRICES = load_prices()
SETTINGS = Settings.load()


def look_everywhere(database: Database, run_id: str) -> None:
    """Read a run in every way: it is there and nothing is raised."""
    run = queries.show_run(database, run_id)
    transcript.messages(database, run_id)
    transcript.lines(database, run_id)
    transcript.compactions(database, run_id)
    decisions.denied_calls(database, run_id)
    changes_of(database, run["job_id"])
    recorded = load_recorded(database, run_id, PRICES)
    json.dumps(trajectory(recorded, "1"))
    json.dumps(list(session_lines(recorded, "1")))
    read = reading(SETTINGS, database, run_id, NOW)
    parts = list(read.parts)
    list(page(replace(read, parts=iter(parts))))
    for is_folded in (False, True):
        for line in lines_of(replace(read, parts=iter(parts)), is_folded=is_folded):
            list(wrapped(line, 80))
    for rows in answers(database, run_id):
        for format in ("table", "csv", "json"):
            with redirect_stdout(StringIO()):
                say_rows(Rows(rows.columns, [tuple(row.values()) for row in rows]), format)


def answers(database: Database, run_id: str) -> Iterator[Rows]:
    """To all questions about it."""
    of_run = Filters(run_id=run_id)
    yield timeline(database, of_run, run_id, PRICES)
    yield timeline(database, Filters(tool="Bash", model="x"), run_id, PRICES)
    for question in (approvals, commands, decided, errors, files, limits, tools):
        yield question(database, of_run)
    yield decided(database, of_run, each=True)
    yield models(database, of_run, PRICES)
    yield costs(database, of_run, PRICES)
