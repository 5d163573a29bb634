"""What must hold of a job's money at every moment, whoever is dead."""

from __future__ import annotations

from runner.core.budget import billionths
from tests.crash.record import Record
from tests.crash.violation import hold


def check(record: Record) -> None:
    """Raise ``Violation`` unless the purse of the job (of one run) is what the run has used and has
    reserved, and no cap is passed; a job without a budget has no purse."""
    run, job = record.run, record.job
    found = (job.spent_tokens, job.spent_cost, job.reserved_tokens, job.reserved_cost)
    if job.budget_usd is None and job.budget_tokens is None:
        hold(found == (0, 0, 0, 0), "a purse without a budget", found)
        return
    call = run.progress["open_call"]
    reserved = call["reservation"] if call else {"worst_case": 0, "worst_cost": 0}
    spent = (run.charged_tokens, run.progress["charged_cost"])
    expected = (*spent, reserved["worst_case"], reserved["worst_cost"])
    hold(found == expected, "the purse is not what was used and reserved", found, expected)
    if job.budget_usd is not None:
        cost = job.spent_cost + job.reserved_cost
        hold(cost <= billionths(job.budget_usd), "the budget was passed", cost)
    if job.budget_tokens is not None:
        tokens = job.spent_tokens + job.reserved_tokens
        hold(tokens <= job.budget_tokens, "the budget was passed", tokens)
