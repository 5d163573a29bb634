"""The steps of a run, as values: ``core.decide`` chooses one.

A step is an entry that needs no effect (it is appended, and the next decision follows in the same
transaction), an effect that the engine carries out and reports, or the end of the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.entries import Entry, MessageCause, RunSettled, UserMessageAdded
from runner.core.hooks import HookRun
from runner.core.run import Ended, EndState, Outcome, Requeued, Waiting
from runner.core.state import Call, OpenCall, RunState


@dataclass(frozen=True, slots=True)
class CallModel:
    call: OpenCall


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Ask the API to count the next prompt, which by the estimate is near its limit."""


@dataclass(frozen=True, slots=True)
class LocateCalls:
    """Resolve the paths in these calls: rules match real places."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class ReadInstructions:
    """Read the workspace's instructions again: they may have changed since the last turn."""


@dataclass(frozen=True, slots=True)
class RecordShared:
    """Record the folder that the run shares with a parent: a sub-agent begins with its files."""


@dataclass(frozen=True, slots=True)
class EndChildren:
    """Cancel the running sub-agents: the run is about to end."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls (started, without results) side by side."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class RunHook:
    """Run a hook, which has started. ``told`` is its payload without the folder."""

    run: HookRun
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunVerify:
    """Run the job's verification, which has started."""

    number: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Commit the run's files on its branch before its end."""

    outcome: Ended


@dataclass(frozen=True, slots=True)
class Sleep:
    until: float


@dataclass(frozen=True, slots=True)
class AwaitPermit:
    """Wait for the permit of a model call, at most until a time."""

    until: float


@dataclass(frozen=True, slots=True)
class Done:
    outcome: Outcome


Effect = (
    CallModel
    | CountTokens
    | LocateCalls
    | ReadInstructions
    | RecordShared
    | EndChildren
    | RunTools
    | RunHook
    | RunVerify
    | Deliver
    | Sleep
    | AwaitPermit
)
Action = Effect | Done  # what an attempt does once its entries are stored
Step = Entry | Action


def end(state: EndState, reason: str, detail: str = "") -> Step:
    return RunSettled(Ended(state, reason, detail))


def tell(cause: MessageCause, *texts: str) -> Step:
    """Return the step that adds a message for the model."""
    return UserMessageAdded(texts, cause)


def locate(calls: Sequence[Call]) -> Step | None:
    """Return the step that resolves the paths of calls; None if all are located."""
    unlocated = tuple(call for call in calls if call.tool_context is None)
    return LocateCalls(unlocated) if unlocated else None


def leave(state: RunState) -> Step | None:
    """Return the step that ends the attempt if a person pauses the run or the worker drains."""
    if state.inbox.pause_requested:
        return RunSettled(Waiting("paused"))
    return RunSettled(Requeued(state.now, "shutdown")) if state.draining else None


def stop_at_deadline(state: RunState) -> Step:
    return end("stopped", "deadline", f"the deadline of {state.limits.deadline:g} s")
