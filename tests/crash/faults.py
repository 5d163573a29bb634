"""Faults in the guarantees, seeded into a process to see that the sweep finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Integer, bindparam, select

from runner.core import batches, tool_calls
from runner.core.budget import JobBudget, Reservation
from runner.core.conversation import Tool
from runner.core.entries import ToolsStarted
from runner.core.spec import JobSpec
from runner.permissions.decisions import Authorization
from runner.store import journal
from runner.store.entries import Rows
from runner.store.tables import jobs, runs
from runner.workspace.run_workspaces import RunWorkspaces


def intent_not_written() -> None:
    """That a tool starts is not stored before it does."""
    add_entry = Rows._add_entry

    def add_all_but_starts(rows: Rows, state: Any, entry: Any) -> None:
        if not isinstance(entry, ToolsStarted):
            add_entry(rows, state, entry)

    Rows._add_entry = add_all_but_starts  # type: ignore[assignment,method-assign]


def fence_ignored() -> None:
    """The journal's guard looks neither at the run's state nor at its attempt."""
    anyone = (runs.c.id == bindparam("run")) & (bindparam("lease_attempt", type_=Integer) > 0)
    journal._RUN = select(*journal._RUN.selected_columns).where(anyone, jobs.c.id == runs.c.job_id)
    columns = select(*journal._GUARD.selected_columns).join(jobs, jobs.c.id == runs.c.job_id)
    journal._GUARD = columns.where(anyone).with_for_update(of=runs)

    def never(*given: Any) -> None:
        return None

    journal._Commit.in_one_statement = never  # type: ignore[method-assign]  # its one statement has the fence
    journal.keep_claim = never  # type: ignore[assignment]  # so has this one, on Postgres


def everything_repeatable() -> None:
    """Every tool is run again when a worker died in the middle of it."""
    declared = JobSpec.tool

    def repeatable(spec: JobSpec, name: str) -> Tool | None:
        tool = declared(spec, name)
        return replace(tool, repeatable=True) if tool else None

    JobSpec.tool = repeatable  # type: ignore[assignment,method-assign]


def every_answer_a_yes() -> None:
    """What the rules or a person denied runs all the same, and no authorization is looked at."""

    def nothing(*given: Any) -> None:
        return None

    tool_calls._refusal = nothing  # type: ignore[assignment]
    Authorization.__post_init__ = nothing  # type: ignore[assignment,method-assign]


def reservation_not_kept() -> None:
    """What a call may use at the most is not taken out of its job's budget before it begins."""

    def with_reserved(job_budget: JobBudget, call: Reservation) -> JobBudget:
        return job_budget

    def with_spent(job_budget: JobBudget, call: Reservation, tokens: int, cost: int) -> JobBudget:
        spent_tokens, spent_cost = job_budget.spent_tokens + tokens, job_budget.spent_cost + cost
        return replace(job_budget, spent_tokens=spent_tokens, spent_cost=spent_cost)

    JobBudget.with_reserved = with_reserved  # type: ignore[method-assign]
    JobBudget.with_spent = with_spent  # type: ignore[method-assign]


def nothing_put_back() -> None:
    """A call that was cut off runs again on what it left behind."""
    prepare = RunWorkspaces.prepare

    def as_found(workspaces: RunWorkspaces, *given: Any, undo: bool, busy: bool) -> Any:
        return prepare(workspaces, *given, undo=False, busy=busy)

    RunWorkspaces.prepare = as_found  # type: ignore[method-assign]


def every_hook_repeatable() -> None:
    """A hook that was cut off is run again, whatever it may have done."""
    declared = JobSpec.from_json.__func__  # type: ignore[attr-defined]

    def repeatable(kind: type[JobSpec], data: Any) -> JobSpec:
        spec: JobSpec = declared(kind, data)
        return replace(spec, hooks=tuple(replace(hook, repeatable=True) for hook in spec.hooks))

    JobSpec.from_json = classmethod(repeatable)  # type: ignore[assignment]


def no_batch_found() -> None:
    """After a creation with an unknown outcome, the API's list is not searched for the batch."""

    def none(*given: Any) -> list[str]:
        return []

    batches.candidates = none  # type: ignore[assignment]


FAULTS = {
    "intent not written": intent_not_written,
    "fence ignored": fence_ignored,
    "everything repeatable": everything_repeatable,
    "every answer a yes": every_answer_a_yes,
    "reservation not kept": reservation_not_kept,
    "nothing put back": nothing_put_back,
    "every hook repeatable": every_hook_repeatable,
    "no batch found": no_batch_found,
}


def seed(fault: str) -> None:
    """Put a fault into this process, for good."""
    FAULTS[fault]()
