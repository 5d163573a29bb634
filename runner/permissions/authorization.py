"""The proof that a call may run: no tool runs without one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.permissions.accesses import Request
from runner.permissions.decisions import Decision, Policy, evaluate, may_touch
from runner.permissions.paths import ResolvedPath, ToolContext

AnswerEffect = Literal["approved", "denied", "expired"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question. ``by`` is who answered, or the rule that did; ``reason`` reaches
    the model on a denial. ``input_digest`` is of the input that was asked about; ``input`` is what a
    person changed it to, None when it stands as it was. ``places`` are the real paths of the call as
    it was approved."""

    effect: AnswerEffect
    input_digest: str
    by: str = ""
    reason: str = ""
    input: Mapping[str, Any] | None = None
    places: tuple[str, ...] = field(default=(), compare=False)

    def covers(self, place: ResolvedPath) -> bool:
        """Whether an approval was about this place, or a folder that it is in."""
        return any(
            place.real == known or place.real.startswith(known.rstrip("/") + "/")
            for known in self.places
        )


def digest_of(arguments: Any) -> str:
    """The SHA-256 of a call's input, in hex: the same for the same JSON value."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Authorization:
    """Says that one call, with one input, may run. ``policy`` is what else it must keep to while it
    runs: the files that it may show or change.

    Raises:
        ValueError: the decision is not to allow it, and no answer approved this very input.
    """

    decision: Decision
    answer: Answer | None
    input_digest: str
    policy: Policy

    def __post_init__(self) -> None:
        if self.decision.effect == "allow" and self.answer is None:
            return
        asked = self.decision.effect == "ask" and self.answer is not None
        if not asked or self.answer is None or self.answer.effect != "approved":
            raise ValueError(f"a call that was not allowed cannot run: {self.decision.explain()}")
        approved = self.answer.input_digest
        if self.answer.input is not None:
            approved = digest_of(self.answer.input)
        if approved != self.input_digest:
            raise ValueError("a call cannot run with another input than the one that was approved")

    def check(self, tool: str, place: ResolvedPath, context: ToolContext) -> Decision:
        """Whether the call may show or change this file: asked when it is about to, by where the path
        really leads at that moment. The effect is allow or deny."""
        return self._settled(may_touch(self.policy, tool, place, context), (place,))

    def check_again(self, request: Request) -> Decision:
        """Whether the call may still run, now that it is known where its paths lead at this moment.
        The effect is allow or deny."""
        return self._settled(evaluate(self.policy, request), request.context.places.values())

    def _settled(self, decision: Decision, places: Iterable[ResolvedPath]) -> Decision:
        """A person's approval stands above everything but a denial that is final."""
        if decision.effect == "allow" or decision.is_final:
            return decision
        approved = self.answer is not None and all(map(self.answer.covers, places))
        return replace(decision, effect="allow" if approved else "deny")
