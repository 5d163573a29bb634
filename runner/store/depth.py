"""Depth first: reads what the items of a job have spent, for ``core.depth`` to say if others may begin.

What is read does not grow with the number of queued runs: the items in progress, a few finished ones,
and the sub-agents of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Select, bindparam, literal_column, select, union_all

from runner.core.budget import JobBudget
from runner.core.depth import LEARNED, Begun, covers, may_begin
from runner.store.budgets import look_into
from runner.store.conditions import IS_ITEM_RUN, ROOT_RUN
from runner.store.statements import execute
from runner.store.tables import runs

_LEARNED_FROM = literal_column("30", Integer)  # finished items of a state

_NAMES = ("state", "reason", "charged_tokens", "progress")
_below = runs.alias("below")
_RUN = ROOT_RUN.label("item"), *(runs.c[name] for name in _NAMES)
_BELOW = _below.c.root_run.label("item"), *(_below.c[name] for name in _NAMES)
# In the words of the partial index.
_IS_BEGUN = (
    (runs.c.job_id == bindparam("job")) & runs.c.started_at.is_not(None) & runs.c.ended_at.is_(None)
)
_OF_BEGUN = select(
    select(*_RUN)
    .where(_IS_BEGUN)
    .union_all(
        select(*_BELOW).join_from(runs, _below, _below.c.root_run == runs.c.id).where(_IS_BEGUN)
    )
    .subquery("of_begun")
)


def _some_in(state: str) -> Select[Any]:
    """Some items that ended in a state. Of several states at once SQLite would read all queued runs."""
    found = (
        select(runs.c.id)
        .where(
            runs.c.job_id == bindparam("job"),
            runs.c.state == literal_column(f"'{state}'"),
            IS_ITEM_RUN,
            runs.c.charged_tokens > literal_column("0", Integer),
        )
        .limit(_LEARNED_FROM)
    )
    return select(found.subquery(state).c.id)


_some = union_all(*map(_some_in, ("succeeded", "failed", "stopped"))).cte("some_ended")
_OF_FINISHED = select(
    select(*_RUN)
    .join_from(_some, runs, runs.c.id == _some.c.id)
    .union_all(select(*_BELOW).join_from(_some, _below, _below.c.root_run == _some.c.id))
    .subquery("of_finished")
)


@dataclass(slots=True)
class _Item:
    """The spending of an item's run and its sub-agents."""

    cost: int = 0  # in billionths of a USD
    tokens: int = 0
    worked: float = 0.0  # seconds of model calls and tools
    worst_cost: int = 0  # of the calls in hand, the most that one may use
    worst_tokens: int = 0
    goes_on: bool = False  # by itself: one of its runs is running, queued or in a batch


@dataclass(frozen=True, slots=True)
class ItemsOfJob:
    """The items of a job that have begun and not ended, and some that have ended."""

    begun: Sequence[_Item]
    finished: Sequence[_Item]

    @property
    def go_on(self) -> bool:
        """True if an item in progress goes on by itself."""
        return any(item.goes_on for item in self.begun)

    def may_begin(self, budget: JobBudget, concurrency: int | None, before: int = 0) -> bool:
        """True if what is left of the budget lets one more item begin, after so many ``before`` it."""
        return all(
            most is None or self._covered(name, most - spent, concurrency, before)
            for name, most, spent in (
                ("cost", budget.most_cost, budget.spent_cost),
                ("tokens", budget.most_tokens, budget.spent_tokens),
            )
        )

    def may_begin_today(self, left: int, before: int = 0) -> bool:
        """True if what is left of the day's cap lets one more item begin, after so many ``before`` it. What
        does not fit goes on the next day: until more is known, items begin."""
        return len(self.finished) < LEARNED or self._covered("cost", left, None, before)

    def _covered(self, name: str, left: int, concurrency: int | None, before: int) -> bool:
        # A call begins only while its whole reservation fits: the last one leaves so much over.
        left -= max((getattr(item, f"worst_{name}") for item in self.begun), default=0)
        begun = [Begun(getattr(item, name), item.goes_on) for item in self.begun]
        finished = [getattr(item, name) for item in self.finished]
        return may_begin(left, finished, [*begun, *[Begun(0)] * before], concurrency)

    def have_time(self, left: float) -> bool:
        """True if an item that begins now is expected to end within so many seconds. Time passes whether
        items begin or not: until more is known, they begin."""
        finished = [item.worked for item in self.finished]
        return len(finished) < LEARNED or covers(left, finished, [0.0])


def items_of(connection: Connection, job_id: str) -> ItemsOfJob:
    begun = execute(connection, _OF_BEGUN, {"job": job_id})
    finished = execute(connection, _OF_FINISHED, {"job": job_id})
    return ItemsOfJob(_items(begun), _items(finished))


def _items(rows: Sequence[Any]) -> list[_Item]:
    items: defaultdict[str, _Item] = defaultdict(_Item)
    for row in rows:
        item, progress = items[row.item], row.progress
        item.cost += progress["money"]["charged_cost"]
        item.tokens += row.charged_tokens
        item.worked += progress["worked"]
        waits_for_batch = (row.state, row.reason) == ("waiting", "batch")
        item.goes_on |= row.state in ("running", "queued") or waits_for_batch
        if (call := progress["model"]["open_call"]) is not None:
            item.worst_cost = max(item.worst_cost, call["reservation"]["worst_cost"])
            item.worst_tokens = max(item.worst_tokens, call["reservation"]["worst_case"])
    return list(items.values())


def may_begin_now(connection: Connection, job_id: str, concurrency: int | None) -> bool:
    """True if the job's budget lets one more item begin."""
    budget = look_into(connection, job_id)
    return budget is None or items_of(connection, job_id).may_begin(budget, concurrency)
