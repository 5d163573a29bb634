"""The journal in the database: loads a run's state, and commits what an attempt did.

One transaction holds the guard (this attempt still has the run), what happened, and what the caller
decides next, with the queued messages, the rules, the pause flag and the job's budget as they stand there.
The guard locks the run, then the job's budget: the order of locks is in ``store.budgets``. While a day
has a cap, a commit in which a call begins or ends locks it last, and decides again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Connection,
    Float,
    Integer,
    Select,
    Text,
    bindparam,
    exists,
    func,
    literal_column,
    select,
)

from runner.core.agents import lineage
from runner.core.batches import awaits_batch
from runner.core.commands import Raised
from runner.core.context import Compacted
from runner.core.conversation import Message
from runner.core.entries import ChildrenStarted, Entry, ModelCallStarted, ToolFinished
from runner.core.fold import Applied, context_of, fold
from runner.core.hook_decisions import end_turns
from runner.core.prices import Tariff
from runner.core.rate_limits import Caller, urgency
from runner.core.run import Ended, Lease, Waiting
from runner.core.spec import JobSpec
from runner.core.state import Inbox, Progress, QueuedMessage, RunState
from runner.core.workspace import digests_of, with_instructions
from runner.errors import LeaseLost, StaleState, UnreachableError
from runner.ports import Decide, Observer, Stored
from runner.store import budgets, caps, run_state
from runner.store.batches import rounds_of
from runner.store.blobs import store_media
from runner.store.changes import keep_claim
from runner.store.children import Family, children_waited_for, end_children, family_of, wake
from runner.store.database import Database
from runner.store.entries import Rows
from runner.store.new_children import lock_tree, place_with_children, start_children
from runner.store.rules import policy_of, rules_in
from runner.store.specs import JobCache, JobReader
from runner.store.statements import execute
from runner.store.tables import batch_calls, job_budgets, job_shares, jobs, queued_messages, runs

T = TypeVar("T")

_HELD = (
    (runs.c.id == bindparam("run"))
    & (runs.c.state == "running")
    & (runs.c.attempt == bindparam("lease_attempt"))
    # If a crash of the server has undone a claim, the next one has the same attempt number.
    & (runs.c.worker_id == bindparam("lease_worker"))
)
_GUARDED = ("queued_count", "pause_requested", "event_count", "revision", "denials", "answer_count")
_OF_JOB = jobs.c.rules_snapshot, jobs.c.finish_by, jobs.c.lane
_GUARD = (
    select(*(runs.c[name] for name in _GUARDED), runs.c.job_id, *_OF_JOB, caps.CAP_USD)
    .join(jobs, jobs.c.id == runs.c.job_id)
    .where(_HELD)
    .with_for_update(of=runs)
)
# The job is unchanged since the state was loaded, and the day has no cap.
_SAME_JOB = (
    exists()
    .where(
        jobs.c.id == runs.c.job_id,
        jobs.c.rules_snapshot == bindparam("rules_snapshot"),
        jobs.c.finish_by.is_not_distinct_from(bindparam("finish_by", type_=Float)),
        func.coalesce(jobs.c.lane, literal_column("'realtime'")) == bindparam("lane", type_=Text),
        caps.CAP_USD.is_(None),
    )
    .correlate(runs)
)
# People may change it meanwhile; NULL for a job that has no row of its own.
_WEIGHT = (
    select(job_shares.c.weight)
    .where(job_shares.c.job_id == runs.c.job_id)
    .scalar_subquery()
    .label("weight")
)
_ANY_RUN = select(runs, *_OF_JOB, _WEIGHT).join(jobs, jobs.c.id == runs.c.job_id)
_RUN = _ANY_RUN.where(_HELD)
_WAITING = _ANY_RUN.where(
    runs.c.id == bindparam("run"), runs.c.state == "waiting", runs.c.reason == "batch"
)
_UNDELIVERED = (
    select(queued_messages.c.id, queued_messages.c.text)
    .where(
        queued_messages.c.run_id == bindparam("run"), queued_messages.c.delivered_message.is_(None)
    )
    .order_by(queued_messages.c.id)
)


class StoredJournal:
    """``runner.ports.Journal`` over the database.

    Args:
        database: where the runs are.
        now: the time in seconds since the epoch, by the database's clock.
        tariffs: the prices of a job's models, by model.
        observer: receives what was stored.
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

    def load(self, lease: Lease) -> RunState:
        """Load the run state. Raises ``LeaseLost``. A first attempt needs no snapshot of the database: all
        that it reads is from before its claim. An attempt that prepares files of its own does so under a
        claim that outlives a crash of the server."""

        def work(connection: Connection) -> tuple[RunState, JobReader]:
            jobs_read = self._jobs.on(connection)
            row = _held(connection, _RUN, lease)
            return _load(connection, jobs_read, row, self._tariffs), jobs_read

        state, jobs_read = self._database.read(work, snapshot=lease.attempt > 1)
        jobs_read.keep()
        if state.spec.is_recorded or state.depth:
            keep_claim(self._database, lease)
        return state

    def look(self, run_id: str) -> RunState | None:
        """Return the state of a run that waits for a batch; None if it does not."""

        def work(connection: Connection) -> tuple[RunState | None, JobReader]:
            jobs_read = self._jobs.on(connection)
            for row in execute(connection, _WAITING, {"run": run_id}):
                return _load(connection, jobs_read, row, self._tariffs), jobs_read
            return None, jobs_read

        state, jobs_read = self._database.read(work)
        jobs_read.keep()
        return state

    def commit(
        self, lease: Lease, state: RunState, entries: Sequence[Entry], decide: Decide[T]
    ) -> tuple[RunState, T]:
        """Store ``entries`` and the decision that follows; see the port."""
        media = [
            each
            for entry in entries
            if isinstance(entry, ToolFinished)
            for each in entry.result.media
        ]
        if media:
            job_id, now = state.caller.job_id, self._now()
            self._database.write(lambda connection: store_media(connection, job_id, media, now))
        commit = _Commit(lease, state, entries, decide, self._jobs, self._now)
        done = None
        if self._database.dialect == "postgresql" and _locks_only_its_run(state):
            done = self._database.write(commit.in_one_statement, alone=True)
        if done is None:
            done = self._database.write(commit.with_locks)
        done.jobs_read.keep()
        self._wake(done.after)
        if self._observer is not None and done.stored is not None:
            self._observer.stored(done.stored)
        return done.after, done.step

    def end_children(self, lease: Lease) -> None:
        """Cancel the run's sub-agents. Raises ``LeaseLost``."""
        end_children(self._database, lease, self._now())

    def _wake(self, state: RunState) -> None:
        """Queue the parent of an ended run, or the run itself if its sub-agents ended since it was
        loaded. If this fails, a dispatcher does it."""
        woken = None
        match state.outcome:
            case Ended() if state.depth:
                woken = lineage(state.run_id)[-2]
            case Waiting("children"):
                woken = state.run_id
        if woken is not None:
            with suppress(UnreachableError):
                wake(self._database, woken, self._now())


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """A commit: the state after it, the next step, and what was stored, if anything was."""

    after: RunState
    step: T
    jobs_read: JobReader
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class _Commit(Generic[T]):
    """The two ways to commit: in a transaction that locks the run's row, or in one statement without."""

    lease: Lease
    state: RunState
    entries: Sequence[Entry]
    decide: Decide[T]
    jobs: JobCache
    now: Callable[[], float]

    def in_one_statement(self, connection: Connection) -> _Done[T] | None:
        """Commit in one statement on Postgres. Returns None, with nothing stored, if the run's row or its
        job has changed since the state was stored, if there is nothing to write, or if the commit must
        lock more than the row."""
        state, lease, now = self.state, self.lease, self.now()
        applied, step = _decided(state, self.entries, self.decide, now)
        if not applied or _starts_children(applied):
            return None
        job_id = state.caller.job_id
        after, rows, changes = self._rows(connection, job_id, state, applied, now)
        same = {
            "id": lease.run_id,
            "attempt": lease.attempt,
            "worker_id": lease.worker_id,
            "state": "running",
            "revision": state.revision,
            "event_count": state.event_count,
            "denials": state.denials,
            "queued_count": len(state.inbox.messages),
            "pause_requested": state.inbox.pause_requested,
            "answer_count": state.inbox.answer_count,
        }
        of_job = {
            "rules_snapshot": state.policy.snapshot,
            "finish_by": state.finish_by,
            "lane": state.lane,
        }
        if not rows.writes().run_if(connection, runs, changes, same, _SAME_JOB, of_job):
            return None
        stored = Stored(lease, job_id, applied, now)
        return _Done(after, step, self.jobs.on(connection), stored)

    def with_locks(self, connection: Connection) -> _Done[T]:
        """Commit in a transaction that locks the run's row and, where the commit needs them, the job's
        budget, the family of sub-agents and the cap of the day. Raises ``LeaseLost`` and ``StaleState``."""
        row = _held(connection, _GUARD, self.lease)
        if row.revision != self.state.revision:
            at = f"{row.revision}, the state at {self.state.revision}"
            raise StaleState(f"{self.lease.run_id} is at {at}")
        jobs_read = self.jobs.on(connection)
        budget = None
        if self.state.spec.budget.is_set:
            budget = budgets.look_into(connection, row.job_id, lock=True)
        before = _with_outside_changes(connection, jobs_read, row, self.state)
        if (budget, None) != (before.money.budget, before.money.cap):
            before = replace(before, money=replace(before.money, budget=budget, cap=None))
        now = self.now()
        applied, step = _decided(before, self.entries, self.decide, now)
        if _starts_children(applied):
            lock_tree(connection, self.lease.run_id)
            before = _with_family(before, family_of(connection, self.lease.run_id))
            applied, step = _decided(before, self.entries, self.decide, now)
        if _needs_cap(row, before, applied):
            cap = caps.lock_cap(connection, now)
            before = replace(before, money=replace(before.money, cap=cap))
            applied, step = _decided(before, self.entries, self.decide, now)
        if not applied:
            return _Done(before, step, jobs_read)
        after, rows, changes = self._rows(connection, row.job_id, before, applied, now)
        writes = rows.writes()
        writes.change(runs, changes, id=self.lease.run_id)
        if after.money.budget is not None and after.money.budget != budget:
            writes.change(job_budgets, budgets.sums(after.money.budget), job_id=row.job_id)
        if (cap := after.money.cap) is not None and cap != before.money.cap:
            caps.store_cap(connection, writes, cap)
        writes.run(connection)
        start_children(connection, jobs_read, applied, now)
        has_warmed = after.outcome is not None or not after.model.warms_cache
        if before.model.warms_cache and has_warmed:
            budgets.let_siblings_start(connection, row.job_id, now)
        return _Done(after, step, jobs_read, Stored(self.lease, row.job_id, applied, now))

    def _rows(
        self,
        connection: Connection,
        job_id: str,
        before: RunState,
        applied: Sequence[Applied],
        now: float,
    ) -> tuple[RunState, Rows, dict[str, Any]]:
        """The state after the entries, their rows, and the changes of the run's own."""
        rows = Rows(self.lease, job_id, now, before.event_count)
        rows.add(applied)
        after = replace(
            applied[-1].after,
            revision=before.revision + 1,
            event_count=rows.event_count,
            denials=before.denials + rows.denials,
        )
        changes = _run_changes(after, rows)
        return after, rows, changes | place_with_children(connection, before, after)


