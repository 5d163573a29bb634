"""What a run and all below it use never passes what the run may, nor the budget of its job, though
workers and sub-agents die at any moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.budget import billionths
from runner.core.run import ENDED
from runner.settings import Settings
from runner.store.children import IS_READY
from runner.store.database import Database
from runner.store.tables import job_budgets, runs
from tests.lifecycle.family import delegates, family_job, moment
from tests.lifecycle.site import Site, wait_until
from tests.lifecycle.spender import Spender, Watch, kill_one, most_used
from tests.messages_api import API_KEY, MessagesServer, Received, text, tool_use

WORKERS = 3
KILLS = 3

pytestmark = pytest.mark.timeout(900)


class FamilySpender(Spender):
    """Each agent has two turns of its own, and in the first of them two sub-agents down to ``depth``."""

    def __init__(self, seed: int, held_until: threading.Event, depth: int = 2) -> None:
        super().__init__(turns=None, seed=seed, held_until=held_until)
        self._depth = depth

    def says(self, request: Received) -> list[dict[str, Any]]:
        now = moment(request)
        below = now.task.count("-")
        if now.turn == 0 and below < self._depth:
            return delegates(*(f"{now.task}-{number}" for number in (1, 2)))
        if now.turn < 3:
            number = f"{now.task}_{now.turn}"
            return [tool_use(f"toolu_{number}", "Bash", {"command": "seq 200"})]
        return [text("Done.")]


class Family:
    """A site whose workers talk to a model that bills, with what is stored."""

    def __init__(self, site: Site, model: Spender) -> None:
        self.site = site
        self.server = MessagesServer(model).start()
        site.environment |= {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": API_KEY}
        self.database = Database(Settings.load(site.environment).database_url)

    def close(self) -> None:
        self.site.stop_all()
        self.server.stop()
        self.database.close()

    def rows(self, query: Any) -> Any:
        return self.database.read(lambda connection: connection.execute(query).all())

    def over(self, job: str) -> bool:
        """True if every run has ended, waits for the budget, or waits for sub-agents that do. A parent
        whose sub-agents have all ended is about to go on: it does not count."""
        waits = (runs.c.state == "waiting") & runs.c.reason.in_(("budget", "children")) & ~IS_READY
        at_rest = runs.c.state.in_(ENDED) | waits
        return not self.rows(select(runs.c.id).where(runs.c.job_id == job, ~at_rest))

    def work_and_die(self, job: str, seed: int) -> None:
        """Several workers until it is over; some are killed on the way, and others come. Some of the
        sub-agents are cancelled."""
        dice = random.Random(seed)
        workers = [self.site.start("worker", "-c", "4") for _ in range(WORKERS)]
        for _ in range(KILLS):
            enough = self.server.count + dice.randint(3, 8)
            wait_until(lambda: self.over(job) or self.server.count >= enough, "requests")  # noqa: B023
            kill_one(self.database, workers, dice)
            unended = self.rows(
                select(runs.c.id).where(runs.c.parent_run.is_not(None), runs.c.state == "queued")
            )
            if unended:
                self.site.run("cancel", dice.choice(unended).id)
            workers.append(self.site.start("worker", "-c", "4"))
        wait_until(lambda: self.over(job), "the families to be through", 240)


@pytest.fixture
def family(site_of_either: Site) -> Iterator[Callable[[Spender], Family]]:
    families: list[Family] = []

    def found(model: Spender) -> Family:
        families.append(Family(site_of_either, model))
        return families[-1]

    yield found
    for each in families:
        each.close()


@pytest.mark.parametrize("limited", ["tokens", "usd"])
def test_a_family_stays_within_its_run_s_ceilings_and_its_job_s_budget(
    family: Callable[[Spender], Family], limited: str
) -> None:
    seen = threading.Event()
    model = FamilySpender(seed=8, held_until=seen)
    here = family(model)
    in_usd = {"budget_usd": 0.9, "cost_ceiling_usd": 0.6}
    limits = {"budget_tokens": 200_000, "token_ceiling": 120_000} if limited == "tokens" else in_usd
    job = family_job(here.site, "a", "b", limits={"max_output_tokens": 1_500} | limits)
    with Watch(here.database, [job], seen) as watch:
        here.work_and_die(job, seed=9)
        wait_until(lambda: watch.wrong or watch.looks > 100, "it to be watched")
    assert watch.wrong == []
    assert watch.most_reserved > 0
    rows = here.rows(select(runs).where(runs.c.job_id == job))
    assert len(rows) > 6
    (job_budget,) = here.rows(select(job_budgets).where(job_budgets.c.job_id == job))
    assert (job_budget.reserved_tokens, job_budget.reserved_cost) == (0, 0)
    assert model.total_billed <= job_budget.spent_cost
    assert model.total_tokens <= job_budget.spent_tokens
    for run in rows:
        if run.parent_run is None and limited == "tokens":
            assert most_used(run, rows, "tokens") <= 120_000
        elif run.parent_run is None:
            assert most_used(run, rows, "cost") <= billionths(0.6)
