"""THE SPINE: one attempt at a run, from what its journal says to an outcome.

Decide, do, append: each effect is stored together with what follows from it, so there is one
transaction between two effects and no other path for resuming. See docs/concepts.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from runner.core import retry
from runner.core.calls import with_edit_told
from runner.core.context.summary import summarised
from runner.core.context.window import DEFAULT_WINDOW
from runner.core.conversation import ModelReply, ToolResult, message_blocks, tool_uses
from runner.core.entries import (
    Entry,
    ModelCallFailed,
    ModelReplied,
    RunSettled,
    TimeWorked,
    ToolFinished,
)
from runner.core.journal import Call, Counted, OpenCall, RunView
from runner.core.permissions import Permit, Setting, digest_of, paths_of
from runner.core.requests import next_request, summary_request, turn_request
from runner.core.run import Ended, Lease, Outcome
from runner.core.spec import JobSpec
from runner.core.steps import CallModel, CountTokens, Done, Effect, LocateCalls, RunTools, Sleep
from runner.engine.ports import (
    Clock,
    Interrupt,
    Journal,
    Live,
    Model,
    ToolCall,
    Tools,
    Workspaces,
)
from runner.errors import (
    Interrupted,
    ModelCallError,
    StaleView,
    UnreachableError,
    WorkspaceError,
)

T = TypeVar("T")

_FIRST_DATABASE_WAIT = 0.1
_LONGEST_DATABASE_WAIT = 2.0
_LONGEST_SLEEP = 0.5
_MOST_TOOLS_AT_ONCE = 32


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
                case RunTools(calls):
                    happened = self._run_tools(calls)

    def _load(self) -> RunView:
        view = self._insist(lambda: self._ports.journal.load(self._lease))
        return replace(view, **self._here)

    def _prepare(self) -> list[Entry]:
        """Have the workspace ready; a run whose workspace cannot be made has failed."""
        try:
            self._surroundings = self._insist(
                lambda: self._ports.workspaces.prepare(self._lease, self._interrupt)
            )
        except WorkspaceError as error:
            return [RunSettled(Ended("failed", "workspace", str(error)))]
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
        else:
            own, held_against = self._view.spec.model, self._view.progress.fullness.window
            self._look_around(lambda model: held_against if model == own else None)
        return []

    def _look_around(self, window_of: Callable[[str], int | None]) -> None:
        """Have in the view what no journal says: windows of models, and where outputs are. The model is
        not asked for its window before it is called: no other step waits for an API."""
        spec = self._view.spec
        window = spec.context.window or self._window(spec.model, window_of)
        own = spec.summary_model == spec.model
        self._here = {
            "window": window,
            "summary_window": window if own else self._window(spec.summary_model, window_of),
            "outputs": str(self._surroundings.outputs),
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
        return ModelReplied(
            reply, tuple(self._setting(block["name"], block["input"]) for block in asked)
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
        located = {call.index: self._located(call) for call in calls}
        self._view = replace(
            self._view, calls=tuple(located.get(call.index, call) for call in self._view.calls)
        )

    def _located(self, call: Call) -> Call:
        setting = self._setting(call.name, call.input_to_run)
        if call.answer is None or not call.is_edited:
            return replace(call, setting=setting)
        places = tuple(place.real for place in setting.places.values())
        return replace(call, setting=setting, answer=replace(call.answer, places=places))

    def _setting(self, name: str, arguments: Any) -> Setting:
        tool = self._view.spec.tool(name)
        if tool is None or not isinstance(arguments, dict):
            return Setting()
        tools = self._ports.tools
        located = tools.locate(paths_of(name, arguments), self._surroundings)
        return replace(located, problem=tools.problem(tool, arguments) or "")

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
        """Run calls side by side; each result is stored as it comes, save the last, which is
        returned so that it is stored with what follows."""
        began = self._ports.clock.monotonic()
        last = self._last_result(calls)
        return [self._worked_since(began), last]

    def _last_result(self, calls: Sequence[Call]) -> Entry:
        if len(calls) == 1:
            return self._run_tool(calls[0])
        with ThreadPoolExecutor(min(len(calls), _MOST_TOOLS_AT_ONCE)) as pool:
            running = [pool.submit(self._run_tool, call) for call in calls]
            try:
                return self._append_as_they_end(running)
            except BaseException:
                self._interrupt.set("dropped")
                raise

    def _append_as_they_end(self, running: Sequence[Future[ToolFinished]]) -> Entry:
        ended = as_completed(running)
        for _ in running[1:]:
            self._append(next(ended).result())
        return next(ended).result()

    def _run_tool(self, call: Call) -> ToolFinished:
        view = self._view
        tool = view.spec.tool(call.name)
        assert tool is not None, "the decision answers unknown tools itself"
        assert call.decision is not None, "a call is decided on before it starts"
        arguments = call.input_to_run
        request = ToolCall(
            id=self._ports.call_id(view.run_id, view.progress.turns, call.index),
            run_id=view.run_id,
            tool=tool,
            input=arguments,
            permit=Permit(call.decision, call.answer, digest_of(arguments), view.policy),
            surroundings=self._surroundings,
            timeout=view.limits.tool_timeout,
        )
        try:
            result = self._ports.tools.run(request, self._interrupt)
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            result = ToolResult("Interrupted by shutdown of the worker.", "interrupted")
        return ToolFinished(call.index, with_edit_told(call, result))


def _not_shown(text: str) -> None:
    """For a summary: it is for the model."""