def _held(connection: Connection, query: Select[Any], lease: Lease) -> Any:
    """The row of the lease's run that a query finds. Raises ``LeaseLost``."""
    attempt, worker = lease.attempt, lease.worker_id
    held = {"run": lease.run_id, "lease_attempt": attempt, "lease_worker": worker}
    for row in execute(connection, query, held):
        return row
    raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")


def _load(
    connection: Connection,
    jobs_read: JobReader,
    row: Any,
    tariffs: Callable[[JobSpec], Mapping[str, Tariff]],
) -> RunState:
    spec = jobs_read.spec_of_run(row.job_id, row.id)
    if row.model is not None:
        spec = replace(spec, model=row.model)
    progress = run_state.progress_from_row(row)
    if progress.files.instructed:
        read = run_state.load_instructions(connection, row.id)
        spec = replace(spec, system=with_instructions(spec.system, read))
        files = replace(progress.files, in_prompt=digests_of(read))
        progress = replace(progress, files=files)
    if progress.model.tool_lists:
        spec = run_state.with_tools_of(connection, row.id, spec)
    hooks = progress.hooks
    if hooks.started > hooks.past:
        hooks = replace(hooks, runs=run_state.load_hook_runs(connection, row.id, hooks.past))
    compacted = (
        run_state.load_compacted(connection, row.id) if row.compaction_count else Compacted()
    )
    messages, calls = run_state.load_conversation(
        connection,
        row.id,
        lambda snapshot: rules_in(jobs_read, row.job_id, row.id, snapshot),
        hooks.closed if end_turns(spec) else None,
    )
    own = {"deadline": row.deadline} if row.depth else {}
    stored = {each.name: getattr(progress, each.name) for each in fields(Progress)}
    stored |= {"hooks": hooks, "context": replace(progress.context, compacted=compacted)}
    state = RunState(
        **stored | {"money": replace(progress.money, tariffs=tariffs(spec))},
        run_id=row.id,
        item_key=row.item_key,
        attempt=row.attempt,
        submitted_at=row.created_at,
        depth=row.depth,
        agent_type=row.agent_type or "",
        caller=Caller(row.job_id, urgency(row.rank, row.weight or spec.priority)),
        spec=spec,
        policy=policy_of(jobs_read, row.job_id, row.id, row.rules_snapshot),
        limits=replace(spec.limits, **own, **Raised().of(row)),
        messages=messages,
        calls=calls,
        inbox=_inbox(connection, row.id, row),
        finish_by=row.finish_by,
        lane=row.lane or "realtime",
        revision=row.revision,
        event_count=row.event_count,
        denials=row.denials,
    )
    if state.lane != "realtime" or awaits_batch(state):
        state = _with_batches(connection, row.job_id, state)
    if not state.context.estimate:  # an imported session has none: it gets one when it is resumed
        results = tuple(call.result for call in calls if call.result is not None)
        new = context_of(spec, (*state.sent, Message("user", results)))
        context = replace(state.context, estimate=new.estimate, appended_bytes=new.appended_bytes)
        state = replace(state, context=context)
    return _with_children(connection, state)


