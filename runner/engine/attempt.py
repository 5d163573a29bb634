"""THE SPINE: one attempt at a run, from its stored state to an outcome.

Decide, commit, do. What an effect did is committed together with the decision on what follows, so
there is one transaction between two effects, and resuming a run takes no other path. See
docs/concepts.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from runner.core import model_calls, retries, steps
from runner.core.batches import LOST, awaits_batch
from runner.core.compaction import summarised
from runner.core.context import DEFAULT_WINDOW
from runner.core.conversation import ModelReply, message_blocks, tool_uses
from runner.core.decide import advance, wait_at_once
from runner.core.entries import (
    OF_KEY,
    Entry,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    RunSettled,
    TimeWorked,
)
from runner.core.fold import Applied
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.core.state import Call, CountedPrompt, OpenCall, RunState
from runner.engine.attempt_workspace import AttemptWorkspace
from runner.errors import (
    SHUT_DOWN,
    ApiUnreached,
    HostFaultError,
    KeyRefused,
    ModelCallError,
    ProviderFault,
    ShutDown,
    StaleState,
    Unprepared,
    UnreachableError,
    WorkspaceElsewhere,
    WorkspaceError,
    host_fault,
)
from runner.permissions import ToolContext
from runner.ports import (
    Clock,
    Decide,
    Interrupt,
    Journal,
    Live,
    Model,
    Permits,
    Tools,
    Unlimited,
    Workspaces,
)

T = TypeVar("T")

_FIRST_DATABASE_WAIT = 0.1
_LONGEST_DATABASE_WAIT = 2.0
_LONGEST_SLEEP = 0.5


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of an attempt."""

    journal: Journal
    models: Callable[[JobSpec], Model]
    tools: Tools
    workspaces: Workspaces
    live: Live
    clock: Clock
    jitter: Callable[[], float]  # random numbers from 0 to 1
    call_id: Callable[[str, int, int], str]  # names a tool call by run, turn and index
    stopping: threading.Event  # set when the worker drains
    # A model's window in tokens where the model itself does not say; None: unknown.
    known_window: Callable[[str], int | None] = lambda model: None
    permits: Permits = field(default_factory=Unlimited)
    # True if another host can take a run (by its id) and has not tried.
    is_untried: Callable[[str], bool] = lambda run_id: False


def run_attempt(lease: Lease, ports: Ports, interrupt: Interrupt) -> Outcome:
    """Drive a run until it ends, waits or goes back to the queue.

    Raises:
        LeaseLost: another attempt has the run, or it was cancelled. Interrupted: ``interrupt`` was
            set to "dropped". UnreachableError: the database was away when the worker had to end.
            HostFaultError: this host cannot work the run.
    """
    try:
        return _Attempt(lease, ports, interrupt).run()
    finally:
        ports.permits.leave(lease.run_id)


