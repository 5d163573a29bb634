"""docs/operations.md and the pages beside it: their tables and numbers are those of the program."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from sqlalchemy import DDL, Connection, text

import runner
from runner import settings
from runner.app import doctor
from runner.app.budgets import BudgetStatus
from runner.app.costs import cost_fields
from runner.cli import exit_codes
from runner.core import context, retries
from runner.core.budget import Ceiling, JobBudget
from runner.core.notices import Notify
from runner.core.prices import Spending
from runner.core.run import LEASE_SECONDS, STATES, Requeued, WaitReason
from runner.core.spec import LEAST_CACHED_TOKENS, Asking, Patience
from runner.engine import dispatcher, worker
from runner.llm import api_errors
from runner.llm.anthropic import AnthropicModel
from runner.llm.prices import load_prices
from runner.store import budgets, leases
from runner.store.database import (
    BUSY_TIMEOUT_SECONDS,
    POSTGRES_CONNECTIONS,
    Database,
    connections_for,
)
from runner.store.notices import take_due
from runner.store.questions import announce
from runner.tools.notice_command import MOST_SECONDS
from tests.docs.happenings import play
from tests.docs.pages import blocks, codes, read, rows, section
from tests.store.asked import ask_all, submit_asking
from tests.store.examples import NOW

PAGE = read("docs/operations.md")
COSTS = read("docs/costs.md")
NOTICES = read("docs/notices.md")
IN_ONE_LINE = " ".join((PAGE + COSTS + NOTICES).split())
CODE = Path(runner.__file__).parent


def test_the_settings_are_those_that_are_read() -> None:
    listed = [codes(row[0])[0] for row in rows(section(PAGE, "## Settings"))]
    names = [settings.HOME, settings.DATABASE_URL, settings.REDIS_URL, settings.PRICES]
    names += [settings.LOG_FORMAT, settings.WEB_URL]
    assert listed[: len(names)] == names
    read_by_runner = set(re.findall(r'"(RUNNER_[A-Z_]+)"', (CODE / "settings.py").read_text()))
    assert read_by_runner == set(names)


def test_the_exit_codes_are_those_of_the_program() -> None:
    table = {int(codes(row[0])[0]): codes(row[2]) for row in rows(section(PAGE, "## Exit codes"))}
    assert set(table) == {v for v in vars(exit_codes).values() if type(v) is int}
    for state in STATES:
        (code,) = [code for code, states in table.items() if state in states]
        assert exit_codes.exit_code([state]) == code
    order = ", ".join(map(str, exit_codes._FIRST_THAT_APPLIES))
    assert f"Where several apply, the command exits with the first of {order}." in IN_ONE_LINE


@pytest.mark.parametrize(
    ("words", "number", "real"),
    [
        ("What still runs after ten seconds is cut", 10, worker.DRAIN_SECONDS),
        ("at their next look, once a second", 1, dispatcher.PASS_SECONDS),
        ("15 seconds after its last renewal", 15, LEASE_SECONDS),
        ("so 4 with 16 slots", 4, connections_for(16)),
        ("at most 8 connections", 8, POSTGRES_CONNECTIONS),
        ("gives up after 30 seconds with exit code 5", 30, BUSY_TIMEOUT_SECONDS),
        ("anything was stored, five in a row", 5, leases.LOST_LEASES_BEFORE_FAILED),
        ("6 hours by default", 6 * 3600, Patience().max_seconds),
        ("nothing came for 5 minutes", 300, "stall_timeout"),
        ("one call took over 30 minutes", 1800, "total_timeout"),
        ("or for 5 seconds: they find", 5, budgets.MOST_SECONDS),
        ("tools of at least 1,024 tokens", 1_024, LEAST_CACHED_TOKENS),
        ("lives for five minutes after its last use", 300, context.SHORT_SECONDS),
        ("but within an hour, caches its prompt", 3_600, context.LONG_SECONDS),
        ("after 60 seconds it is ended", 60, MOST_SECONDS),
        ("prices are older than 180 days", 180, doctor.OLD_PRICES_DAYS),
    ],
)
def test_the_numbers_are_those_of_the_code(words: str, number: float, real: Any) -> None:
    assert words in IN_ONE_LINE
    if isinstance(real, str):
        real = inspect.signature(AnthropicModel).parameters[real].default
    assert real == number


def fields(table: list[list[str]]) -> list[str]:
    """The names in the first cells of a table."""
    return [name for row in table for name in codes(row[0])]


def documented_reasons() -> set[tuple[str, str]]:
    """Every reason with each state that it stands for, from the first table."""
    table = rows(section(PAGE, "## Reasons"))
    return {(reason, state) for row in table for reason in codes(row[0]) for state in codes(row[1])}


def documented_failures(fails: str) -> set[str]:
    """The failures of model calls, from the row of the second table that begins with a text."""
    table = rows(section(PAGE, "## Reasons").split("A model call that failed for good")[1])
    (named,) = [row[1] for row in table if row[0].startswith(fails)]
    return set(codes(named))


def ends_named() -> set[tuple[str, str]]:
    """The reasons and states that the code ends a run with, where it names them."""
    sources = [*(CODE / "core").rglob("*.py"), *(CODE / "engine").rglob("*.py")]
    trees = [ast.parse(source.read_text()) for source in sources]
    return {
        (node.args[1].value, node.args[0].value)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("Ended", "end")
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Constant)
    }


def reasons_in(database: Database) -> set[tuple[str, str]]:
    """Every reason and state that a run had while everything happened."""

    def record(connection: Connection) -> None:
        connection.execute(DDL("CREATE TABLE seen (reason TEXT, state TEXT)"))
        connection.execute(
            DDL(
                "CREATE TRIGGER see AFTER UPDATE OF state ON runs BEGIN "
                "INSERT INTO seen VALUES (NEW.reason, NEW.state); END"
            )
        )

    database.write(record)
    play(database)
    seen = database.read(
        lambda connection: connection.execute(text("SELECT reason, state FROM seen")).all()
    )
    return {(reason, state) for reason, state in seen if reason}


@pytest.mark.slow
def test_every_reason_is_explained_and_no_other(database: Database) -> None:
    requeued = get_args(get_type_hints(Requeued)["reason"])
    of_core = {
        ("end_turn", "succeeded"),
        ("stop_sequence", "succeeded"),
        ("max_tokens", "succeeded"),
        ("submitted", "succeeded"),
        (budgets.WARMING, "queued"),
        *((ceiling, "stopped") for ceiling in get_args(Ceiling)),
        *((reason, "queued") for reason in requeued),
        *((reason, "waiting") for reason in get_args(WaitReason)),
        *ends_named(),
    }
    of_model_calls = {(kind, "failed") for kind in api_errors._KINDS.values()}
    of_store = reasons_in(database) - of_model_calls
    assert {("crash_loop", "failed"), ("bug", "failed"), ("bug", "queued")} <= of_store
    assert documented_reasons() == of_core | of_store


def test_a_notice_of_questions_is_what_the_page_shows(database: Database) -> None:
    job_id = submit_asking(database, "one", asking=Asking("ask"), notify=Notify(command="tell me"))
    ask_all(database, job_id, "uv lock")
    announce(database, NOW)
    (notice,) = take_due(database, NOW)
    (_, example) = blocks(NOTICES, "json")
    shown = json.loads(example)
    assert list(notice.data) == list(shown)
    assert list(notice.data["questions"][0]) == list(shown["questions"][0])


def test_the_model_s_failures_are_listed_by_whether_they_are_tried_again() -> None:
    after_patience = documented_failures("after the job's patience")
    assert after_patience == retries._RETRIED_KINDS
    answered = {"request_too_large", "authentication_error"}  # sent shorter; a fault of the host
    at_once = set(api_errors._KINDS.values()) - after_patience - answered
    assert documented_failures("at once") == at_once


def test_the_fields_of_a_cost_are_listed_and_the_example_of_a_price_list_is_one(
    tmp_path: Path,
) -> None:
    costs = section(COSTS, "## Costs")
    assert fields(rows(costs)) == list(cost_fields(Spending()))
    (example,) = blocks(costs, "toml")
    (tmp_path / "prices.toml").write_text(example)
    prices = load_prices(tmp_path / "prices.toml")
    assert prices.source == "our contract"
    assert str(prices.models["claude-opus-5-5"].standard.input) == "3.60"


def test_the_fields_of_a_budget_are_listed() -> None:
    listed = fields(rows(section(COSTS, "## Budgets")))
    assert listed == list(BudgetStatus("job_1", JobBudget(), 0, Spending()).as_json())


def test_a_worker_has_sixteen_slots_by_default() -> None:
    from runner.cli.main import cli

    for name in ("run", "worker"):
        (option,) = [each for each in cli.commands[name].params if each.name == "slots"]
        assert option.default == 16
    assert "the number of runs at once in one process, 16 by default" in IN_ONE_LINE


COMPOSE = (CODE.parent / "docker-compose.yml").read_text()


def test_the_variables_of_the_compose_file_are_documented() -> None:
    table = read("docs/compose.md")
    documented = {name for row in rows(table) for name in codes(row[0])}
    used = set(re.findall(r"\$\{(\w+)", COMPOSE)) | set(
        re.findall(r"^    (ANTHROPIC_\w+|RUNNER_PRICES):$", COMPOSE, re.MULTILINE)
    )
    assert used == {name for name in documented if not name.startswith("OTEL")}
    for name, default in re.findall(r"\$\{(\w+):-([^}]+)\}", COMPOSE):
        (row,) = [row for row in rows(table) if name in codes(row[0])]
        assert default in codes(row[1])


def test_there_is_no_default_password_and_the_line_that_makes_one_works(tmp_path: Path) -> None:
    assert set(re.findall(r"\$\{POSTGRES_PASSWORD(..)", COMPOSE)) == {":?"}
    line = blocks(read("docs/compose.md"), "sh")[0]
    head = re.sub(r"\\\n#\s+", "", COMPOSE.partition("name:")[0])
    assert line.strip() in head
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
    made = tmp_path / ".env"
    assert re.match(rf"POSTGRES_PASSWORD=[0-9a-f]{{48}}\nUID={os.getuid()}\n", made.read_text())
    assert made.stat().st_mode & 0o077 == 0
