"""Usage and cost of model calls, and the budgets of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

from runner.app.forecast import JobForecast, forecast_of
from runner.app.handle import App
from runner.core.budget import EVERY_CALL, JobBudget
from runner.core.commands import Change
from runner.core.losses import Losses, losses
from runner.core.losses import as_json as losses_as_json
from runner.core.prices import By, PriceList, Spending
from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.errors import UsageError
from runner.queries.costs import Cost, costs_by, priced_calls
from runner.queries.jobs import list_runs, show_job
from runner.store.jobs import is_of_sessions


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of all jobs or of one."""

    prices: PriceList  # by which they were computed
    by: By  # what each line is of
    lines: Sequence[Cost]
    total: Spending
    losses: Losses | None = None  # of one job

    def as_json(self) -> dict[str, Any]:
        return {
            "prices": {"date": self.prices.date.isoformat(), "source": self.prices.source},
            "by": self.by,
            "lines": [
                {self.by: each.key, "label": each.label or None, **_used(each.spending)}
                for each in self.lines
            ],
            "total": _used(self.total),
            "losses": self.losses and losses_as_json(self.losses),
        }


def costs(app: App, job: str | None, by: By | None) -> Costs:
    """Return the costs of one job (by run) or of all jobs (by job), or ``by`` something else."""
    prices = app.prices()
    job_id = app.find_job(job) if job else None
    by = by or ("run" if job_id else "job")
    lines = costs_by(app.database, prices, by, job_id=job_id)
    lost = losses_of(app, job_id) if job_id else None
    return Costs(prices, by, lines, total_of(lines), lost)


def losses_of(app: App, job_id: str) -> Losses:
    """Return what a job's calls cost for nothing, and what would have been cheaper: of imported sessions
    nothing, as no job file of theirs could be changed."""
    prices, job = app.prices(), show_job(app.database, job_id)
    found = losses(priced_calls(app.database, prices, job_id), prices)
    return replace(found, cheaper=()) if is_of_sessions(job["name"], job["source"]) else found


def total_of(costs: Iterable[Cost]) -> Spending:
    return sum((each.spending for each in costs), Spending())


def spending_of(app: App, *, job_id: str | None = None, run_id: str | None = None) -> Spending:
    """Return what the calls of a job or a run cost together."""
    return total_of(costs_by(app.database, app.prices(), "job", job_id=job_id, run_id=run_id))


def with_costs(app: App, by: By, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of jobs, or of runs of one job, for JSON, each with what its calls cost."""
    trees = None if by == "job" else {row["root"] for row in rows}
    found = costs_by(app.database, app.prices(), by, trees=trees)
    spent = {each.key: each.spending for each in found}
    return [{**row, **cost_fields(spent.get(row["id"], Spending()))} for row in rows]


def cost_fields(spending: Spending) -> dict[str, Any]:
    """Return a cost for JSON. ``cost_usd`` is null if a model has no price, as then nobody knows
    (``priced_usd`` is the cost of the others), and leaves out the ``unknown_calls``."""

    def number(usd: Decimal) -> float:
        return float(round(usd, 9))

    return {
        "cost_usd": None if spending.unpriced else number(spending.usd),
        "priced_usd": number(spending.usd),
        "unpriced_models": sorted(spending.unpriced),
        **unknown_fields(spending),
        "cache_share": None if spending.cache_share is None else round(spending.cache_share, 4),
        "scripted_calls": spending.scripted,
    }


def unknown_fields(spending: Spending) -> dict[str, Any]:
    """Return, for JSON, the charge for calls of unknown usage, and what people wrote off."""
    priced = not spending.unpriced
    return {
        "unknown_calls": spending.unknown,
        "unknown_tokens": spending.unknown_tokens,
        "unknown_at_most_usd": float(round(spending.at_most, 9)) if priced else None,
        "written_off_calls": spending.written_off,
        "written_off_tokens": spending.written_off_tokens,
        "written_off_usd": float(round(spending.written_off_usd, 9)) if priced else None,
    }


def _used(spending: Spending) -> dict[str, Any]:
    names = ("input_tokens", "cache_creation_tokens", "cache_read_tokens", "output_tokens")
    used = {name: getattr(spending.usage, name) for name in names}
    return {"calls": spending.calls, **used, **cost_fields(spending)}


def refuse_unpriced(app: App, job_id: str, model: str | None = None) -> None:
    """Raise ``UsageError`` if the cost of a job's runs cannot be limited: its model, or the
    ``model`` that takes its place, has no price."""
    from runner.jobfile.check import missing_prices  # late: it slows the start of other commands

    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    model = model or spec.model
    for message in missing_prices(
        app.prices(), spec.provider, model, spec.model_options, spec.context
    ):
        raise UsageError(message)


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
            "job": self.job_id,
            "budget_usd": None if budget.most_cost is None else budget.most_cost / 1e9,
            "spent_usd": budget.spent_cost / 1e9 if has_cost else None,
            "reserved_usd": budget.reserved_cost / 1e9 if has_cost else None,
            "budget_tokens": budget.most_tokens,
            "spent_tokens": budget.spent_tokens if has_any else None,
            "reserved_tokens": budget.reserved_tokens if has_any else None,
            "waiting_runs": self.waiting,
            **unknown_fields(self.spending),
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
    budget, spending = budget_of(app, job_id), spending_of(app, job_id=job_id)
    return BudgetStatus(
        job_id, budget, waiting, spending, woken, written_off, unworked, forecast_of(app, job_id)
    )


def _call(app: App, text: str) -> tuple[str, int]:
    """Return the run and the number of a model call. Raises ``UsageError``."""
    run, _, number = text.partition("/")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"{text[:60]!a} is no model call: give RUN/NUMBER, as in run_01jd9k/3")
    return app.find(run, "run").id, int(number[:9])


def budget_of(app: App, job_id: str) -> JobBudget:
    from runner.store import budgets

    return budgets.budget_of(app.database, job_id) or JobBudget()


def waits_for(app: App, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
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