class _Attempt:
    def __init__(self, lease: Lease, ports: Ports, interrupt: Interrupt) -> None:
        self._lease = lease
        self._ports = ports
        self._interrupt = interrupt
        self._workspace = AttemptWorkspace(
            lease, ports.tools, ports.workspaces, ports.call_id, interrupt, self._retry
        )
        self._state = self._retry(lambda: ports.journal.load(lease))
        self._first_turns = self._state.turns

    def run(self) -> Outcome:
        """Decide, commit, do, until a committed outcome ends the attempt."""
        happened = self._begin()
        while True:
            step = self._commit(happened, self._decide)
            if isinstance(step, steps.Done):
                return step.outcome
            happened = self._or_failure(partial(self._do, step))

    def _begin(self) -> list[Entry]:
        """Prepare the workspace, unless the run only waits. If that ends the run, a result that came in a
        batch is stored first."""
        state = self._state
        if (waits := wait_at_once(state, self._ports.clock.now())) or awaits_batch(state):
            return waits
        happened, call = self._or_failure(self._prepare), state.model.open_call
        match happened:
            case [RunSettled(Ended())] if call is not None and state.batch_result is not None:
                return [*self._take_batch_result(call, located=False), *happened]
        return happened

    def _decide(self, state: RunState, now: float) -> tuple[Sequence[Applied], steps.Action]:
        """Decide the next step from the run state. The commit calls this inside its transaction."""
        yields = state.turns > self._first_turns and self._interrupt.yields()
        decide = partial(advance, draining=self._ports.stopping.is_set(), yields=yields)
        decided, step = decide(state, now)
        # A call that goes into a batch has limits of its own: its run waits for the batch then.
        begins_call = decided and isinstance(decided[-1].entry, ModelCallStarted)
        permit_at = self._ports.permits.draw(decided[-1].after) if begins_call else None
        return (decided, step) if permit_at is None else decide(state, now, permit_at=permit_at)

    def _commit(self, entries: Sequence[Entry], decide: Decide[T]) -> T:
        """Commit entries and the next decision; retry, so that a paid reply outlives an outage."""
        while True:
            commit = partial(self._ports.journal.commit, self._lease, self._state, entries, decide)
            try:
                self._state, step = self._retry(commit)
                return step
            except StaleState:
                # The answer to a commit was lost, but it went through: there is nothing to add.
                self._reload()
                entries = ()

    def _do(self, step: steps.Effect) -> list[Entry]:
        """Carry out one effect. What only this attempt knows goes into its state at once."""
        state, workspace = self._state, self._workspace
        match step:
            case steps.CallModel(call):
                try:
                    return self._call_model(call)
                finally:
                    self._ports.permits.end(self._lease.run_id)
            case steps.RunTools(calls):
                return self._timed(
                    lambda: [
                        *workspace.run(state, calls, self._store),
                        *workspace.changed_tools(state),
                    ],
                    requeues=True,
                )
            case steps.RunHook():
                return self._timed(lambda: workspace.run_hook(state, step), requeues=True)
            case steps.RunVerify(number):
                return self._timed(lambda: workspace.verify(state, number))
            case steps.Deliver(outcome):
                return workspace.deliver(outcome)
            case steps.CountTokens():
                self._count_tokens()
            case steps.LocateCalls(calls):
                self._locate(calls)
            case steps.ReadInstructions():
                files = replace(state.files, reread_at=state.turns)
                self._state = replace(state, files=files)
                return workspace.reread_instructions(state)
            case steps.RecordShared():
                files = replace(state.files, shared_snapshot=workspace.record_shared())
                self._state = replace(state, files=files)
            case steps.EndChildren():
                self._end_children()
            case steps.Sleep(until):
                self._wait(until, self._sleep)
            case steps.AwaitPermit(until):
                wait, run_id = self._ports.permits.wait, self._lease.run_id
                self._wait(until, lambda seconds: wait(run_id, seconds, self._interrupt))
        return []

    def _or_failure(
        self, work: Callable[[], list[Entry]], *, requeues: bool = False
    ) -> list[Entry]:
        """Return the entries of ``work``. If the workspace cannot be used, the run ends or waits instead,
        and its sub-agents are cancelled. If a shutdown cuts the work, it has no entries, or (``requeues``)
        it sends the run back to the queue."""
        try:
            return work()
        except WorkspaceError as error:
            if self._state.awaits_children:
                self._end_children()
            return [RunSettled(Ended("failed", "workspace", str(error)))]
        except WorkspaceElsewhere as error:
            return [RunSettled(Waiting("workspace", str(error)))]
        except ShutDown:
            due_at = self._ports.clock.now()
            return [RunSettled(Requeued(due_at, "shutdown"))] if requeues else []

    def _timed(self, work: Callable[[], list[Entry]], *, requeues: bool = False) -> list[Entry]:
        """Return the entries of ``work``, and before them the time that it took."""
        began = self._ports.clock.monotonic()
        happened = self._or_failure(work, requeues=requeues)
        return [self._worked_since(began), *happened]

    def _worked_since(self, began: float) -> TimeWorked:
        return TimeWorked(max(0.0, self._ports.clock.monotonic() - began))

    def _store(self, entry: Entry) -> None:
        self._commit([entry], lambda state, now: ((), None))

    def _reload(self) -> None:
        """Load the stored state, and keep its transient fields."""
        before, files = self._state.context, self._state.files
        state = self._retry(lambda: self._ports.journal.load(self._lease))
        window = state.context.within(before.window)
        context = replace(state.context, window=window, summary_window=before.summary_window)
        self._state = replace(
            state,
            context=context,
            files=replace(state.files, outputs=files.outputs, unrecorded=files.unrecorded),
        )

    def _retry(self, work: Callable[[], T]) -> T:
        """Do ``work`` until the database answers, or the attempt is cut."""
        wait = _FIRST_DATABASE_WAIT
        while True:
            try:
                return work()
            except UnreachableError:
                if self._interrupt.reason is not None or self._interrupt.wait(wait):
                    raise
                wait = min(2 * wait, _LONGEST_DATABASE_WAIT)

    def _prepare(self) -> list[Entry]:
        """Prepare the workspace and set the transient fields of the run state."""
        self._ports.models(self._state.spec)  # raises ``HostLacks`` now, not in the first call
        try:
            happened, files = self._workspace.prepare(self._state)
        except WorkspaceError as error:
            is_new = self._state.files.tree is None and not self._state.depth
            if is_new and self._retry(lambda: self._ports.is_untried(self._lease.run_id)):
                raise Unprepared(str(error)) from error
            raise
        self._state = state = replace(self._state, files=files)
        own, checked = state.spec.model, state.context.checked_window
        self._set_windows(lambda model: checked if model == own else None)
        return happened

    def _set_windows(self, window_of: Callable[[str], int | None]) -> None:
        """Set the windows of the models. The model itself is asked only before it is called: no other
        step waits for an API."""

        def find(model: str) -> int:
            return window_of(model) or self._ports.known_window(model) or DEFAULT_WINDOW

        spec, context = self._state.spec, self._state.context
        window = summary_window = context.within(spec.context.window or find(spec.model))
        if spec.summary_model != spec.model:
            summary_window = find(spec.summary_model)
        if (window, summary_window) != (context.window, context.summary_window):
            context = replace(context, window=window, summary_window=summary_window)
            self._state = replace(self._state, context=context)

    def _wait(self, until: float, wait: Callable[[float], bool]) -> None:
        """Wait in short pieces, so that a cancel, a drain or a stepped clock is seen in time. ``wait`` gets
        the seconds of a piece, and returns True to wait no longer."""
        clock = self._ports.clock
        longest = clock.monotonic() + retries.IN_HAND_SECONDS
        while not self._ports.stopping.is_set():
            left = min(until - clock.now(), longest - clock.monotonic(), _LONGEST_SLEEP)
            if left <= 0 or wait(left):
                return

    def _sleep(self, seconds: float) -> bool:
        if self._interrupt.wait(seconds):
            self._interrupt.check()
        return False

    def _call_model(self, call: OpenCall) -> list[Entry]:
        model = self._ports.models(self._state.spec)
        self._set_windows(model.window)
        if call.reservation.batch:
            return self._take_batch_result(call, located=True)
        state, began = self._state, self._ports.clock.monotonic()
        try:
            request = model_calls.request_of(state, call)
            if call.purpose == "summary":  # its text is not shown live
                reply = model.complete(request, self._interrupt, lambda text: None)
                return [self._worked_since(began), summarised(state, reply)]
            publish = partial(self._ports.live.publish, self._lease.run_id)
            reply = model.complete(request, self._interrupt, publish)
        except ModelCallError as error:
            failed = self._failed(call, error)
            if error.billed or (fault := self._fault_of(model, error, failed)) is None:
                return [failed]
            if isinstance(fault, ProviderFault):
                failed = replace(failed, retry_at=failed.at)
            self._store(failed)
            raise fault from error
        except ShutDown:
            cut = ModelCallError("shutdown", SHUT_DOWN)
            return [self._failed(call, cut)]
        return [self._worked_since(began), self._replied(reply)]

    def _fault_of(
        self, model: Model, error: ModelCallError, failed: ModelCallFailed
    ) -> HostFaultError | None:
        """Return the fault of this host that made a call fail; None if the host is not to blame. A 403
        refuses either one model or the key, so the API is asked which. An API that was not reached is
        asked, too, before the run would be put off: another host may reach it."""
        if (fault := host_fault(error)) is not None:
            return HostFaultError(fault)
        provider, retry_at = self._state.spec.provider, failed.retry_at
        refuses_all = error.kind == "authentication_error"
        if refuses_all or (error.kind in OF_KEY and model.refuses_host()):
            return KeyRefused(provider, error.message, model.refuses_host)
        is_put_off = retry_at is None or retry_at - failed.at > retries.IN_HAND_SECONDS
        if error.is_unreached and is_put_off and model.refuses_host():
            return ApiUnreached(provider, error.message, model.refuses_host)
        return None

    def _replied(self, reply: ModelReply) -> ModelReplied:
        contexts = tuple[ToolContext, ...]()
        with suppress(HostFaultError):  # the reply is paid for; its calls are located later
            contexts = tuple(
                self._workspace.tool_context(self._state, block["name"], block["input"])
                for block in tool_uses(message_blocks(reply))
            )
        return ModelReplied(reply, contexts)

    def _take_batch_result(self, call: OpenCall, *, located: bool) -> list[Entry]:
        """The entry of a call whose result came in a batch."""
        state = self._state
        try:
            request = model_calls.request_of(state, call)
            model, result = self._ports.models(state.spec), state.batch_result or LOST
            reply = model.read_result(request, result, state.batch_seconds)
        except ModelCallError as error:
            return [self._failed(call, error)]
        if call.purpose == "summary":
            return [summarised(state, reply)]
        return [self._replied(reply) if located else ModelReplied(reply)]

    def _failed(self, call: OpenCall, error: ModelCallError) -> ModelCallFailed:
        now, before = self._ports.clock.now(), self._state.model.failure
        retry_at = retries.retry_at(
            error,
            failures=before.count + 1 if before else 1,
            first_failure_at=before.first_at if before else now,
            now=now,
            jitter=self._ports.jitter(),
            patience=self._state.spec.retry,
        )
        charge, counted = model_calls.charge_for(self._state, call, error)
        return ModelCallFailed(
            kind=error.kind,
            message=error.message,
            status=error.status,
            request_id=error.request_id,
            charged=charge.tokens,
            at=now,
            retry_at=retry_at,
            cost=charge.cost,
            counted=counted,
        )

    def _count_tokens(self) -> None:
        state, context = self._state, self._state.context
        request = model_calls.next_request(state)
        tokens = self._ports.models(state.spec).count(request, self._interrupt)
        counted = CountedPrompt(tokens, context.estimate, state.turns)
        self._state = replace(state, context=replace(context, counted=counted))

    def _locate(self, calls: Sequence[Call]) -> None:
        state = self._state
        located = {call.index: self._workspace.located(state, call) for call in calls}
        calls = tuple(located.get(call.index, call) for call in state.calls)
        self._state = replace(state, calls=calls)

    def _end_children(self) -> None:
        """Cancel the sub-agents; the next attempt begins when none of their processes is left."""
        self._retry(lambda: self._ports.journal.end_children(self._lease))
        children = replace(self._state.children, cancelled=True)
        self._state = replace(self._state, children=children)
