"""What a sub-agent may use: a share of what its parent has left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from runner.core.agents.agent import AgentType
from runner.core.journal.view import RunView
from runner.core.money.budget import billionths

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Allotment:
    """All that a child and its own children may use: tokens, billionths of a USD and seconds from
    now. None: without that limit."""

    tokens: int
    cost: int | None
    deadline: float | None


def allot(view: RunView, agent: AgentType, together: int) -> Allotment:
    """What one of several children that start together may use: what its type says, and no more than
    an equal share of what the parent has left, of which one share stays with the parent.

    Args:
        together: how many start together.
    """
    limits, used, shares = view.spec.limits, view.used, together + 1
    tokens = limits.token_ceiling if agent.token_ceiling is None else agent.token_ceiling
    usd = limits.cost_ceiling_usd if agent.cost_ceiling_usd is None else agent.cost_ceiling_usd
    ceiling = view.limits.cost_ceiling
    return Allotment(
        tokens=min(tokens, max(0, view.limits.token_ceiling - used.tokens) // shares),
        cost=_least(
            None if usd is None else billionths(usd),
            None if ceiling is None else max(0, ceiling - used.cost) // shares,
        ),
        deadline=_least(agent.deadline, None if view.ends_at is None else view.ends_at - view.now),
    )


def _least(*limits: N | None) -> N | None:
    return min((limit for limit in limits if limit is not None), default=None)
