"""The journal in the database: loading a run's view, and appending what an attempt did.

One transaction holds the guard (this attempt still has the run), what happened, and what is decided
next with the queued messages, the pause flag and the job's purse as they stand there. The guard locks
the run; after it the purse is locked, if the job has one: in the order that ``store.purse`` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, select

from runner.core.agents import lineage
from runner.core.budget import Limits
from runner.core.context import Compacted
from runner.core.entries import ChildrenStarted, Entry
from runner.core.fold import Applied, fold
from runner.core.hook_decisions import end_turns
from runner.core.prices import Tariff
from runner.core.run import Ended, Lease, Waiting
from runner.core.spec import JobSpec
from runner.core.state import Call, QueuedMessage, RunView
from runner.errors import LeaseLost, StaleView, UnreachableError
from runner.permissions import Answer
from runner.ports import Decide, Observer, Stored
from runner.store import budgets
from runner.store import budgets as money
from runner.store.children import children_waited_for, end_children, family_of, wake
from runner.store.database import Database
from runner.store.entries import Rows
from runner.store.jobs import JobCache, JobReader
from runner.store.new_children import lock_tree, place_with_children, start_children
from runner.store.run_state import (
    answers_to,
    counted,
    load_compacted,
    load_conversation,
    load_hook_runs,
    progress_from_row,
    progress_to_json,
    with_instructions_of,
)
from runner.store.statements import execute
from runner.store.tables import jobs, purses, queued_messages, runs

T = TypeVar("T")

_HELD = (
    (runs.c.id == bindparam("run"))
    & (runs.c.state == "running")
    & (runs.c.attempt == bindparam("lease_attempt"))
)
_GUARD = (
    select(
        runs.c.queued_count,
        runs.c.pause_requested,
        runs.c.event_count,
        runs.c.revision,
        runs.c.denials,
        runs.c.answer_count,
        runs.c.job_id,
        jobs.c.rules_snapshot,
    )
    .join(jobs, jobs.c.id == runs.c.job_id)
    .where(_HELD)
    .with_for_update(of=runs)
)
_RUN = select(runs, jobs.c.rules_snapshot).join(jobs, jobs.c.id == runs.c.job_id).where(_HELD)
_UNDELIVERED = (
    select(queued_messages.c.id, queued_messages.c.text)
    .where(
        queued_messages.c.run_id == bindparam("run"),
        queued_messages.c.delivered_message.is_(None),
    )
    .order_by(queued_messages.c.id)
)


class StoredJournal:
    """``runner.ports.Journal`` over the database.

    Args:
        database: where the runs are.
        now: the time in seconds since the epoch, by the database's clock.
        tariffs: what the calls of a job's models cost, by model, of those that have a price.
        observer: is told what was stored.
    """

    def __init__(
        self,
        database: Database,
        now: Callable[[], float],
        tariffs: Callable[[JobSpec], Mapping[str, Tariff]],
        observer: Observer | None = None,
    ) -> None:
        self._database = database
        self._now = now
        self._tariffs = tariffs
        self._observer = observer
        self._jobs = JobCache()

    def load(self, lease: Lease) -> RunView:
        """The run as its rows tell it. Raises ``LeaseLost``."""

        def work(connection: Connection) -> tuple[RunView, JobReader]:
            jobs_read = self._jobs.on(connection)
            return _load(connection, jobs_read, lease), jobs_read

        view, jobs_read = self._database.read(work)
        jobs_read.keep()
        return replace(view, tariffs=self._tariffs(view.spec))

    def commit(
        self, lease: Lease, view: RunView, entries: Sequence[Entry], decide: Decide[T]
    ) -> tuple[RunView, T]:
        """Store ``entries`` and what ``decide`` decides from there; see the port."""
        stored: Stored | None = None

        def work(connection: Connection) -> tuple[RunView, T, JobReader]:
            nonlocal stored
            row = self._guard(connection, lease, view)
            jobs_read = self._jobs.on(connection)
            purse = money.lock(connection, row.job_id) if view.spec.budget.is_set else None
            before = replace(_as_it_stands(connection, jobs_read, row, view), purse=purse)
            now = self._now()
            applied, step = _decided(before, entries, decide, now)
            if any(isinstance(one.entry, ChildrenStarted) for one in applied):
                lock_tree(connection, lease.run_id)
                before = _as_its_tree_stands(connection, before)
                applied, step = _decided(before, entries, decide, now)
            if not applied:
                return before, step, jobs_read
            after = replace(applied[-1].after, revision=before.revision + 1)
            stored = Stored(lease, row.job_id, applied, now)
            rows = Rows(lease, row.job_id, now, row.event_count)
            rows.add(applied)
            writes = rows.writes()
            changes = _run_changes(after, rows, row.denials)
            changes |= place_with_children(connection, before, after)
            writes.change(runs, changes, id=lease.run_id)
            if after.purse is not None and after.purse != purse:
                writes.change(purses, money.sums(after.purse), job_id=row.job_id)
            writes.run(connection)
            start_children(connection, jobs_read, applied, now)
            if before.progress.warms and (after.outcome is not None or not after.progress.warms):
                budgets.let_siblings_start(connection, row.job_id, now)
            return after, step, jobs_read

        after, step, jobs_read = self._database.write(work)
        jobs_read.keep()
        self._wake(after)
        if self._observer is not None and stored is not None:
            self._observer.stored(stored)
        return after, step

    def end_children(self, lease: Lease) -> None:
        """Cancel all below the run that has not ended. Raises ``LeaseLost``."""
        end_children(self._database, lease, self._now())

    def _wake(self, view: RunView) -> None:
        """Have a parent see that the run has ended, or the run itself that those it waits for have since
        it was loaded. Should this fail, a dispatcher finds it."""
        woken = None
        match view.outcome:
            case Ended() if view.depth:
                woken = lineage(view.run_id)[-2]
            case Waiting("children"):
                woken = view.run_id
        if woken is not None:
            with suppress(UnreachableError):
                wake(self._database, woken, self._now())

    def _guard(self, connection: Connection, lease: Lease, view: RunView) -> Any:
        held = {"run": lease.run_id, "lease_attempt": lease.attempt}
        rows = execute(connection, _GUARD, held)
        if not rows:
            raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
        (row,) = rows
        if row.revision != view.revision:
            raise StaleView(f"{lease.run_id} is at {row.revision}, the view at {view.revision}")
        return row


def _load(connection: Connection, jobs_read: JobReader, lease: Lease) -> RunView:
    held = {"run": lease.run_id, "lease_attempt": lease.attempt}
    found = execute(connection, _RUN, held)
    if not found:
        raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
    (row,) = found
    spec = jobs_read.spec_of_run(row.job_id, row.id)
    if row.model is not None:
        spec = replace(spec, model=row.model)
    progress = progress_from_row(row)
    if progress.instructed:
        spec = with_instructions_of(connection, row.id, spec)
    hooked = progress.hooked
    messages, calls = load_conversation(
        connection,
        row.id,
        lambda snapshot: jobs_read.rules_in(row.job_id, row.id, snapshot),
        hooked.closed if end_turns(spec) else None,
    )
    progress = counted(progress, spec, messages, calls)
    view = RunView(
        run_id=row.id,
        item_key=row.item_key,
        attempt=row.attempt,
        spec=spec,
        policy=jobs_read.policy(row.job_id, row.id, row.rules_snapshot),
        limits=limits_of(row, spec),
        submitted_at=row.created_at,
        messages=messages,
        calls=calls,
        progress=progress,
        compacted=load_compacted(connection, row.id) if row.compaction_count else Compacted(),
        queued=_undelivered(connection, lease.run_id) if row.queued_count else (),
        pause_requested=row.pause_requested,
        answer_count=row.answer_count,
        revision=row.revision,
        depth=row.depth,
        agent_type=row.agent_type or "",
        hook_runs=load_hook_runs(connection, row.id, hooked.past)
        if hooked.count > hooked.past
        else (),
    )
    return _with_children(connection, view) if row.depth or progress.children else view


def _with_children(connection: Connection, view: RunView) -> RunView:
    """The view with its children as they stand. What they give is looked at here alone: the workspace
    is recorded once a run is loaded, and what they changed in it since would be taken for the next
    call's doing."""
    family = family_of(connection, view.run_id)
    reply = len(view.messages) - 1 if view.calls else None
    whole = view.progress.split == "whole"
    children = children_waited_for(connection, family, reply, whole=whole)
    return replace(
        view, children=children, held_by_children=family.held, tree_size=family.tree_size
    )


