"""Every side effect of the engine, as a protocol. ``runner.wiring`` says who implements which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from runner.core.batches import ListedBatch
from runner.core.conversation import ModelReply, ModelRequest, Tool, ToolResult, Usage
from runner.core.entries import Entry, InstructionsRead, SnapshotCause
from runner.core.fold import Applied
from runner.core.hooks import Hook, Said
from runner.core.mcp import McpServer, Usable
from runner.core.rate_limits import News, Pool, PoolKey, Report, Shared
from runner.core.run import Ended, Lease, Outcome
from runner.core.sandbox import Sandbox
from runner.core.state import RunState
from runner.errors import Interrupted, InterruptReason, ShutDown
from runner.permissions import ToolContext
from runner.permissions.decisions import Authorization, Policy

T = TypeVar("T")


class Interrupt:
    """Cuts the effect that an attempt has in hand, from another thread. Whoever runs an effect registers
    how to cut it. The first reason wins, save that ``dropped`` overrules ``shutdown``.

    Args:
        may_act: asked before each effect: whether the worker's leases are good. A process that slept
            past them wakes up in the middle of a step, before anyone can tell it: it renews them
            first, and so learns which runs it has lost.
        yields: whether the attempt should give up its slot when a turn has ended.
    """

    def __init__(
        self, may_act: Callable[[], bool] = lambda: True, yields: Callable[[], bool] = lambda: False
    ) -> None:
        self._may_act = may_act
        self.yields = yields
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
        """Yield an interrupt that only ``dropped`` sets, for what a shutdown waits for."""
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


# Takes the run state and the time in seconds since the epoch. Returns the entries that follow, each
# with the run before and after it, and what comes next.
Decide = Callable[[RunState, float], tuple[Sequence[Applied], T]]


class Journal(Protocol):
    """A run's journal, guarded by a lease. Every method raises ``LeaseLost`` when the attempt no
    longer holds the run; nothing is stored then."""

    def load(self, lease: Lease) -> RunState:
        """Load the run state."""

    def look(self, run_id: str) -> RunState | None:
        """Return the state of a run that waits for a batch; None if it does not."""

    def commit(
        self, lease: Lease, state: RunState, entries: Sequence[Entry], decide: Decide[T]
    ) -> tuple[RunState, T]:
        """Store, in one transaction, what happened and what ``decide`` decides from there, given
        the queued messages, rules, pause flag and job's budget as they stand in that transaction.
        Return the stored run state and the next step: its intent is committed, so it may begin.
        Raises ``StaleState`` if an earlier commit is stored that ``state`` does not know of;
        nothing is stored."""

    def end_children(self, lease: Lease) -> None:
        """Cancel the run's sub-agents that have not ended."""


class Model(Protocol):
    """Every method raises ``Interrupted`` when its interrupt was set."""

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """Make one streamed model call; ``on_text`` gets text. Raises ``ModelCallError``."""

    def read_result(
        self, request: ModelRequest, result: Mapping[str, Any], seconds: float
    ) -> ModelReply:
        """Return the reply in a result of a batch that took so many ``seconds``. Raises
        ``ModelCallError`` if the call has none."""

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """Return the tokens of a request's prompt, None if the API does not tell soon."""

    def window(self, model: str) -> int | None:
        """Return the size of a model's context window, None if the API does not tell soon."""

    def refuses_host(self) -> bool:
        """True if this host does not reach the API, or the API refuses its key, whatever is asked; False
        if it does not tell soon."""


