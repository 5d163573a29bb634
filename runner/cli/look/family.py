"""A run's place among those that have started one another, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.app.humanize import cell, cost, cost_line
from runner.cli.costs import cost_fields
from runner.cli.terminal import say, say_table
from runner.core.agents import is_within
from runner.core.prices import Spending
from runner.settings import Settings
from runner.store import ids

if TYPE_CHECKING:
    from runner.queries.jobs import ChildSummary
    from runner.store.database import Database

_NO_JSON = ("child_spending", "tree_spending")


def family_of(settings: Settings, database: Database, run_id: str) -> dict[str, Any]:
    """What a run has started: its ``children``, what each of them cost with all below it
    (``child_spending``, by id), what is ``below`` the run, and what the tree from the run down has cost
    (``tree_spending``)."""
    from runner import wiring
    from runner.queries.costs import costs_by
    from runner.queries.jobs import children_of, descendants_of
    from runner.store.conditions import in_tree

    children = children_of(database, run_id)
    prices = wiring.load_prices(settings)
    spent = costs_by(database, prices, "run", conditions=(in_tree(run_id),)) if children else []
    return {
        "children": children,
        "child_spending": {
            child["id"]: _sum(each.spending for each in spent if is_within(each.key, child["id"]))
            for child in children
        },
        "below": descendants_of(database, run_id),
        "tree_spending": _sum(each.spending for each in spent),
    }


def _sum(spent: Any) -> Spending:
    return sum(spent, Spending())


def family_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The same run for JSON."""
    children, spent = run["children"], run["child_spending"]
    tree = cost_fields(run["tree_spending"] if children else run["spending"])
    return {
        **{name: value for name, value in run.items() if name not in _NO_JSON},
        "children": [{**child, **cost_fields(spent[child["id"]])} for child in children],
        "below": run["below"].runs,
        "used_by_tree": {
            "runs": run["below"].runs + 1,
            "turns": run["below"].turns + run["turns"],
            "charged_tokens": run["below"].tokens + run["charged_tokens"],
            "denials": run["below"].denials + run["denials"],
            **tree,
        },
    }


def descent(run: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Where a sub-agent comes from."""
    if run["parent"] is None:
        return ()
    return (
        ("agent", f"{run['agent_type']}, {run['label']} in its tree"),
        ("parent", run["parent"]),
        ("root", run["root"]),
    )


def tree_line(run: Mapping[str, Any]) -> str | None:
    """What a run and all below it have used; None when nothing is below it."""
    under = run["below"]
    if not under.runs:
        return None
    told = (
        f"{under.runs + 1} runs",
        f"{under.turns + run['turns']:,} turns",
        f"{under.tokens + run['charged_tokens']:,} tokens",
        f"{under.denials + run['denials']:,} denied" if under.denials + run["denials"] else "",
        cost_line(run["tree_spending"]),
    )
    return ", ".join(filter(None, told))


def say_children(run: Mapping[str, Any]) -> None:
    """Print the sub-agents that a run has started."""
    if not run["children"]:
        return
    say("\nsub-agents, each with all below it in its cost:")
    say_table(
        ("run", "type", "state", "reason", "turns", "tokens", "cost", "description"),
        (
            (
                child["id"],
                child["agent_type"],
                child["state"],
                child["reason"],
                child["turns"],
                f"{child['charged_tokens']:,}",
                cost(run["child_spending"][child["id"]]),
                child["description"],
            )
            for child in run["children"]
        ),
    )


def started_by(database: Database, call_id: str) -> list[ChildSummary]:
    """The sub-agents that a tool call has started."""
    from runner.queries.jobs import children_of

    parsed = ids.parse_call_id(call_id)
    assert parsed is not None, call_id
    return [each for each in children_of(database, parsed[0]) if each["call_id"] == call_id]


def words(child: Mapping[str, Any]) -> str:
    """What became of a sub-agent, in a line."""
    why = f": {cell(child['reason'])}" if child["reason"] not in ("", "end_turn") else ""
    return f"{cell(child['agent_type'])} {child['state']}{why}, {child['id']}"