_RESULT = select(batch_calls.c.result, batch_calls.c.seconds).where(
    batch_calls.c.run_id == bindparam("run"), batch_calls.c.number == bindparam("number")
)
_of_job = select(runs.c.id).where(runs.c.job_id == bindparam("job"))
_FIRST_REFUSED = select(literal_column("1", Integer).label("refused")).where(
    _of_job.where(runs.c.state == "failed").exists(), ~_of_job.where(runs.c.turns > 0).exists()
)


def _with_batches(connection: Connection, job_id: str, state: RunState) -> RunState:
    """Return the state with the result of its call in a batch, and what the choice of a lane needs."""
    if (call := state.model.open_call) is not None:
        of_call = {"run": state.run_id, "number": call.number}
        for row in execute(connection, _RESULT, of_call):
            state = replace(state, batch_result=row.result, batch_seconds=row.seconds or 0.0)
    if state.lane == "auto":
        state = replace(state, rounds=rounds_of(connection, job_id))
    if not state.turns:
        refused = execute(connection, _FIRST_REFUSED, {"job": job_id})
        state = replace(state, first_refused=bool(refused))
    return state


def _with_children(connection: Connection, state: RunState) -> RunState:
    """Return the state with its children and their results. Results are read only here: the
    workspace is recorded after a run is loaded, and later changes would count as the next
    call's."""
    if not (state.depth or state.children.started):
        return state
    family = family_of(connection, state.run_id)
    reply = len(state.messages) - 1 if state.calls else None
    whole = state.children.split == "whole"
    current = children_waited_for(connection, family, reply, whole=whole)
    return _with_family(replace(state, children=replace(state.children, current=current)), family)