def limits_of(row: Any, spec: JobSpec) -> Limits:
    """The limits of a run: those of its job, with what its own row says instead."""
    own = {"deadline": row.deadline} if row.depth else {}
    return replace(
        spec.limits,
        **own,
        max_turns=row.max_turns,
        token_ceiling=row.token_ceiling,
        cost_ceiling_usd=row.cost_ceiling_usd,
        working_time=row.working_time,
    )


def _as_it_stands(connection: Connection, jobs_read: JobReader, row: Any, view: RunView) -> RunView:
    """The view with what others than its attempt have added to the run."""
    run_id, calls, policy = view.run_id, view.calls, view.policy
    if row.answer_count != view.answer_count:
        answers = answers_to(connection, run_id, len(view.messages) - 1)
        calls = tuple(_answered(call, answers.get(call.index)) for call in calls)
    if row.rules_snapshot != policy.snapshot:
        policy = jobs_read.policy(row.job_id, run_id, row.rules_snapshot)
    view = replace(
        view,
        calls=calls,
        policy=policy,
        answer_count=row.answer_count,
        queued=_undelivered(connection, run_id) if row.queued_count else (),
        pause_requested=row.pause_requested,
    )
    return _as_its_tree_stands(connection, view) if view.progress.children else view


def _as_its_tree_stands(connection: Connection, view: RunView) -> RunView:
    """The view with what its children use by now, and how many runs its tree has."""
    family = family_of(connection, view.run_id)
    return replace(view, held_by_children=family.held, tree_size=family.tree_size)


