"""Every side effect of the engine, as a protocol. ``runner.wiring`` says who implements which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.core.conversation import ModelReply, ModelRequest, Tool, ToolResult
from runner.core.entries import Entry
from runner.core.journal import RunView
from runner.core.permissions import Permit, Setting
from runner.core.run import Lease
from runner.core.steps import Effect
from runner.errors import Interrupted, InterruptReason


class Interrupt:
    """Cuts the effect that an attempt has in hand, from another thread.

    Whoever runs an effect registers how to cut it (``cut_by``); ``set`` calls that at once, or as
    soon as it is registered. The first reason wins, save that ``dropped`` overrules ``shutdown``.

    Args:
        may_act: asked before each effect: whether the worker's leases are good. A process that slept
            past them wakes up in the middle of a step, before anyone can tell it: it renews them
            first, and so learns which runs it has lost.
    """

    def __init__(self, may_act: Callable[[], bool] = lambda: True) -> None:
        self._may_act = may_act
        self._lock = threading.Lock()
        self._cuts: list[Callable[[], None]] = []
        self._event = threading.Event()
        self.reason: InterruptReason | None = None

    def set(self, reason: InterruptReason) -> None:
        """Cut what is in hand, now and from now on."""
        with self._lock:
            if self.reason is None or reason == "dropped":
                self.reason = reason
            cuts = list(self._cuts)
        self._event.set()
        for cut in cuts:
            cut()

    @contextmanager
    def cut_by(self, cut: Callable[[], None]) -> Iterator[None]:
        """While the block runs, ``cut`` is how to end it; it may be called from any thread, twice.

        Raises:
            Interrupted: ``set`` was called before the block began, or the worker may not act.
        """
        self.check()
        with self._lock:
            if self.reason is not None:
                raise Interrupted(self.reason)
            self._cuts.append(cut)
        try:
            yield
        finally:
            with self._lock:
                self._cuts.remove(cut)

    def check(self) -> None:
        """Raise ``Interrupted`` when ``set`` has been called, or when the worker may not act."""
        if not self._may_act():
            self.set("dropped")
        if self.reason is not None:
            raise Interrupted(self.reason)

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past ``set``; True when it was set."""
        return self._event.wait(seconds)


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, by the database's clock."""

    def monotonic(self) -> float:
        """Seconds for durations, counting the time that the machine sleeps."""


class Journal(Protocol):
    """A run's journal, guarded by a lease. Every method raises ``LeaseLost`` when the attempt no
    longer holds the run; nothing is stored then."""

    def load(self, lease: Lease) -> RunView:
        """The run as its rows tell it."""

    def append(self, lease: Lease, view: RunView, entries: Sequence[Entry]) -> RunView:
        """Store what happened, in one transaction."""

    def advance(
        self, lease: Lease, view: RunView, entries: Sequence[Entry], *, draining: bool
    ) -> tuple[RunView, Effect]:
        """Store what happened and, in the same transaction, what follows from it: everything that
        ``core.decide.advance`` decides, with the queued messages and the pause flag as they stand
        there. The effect returned may begin: its intent is stored."""


class Model(Protocol):
    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """One model call, streamed; ``on_text`` gets text as it comes.

        Raises:
            ModelCallError: no whole reply came. Interrupted: ``interrupt`` was set.
        """

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """The tokens of a request's prompt, None when that cannot be learnt soon.

        Raises:
            Interrupted: ``interrupt`` was set.
        """

    def window(self, model: str) -> int | None:
        """The most tokens that a prompt to a model can have, None when that cannot be learnt soon."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a run's tools work. ``workspace`` is None for a job without one; ``outputs`` is the
    run's own folder for long outputs, which file tools may read and not write."""

    workspace: Path | None
    outputs: Path


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call about to run. ``id`` is Runner's (``call_…``); ``timeout`` is in seconds. ``permit``
    proves that this very input was allowed, and says which files it may show or change."""

    id: str
    run_id: str
    tool: Tool
    input: dict[str, Any]
    permit: Permit
    surroundings: Surroundings
    timeout: float


class Tools(Protocol):
    def problem(self, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the input of a call, for the model; None when it fits the tool."""

    def locate(self, paths: Sequence[str], surroundings: Surroundings) -> Setting:
        """Where a run's tools would work, and where ``paths`` lead from there. Never raises: a path
        that leads nowhere is left out."""

    def run(self, call: ToolCall, interrupt: Interrupt) -> ToolResult:
        """Run one call to its end; whatever goes wrong with the tool is in the result.

        Raises:
            Interrupted: ``interrupt`` was set; all processes of the call are gone.
        """


class Workspaces(Protocol):
    def prepare(self, lease: Lease, interrupt: Interrupt) -> Surroundings:
        """Where the run works; a copy is made at the first attempt.

        Raises:
            WorkspaceError: it cannot be made. Interrupted: ``interrupt`` was set meanwhile.
        """


class Live(Protocol):
    def publish(self, run_id: str, text: str) -> None:
        """Offer streamed text to whoever follows the run; may be dropped, never waits, never raises."""


class Doorbell(Protocol):
    def ring(self, run_ids: Sequence[str]) -> None:
        """Put a wake-up for each run in the queue.

        Raises:
            UnreachableError: the queue does not answer; the runs stay due.
        """
