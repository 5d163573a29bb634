"""The budgets of jobs: what is left, setting one, and what waits for it. Light to import, for lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from runner.app import costs
from runner.app.forecast import JobForecast, forecast_of
from runner.app.handle import App
from runner.core.budget import EVERY_CALL, JobBudget
from runner.core.run import Author
from runner.errors import UsageError
from runner.queries.jobs import list_runs

if TYPE_CHECKING:
    from runner.core.commands import Change
    from runner.core.prices import Spending


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    job_id: str
    budget: JobBudget
    waiting: int  # runs that wait for it, sub-agents included
    spending: Spending  # of its ended calls
    woken: Sequence[Change] = ()  # runs that go on since it was raised
    written_off: Sequence[Change] = ()  # runs whose unknown charges were to be written off
    unworked_job: str | None = None  # this job, if runs were woken while no worker is alive
    forecast: JobForecast | None = None

    def as_json(self) -> dict[str, Any]:
        budget = self.budget
        has_cost, has_any = budget.most_cost is not None, budget != JobBudget()
        return {
            "job_id": self.job_id,
            "budget_usd": None if budget.most_cost is None else budget.most_cost / 1e9,
            "spent_usd": budget.spent_cost / 1e9 if has_cost else None,
            "reserved_usd": budget.reserved_cost / 1e9 if has_cost else None,
            "budget_tokens": budget.most_tokens,
            "spent_tokens": budget.spent_tokens if has_any else None,
            "reserved_tokens": budget.reserved_tokens if has_any else None,
            "waiting_runs": self.waiting,
            **costs.unknown_fields(self.spending),
            "woken": [asdict(change) for change in self.woken],
            "forecast": self.forecast and self.forecast.as_json(),
            "write_off": [asdict(change) for change in self.written_off],
        }

    @property
    def is_overdrawn(self) -> bool:
        """True if the calls in hand may use more than the budget has left."""
        budget = self.budget
        caps = (
            (budget.most_cost, budget.spent_cost + budget.reserved_cost),
            (budget.most_tokens, budget.spent_tokens + budget.reserved_tokens),
        )
        return any(most is not None and used > most for most, used in caps)


def budget(
    app: App,
    name: str,
    author: Author,
    *,
    usd: float | None = None,
    tokens: int | None = None,
    write_off: str | None = None,
) -> BudgetStatus:
    """Return the budget of a job; set it first if ``usd`` or ``tokens`` says to what, and write off the
    unknown charge of a call (RUN/NUMBER) or of ``EVERY_CALL``. Raises ``UsageError`` if the job has no
    budget, or would have less than what it has used."""
    from runner.store import budgets, write_offs  # late: lists start without them

    job_id, database = app.find_job(name), app.database
    options: Any = {"author": author, "usd": usd, "tokens": tokens}
    woken: Sequence[Change] = []
    written_off: Sequence[Change] = []
    if write_off is not None:
        call = None if write_off == EVERY_CALL else _call(app, write_off)
        written_off, woken = app.change(
            lambda now: write_offs.write_off(database, job_id, now, author=author, call=call)
        )
    if (usd, tokens) != (None, None):
        woken = app.change(lambda now: budgets.set_budget(database, job_id, now, **options))
    runs = list_runs(database, job_id, "waiting", whole_trees=True)
    unworked = app.job_without_worker(woken[0].id if woken else None)
    waiting = sum(map(is_out_of_budget, runs))
    budget, spending = budget_of(app, job_id), costs.spending_of(app, job_id=job_id)
    return BudgetStatus(
        job_id, budget, waiting, spending, woken, written_off, unworked, forecast_of(app, job_id)
    )


def _call(app: App, text: str) -> tuple[str, int]:
    """Return the run and the number of a model call. Raises ``UsageError``."""
    run, _, number = text.partition("/")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"{text[:60]!a} is not a model call: give RUN/NUMBER, as in run_01jd9k/3")
    return app.find(run, "run").id, int(number[:9])


def budget_of(app: App, job_id: str) -> JobBudget:
    from runner.store import budgets

    return budgets.budget_of(app.database, job_id) or JobBudget()


def waits_for_budget(app: App, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run, what to do about runs of one job that wait for its budget."""
    waiting = [run for run in runs if is_out_of_budget(run)]
    if not waiting:
        return {}
    job_id = waiting[0]["job_id"]
    how = how_to_raise(job_id, budget_of(app, job_id))
    return {
        run["id"]: f"{run['detail'] or 'waits for the budget of its job'}: {how}" for run in waiting
    }


def is_out_of_budget(run: Mapping[str, Any]) -> bool:
    """True if a run waits for its job's budget to be raised."""
    return (run["state"], run["reason"]) == ("waiting", "budget")


def how_to_raise(job_id: str, budget: JobBudget) -> str:
    """Return the command that raises a job's budget."""
    caps = {"--usd N": budget.most_cost, "--tokens N": budget.most_tokens}
    options = [option for option, cap in caps.items() if cap is not None]
    return f"runner budget {job_id} {' '.join(options)}".rstrip()