def _decided(
    view: RunView, entries: Sequence[Entry], decide: Decide[T], now: float
) -> tuple[list[Applied], T]:
    """The entries with those that ``decide`` adds to them, and what comes next."""
    applied = fold(view, entries)
    decided, step = decide(applied[-1].after if applied else view, now)
    return [*applied, *decided], step


def _answered(call: Call, answer: Answer | None) -> Call:
    """The call with its answer: where it leads by now is to be looked at before it runs."""
    if answer == call.answer or answer is None:
        return call
    return replace(call, answer=answer, tool_context=None)


def _run_changes(view: RunView, rows: Rows, denials: int) -> dict[str, Any]:
    progress = view.progress
    return {
        "revision": view.revision,
        "event_count": rows.event_count,
        "message_count": len(view.messages),
        "queued_count": len(view.queued),
        "turns": progress.turns,
        "denials": denials + rows.denials,
        "input_tokens": progress.usage.input_tokens,
        "cache_read_tokens": progress.usage.cache_read_tokens,
        "cache_creation_tokens": progress.usage.cache_creation_tokens,
        "output_tokens": progress.usage.output_tokens,
        "charged_tokens": progress.charged_tokens,
        "progress": progress_to_json(progress),
        **rows.run_changes,
    }


def _undelivered(connection: Connection, run_id: str) -> tuple[QueuedMessage, ...]:
    rows = execute(connection, _UNDELIVERED, {"run": run_id})
    return tuple(QueuedMessage(row.id, row.text) for row in rows)
