"""A model that bills what it is asked, and a budget that is watched while workers die."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from sqlalchemy import select

from runner.core.budget import TOKENS_PER_SECOND, billionths
from runner.core.conversation import Usage
from runner.core.prices import Tariff, Terms
from runner.core.run import ENDED
from runner.llm.prices import load_prices
from runner.store.database import Database
from runner.store.tables import day_cap, job_budgets, runs, workers
from tests.messages_api import Break, Received, Reply, text, tool_use
from tests.runner_process import RunnerProcess

MODEL = "claude-sonnet-5"
_BUDGET = (
    job_budgets.c.budget_usd,
    job_budgets.c.budget_tokens,
    job_budgets.c.spent_tokens,
    job_budgets.c.spent_cost,
    job_budgets.c.reserved_tokens,
    job_budgets.c.reserved_cost,
)
_RUN = (
    runs.c.id,
    runs.c.parent_run,
    runs.c.state,
    runs.c.token_ceiling,
    runs.c.cost_ceiling_usd,
    runs.c.charged_tokens,
    runs.c.progress,
)
_LOOK_SECONDS = 0.01
_FAULTS = (
    Break("status", status=529),
    Break("status", status=500),
    Break("reset_before_headers"),
    Break("reset", after=3),
    Break("cut", after=4),
    Break("error_event", after=4),
)


def tariff() -> Tariff:
    """What the model's calls cost."""
    found = load_prices().tariff(MODEL, Terms())
    assert found is not None
    return found