def _with_family(state: RunState, family: Family) -> RunState:
    """Return the state with the usage of its children and the number of runs in its tree."""
    children = replace(state.children, reserved=family.reserved, tree_size=family.tree_size)
    return replace(state, children=children)


def _with_outside_changes(
    connection: Connection, jobs_read: JobReader, row: Any, state: RunState
) -> RunState:
    """Return the state with changes from outside the attempt: messages, rules, pause."""
    run_id, calls, policy = state.run_id, state.calls, state.policy
    if row.answer_count != state.inbox.answer_count:
        answers = run_state.answers_to(connection, run_id, len(state.messages) - 1)
        # Paths of an answered call are resolved again before it runs.
        calls = tuple(
            replace(call, answer=answer, tool_context=None)
            if (answer := answers.get(call.index)) not in (None, call.answer)
            else call
            for call in calls
        )
    if row.rules_snapshot != policy.snapshot:
        policy = policy_of(jobs_read, row.job_id, run_id, row.rules_snapshot)
    found: dict[str, Any] = {
        "calls": calls,
        "policy": policy,
        "inbox": _inbox(connection, run_id, row),
        "finish_by": row.finish_by,
        "lane": row.lane or "realtime",
        "event_count": row.event_count,
        "denials": row.denials,
    }
    if any(getattr(state, name) != value for name, value in found.items()):
        state = replace(state, **found)
    if not state.children.started:
        return state
    return _with_family(state, family_of(connection, run_id))