class Batches(Protocol):
    """The Message Batches API. Where a job names a ``workspace`` of the API, its batches are in that
    one. Every method raises ``ModelCallError``; that of ``create`` is ``billed`` if there may be a
    batch."""

    def organization(self) -> str:
        """Return the id of the organization that the key belongs to; empty if the API does not say."""

    def body(self, request: ModelRequest) -> bytes:
        """Return the parameters of a request in a batch, as JSON."""

    def shared(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return what calls with these model options share with their whole batch: its headers."""

    def create(self, body: bytes, headers: Mapping[str, str]) -> ListedBatch:
        """Make a batch, in one try."""

    def listed(self, since: float, workspace: str) -> Iterator[ListedBatch]:
        """Yield the batches made since a time (in seconds since the epoch), the newest first."""

    def look(self, id: str, workspace: str) -> ListedBatch:
        """Return a batch as it is by now."""

    def results(self, id: str, workspace: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the results of a batch that has ended, each with its ``custom_id``."""

    def cancel(self, id: str, workspace: str) -> None:
        """Cancel a batch: its requests that no model works on yet."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The folders that a run's tools work in."""

    workspace: Path | None  # None for a job without one
    outputs: Path  # the run's own folder for long outputs, which file tools may read and not write


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str  # Runner's (``call_…``)
    run_id: str
    tool: Tool
    input: dict[str, Any]
    # Proves that this very input was allowed, and says which files it may show or change.
    authorization: Authorization
    surroundings: Surroundings
    timeout: float  # seconds
    sandbox: Sandbox | None = None  # the job's; which paths the rules deny says ``authorization``
    about: Mapping[str, Any] = field(default_factory=dict)  # data of the events of its connections
    server: McpServer | None = None  # that the tool belongs to; None: to none


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command of the job itself (setup, verify): no rule is asked."""

    name: str  # of its long output
    run_id: str
    command: str
    surroundings: Surroundings
    timeout: float  # seconds
    sandbox: Sandbox | None = None  # None: nothing contains it
    policy: Policy | None = None  # denies paths in the sandbox
    about: Mapping[str, Any] = field(default_factory=dict)  # data of the events of its connections


@dataclass(frozen=True, slots=True)
class HookCall:
    run_id: str
    hook: Hook
    told: Mapping[str, Any]  # what it reads as JSON, but for the folder that it runs in
    surroundings: Surroundings
    sandbox: Sandbox | None = None  # None: nothing contains it
    policy: Policy | None = None  # denies paths in the sandbox
    about: Mapping[str, Any] = field(default_factory=dict)  # data of the events of its connections


class Tools(Protocol):
    """Every method with an interrupt raises ``Interrupted`` when that was set: all processes of the
    call, command or hook are gone then; and ``HostFaultError`` when this host cannot begin it."""

    def require(self, sandbox: Sandbox) -> None:
        """Raise ``SandboxMissing`` if this host cannot contain calls, and the sandbox is required."""

    def problem(self, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
        """Return the problem with a call's input, for the model; None if it fits the tool."""

    def locate(self, paths: Sequence[str], surroundings: Surroundings) -> ToolContext:
        """Return a run's folders and where ``paths`` lead, if anywhere. Never raises."""

    def run(self, call: ToolCall, interrupt: Interrupt) -> ToolResult:
        """Run one call to its end; whatever goes wrong with the tool is in the result."""

    def command(self, command: Command, interrupt: Interrupt) -> ToolResult:
        """Run a command of the job to its end; whatever goes wrong with it is in the result."""

    def hook(self, call: HookCall, interrupt: Interrupt) -> Said:
        """Run a hook of the job to its end, whatever that is."""

    def instructions(self, surroundings: Surroundings, policy: Policy) -> InstructionsRead:
        """Read the workspace's instructions that the run's rules let it read. Never raises."""

    def listed(self, run_id: str, *, again: bool) -> Mapping[str, Usable]:
        """Return the tools of those of a run's MCP servers in use here, by name, that have said that
        theirs have changed; ``again``, as one said so before, of all in use here. Waits at most two
        seconds for each server that has changed its tools. Never raises."""


@dataclass(frozen=True, slots=True)
class Prepared:
    surroundings: Surroundings
    snapshot: str | None = None  # of its files now; None: not recorded
    # Why that is not the last snapshot. None: it is, or was restored with nothing put aside.
    cause: SnapshotCause | None = None
    found: str | None = None  # a snapshot that was put aside


class Workspaces(Protocol):
    """The workspaces of runs. Every method raises ``WorkspaceError`` when it cannot be done and
    trying again would not help, ``HostFaultError`` when it cannot be done on this host as it is, and
    ``Interrupted`` when ``interrupt`` was set meanwhile."""

    def surroundings(self, lease: Lease, folder: Path | None) -> Surroundings:
        """Return where tools work without an own workspace: in the job's folder, if any."""

    def prepare(
        self,
        lease: Lease,
        snapshot: str | None,
        interrupt: Interrupt,
        *,
        undo: bool,
        busy: bool = False,
    ) -> Prepared:
        """Make the run's workspace here, at the first attempt or again if it is missing.

        Args:
            snapshot: the last one recorded; None before the first attempt.
            undo: a call was cut off in the middle: put the workspace back to ``snapshot``, whatever is
                found. Otherwise what a person changed stays, and what an attempt on another host
                left behind is brought up to ``snapshot``.
            busy: sub-agents are changing its files: it is left alone and not recorded.

        Raises:
            WorkspaceElsewhere: ``snapshot`` cannot be had on this host.
        """

    def transcript(self, lease: Lease) -> Path:
        """Bring the run's transcript up to date, and return its path: its conversation as a session
        file of Claude Code, in its folder for long outputs."""

    def hide_originals(self, lease: Lease, calls: Iterable[str]) -> None:
        """Remove from this host what the run's tools could read of results that hooks have replaced,
        or are about to: those of ``calls`` (ids)."""

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """Record the workspace, and push it if the job has a remote; None if unrecorded."""

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """Record the parent's folder if the run works in it; None if it is not recorded."""

    def holds(self, lease: Lease, path: str) -> bool:
        """True if snapshots hold a file of the workspace: not if git ignores it."""

    def unrecorded(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> Sequence[str]:
        """Return workspace paths that a snapshot did not record, ignored files aside: nested
        repositories, submodules, unreadable files. Safe to print."""

    def restore(self, lease: Lease, snapshot: str, interrupt: Interrupt) -> None:
        """Put the workspace back to a snapshot."""

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        """Commit the run's files to its branch (``mode = "git"``), once for each end."""


class Permits(Protocol):
    """Permits for model calls, within the rate limits that all workers share. Nothing here waits for the
    database or raises, save ``wait``."""

    def draw(self, state: RunState) -> float | None:
        """Take a permit for the run's open call, which is about to be stored. Returns None when the run
        has one, drawn now or before; else about when it will have one (seconds since the epoch), and
        queues it."""

    def wait(self, run_id: str, seconds: float, interrupt: Interrupt) -> bool:
        """Wait for the permit of a run that queues; True once it has one. Raises ``Interrupted``."""

    def end(self, run_id: str) -> None:
        """The call that used the run's permit has ended, however it did."""

    def leave(self, run_id: str) -> None:
        """The run's attempt has ended: it queues no more, and returns a permit that it did not use."""


class Unlimited:
    """``Permits`` without limits."""

    def draw(self, state: RunState) -> float | None:
        return None

    def wait(self, run_id: str, seconds: float, interrupt: Interrupt) -> bool:
        return True

    def end(self, run_id: str) -> None:
        return

    def leave(self, run_id: str) -> None:
        return


class Answers(Protocol):
    """Hears what the API says about its limits. Never waits, never raises."""

    def answered(self, run_id: str, host: str, headers: Mapping[str, str]) -> None:
        """The API of a host has begun to answer the run's call, or refused it."""

    def refused(self, run_id: str, retry_after: float | None) -> None:
        """The API refused the run's call because of a rate limit; it asks to wait so many seconds."""

    def replied(self, run_id: str, usage: Usage) -> None:
        """The run's call got its whole reply."""


class RateLimits(Protocol):
    """The pools of rate limits that all workers share. Raises ``UnreachableError``."""

    def known(self, now: float) -> Mapping[PoolKey, Pool]:
        """Return the pools of organizations that were in use lately."""

    def exchange(
        self, worker_id: str, key: PoolKey, report: Report, news: News, first: Pool, now: float
    ) -> Shared:
        """Store a worker's report and news, and grant it permits. A pool that is not stored yet begins as
        ``first``."""


class Live(Protocol):
    def publish(self, run_id: str, text: str) -> None:
        """Offer streamed text to whoever follows the run; may be dropped, never waits, never raises."""


class Index(Protocol):
    def follow(self) -> int:
        """Add a few missing texts to the search index; return how many. Raises ``UnreachableError``
        when the database or the index does not answer."""


class Notifier(Protocol):
    def notify(self, run_ids: Sequence[str]) -> None:
        """Put a queue message for each run in the queue. Raises ``UnreachableError`` when the queue does
        not answer; the runs stay due."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One transaction of an attempt."""

    lease: Lease
    job_id: str
    applied: Sequence[Applied]
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Ending:
    run_id: str
    worker_id: str | None  # had it last
    outcome: Ended
    at: float  # seconds since the epoch
    usage: Usage


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that a worker has claimed."""

    lease: Lease
    job_id: str
    item_key: str


# Why an attempt ended without an outcome: it lost its lease (a cancel does that too), there was no
# database, the database has the schema of another version, its host has a fault, or it raised an error
# that it should not.
NoOutcome = Literal["dropped", "unreachable", "schema", "host_fault", "bug"]


class Observer:
    """The observer of a worker's work. Methods never wait and never raise; here they do nothing."""

    def claimed(self, claimed: Claimed) -> None:
        """Receive the beginning of an attempt."""

    def stored(self, stored: Stored) -> None:
        """Receive what an attempt committed (not if the answer to the commit is lost)."""

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        """Receive the end of an attempt."""

    def renewed(self) -> None:
        """The worker's leases were renewed."""

    def reaped(self, count: int) -> None:
        """Runs were taken over from dead workers."""

    def governed(self, key: PoolKey, shared: Shared, waiting: int) -> None:
        """The worker's share of a pool of rate limits is known, and how many of its calls wait."""


@dataclass(frozen=True, slots=True)
class Observers(Observer):
    each: Sequence[Observer]

    def claimed(self, claimed: Claimed) -> None:
        for observer in self.each:
            observer.claimed(claimed)

    def stored(self, stored: Stored) -> None:
        for observer in self.each:
            observer.stored(stored)

    def released(self, lease: Lease, outcome: Outcome | NoOutcome) -> None:
        for observer in self.each:
            observer.released(lease, outcome)

    def renewed(self) -> None:
        for observer in self.each:
            observer.renewed()

    def reaped(self, count: int) -> None:
        for observer in self.each:
            observer.reaped(count)

    def governed(self, key: PoolKey, shared: Shared, waiting: int) -> None:
        for observer in self.each:
            observer.governed(key, shared, waiting)