class Spender:
    """The plan for ``MessagesServer``: after ``turns`` turns a run is done; None: never.

    Every prompt is billed as if all of it was written to the cache, which costs most, and a reply
    may take all the tokens that it was allowed. What a model can have written of a broken reply is
    billed, too. No reply comes before ``held_until`` is set.
    """

    def __init__(
        self,
        turns: int | None,
        seed: int,
        faults: float = 0.1,
        held_until: threading.Event | None = None,
    ) -> None:
        self._billed: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._turns = turns
        self._dice = random.Random(seed)
        self._faults = faults
        self._held_until = held_until
        self._tariff = tariff()

    def billed(self, *items: str) -> int:
        """What the runs of these items cost, in billionths of a USD."""
        return sum(self._billed[f"Do {item}."] for item in items)

    def tokens(self, *items: str) -> int:
        """What the runs of these items used."""
        return sum(self._tokens[f"Do {item}."] for item in items)

    @property
    def total_billed(self) -> int:
        """What all runs cost, in billionths of a USD."""
        return self._billed.total()

    @property
    def total_tokens(self) -> int:
        """What all runs used."""
        return self._tokens.total()

    def says(self, request: Received) -> list[dict[str, Any]]:
        """The blocks of the reply."""
        blocks: list[dict[str, Any]] = [text("On it.")]
        if request.position + 1 != self._turns:
            call = tool_use(f"toolu_{request.number}", "Bash", {"command": "seq 200"})
            blocks.append(call)
        return blocks

    def __call__(self, request: Received) -> Reply:
        blocks = self.says(request)
        output = self._dice.choice([100, request.body["max_tokens"]])
        latency = self._dice.uniform(0, 0.1)
        broken = self._dice.choice(_FAULTS) if self._dice.random() < self._faults else None
        if broken is not None:
            output = min(output, int(latency * TOKENS_PER_SECOND))
        used = Usage(cache_creation_tokens=len(request.raw) // 3, output_tokens=output)
        if broken is None or broken.kind != "status":
            self._billed[request.first_text] += self._tariff.cost(used, hour_cache=False)
            self._tokens[request.first_text] += used.total
        usage = {
            "input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": used.cache_creation_tokens,
            "output_tokens": used.output_tokens,
        }
        reply = Reply(blocks, usage=usage, latency=latency, held_until=self._held_until)
        return replace(reply, broken=broken)


class Watch:
    """Looks at the budgets of jobs again and again, while inside, in a thread of its own.

    ``looks`` counts; ``most_reserved`` is the most tokens that were reserved at once; ``seen`` is set once
    a look has seen a call that is open; ``wrong`` holds every state that must not be: more than a cap, or
    sums that are not those of the runs.
    """

    def __init__(self, database: Database, job_ids: Sequence[str], seen: threading.Event) -> None:
        self.looks = 0
        self.most_reserved = 0
        self.wrong: list[str] = []
        self._database = database
        self._job_ids = job_ids
        self._seen = seen
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._stay, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._gone.set()
        self._thread.join()

    def _stay(self) -> None:
        while not self._gone.wait(_LOOK_SECONDS):
            for job_id in self._job_ids:
                self._look(job_id)

    def _look(self, job_id: str) -> None:
        """One statement sees one state of the database, on both kinds."""
        query = (
            select(*_BUDGET, *_RUN)
            .join(runs, runs.c.job_id == job_budgets.c.job_id)
            .where(job_budgets.c.job_id == job_id)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        open_calls = [
            row.progress["model"]["open_call"] for row in rows if row.progress["model"]["open_call"]
        ]
        reserved = [call["reservation"] for call in open_calls]
        expected = {
            "spent_tokens": sum(row.charged_tokens for row in rows),
            "spent_cost": sum(row.progress["money"]["charged_cost"] for row in rows),
            "reserved_tokens": sum(each["worst_case"] for each in reserved),
            "reserved_cost": sum(each["worst_cost"] for each in reserved),
        }
        found = {name: getattr(rows[0], name) for name in expected}
        if found != expected:
            self.wrong.append(f"the budget holds {found}, its runs {expected}")
        usd, tokens = rows[0].budget_usd, rows[0].budget_tokens
        for kind, cap in (("cost", usd and billionths(usd)), ("tokens", tokens)):
            if cap is not None and found[f"spent_{kind}"] + found[f"reserved_{kind}"] > cap:
                self.wrong.append(f"more {kind} than the cap of {cap}: {found}")
        self.wrong += [
            f"{run.id} may use {used} of {ceiling} {kind} with all below it"
            for run in rows
            for kind, ceiling in ceilings_of(run)
            if (used := most_used(run, rows, kind)) > ceiling
        ]
        self._note(found["reserved_tokens"], is_enough=bool(open_calls))

    def _note(self, reserved: int, *, is_enough: bool) -> None:
        self.looks += 1
        self.most_reserved = max(self.most_reserved, reserved)
        if is_enough:
            self._seen.set()


class CapWatch(Watch):
    """Looks at the cap of the day in the same way; all calls of the jobs are made while it is set. ``seen``
    is set once a call is open and all runs have begun."""

    def _stay(self) -> None:
        while not self._gone.wait(_LOOK_SECONDS):
            self._look("")

    def _look(self, job_id: str) -> None:
        row = (day_cap.c.usd, day_cap.c.spent_cost, day_cap.c.reserved_cost)
        query = select(*row, runs.c.progress, runs.c.started_at).join_from(
            day_cap, runs, runs.c.job_id.in_(self._job_ids)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        spent, reserved = rows[0].spent_cost, rows[0].reserved_cost
        calls = [row.progress["model"]["open_call"] for row in rows]
        held = sum(call["reservation"]["worst_cost"] for call in calls if call)
        charged = sum(row.progress["money"]["charged_cost"] for row in rows)
        if (spent, reserved) != (charged, held):
            self.wrong.append(f"the cap holds {spent}, {reserved}, the runs {charged}, {held}")
        if rows[0].usd is not None and spent + reserved > billionths(rows[0].usd):
            self.wrong.append(f"{spent} and {reserved} are more than the cap of {rows[0].usd}")
        self._note(reserved, is_enough=any(calls) and all(row.started_at for row in rows))


def kill_one(database: Database, processes: list[RunnerProcess], dice: random.Random) -> None:
    """Kill one of the workers and take it off the list: one with a run in the middle of a model call if
    there is one, else one with a run if there is one."""
    query = select(workers.c.pid, runs.c.progress).join(runs, runs.c.worker_id == workers.c.id)
    rows = database.read(lambda connection: connection.execute(query).all())
    of_pid = {process.pid: process for process in processes}
    at_work = [row for row in rows if row.pid in of_pid]
    calling = [row for row in at_work if row.progress["model"]["open_call"]]
    victim = of_pid[dice.choice(sorted({row.pid for row in calling or at_work} or of_pid))]
    processes.remove(victim)
    victim.kill()
    victim.communicate()


def ceilings_of(run: Any) -> list[tuple[str, int]]:
    """What a run may use of tokens and, where that is limited, of billionths of a USD."""
    usd = run.cost_ceiling_usd
    return [
        ("tokens", run.token_ceiling),
        *([("cost", billionths(usd))] if usd is not None else []),
    ]


def most_used(run: Any, rows: Sequence[Any], kind: str) -> int:
    """What a run and all below it have used, or may: its open call in full, and of a child that has not
    ended all that it was given."""
    charged = run.charged_tokens if kind == "tokens" else run.progress["money"]["charged_cost"]
    call = run.progress["model"]["open_call"]
    reserved = (
        call["reservation"]["worst_case" if kind == "tokens" else "worst_cost"] if call else 0
    )
    children = [row for row in rows if row.parent_run == run.id]
    return charged + reserved + sum(_held(child, rows, kind) for child in children)


def _held(child: Any, rows: Sequence[Any], kind: str) -> int:
    if child.state in ENDED:
        return most_used(child, rows, kind)
    return dict(ceilings_of(child)).get(kind, 0)
