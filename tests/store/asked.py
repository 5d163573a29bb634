"""Runs that wait for answers, brought there by the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, select, update

from runner.core.budget import Budget, Limits
from runner.core.conversation import Tool
from runner.core.notices import Notify
from runner.core.prices import Rates, Tariff
from runner.core.run import Author, Waiting
from runner.core.spec import Asking, JobSpec
from runner.core.steps import Done
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.rules import insert_rules, list_rules, lock_rules, new_snapshot
from runner.store.tables import approvals, events, runs
from tests.store.attempts import claim, text, tool_use
from tests.store.examples import NOW, SPEC, submission

BASH = Tool("Bash", "Runs a command.", {"type": "object"}, read_only=False)
ASKING = replace(
    SPEC,
    tools=(*SPEC.tools, BASH),
    rules=(Rule("allow", "Read"), Rule("ask", "Bash"), Rule("deny", "Bash(rm *)")),
    asking=Asking(default="ask"),
)


def submit_asking(
    database: Database, *keys: str, asking: Asking = ASKING.asking, notify: Notify | None = None
) -> str:
    """A job in which every command is asked about; its id."""
    spec = replace(ASKING, asking=asking, notify=notify)
    return jobs_store.submit(database, submission(*keys, spec=spec), NOW, author=Author("ada"))


def run_ids(database: Database, job_id: str) -> list[str]:
    query = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def add_rules(database: Database, job_id: str, *rules: Rule) -> int:
    """Store rules by Bo; the number of the snapshot that begins with them."""

    def work(connection: Connection) -> int:
        lock_rules(connection, job_id)
        snapshot = new_snapshot(connection, job_id)
        insert_rules(connection, job_id, rules, Author("bo"), NOW + 1, snapshot)
        return snapshot

    return database.write(work)


def ask(
    database: Database,
    run_id: str,
    *commands: str,
    expires_at: float | None = None,
    suggested: str | None = None,
) -> list[str]:
    """An attempt of the run gets a reply with these commands, all of them asked about, and the run
    waits. The ids of the questions; ``expires_at`` and ``suggested`` are theirs instead of what the
    job and the commands make them."""
    uses = [tool_use(number, "Bash", command=command) for number, command in enumerate(commands)]
    attempt = claim(database, run_id).reply(text("I shall run these."), *uses, stop="tool_use")
    assert attempt.effect == Done(Waiting("approval"))
    changes = {"expires_at": expires_at, "suggested_rule": suggested}
    given = {name: value for name, value in changes.items() if value is not None}

    def work(connection: Connection) -> list[str]:
        if given:
            change = update(approvals).where(approvals.c.run_id == run_id).values(**given)
            connection.execute(change)
        query = select(approvals.c.id).where(approvals.c.run_id == run_id)
        return list(connection.execute(query.order_by(approvals.c.position)).scalars().all())

    asked = database.write(work)
    assert len(asked) == len(commands)
    return asked


def ask_all(database: Database, job_id: str, command: str, **options: Any) -> list[str]:
    """Each run of the job waits for an answer about the same command."""
    return [ask(database, run_id, command, **options)[0] for run_id in run_ids(database, job_id)]


def remembered(database: Database, job_id: str) -> list[tuple[str, str, str | None]]:
    """The rules that were added to those that the job began with: effect, text and run."""
    rules = list_rules(database, job_id)[len(ASKING.rules) :]
    return [(rule.effect, rule.rule, rule.run_id) for rule in rules]


def approval_row(database: Database, approval_id: str) -> Row[Any]:
    query = select(approvals).where(approvals.c.id == approval_id)
    return database.read(lambda connection: connection.execute(query).one())


def answers(database: Database, approval_ids: Sequence[str]) -> list[str | None]:
    return [approval_row(database, each).answer for each in approval_ids]


def answer_events(database: Database, run_id: str) -> list[dict[str, Any]]:
    query = (
        select(events.c.data)
        .where(events.c.run_id == run_id, events.c.type == "approval_answered")
        .order_by(events.c.number)
    )
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


LIMITS = Limits(max_output_tokens=2_000, token_ceiling=1_000_000)
TARIFF = Tariff(Rates(*map(Decimal, (3, 4, 6, "0.3", 15))))


def priced(spec: JobSpec) -> Mapping[str, Tariff]:
    return {spec.model: TARIFF}


def submit_budgeted(
    database: Database,
    *keys: str,
    usd: float | None = None,
    tokens: int | None = None,
    limits: Limits = LIMITS,
) -> tuple[str, list[str]]:
    """A job with a budget, in which every command is asked about; its id and its runs'."""
    spec = replace(ASKING, limits=limits, budget=Budget(usd, tokens))
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW)
    return job_id, run_ids(database, job_id)
