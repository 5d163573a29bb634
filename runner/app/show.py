"""What is known of jobs, runs and tool calls, as ``list``, ``show`` and ``events`` print it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

from runner import wiring
from runner.app.humanize import cell, cost_line, verdict
from runner.core.agents import is_within, place_of
from runner.core.budget import JobBudget
from runner.core.context import DEFAULT_WINDOW
from runner.core.prices import Spending
from runner.core.run import RunStatus
from runner.errors import UnreachableError, UsageError
from runner.queries import costs, decisions, jobs, runs, timeline, transcript
from runner.queries.costs import By
from runner.queries.find import Kind, find
from runner.settings import Settings
from runner.store import ids
from runner.store.conditions import in_tree
from runner.store.control import budget_of

if TYPE_CHECKING:
    from runner.queries.jobs import JobSummary
    from runner.queries.runs import ChildSummary
    from runner.store.database import Database

_LOOK_SECONDS = 0.5

# Jobs and runs


def list_jobs(database: Database, status: RunStatus | None) -> list[JobSummary]:
    """Return the jobs, oldest first."""
    return jobs.list_jobs(database, status)


def list_runs(
    database: Database, job: str, status: RunStatus | None, *, whole_trees: bool
) -> list[dict[str, Any]]:
    """Return the runs of a job, each with its model, where it was forked from, its
    branch, the commit that delivered it and the verdict of its last verification.

    Args:
        whole_trees: with the sub-agents of each run, which has numbers of its own then.
    """
    job_id = find(database, job, "job").id
    verified = runs.last_verifications(database, job_id)
    recorded = {
        each.run_id: each for each in runs.snapshots_of_job(database, job_id, every_run=True)
    }
    return [
        {
            **run,
            **{
                name: getattr(recorded[run["id"]], name)
                for name in ("model", "fork_of", "fork_turn", "branch", "commit")
            },
            "verified": verdict(verified.get(run["id"])) or None,
        }
        for run in jobs.list_runs(database, job_id, status, whole_trees=whole_trees)
    ]


@dataclass(frozen=True, slots=True)
class Details:
    """Everything that is known of a job, a run or a tool call."""

    kind: Kind
    values: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        values = _tree_as_json(self.values) if self.kind == "run" else dict(self.values)
        spending = values.pop("spending", None)
        return values | (cost_fields(spending) if spending is not None else {})


def details_of(settings: Settings, database: Database, name: str) -> Details:
    """Return the details of what an id or a part of it names."""
    found = find(database, name, "job", "run", "call")
    match found.kind:
        case "job":
            spending = spending_of(settings, database, job_id=found.id)
            values = jobs.show_job(database, found.id) | {"spending": spending}
        case "call":
            values = transcript.show_call(database, found.id)
            values |= decisions.decision_on_call(database, found.id)
            values["children"] = _started_by(database, found.id)
        case _:
            values = _run_details(settings, database, found.id)
    return Details(found.kind, values)


def _run_details(settings: Settings, database: Database, run_id: str) -> dict[str, Any]:
    """Everything but the conversation and the events of a run."""
    run = jobs.show_run(database, run_id)
    recorded = runs.snapshots_of_run(database, run_id)
    return run | {
        **place_of(run_id),
        **tree_of(settings, database, run_id),
        "spending": spending_of(settings, database, run_id=run_id),
        "window": _window(settings, run),
        "left_out": asdict(jobs.pruned_turns(database, run["job_id"], run_id)),
        "waits_for": waits_for(database, [run]).get(run_id),
        "denied_calls": decisions.denied_calls(database, run_id),
        "approvals": decisions.approvals_of_run(database, run_id),
        "branch": recorded.branch,
        "start_commit": recorded.start_commit,
        "commit": recorded.commit,
        "tree": recorded.tree,
        "verifications": runs.verifications_of_run(database, run_id),
        "result": runs.result_of_run(database, run_id),
    }


def _window(settings: Settings, run: dict[str, Any]) -> int:
    """The context window that a run was last held against; before its first call that of its model, as
    far as it is known without asking the API."""
    known = (run["fullness"] or {}).get("window") or (run["context"] or {}).get("window")
    return known or wiring.load_prices(settings).window(run["model"]) or DEFAULT_WINDOW


def _started_by(database: Database, call_id: str) -> list[ChildSummary]:
    parsed = ids.parse_call_id(call_id)
    assert parsed is not None, call_id
    return [each for each in runs.children_of(database, parsed[0]) if each["call_id"] == call_id]


# The tree of a run and its sub-agents


def tree_of(settings: Settings, database: Database, run_id: str) -> dict[str, Any]:
    """Return the ``children`` of a run, what each of them cost with all below it (``child_spending``, by
    id), the sums of all runs ``below`` it, and what the tree from the run down cost
    (``tree_spending``)."""
    children = runs.children_of(database, run_id)
    prices = wiring.load_prices(settings)
    condition = (in_tree(run_id),)
    spent = costs.costs_by(database, prices, "run", conditions=condition) if children else []
    return {
        "children": children,
        "child_spending": {
            child["id"]: _sum(each.spending for each in spent if is_within(each.key, child["id"]))
            for child in children
        },
        "below": runs.descendants_of(database, run_id),
        "tree_spending": _sum(each.spending for each in spent),
    }


def _tree_as_json(run: dict[str, Any]) -> dict[str, Any]:
    children, below, spent = run["children"], run["below"], run["child_spending"]
    own = {
        name: value
        for name, value in run.items()
        if name not in ("child_spending", "tree_spending")
    }
    return own | {
        "children": [{**child, **cost_fields(spent[child["id"]])} for child in children],
        "below": below.runs,
        "used_by_tree": {
            "runs": below.runs + 1,
            "turns": below.turns + run["turns"],
            "charged_tokens": below.tokens + run["charged_tokens"],
            "denials": below.denials + run["denials"],
            **cost_fields(run["tree_spending"] if children else run["spending"]),
        },
    }


def descent(run: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return where a sub-agent comes from, in words."""
    if run["parent"] is None:
        return ()
    return (
        ("agent", f"{run['agent_type']}, {run['label']} in its tree"),
        ("parent", run["parent"]),
        ("root", run["root"]),
    )


