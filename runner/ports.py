"""Every side effect of the engine, as a protocol. ``runner.wiring`` says who implements which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from runner.core.conversation import ModelReply, ModelRequest, Tool, ToolResult, Usage
from runner.core.entries import Entry, InstructionsRead, SnapshotCause
from runner.core.fold import Applied
from runner.core.hooks import Hook, Said
from runner.core.run import Ended, Lease
from runner.core.state import RunState
from runner.errors import Interrupted, InterruptReason, ShutDown
from runner.permissions import Authorization, Policy, ToolContext

T = TypeVar("T")


class Interrupt:
    """Cuts the effect that an attempt has in hand, from another thread. Whoever runs an effect registers
    how to cut it. The first reason wins, save that ``dropped`` overrules ``shutdown``.

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
        Raises ``Interrupted`` as ``check`` does."""
        self.check()
        with self._lock:
            self._raise_if_set()
            self._cuts.append(cut)
        try:
            yield
        finally:
            with self._lock:
                self._cuts.remove(cut)

    @contextmanager
    def past_shutdown(self) -> Iterator[Interrupt]:
        """While the block runs: an interrupt that only ``dropped`` sets, for what is still to be done
        before a shutdown."""
        only_dropped = Interrupt(self._may_act)

        def pass_on() -> None:
            if self.reason == "dropped":
                only_dropped.set("dropped")

        with self._lock:
            self._cuts.append(pass_on)
        pass_on()
        try:
            yield only_dropped
        finally:
            with self._lock:
                self._cuts.remove(pass_on)

    def check(self) -> None:
        """Raise ``Interrupted`` when ``set`` has been called, or when the worker may not act."""
        if not self._may_act():
            self.set("dropped")
        self._raise_if_set()

    def _raise_if_set(self) -> None:
        if self.reason is not None:
            raise ShutDown if self.reason == "shutdown" else Interrupted

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past ``set``; True when it was set."""
        return self._event.wait(seconds)


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, by the database's clock."""

    def monotonic(self) -> float:
        """Seconds for durations, counting the time that the machine sleeps."""


# Given the run as it stands and the time in seconds since the epoch: the entries that follow, each with
# the run before and after it, and what comes next.
Decide = Callable[[RunState, float], tuple[Sequence[Applied], T]]


class Journal(Protocol):
    """A run's journal, guarded by a lease. Every method raises ``LeaseLost`` when the attempt no
    longer holds the run; nothing is stored then."""

    def load(self, lease: Lease) -> RunState:
        """The run as its rows tell it."""

    def commit(
        self, lease: Lease, state: RunState, entries: Sequence[Entry], decide: Decide[T]
    ) -> tuple[RunState, T]:
        """Store, in one transaction, what happened and what ``decide`` decides from there, given
        the queued messages, rules, pause flag and job's budget as they stand in that transaction.
        Return the run as it is stored, and what comes next: its intent is stored, so it may begin.
        Raises ``StaleState`` if an earlier commit is stored that ``state`` does not know of; nothing
        is stored."""

    def end_children(self, lease: Lease) -> None:
        """Cancel all below the run that has not ended."""


