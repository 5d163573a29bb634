"""Describes what a job file would do, for ``--dry-run``; stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from runner import wiring
from runner.app.humanize import dollars, plural
from runner.app.rules import RuleCheck, with_standing
from runner.core.budget import Reservation
from runner.core.model_calls import first_call, tariffs_of
from runner.core.prices import PriceList
from runner.core.spec import JobSpec, NewRun, Submission, spec_of
from runner.errors import SandboxMissing
from runner.permissions import Rule
from runner.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    submission: Submission
    decisions: Sequence[dict[str, Any]]  # on the examples of the rules, as ``RuleCheck`` gives them
    standing_rules: Sequence[Rule]  # that would be copied into the job
    contained_by: str  # what would contain calls on this host, or why nothing would
    first_call_usd: Decimal | None  # the most that one costs; None: unknown, or nothing (scripted)
    run_usd: Decimal | None  # the most that a run may cost by its limits
    job_usd: Decimal | None  # the most that all runs may cost by the limits
    limited_by: str  # the key of ``limits`` that bounds ``job_usd``

    @property
    def spec(self) -> JobSpec:
        return self.submission.spec

    @property
    def runs(self) -> Sequence[NewRun]:
        return self.submission.runs

    @property
    def cost_line(self) -> str:
        """The most that the job may cost, in words."""
        if self.spec.provider == "scripted":
            return "none (scripted)"
        if self.job_usd is None or self.run_usd is None or self.first_call_usd is None:
            return "unknown: a model of the job has no price (see RUNNER_PRICES)"
        all_runs = f"{dollars(self.job_usd)} for {plural(len(self.runs), 'run')}"
        each = f"{dollars(self.run_usd)} a run, {dollars(self.first_call_usd)} the first call"
        advice = "" if self.limited_by == "budget_usd" else "; budget_usd caps all runs together"
        return f"{all_runs} by limits.{self.limited_by} ({each}){advice}"

    def as_json(self) -> dict[str, Any]:
        """Return the plan with its amounts in USD."""
        names = ("contained_by", "limited_by")
        costs = ("first_call_usd", "run_usd", "job_usd")
        return {
            "source": self.submission.source,
            "spec": self.spec.to_json(),
            "runs": [asdict(run) for run in self.runs],
            "notes": self.submission.notes,
            "decisions": self.decisions,
            "standing_rules": [asdict(rule) for rule in self.standing_rules],
            **{name: getattr(self, name) for name in names},
            **{name: _as_number(getattr(self, name)) for name in costs},
        }


def plan_of(settings: Settings, submission: Submission) -> Plan:
    """Return what a submission would do on this host, and what it may cost at the worst."""
    spec, prices = submission.spec, wiring.load_prices(settings)
    check = RuleCheck(with_standing(settings, spec), settings.home, None)
    try:
        found = wiring.sandboxes_here(settings).containment_of(spec.sandbox)
        contained_by = found.kind if found.kind != "none" else f"none: {found.missing}"
    except SandboxMissing as missing:
        contained_by = f"none: {missing}"
    return Plan(
        submission,
        check.decide_all(submission.examples),
        check.spec.rules[len(spec.rules) :],
        contained_by,
        *_worst_case(spec, submission.runs, prices),
    )


def _worst_case(
    spec: JobSpec, runs: Sequence[NewRun], prices: PriceList
) -> tuple[Decimal | None, Decimal | None, Decimal | None, str]:
    """Return the most that a first call, a run and all runs may cost in USD, and the limit behind the
    last. Only ceilings and budgets bound a cost: a turn may take several billed tries."""
    limits, specs = spec.limits, [spec, *(spec_of(spec, agent.name) for agent in spec.agents)]
    tariffs = {model: of for each in specs for model, of in tariffs_of(each, prices).items()}
    models = {model for each in specs for model in (each.model, each.summary_model)}
    if spec.provider == "scripted" or models - tariffs.keys():
        return None, None, None, ""
    call = first_call(spec, runs, prices)
    most = limits.token_ceiling
    bounds = [(most, 0), (0, most)]
    by_tokens = max(
        tariff.cost_at_most(*bound, hour_cache=spec.hour_cache is not False)
        for tariff in tariffs.values()
        for bound in bounds
    )
    ceiling = limits.cost_ceiling
    by_ceiling = ceiling is not None and ceiling < by_tokens
    run_usd = Decimal(ceiling if by_ceiling and ceiling is not None else by_tokens).scaleb(-9)
    job_usd, limited_by = run_usd * len(runs), "cost_ceiling_usd" if by_ceiling else "token_ceiling"
    if spec.budget.usd is not None and spec.budget.usd < job_usd:
        job_usd, limited_by = Decimal(str(spec.budget.usd)), "budget_usd"
    worst = call.worst_cost if isinstance(call, Reservation) else 0
    return Decimal(worst).scaleb(-9), run_usd, job_usd, limited_by


def _as_number(usd: Decimal | None) -> float | None:
    return None if usd is None else float(usd)
