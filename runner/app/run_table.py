"""The runs of a job as a table: filtered, sorted, a page at a time, and actions on all that match."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.app import approvals
from runner.app.costs import costs_of_trees
from runner.app.handle import App
from runner.app.people import Role
from runner.core.agents import lineage
from runner.core.commands import Answered, Change, Raised, Reply, Target
from runner.core.run import STATES, Author
from runner.errors import UsageError
from runner.queries import decisions, jobs, workers
from runner.queries.run_table import SORTS, RunFilters, count_up_to, reasons, run_ids
from runner.store import control, questions, retry

__all__ = ["SORTS", "RunFilters"]

ROWS = 50  # of a page
MOST_AT_ONCE = 10_000  # runs that one action changes
_DESCENDING_AT_FIRST = frozenset({"turns", "tokens", "cost", "time", "ended"})
# The role that an action on all matching runs needs.
ROLE_OF: Mapping[str, Role] = {
    **dict.fromkeys(("retry", "cancel", "pause", "resume"), "operate"),
    **dict.fromkeys(("approve", "deny"), "answer"),
}


@dataclass(frozen=True, slots=True)
class Sorting:
    by: str = "submitted"
    descending: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Sorting:
        """Read ``cost`` or, the other way round, ``-cost``. Raises ``UsageError``."""
        name = (text or "submitted").removeprefix("-")
        if name not in SORTS:
            raise UsageError(f"{name[:40]!a} is not a column to sort by: choose {', '.join(SORTS)}")
        return cls(name, (text or "").startswith("-"))

    def toggled(self, by: str) -> str:
        """Return the sorting that a click on a column's head asks for."""
        descending = not self.descending if by == self.by else by in _DESCENDING_AT_FIRST
        return f"-{by}" if descending else by

    def __str__(self) -> str:
        return f"-{self.by}" if self.descending else self.by


def filters_of(given: Mapping[str, str]) -> RunFilters:
    """Read the filters of a query string or a form; empty ones are none. Raises ``UsageError``."""
    values: dict[str, Any] = {
        name: given[name].strip() for name in ("state", "reason", "text", "tool") if given.get(name)
    }
    if values.get("state", STATES[0]) not in STATES:
        raise UsageError(f"{values['state'][:40]!a} is not a state: choose {', '.join(STATES)}")
    values |= {name: True for name in ("denied", "waiting") if given.get(name)}
    if given.get("usd"):
        try:
            values["usd"] = float(given["usd"])
        except ValueError as error:
            raise UsageError(f"{given['usd'][:40]!a} is not a sum in USD, such as 0.50") from error
        if not 0 <= values["usd"] < 1e9:
            raise UsageError("give a cost from 0 to 1,000,000,000 USD")
    return RunFilters(**values)


def as_given(filters: RunFilters) -> dict[str, str]:
    """Return filters as ``filters_of`` reads them."""
    names = RunFilters.__slots__
    values = {name: getattr(filters, name) for name in names}
    return {
        name: "1" if value is True else f"{value:g}" if isinstance(value, float) else value
        for name, value in values.items()
        if value not in (None, False)
    }


@dataclass(frozen=True, slots=True)
class RunsPage:
    rows: Sequence[Mapping[str, Any]]
    next: str | None  # what the next page starts after; None on the last one


def runs_page(
    app: App, job_id: str, filters: RunFilters, sorting: Sorting, after: str | None
) -> RunsPage:
    """Return some of the runs of a job's items, those ``after`` the ones before. Each has its state to
    show (``shown_state``), its ``cost`` with its sub-agents, and how many calls wait for an answer
    (``waiting``). Raises ``UsageError``."""
    database = app.database
    options: Any = {"sort": sorting.by, "descending": sorting.descending, "limit": ROWS + 1}
    key = _read_key(after) if after else None
    found = run_ids(database, job_id, filters, after=key, **options)
    ids = [run_id for _, run_id in found[:ROWS]]
    next_after = _write_key(found[ROWS - 1]) if len(found) > ROWS else None
    listed = jobs.list_runs(database, job_id, among=ids)
    by_id = {run["id"]: run for run in workers.with_shown_states(database, app.now(), listed)}
    costs = costs_of_trees(app, ids)
    waiting = decisions.open_approval_counts(database, job_id)
    rows = [
        {**by_id[run_id], "cost": costs[run_id], "waiting": waiting.get(run_id, 0)}
        for run_id in ids
        if run_id in by_id
    ]
    return RunsPage(rows, next_after)