def tree_line(run: Mapping[str, Any]) -> str | None:
    """Return what a run and all below it used, in words; None when nothing is below it."""
    below = run["below"]
    if not below.runs:
        return None
    denials = below.denials + run["denials"]
    told = (
        f"{below.runs + 1} runs",
        f"{below.turns + run['turns']:,} turns",
        f"{below.tokens + run['charged_tokens']:,} tokens",
        f"{denials:,} denied" if denials else "",
        cost_line(run["tree_spending"]),
    )
    return ", ".join(filter(None, told))


def child_line(child: Mapping[str, Any]) -> str:
    """Return the outcome of a sub-agent, in words."""
    why = f": {cell(child['reason'])}" if child["reason"] not in ("", "end_turn") else ""
    return f"{cell(child['agent_type'])} {child['state']}{why}, {child['id']}"


# Costs and budgets


def spending_of(
    settings: Settings, database: Database, *, job_id: str | None = None, run_id: str | None = None
) -> Spending:
    """Return what the calls of a job or a run cost together."""
    prices = wiring.load_prices(settings)
    found = costs.costs_by(database, prices, "job", job_id=job_id, run_id=run_id)
    return _sum(each.spending for each in found)


def with_costs(
    settings: Settings, database: Database, by: By, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows of jobs, or of runs of one job, for JSON, each with what its calls cost."""
    job_id = None if by == "job" or not rows else rows[0]["job_id"]
    found = costs.costs_by(database, wiring.load_prices(settings), by, job_id=job_id)
    spent = {each.key: each.spending for each in found}
    return [{**row, **cost_fields(spent.get(row["id"], Spending()))} for row in rows]


def cost_fields(spending: Spending) -> dict[str, Any]:
    """Return a cost for JSON. ``cost_usd`` is null if a model has no price, as then nobody knows
    (``priced_usd`` is the cost of the others), and leaves out the ``unknown_calls``."""
    return {
        "cost_usd": None if spending.unpriced else _number(spending.usd),
        "priced_usd": _number(spending.usd),
        "unpriced_models": sorted(spending.unpriced),
        "unknown_calls": spending.unknown,
        "unknown_at_most_usd": None if spending.unpriced else _number(spending.at_most),
        "cache_share": None if spending.cache_share is None else round(spending.cache_share, 4),
        "scripted_calls": spending.scripted,
    }


def _number(usd: Decimal) -> float:
    return float(round(usd, 9))


def _sum(spent: Iterable[Spending]) -> Spending:
    return sum(spent, Spending())


def waits_for(database: Database, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run, what to do about runs of one job that wait for its budget."""
    waiting = [run for run in runs if is_out_of_budget(run)]
    if not waiting:
        return {}
    job_id = waiting[0]["job_id"]
    how = how_to_raise(job_id, budget_of(database, job_id) or JobBudget())
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


# Events


def events_of(
    database: Database, name: str, *, whole_tree: bool
) -> tuple[Kind, list[dict[str, Any]]]:
    """Return what happened in a run, or what was done to a job and its runs, and which of both it is.

    Args:
        whole_tree: with the events of the runs below it.
    """
    found = find(database, name, "job", "run")
    if found.kind == "job":
        if whole_tree:
            raise UsageError("--tree is of one run: name a run of the job (see `runner list JOB`)")
        return found.kind, timeline.changes_of_job(database, found.id)
    return found.kind, _events_after(database, found.id, {}, whole_tree)


def follow(
    settings: Settings,
    database: Database,
    name: str,
    *,
    whole_tree: bool,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run until it has ended, and the model's text between them as it is written,
    as events of the type ``text_delta``.

    Args:
        whole_tree: with the events of the runs below it, until these have ended as well.
        tell: is told why there is no text, if there is none.

    Raises:
        UnreachableError: the database does not answer.
    """
    found = find(database, name, "job", "run")
    if found.kind == "job":
        raise UsageError("-f follows one run: name a run of the job (see `runner list JOB`)")
    run_id, last = found.id, dict[str, int]()
    with ExitStack() as opened:
        try:
            texts = opened.enter_context(wiring.follow_text(settings, run_id))
        except UnreachableError as error:
            tell(str(error))
            texts = _nothing()
        for text in chain((None,), texts):
            if text is not None:
                yield {"type": "text_delta", "run_id": run_id, **place_of(run_id), "text": text}
            has_ended = runs.has_ended(database, run_id, whole_tree=whole_tree)
            for event in _events_after(database, run_id, last, whole_tree):
                last[event["run_id"]] = event["number"]
                yield event
            if has_ended:
                return


def _events_after(
    database: Database, run_id: str, last: Mapping[str, int], whole_tree: bool
) -> list[dict[str, Any]]:
    if whole_tree:
        return timeline.tree_events_after(database, run_id, last)
    return timeline.events_after(database, run_id, last.get(run_id, 0))


def _nothing() -> Iterator[None]:
    pause = threading.Event()
    while True:
        pause.wait(_LOOK_SECONDS)
        yield None
