"""docs/concepts.md and docs/events.md: states, entries, outcomes and events are those of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import Table, select

import runner
from runner.core import (
    agents,
    budget,
    compaction,
    context,
    decide,
    entries,
    events,
    model_calls,
    retries,
    tool_calls,
)
from runner.core.conversation import ToolOutcome
from runner.core.run import LEASE_SECONDS, TRANSITIONS
from runner.engine import dispatcher, worker
from runner.permissions import AnswerEffect, Effect, Request, ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate
from runner.permissions.shell import LONGEST
from runner.store import due_runs, leases, tables
from runner.store.database import Database
from runner.tools.host import WATCHDOG_SECONDS
from runner.tools.registry import BUILTIN
from tests.docs.happenings import play
from tests.docs.pages import blocks, codes, read, rows, section

PAGE = read("docs/concepts.md")
EVENTS = read("docs/events.md")
IN_ONE_LINE = " ".join((PAGE + EVENTS + read("docs/sub-agents.md")).split())
COORDINATOR = agents.Coordinator("any")
LIMITS = budget.Limits()
CODE = Path(runner.__file__).parent


def test_the_diagram_shows_every_legal_transition_and_no_other() -> None:
    diagram = blocks(PAGE, "mermaid")[0]
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)", diagram, re.MULTILINE))
    legal = {(state, after) for state, others in TRANSITIONS.items() for after in others}
    assert drawn == legal


def test_the_events_name_every_answer_to_a_question() -> None:
    sentence = IN_ONE_LINE.split("`answer` is ")[1].split(";")[0]
    assert codes(sentence) == list(get_args(AnswerEffect))


def test_the_example_of_decisions_is_decided_as_the_table_says() -> None:
    part = section(PAGE, "## How a call is decided")
    (example,) = blocks(part, "toml")
    written = tomllib.loads(example)["permissions"]
    rules = [
        Rule(effect, entry if isinstance(entry, str) else entry["rule"])
        for effect in get_args(Effect)
        for entry in written[effect]
    ]
    policy = Policy(tuple(rules), written["default"])
    table = [(codes(command)[0], effect) for command, effect, _ in rows(part)]
    assert len(table) > 5
    for command, effect in table:
        paths = paths_of("Bash", {"command": command})
        places = {path: ResolvedPath(f"/w/{path}", f"/w/{path}") for path in paths}
        request = Request("Bash", {"command": command}, ToolContext("/w", places=places))
        assert evaluate(policy, request).effect == effect, command


def test_the_steps_name_every_entry() -> None:
    named = {
        name for _, cell in rows(section(PAGE, "## Steps and entries")) for name in codes(cell)
    }
    assert named == {entry.__name__ for entry in get_args(entries.Entry)}


def test_the_outcomes_of_tools_are_all_listed() -> None:
    listed = [codes(row[0])[0] for row in rows(section(PAGE, "## Tools"))]
    assert listed == list(get_args(ToolOutcome))


def test_the_builtin_tools_are_what_the_page_says() -> None:
    for tool in BUILTIN.values():
        assert tool.read_only == tool.repeatable == (tool.name in ("Read", "Glob", "Grep"))
    assert (
        "Read, Glob and Grep are read-only and repeatable; Bash, Write and Edit are neither"
        in IN_ONE_LINE
    )


def test_the_numbers_are_those_of_the_code() -> None:
    for words, number, real in (
        ("prompt + 2,000", 2_000, budget.FIRST_CALL_ALLOWANCE),
        ("fewer than 1,024 tokens", 1_024, budget.LEAST_OUTPUT_TOKENS),
        ("up to eight", 8, tool_calls.MOST_PARALLEL_READS),
        ("asked to go on, twice in a row", 2, decide.MOST_CONTINUATIONS),
        ("is asked for it, twice in all", 2, decide.MOST_RESULT_NUDGES),
        ("for 2 seconds at first", 2, model_calls.BUDGET_WAIT_SECONDS),
        ("and up to 20, at a time", 20, model_calls.LONGEST_BUDGET_WAIT_SECONDS),
        ("divided by `chars_per_token` (4 by default)", 4, context.Context().chars_per_token),
        ("`keep_messages` (8 by default)", 8, context.Context().keep_messages),
        ("Within a tenth of the limit", 0.1, model_calls.CLOSE),
        ("no more than 75% of the limit is taken", 0.75, compaction.ENOUGH),
        ("of more than 1,024 characters", 1_024, compaction.TRUNCATED_ABOVE),
        ("768 characters in all", 768, compaction.OLD_RESULT),
        ("and sent again: twice", 2, model_calls.MOST_REFUSALS),
        ("at the third in a row the run is stopped", 3, model_calls.MOST_REFUSALS + 1),
        ("up to 8 children of a run work at once", 8, LIMITS.max_agents_at_once),
        ("a run at depth 3 starts none", 3, LIMITS.max_agent_depth),
        ("a tree has 50 children at most", 50, LIMITS.max_agents),
        ("with 2 to 8 parts", (2, 8), (COORDINATOR.fewest, COORDINATOR.most)),
        ("a wait of up to 5 seconds", 5, retries.IN_HAND_SECONDS),
        ("doubles from one second", 1, retries.FIRST_DELAY),
        ("to ten minutes", 600, retries.LONGEST_DELAY),
        ("expire together, 15 seconds after", 15, LEASE_SECONDS),
        ("last heartbeat; one comes every 5", 5, worker.RENEW_SECONDS),
        ("at their next look, once a second", 1, dispatcher.PASS_SECONDS),
        ("for over 5 seconds (an outage", 5, dispatcher.OUTAGE_SECONDS),
        ("notifies again after 15 seconds", 15, due_runs.NOTIFY_AGAIN_SECONDS),
        ("renewed its leases for 10 seconds", 10, WATCHDOG_SECONDS),
        ("cut by the ten seconds of a shutdown", 10, worker.DRAIN_SECONDS),
        ("held by three workers in a row", 3, due_runs.LOST_LEASES_BEFORE_ALONE),
        ("Two more, and it has failed", 3 + 2, leases.LOST_LEASES_BEFORE_FAILED),
        ("or more than 20,000 characters", 20_000, LONGEST),
        ("at most 100 characters of a tool's input", 100, events.INPUT_SUMMARY_LENGTH),
        ("and 80 of its output", 80, events.OUTPUT_SUMMARY_LENGTH),
    ):
        assert words in IN_ONE_LINE
        assert number == real, words


def test_the_beginning_of_a_summary_is_quoted_as_it_is() -> None:
    assert f"`{compaction.HEADING}`" in IN_ONE_LINE


def test_what_the_model_is_told_of_a_cut_call_is_quoted_as_it_is() -> None:
    table = section(PAGE, "### A tool whose worker died")
    told = re.findall(r'"(Interrupted[^"]+)"', table)
    assert len(told) == 2
    code = (CODE / "engine/attempt_workspace.py").read_text() + (
        CODE / "core/tool_calls.py"
    ).read_text()
    for words in told:
        assert f'"{words}"' in code


def documented_events(heading: str) -> dict[str, set[str]]:
    """The data of each type of event, as the first table under a heading has it."""
    table = rows(section(EVENTS, heading))
    return {codes(kind)[0]: set(codes(data)) for kind, _, data in table}


OF_RUNS = documented_events("## Events of a run")
OF_JOBS = documented_events("## Events of a job")


def stored_events(database: Database, table: Table) -> dict[str, set[str]]:
    query = select(table.c.type, table.c.data)
    found: dict[str, set[str]] = {}
    for kind, data in database.read(lambda connection: connection.execute(query).all()):
        found.setdefault(kind, set()).update(data)
    return found


@pytest.mark.slow
def test_the_events_are_listed_with_their_data(database: Database) -> None:
    play(database)
    assert stored_events(database, tables.events) == OF_RUNS
    assert stored_events(database, tables.job_events) == OF_JOBS


def test_events_of_what_a_person_can_do_are_all_signed() -> None:
    assert {kind for kind, data in OF_RUNS.items() if "by" in data} == set(events.SIGNED)
    for data in OF_JOBS.values():
        assert {"by", "why", "old", "new"} <= data


# What writes events, with the place of their type among its arguments.
WRITERS = {
    "Event": 0,
    "_add_event": 1,
    "change_event": 0,
    "signed_change": 3,
    "signed_event": 0,
    "tell_of_job": 3,
}


@pytest.mark.slow
def test_no_event_is_written_that_is_not_listed() -> None:
    written = {
        getattr(argument, "value", None) or getattr(events, argument.id)
        for path in CODE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        if (writer := getattr(node.func, "id", getattr(node.func, "attr", None))) in WRITERS
        for kind in node.args[WRITERS[writer] :][:1]
        for argument in ([kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind])
        if isinstance(argument, ast.Constant) or getattr(argument, "id", "").isupper()
    }
    assert written == {*OF_RUNS, *OF_JOBS}