def _write_key(key: tuple[Any, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read_key(text: str) -> tuple[Any, str]:
    with suppress(ValueError, TypeError):
        value, run_id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if isinstance(run_id, str) and isinstance(value, int | float | str):
            return value, run_id
    raise UsageError("the address of this page is incomplete: start at the first page")


def reasons_of(app: App, job_id: str) -> list[str]:
    """Return the reasons that a job's runs have, to choose from."""
    return sorted({reason for _, reason in reasons(app.database, job_id) if reason})


@dataclass(frozen=True, slots=True)
class Matching:
    """The runs that an action on all that match would change."""

    count: int
    is_more: bool  # than ``MOST_AT_ONCE``
    examples: Sequence[Mapping[str, Any]]  # the first of them


def matching(app: App, job_id: str, filters: RunFilters) -> Matching:
    count = count_up_to(app.database, job_id, filters, MOST_AT_ONCE + 1)
    first = runs_page(app, job_id, filters, Sorting(), None).rows[:5]
    return Matching(min(count, MOST_AT_ONCE), count > MOST_AT_ONCE, first)


def asked_of(app: App, job_id: str, filters: RunFilters) -> int:
    """Return how many calls of the runs that match wait for an answer."""
    ids = [key[1] for key in run_ids(app.database, job_id, filters, limit=MOST_AT_ONCE)]
    waiting = decisions.open_approval_counts(app.database, job_id)
    return sum(waiting.get(run_id, 0) for run_id in ids)


def act_on_all(
    app: App, job_id: str, filters: RunFilters, action: str, author: Author
) -> tuple[Sequence[Change | Answered], str | None]:
    """Apply an action of ``ROLE_OF`` to all runs of a job that match now, with sub-agents. The
    model reads the reason of a denial. Returns the outcome for each run or call, and the job if it has
    queued runs while no worker is alive. Raises ``UsageError`` if there is no such action."""
    ids = [key[1] for key in run_ids(app.database, job_id, filters, limit=MOST_AT_ONCE)]
    target = Target("job", job_id)
    if action in ("approve", "deny"):
        among = set(ids)
        asked = questions.waiting(app.database, target)
        chosen = [each.id for each in asked if lineage(each.run_id)[0] in among]
        effect: Any = "approved" if action == "approve" else "denied"
        reply = Reply(effect, str(author.name), author.why)
        return (approvals.answer(app, chosen, reply) if chosen else []), None
    options: Any = {"author": author, "among": ids}
    acts: dict[str, Callable[..., list[Change]]] = {
        "cancel": control.cancel,
        "pause": control.pause,
        "resume": control.resume,
        "retry": retry.retry,
    }
    if (act := acts.get(action)) is None:
        raise UsageError(f"{action[:40]!a} is not an action: choose {', '.join(ROLE_OF)}")
    changes = app.change(lambda now: act(app.database, target, now, **options))
    queued = (each.id for each in changes if each.changed and each.state == "queued")
    return changes, app.job_without_worker(next(queued, None))


def limits_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Read new limits of a form, as in ``Raised``; empty ones stay as they are. Raises ``UsageError``."""
    kinds: dict[str, Any] = {"max_turns": int, "token_ceiling": int, "cost_ceiling_usd": float}
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        if text := given.get(name, "").strip():
            try:
                found[name] = kind(text.replace(",", ""))
            except ValueError as error:
                raise UsageError(f"{name} {text[:40]!a} is not a number") from error
            if not 0 < found[name] < 1e12:
                raise UsageError(f"{name}: give more than 0")
    assert set(found) <= set(Raised.__slots__)
    return found