class Model(Protocol):
    """Every method raises ``Interrupted`` when its interrupt was set."""

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """One model call, streamed; ``on_text`` gets text as it comes. Raises ``ModelCallError`` when no
        whole reply came."""

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """The tokens of a request's prompt, None when that cannot be learnt soon."""

    def window(self, model: str) -> int | None:
        """The most tokens that a prompt to a model can have, None when that cannot be learnt soon."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a run's tools work."""

    workspace: Path | None  # None for a job without one
    outputs: Path  # the run's own folder for long outputs, which file tools may read and not write


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call about to run."""

    id: str  # Runner's (``call_…``)
    run_id: str
    tool: Tool
    input: dict[str, Any]
    # Proves that this very input was allowed, and says which files it may show or change.
    authorization: Authorization
    surroundings: Surroundings
    timeout: float  # seconds


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command of the job itself (setup, verify): no rule is asked."""

    name: str  # of its long output
    run_id: str
    command: str
    surroundings: Surroundings
    timeout: float  # seconds


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook about to run."""

    run_id: str
    hook: Hook
    told: Mapping[str, Any]  # what it reads as JSON, but for the folder that it runs in
    surroundings: Surroundings


class Tools(Protocol):
    """Every method with an interrupt raises ``Interrupted`` when that was set: all processes of the
    call, command or hook are gone then."""

    def problem(self, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the input of a call, for the model; None when it fits the tool."""

    def locate(self, paths: Sequence[str], surroundings: Surroundings) -> ToolContext:
        """Where a run's tools would work, and where ``paths`` lead from there. Never raises: a path
        that leads nowhere is left out."""

    def run(self, call: ToolCall, interrupt: Interrupt) -> ToolResult:
        """Run one call to its end; whatever goes wrong with the tool is in the result."""

    def command(self, command: Command, interrupt: Interrupt) -> ToolResult:
        """Run a command of the job to its end; whatever goes wrong with it is in the result."""

    def hook(self, call: HookCall, interrupt: Interrupt) -> Said:
        """Run a hook of the job to its end, whatever that is."""

    def instructions(self, surroundings: Surroundings, policy: Policy) -> InstructionsRead:
        """What the workspace says to agents, as far as the run's rules let it be read; nothing where
        there is none. Never raises."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workspace that is ready."""

    surroundings: Surroundings
    snapshot: str | None = None  # of it as it is now; None: none is recorded
    # Why that is not the last snapshot. None: it is, or was restored with nothing put aside.
    cause: SnapshotCause | None = None
    found: str | None = None  # a snapshot that was put aside


class Workspaces(Protocol):
    """The workspaces of runs. Every method raises ``WorkspaceError`` when it cannot be done and
    trying again would not help, and ``Interrupted`` when ``interrupt`` was set meanwhile."""

    def prepare(
        self,
        lease: Lease,
        snapshot: str | None,
        interrupt: Interrupt,
        *,
        undo: bool,
        busy: bool = False,
    ) -> Prepared:
        """Have the run's workspace here: made at the first attempt, and made again where it is gone.

        Args:
            snapshot: what was recorded of it last; None before its first attempt.
            undo: a call was cut off in the middle: put the workspace back to ``snapshot``, whatever is
                found. Otherwise what a person changed stays, and what an attempt on another host
                left behind is brought up to ``snapshot``.
            busy: sub-agents are changing its files: it is left as it is and not recorded.

        Raises:
            WorkspaceElsewhere: ``snapshot`` cannot be had on this host.
        """

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """Record the workspace as it is, and push the snapshot where the job has a remote; None when
        none is recorded of it."""

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """Record the folder of the run above that this one works in, as it is; None when none is recorded
        of it, or the run has a folder of its own."""

    def holds(self, lease: Lease, path: str) -> bool:
        """True if snapshots hold a file of the workspace: not if git ignores it."""

    def unrecorded(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> Sequence[str]:
        """What was in the workspace when a snapshot was recorded and is not in it, ignored files
        aside: repositories of their own, submodules, what cannot be read. Safe to print."""

    def restore(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> None:
        """Put the workspace back to a snapshot."""

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        """Commit what the run leaves on its branch, once for each end; the commit's id. Only for
        ``mode = "git"``."""


class Live(Protocol):
    def publish(self, run_id: str, text: str) -> None:
        """Offer streamed text to whoever follows the run; may be dropped, never waits, never raises."""


class Index(Protocol):
    def follow(self) -> int:
        """Add to the index of texts a little of what it lacks; how many texts that were. Raises
        ``UnreachableError`` when the database or the index does not answer."""


class Notifier(Protocol):
    def notify(self, run_ids: Sequence[str]) -> None:
        """Put a queue message for each run in the queue. Raises ``UnreachableError`` when the queue does
        not answer; the runs stay due."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What an attempt has stored in one transaction."""

    lease: Lease
    job_id: str
    applied: Sequence[Applied]
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run has ended."""

    run_id: str
    worker_id: str | None  # had it last
    outcome: Ended
    at: float  # seconds since the epoch
    usage: Usage


class Observer(Protocol):
    def stored(self, stored: Stored) -> None:
        """Told of what attempts do, once it is committed; now and then not, when the answer to a
        commit is lost. Never waits, never raises."""
