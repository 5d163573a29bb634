"""What must hold of a job's money at every moment, whoever is dead."""

from __future__ import annotations

from runner.core.budget import billionths
from tests.crash.record import Record
from tests.crash.violation import hold


def check(record: Record) -> None:
    """Raise ``Violation`` unless the purse of the job (of one run) is what the run has used and has
    reserved, and no cap is passed; a job without a budget has no purse."""
    run, purse = record.run, record.purse
    if purse is None:
        return
    found = (purse.spent_tokens, purse.spent_cost, purse.reserved_tokens, purse.reserved_cost)
    call = run.progress["open_call"]
    reserved = call["reservation"] if call else {"worst_case": 0, "worst_cost": 0}
    spent = (run.charged_tokens, run.progress["charged_cost"])
    expected = (*spent, reserved["worst_case"], reserved["worst_cost"])
    hold(found == expected, "the purse is not what was used and reserved", found, expected)
    if purse.budget_usd is not None:
        cost = purse.spent_cost + purse.reserved_cost
        hold(cost <= billionths(purse.budget_usd), "the budget was passed", cost)
    if purse.budget_tokens is not None:
        tokens = purse.spent_tokens + purse.reserved_tokens
        hold(tokens <= purse.budget_tokens, "the budget was passed", tokens)
