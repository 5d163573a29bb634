"""What must hold of a job's money at every moment, whoever is dead."""

from __future__ import annotations

from runner.core.budget import billionths
from tests.crash.record import Record
from tests.crash.scenario import Scenario
from tests.crash.violation import hold


def check(record: Record, variant: Scenario) -> None:
    """Raise ``Violation`` unless the budget of the job (of one run) is what the run has used and has
    reserved, and no cap is passed; a job without a budget has no row."""
    run, job_budget, budget = record.run, record.job_budget, variant.budget
    hold(
        (job_budget is not None) == budget.is_set,
        "a row without a budget, or no row with one",
        job_budget,
    )
    if job_budget is None:
        return
    call = run.progress["model"]["open_call"]
    reserved = call["reservation"] if call else {"worst_case": 0, "worst_cost": 0}
    spent = (run.charged_tokens, run.progress["money"]["charged_cost"])
    expected = (*spent, reserved["worst_case"], reserved["worst_cost"])
    found = (
        job_budget.spent_tokens,
        job_budget.spent_cost,
        job_budget.reserved_tokens,
        job_budget.reserved_cost,
    )
    hold(found == expected, "the budget is not what was used and reserved", found, expected)
    hold(
        (job_budget.budget_usd, job_budget.budget_tokens) == (budget.usd, budget.tokens),
        "other caps",
        job_budget,
    )
    caps = (budget.usd and billionths(budget.usd), budget.tokens)
    for cap, total in zip(caps, (found[1] + found[3], found[0] + found[2]), strict=True):
        hold(cap is None or total <= cap, "the budget was passed", cap, total)
