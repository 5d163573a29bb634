"""Values of the commands that people give runs from outside, and of their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.run import RunStatus
from runner.permissions import ToolContext


@dataclass(frozen=True, slots=True)
class Target:
    """A run, or all runs of a job."""

    kind: Literal["job", "run"]
    id: str


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of a command for one run."""

    id: str
    item_key: str
    state: RunStatus  # after the command
    changed: bool
    detail: str  # one line for a person


@dataclass(frozen=True, slots=True)
class Raised:
    """New limits for runs that are retried; None keeps the limit of the run."""

    max_turns: int | None = None
    token_ceiling: int | None = None
    cost_ceiling_usd: float | None = None
    working_time: float | None = None  # seconds

    @property
    def given(self) -> dict[str, Any]:
        """The limits that are new, by the names of the run's columns."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: limit for name, limit in named.items() if limit is not None}

    def of(self, run: Any) -> dict[str, Any]:
        """Return the new values of the limits that have columns in a run's row."""
        return {name: getattr(run, name) for name in self.__slots__} | self.given


@dataclass(frozen=True, slots=True)
class Question:
    """A tool call that a person was asked about. Times are seconds since the epoch."""

    id: str
    run_id: str
    message: int  # with ``position``, the key of the call in its run
    position: int
    job_id: str
    job_name: str
    item_key: str
    turn: int
    tool: str
    input: Mapping[str, Any]  # what the call would run with
    input_digest: str
    tool_context: ToolContext
    summary: str
    group_key: str
    suggested_rule: str
    asked_at: float
    expires_at: float | None  # None: waits as long as it takes
    asked_again: bool = False  # it had started, its outcome is unknown: may it run again?
    by_hook: bool = False  # a hook wants a person to decide
    agent_types: tuple[str, ...] = ()  # that restrict the run, as ``store.rules.agent_types`` says


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a person to questions."""

    effect: Literal["approved", "denied"]
    by: str
    reason: str = ""  # reaches the model on a denial
    edited: Mapping[str, Any] | None = None  # the input to run with instead
    # For a run or a job a rule is stored; "always": for the job, and as a standing rule.
    remember: Literal["call", "run", "job", "always"] = "call"
    rule: str | None = None  # the rule to store; None: the one that each question suggests


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of an answer for one question."""

    id: str
    run_id: str
    item_key: str
    changed: bool
    detail: str  # one line for a person
    by_rule: bool = False  # answered by a rule that was remembered with another answer
