"""What must hold of a job's money at every moment, whoever is dead."""

from __future__ import annotations

from runner.core.budget import billionths
from tests.crash.record import Record
from tests.crash.scenario import Scenario
from tests.crash.violation import hold


def check(record: Record, variant: Scenario) -> None:
    """Raise ``Violation`` unless the purse of the job (of one run) is what the run has used and has
    reserved, and no cap is passed; a job without a budget has no purse."""
    run, purse, budget = record.run, record.purse, variant.budget
    hold((purse is not None) == budget.is_set, "a purse without a budget, or none with one", purse)
    if purse is None:
        return
    call = run.progress["model"]["open_call"]
    reserved = call["reservation"] if call else {"worst_case": 0, "worst_cost": 0}
    spent = (run.charged_tokens, run.progress["money"]["charged_cost"])
    expected = (*spent, reserved["worst_case"], reserved["worst_cost"])
    found = (purse.spent_tokens, purse.spent_cost, purse.reserved_tokens, purse.reserved_cost)
    hold(found == expected, "the purse is not what was used and reserved", found, expected)
    hold(
        (purse.budget_usd, purse.budget_tokens) == (budget.usd, budget.tokens), "other caps", purse
    )
    caps = (budget.usd and billionths(budget.usd), budget.tokens)
    for cap, total in zip(caps, (found[1] + found[3], found[0] + found[2]), strict=True):
        hold(cap is None or total <= cap, "the budget was passed", cap, total)
