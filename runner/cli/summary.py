"""What a job has come to: a table of its runs, and how to look further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.app.humanize import cell, cost_line, denier, duration, first_line, verdict
from runner.cli.control import how_to_raise, is_out_of_budget, runs_wait
from runner.cli.costs import cost_fields
from runner.cli.exit_codes import exit_code
from runner.cli.terminal import note, say, say_json, say_table
from runner.core.budget import JobBudget
from runner.core.prices import PriceList, Spending
from runner.queries import decisions
from runner.queries.costs import costs_by
from runner.queries.decisions import DeniedKind
from runner.queries.jobs import (
    PrunedTurns,
    RunSummary,
    Verification,
    current_runs,
    last_texts,
    last_verifications,
    list_runs,
    pruned_turns,
    show_job,
)
from runner.store.control import budget_of
from runner.store.database import Database

_MOST_DENIALS = 10


def summarise(
    database: Database, prices: PriceList, job_id: str, *, interrupted: bool, as_json: bool
) -> int:
    """Print what became of the runs of a job's items; what they used is told with their sub-agents'.

    Returns:
        The exit code that says it.
    """
    runs = current_runs(list_runs(database, job_id))
    code = exit_code((run["state"] for run in runs), interrupted=interrupted)
    texts = last_texts(database, job_id)
    verified = last_verifications(database, job_id)
    waiting = decisions.open_approval_counts(database, job_id)
    denied = decisions.denied_kinds(database, job_id)
    spent = {s.key: s.spending for s in costs_by(database, prices, "tree", job_id=job_id)}
    total = sum(spent.values(), Spending())
    if as_json:
        job = show_job(database, job_id)
        job["run_summaries"] = [
            {
                **run,
                "last_text": texts.get(run["id"]),
                "open_approvals": waiting.get(run["id"], 0),
                "verified": verdict(verified.get(run["id"])) or None,
                **cost_fields(spent.get(run["id"], Spending())),
            }
            for run in runs
        ]
        say_json(job | {"denied": denied} | cost_fields(total))
        return code
    _say_runs(runs, texts, verified)
    _say_totals(runs)
    if cost := cost_line(total):
        say(f"cost: {cost}")
    _say_denied(*decisions.denied_counts(database, job_id), denied)
    _say_waiting(job_id, waiting)
    _say_out_of_budget(job_id, budget_of(database, job_id), runs)
    _say_left_out(pruned_turns(database, job_id))
    _say_further(job_id, runs)
    return code


def _say_runs(
    runs: Sequence[RunSummary], texts: Mapping[str, str], verified: Mapping[str, Verification]
) -> None:
    is_verified = ("verified",) if verified else ()
    is_tree = ("below",) if any(run["below"] for run in runs) else ()
    columns = (*is_tree, "turns", "tokens", "time", "denied", "last text")
    say_table(
        ("run", "item", "state", "reason", *is_verified, *columns),
        (
            (
                run["id"],
                run["item_key"],
                run["state"],
                run["reason"],
                *(verdict(verified.get(run["id"])) for _ in is_verified),
                *(run["below"] or "" for _ in is_tree),
                run["turns"],
                f"{run['tree_tokens']:,}",
                _took(run),
                run["tree_denials"] or "",
                first_line(run["detail"] or texts.get(run["id"], "")),
            )
            for run in runs
        ),
    )


def _took(run: RunSummary) -> str:
    if run["started_at"] is None or run["ended_at"] is None:
        return ""
    return duration(run["ended_at"] - run["started_at"])


def _say_totals(runs: Sequence[RunSummary]) -> None:
    by_state: dict[str, int] = {}
    for run in runs:
        by_state[run["state"]] = by_state.get(run["state"], 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in by_state.items())
    turns = sum(run["tree_turns"] for run in runs)
    tokens = sum(run["tree_tokens"] for run in runs)
    below = sum(run["below"] for run in runs)
    started = f" and {below:,} {'sub-agent' if below == 1 else 'sub-agents'}" if below else ""
    say(f"\n{states}{started}; {turns:,} turns, {tokens:,} tokens")


def _say_denied(calls: int, in_runs: int, kinds: Sequence[DeniedKind]) -> None:
    if not calls:
        return
    were = "1 tool call was" if calls == 1 else f"{calls} tool calls were"
    say(f"{were} denied, in {_runs(in_runs)}: the work may be incomplete")
    for kind in kinds[:_MOST_DENIALS]:
        such_as = f" {cell(kind['matched'])}" if kind["matched"] else ""
        say(f"  {kind['calls']} × {cell(kind['tool'])}{such_as}: {denier(kind)}")
    if len(kinds) > _MOST_DENIALS:
        say(f"  … and for {len(kinds) - _MOST_DENIALS} other reasons (all: runner show RUN)")


def _say_waiting(job_id: str, counts: Mapping[str, int]) -> None:
    if counts:
        count = sum(counts.values())
        waits = "1 tool call waits" if count == 1 else f"{count} tool calls wait"
        say(f"{waits} for an answer, in {_runs(len(counts))}: runner approvals {job_id}")


def _say_out_of_budget(job_id: str, purse: JobBudget | None, runs: Sequence[RunSummary]) -> None:
    count = sum(is_out_of_budget(run) for run in runs)
    if count:
        how = how_to_raise(job_id, purse or JobBudget())
        say(f"{runs_wait(count)} for the job's budget: {how}")


def _say_left_out(left_out: PrunedTurns) -> None:
    if left_out.runs:
        why = f" ({cell(left_out.why)})" if left_out.why else ""
        say(
            f"in {_runs(left_out.runs)} the oldest turns were left out of what the model was sent: "
            f"no summary could stand in for them{why}"
        )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _say_further(job_id: str, runs: Sequence[RunSummary]) -> None:
    if not runs:
        return
    telling = next((run for run in runs if run["state"] != "succeeded"), runs[0])
    note(f"\nlook further: runner transcript {telling['id']}")
    note(f"              runner events {telling['id']}")
    note(f"              runner report {job_id}")