def _decided(
    state: RunState, entries: Sequence[Entry], decide: Decide[T], now: float
) -> tuple[list[Applied], T]:
    """The entries and the ones that ``decide`` adds, and the next step."""
    applied = fold(state, entries)
    decided, step = decide(applied[-1].after if applied else state, now)
    return [*applied, *decided], step


def _locks_only_its_run(state: RunState) -> bool:
    """True if its commits lock no row but the run's, unless it starts sub-agents or the day has a cap."""
    call = state.model.open_call
    counts_for_day = state.money.cap is not None or (call is not None and call.reservation.day)
    shares = state.spec.budget.is_set or state.model.warms_cache or state.children.started
    return not (shares or counts_for_day)


def _starts_children(applied: Sequence[Applied]) -> bool:
    return any(isinstance(one.entry, ChildrenStarted) for one in applied)


def _needs_cap(row: Any, before: RunState, applied: Sequence[Applied]) -> bool:
    """True if a call begins while the day has a cap, or one ends that counts for a day."""
    call = before.model.open_call
    if applied and call is not None and call.reservation.day:
        return applied[-1].after.model.open_call != call
    begins = any(isinstance(one.entry, ModelCallStarted) for one in applied)
    return row.day_cap is not None and begins


def _run_changes(state: RunState, rows: Rows) -> dict[str, Any]:
    return {
        "revision": state.revision,
        "event_count": state.event_count,
        "message_count": len(state.messages),
        "queued_count": len(state.inbox.messages),
        "turns": state.turns,
        "denials": state.denials,
        **state.money.usage.by_kind(),
        "charged_tokens": state.money.charged_tokens,
        "progress": run_state.progress_to_json(state),
        **rows.run_changes,
    }


def _inbox(connection: Connection, run_id: str, row: Any) -> Inbox:
    queued = execute(connection, _UNDELIVERED, {"run": run_id}) if row.queued_count else ()
    messages = tuple(QueuedMessage(each.id, each.text) for each in queued)
    return Inbox(messages, row.pause_requested, row.answer_count)
