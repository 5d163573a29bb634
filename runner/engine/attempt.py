"""THE SPINE: one attempt at a run, from what its journal says to an outcome.

Decide, do, append: each effect is stored together with what follows from it, so there is one
transaction between two effects and no other path for resuming. See docs/concepts.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from runner.core import retry
from runner.core.context.summary import summarised
from runner.core.context.window import DEFAULT_WINDOW
from runner.core.conversation import ModelReply, message_blocks, tool_uses
from runner.core.journal.entries import (
    Entry,
    ModelCallFailed,
    ModelReplied,
    RunSettled,
    TimeWorked,
)
from runner.core.journal.view import Call, Counted, OpenCall, RunView
from runner.core.requests import next_request, summary_request, turn_request
from runner.core.run import Ended, Lease, Outcome, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.core.steps import (
    CallModel,
    CountTokens,
    Deliver,
    Done,
    Effect,
    EndChildren,
    LocateCalls,
    RecordShared,
    RunHook,
    RunTools,
    RunVerify,
    Sleep,
)
from runner.engine.hooks import run_hook
from runner.engine.workplace import Workplace
from runner.errors import (
    Interrupted,
    ModelCallError,
    StaleView,
    UnreachableError,
    WorkspaceElsewhere,
    WorkspaceError,
)
from runner.ports import Clock, Interrupt, Journal, Live, Model, Tools, Workspaces

T = TypeVar("T")

_FIRST_DATABASE_WAIT = 0.1
_LONGEST_DATABASE_WAIT = 2.0
_LONGEST_SLEEP = 0.5


@dataclass(frozen=True, slots=True)
class Ports:
    """What an attempt needs of the world. ``jitter`` gives random numbers from 0 to 1; ``call_id``
    names a tool call by run, turn and index; ``stopping`` is set when the worker drains.
    ``known_window`` gives a model's window in tokens where the model itself does not say; None: it is
    not known."""

    journal: Journal
    models: Callable[[JobSpec], Model]
    tools: Tools
    workspaces: Workspaces
    live: Live
    clock: Clock
    jitter: Callable[[], float]
    call_id: Callable[[str, int, int], str]
    stopping: threading.Event
    known_window: Callable[[str], int | None] = lambda model: None


def run_attempt(lease: Lease, ports: Ports, interrupt: Interrupt) -> Outcome:
    """Decide, do, append, until the journal says that this attempt is over.

    Raises:
        LeaseLost: another attempt has the run, or it was cancelled. Interrupted: ``interrupt`` was
            set to "dropped". UnreachableError: the database was away when the worker had to end.
    """
    return _Attempt(lease, ports, interrupt).run()


class _Attempt:
    def __init__(self, lease: Lease, ports: Ports, interrupt: Interrupt) -> None:
        self._lease = lease
        self._ports = ports
        self._interrupt = interrupt
        self._workplace = Workplace(
            lease, ports.tools, ports.workspaces, ports.call_id, interrupt, self._insist
        )
        self._here: dict[str, Any] = {}
        self._view = self._load()

    def run(self) -> Outcome:
        happened = self._prepare()
        while True:
            match self._advance(happened):
                case Done(outcome):
                    return outcome
                case Sleep(until):
                    self._sleep(until)
                    happened = []
                case CallModel(call):
                    happened = self._call_model(call)
                case CountTokens():
                    self._count_tokens()
                    happened = []
                case LocateCalls(calls):
                    self._locate(calls)
                    happened = []
                case RecordShared():
                    happened = self._in_workspace(self._record_shared)
                case EndChildren():
                    self._end_children()
                    happened = []
                case RunTools(calls):
                    happened = self._work(lambda: self._run_tools(calls))
                case RunHook() as step:
                    happened = self._work(lambda: self._run_hook(step))
                case RunVerify(number):
                    happened = self._work(lambda: self._workplace.verify(self._view, number))
                case Deliver(outcome):
                    happened = self._in_workspace(lambda: self._workplace.deliver(outcome))

    def _load(self) -> RunView:
        view = self._insist(lambda: self._ports.journal.load(self._lease))
        return replace(view, **self._here)

    def _prepare(self) -> list[Entry]:
        """Have the workspace ready, and in the view what no journal says."""
        ready = False

        def prepare() -> list[Entry]:
            nonlocal ready
            happened, self._here["unrecorded"] = self._workplace.prepare(self._view)
            ready = True
            if self._view.spec.instructions and not self._view.progress.instructed:
                happened.append(self._workplace.instructions(self._view))
            return happened

        happened = self._in_workspace(prepare)
        if ready:
            own, held_against = self._view.spec.model, self._view.progress.fullness.window
            self._look_around(lambda model: held_against if model == own else None)
        return happened

    def _in_workspace(self, work: Callable[[], list[Entry]]) -> list[Entry]:
        """What happened in the workspace. A run whose workspace is of no use has failed, and nothing goes
        on below it; what was cut by a shutdown has not happened."""
        try:
            return work()
        except WorkspaceError as error:
            if self._view.awaits_children:
                self._end_children()
            return [RunSettled(Ended("failed", "workspace", str(error)))]
        except WorkspaceElsewhere as error:
            return [RunSettled(Waiting("workspace", str(error)))]
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            return []

    def _work(self, work: Callable[[], list[Entry]]) -> list[Entry]:
        """What happened in the workspace, and how long it took."""
        began = self._ports.clock.monotonic()
        happened = self._in_workspace(work)
        return [self._worked_since(began), *happened]

    def _look_around(self, window_of: Callable[[str], int | None]) -> None:
        """Have in the view what no journal says: windows of models, and where outputs are. The model is
        not asked for its window before it is called: no other step waits for an API."""
        spec = self._view.spec
        window = spec.context.window or self._window(spec.model, window_of)
        own = spec.summary_model == spec.model
        self._here |= {
            "window": window,
            "summary_window": window if own else self._window(spec.summary_model, window_of),
            "outputs": str(self._workplace.surroundings.outputs),
        }
        self._view = replace(self._view, **self._here)

    def _window(self, model: str, window_of: Callable[[str], int | None]) -> int:
        return window_of(model) or self._ports.known_window(model) or DEFAULT_WINDOW

    def _sleep(self, until: float) -> None:
        """In short pieces, so that a cancel, a drain or a stepped clock is seen in time."""
        clock = self._ports.clock
        longest = clock.monotonic() + retry.IN_HAND_SECONDS
        while not self._ports.stopping.is_set():
            left = min(until - clock.now(), longest - clock.monotonic())
            if left <= 0:
                return
            if self._interrupt.wait(min(left, _LONGEST_SLEEP)):
                self._interrupt.check()

    def _advance(self, happened: Sequence[Entry]) -> Effect:
        def store(entries: Sequence[Entry]) -> Effect:
            self._view, effect = self._ports.journal.advance(
                self._lease, self._view, entries, draining=self._ports.stopping.is_set()
            )
            return effect

        return self._store(store, happened)

    def _append(self, entry: Entry) -> None:
        def store(entries: Sequence[Entry]) -> None:
            self._view = self._ports.journal.append(self._lease, self._view, entries)

        self._store(store, [entry])

    def _store(self, store: Callable[[Sequence[Entry]], T], entries: Sequence[Entry]) -> T:
        """Store until it is stored: a reply that was paid for outlives an outage."""
        while True:
            try:
                return self._insist(partial(store, entries))
            except StaleView:
                # The answer to a commit was lost, but it went through: there is nothing to add.
                self._view = self._load()
                entries = ()

    def _insist(self, work: Callable[[], T]) -> T:
        wait = _FIRST_DATABASE_WAIT
        while True:
            try:
                return work()
            except UnreachableError:
                if self._interrupt.reason is not None or self._interrupt.wait(wait):
                    raise
                wait = min(2 * wait, _LONGEST_DATABASE_WAIT)

    def _call_model(self, call: OpenCall) -> list[Entry]:
        model = self._ports.models(self._view.spec)
        self._look_around(model.window)
        began = self._ports.clock.monotonic()
        try:
            if call.purpose == "summary":
                request = summary_request(self._view, call)
                reply = model.complete(request, self._interrupt, _not_shown)
            else:
                request = turn_request(self._view, call)
                reply = model.complete(request, self._interrupt, self._publish)
        except ModelCallError as error:
            return [self._failed(call, error)]
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            shut_down = ModelCallError("shutdown", "the worker was shut down during the call")
            return [self._failed(call, shut_down, retry_now=True)]
        return [self._worked_since(began), self._replied(call, reply)]

    def _publish(self, text: str) -> None:
        self._ports.live.publish(self._lease.run_id, text)

    def _replied(self, call: OpenCall, reply: ModelReply) -> Entry:
        if call.purpose == "summary":
            return summarised(self._view, reply)
        asked = tool_uses(message_blocks(reply))
        context_of = partial(self._workplace.tool_context, self._view)
        return ModelReplied(
            reply, tuple(context_of(block["name"], block["input"]) for block in asked)
        )

    def _worked_since(self, began: float) -> TimeWorked:
        return TimeWorked(max(0.0, self._ports.clock.monotonic() - began))

    def _count_tokens(self) -> None:
        """Ask how long the next prompt is. A cut leaves it unknown: what cut it is seen next."""
        view = self._view
        tokens = None
        try:
            model = self._ports.models(view.spec)
            tokens = model.count(next_request(view), self._interrupt)
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
        counted = Counted(tokens, view.progress.fullness.sent, view.progress.turns)
        self._view = replace(view, counted=counted)

    def _locate(self, calls: Sequence[Call]) -> None:
        located = {call.index: self._workplace.located(self._view, call) for call in calls}
        self._view = replace(
            self._view, calls=tuple(located.get(call.index, call) for call in self._view.calls)
        )

    def _record_shared(self) -> list[Entry]:
        self._view = replace(self._view, shared_tree=self._workplace.record_shared())
        return []

    def _end_children(self) -> None:
        """They are cancelled; the next attempt begins when none of their processes is left."""
        self._insist(lambda: self._ports.journal.end_children(self._lease))
        self._view = replace(self._view, children_told=True)

    def _failed(
        self, call: OpenCall, error: ModelCallError, *, retry_now: bool = False
    ) -> ModelCallFailed:
        now = self._ports.clock.now()
        before = self._view.progress.failure
        again_at = retry.retry_at(
            error,
            failures=before.count + 1 if before else 1,
            first_failure_at=before.first_at if before else now,
            now=now,
            jitter=self._ports.jitter(),
            patience=self._view.spec.retry,
        )
        return ModelCallFailed(
            kind=error.kind,
            message=error.message,
            status=error.status,
            request_id=error.request_id,
            charged=call.reservation.worst_case if error.billed else 0,
            at=now,
            retry_at=now if retry_now else again_at,
        )

    def _run_tools(self, calls: Sequence[Call]) -> list[Entry]:
        try:
            return self._workplace.run(self._view, calls, self._append)
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            return [RunSettled(Requeued(self._ports.clock.now(), "shutdown"))]

    def _run_hook(self, step: RunHook) -> list[Entry]:
        try:
            return run_hook(self._workplace, self._view, step)
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            return [RunSettled(Requeued(self._ports.clock.now(), "shutdown"))]


def _not_shown(text: str) -> None:
    """For a summary: it is for the model."""
