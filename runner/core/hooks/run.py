"""What a run knows of the hooks that have run for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.hooks.hook import HookEvent

# Only "succeeded" says something of what the hook is about: a hook that was cut off ("interrupted" by a
# shutdown, "unknown" by the death of its worker) has said nothing.
HookOutcome = Literal["succeeded", "failed", "timed_out", "interrupted", "unknown"]
HookDecision = Literal["allow", "ask", "deny", "block"]


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What a hook said. ``decision`` is allow, ask or deny of a PreToolUse hook and block of the others;
    ``reason`` is for it, or says what went wrong. ``context`` is for the model; ``stops``: the run is
    to end."""

    outcome: HookOutcome
    decision: HookDecision | None = None
    reason: str = ""
    context: str = ""
    stops: bool = False


@dataclass(frozen=True, slots=True)
class HookResult:
    """What came of running a hook. ``updated_input`` is what it made of the call's; ``output`` and
    ``errors`` are what it printed, as far as that is kept; ``duration`` is in seconds."""

    answer: HookAnswer
    updated_input: Mapping[str, Any] | None = None
    output: str = ""
    errors: str = ""
    exit_code: int | None = None
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class HookRun:
    """A hook that was started: its ``number`` in the run, from 1, and its place in the job's ``hooks``.
    ``index`` is of the call of the last reply that it is about. ``started_by`` is the attempt; without
    an ``answer`` it has not ended."""

    number: int
    hook: int
    event: HookEvent
    index: int | None
    started_by: int
    answer: HookAnswer | None = None


@dataclass(frozen=True, slots=True)
class Hooked:
    """How far a run is with its hooks. ``count`` have been started. Those up to ``past`` are of earlier
    turns, what those up to ``told`` said has been told to the model, and those up to ``ended`` ran before
    the run last ended. ``closed`` is the last turn whose hooks are through. ``decided`` says of each call
    of the last reply, by its index, how many had been started when it was decided on; nothing before
    any is: those after look at what a person has made of it."""

    count: int = 0
    past: int = 0
    told: int = 0
    ended: int = 0
    closed: int = 0
    decided: tuple[int, ...] = ()
