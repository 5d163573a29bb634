"""The values of the permission language: rules, calls, decisions and answers. Apart from the modules that
decide, which load a parser of bash: ``runner list`` starts without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Effect = Literal["allow", "ask", "deny"]
Default = Literal["ask", "deny"]
AnswerEffect = Literal["approved", "denied", "expired"]

# The origins of a rule that is a person's answer, and of a copy of a standing rule. Those that allow
# stand above ask rules.
REMEMBERED = "remembered"
STANDING = "standing"
ABOVE_ASK = (REMEMBERED, STANDING)


@dataclass(frozen=True, slots=True)
class Rule:
    """A permission rule as people write it."""

    effect: Effect
    text: str  # "Tool" or "Tool(specifier)"
    why: str = ""
    origin: str = "job"  # "job", "mode", a settings file's path, REMEMBERED or STANDING
    run_id: str | None = None  # the one run of the job that it holds for
    position: int | None = None  # in the job's list, once it is stored


@dataclass(frozen=True, slots=True)
class MatchedRule:
    """A rule, and the part of the call that it matched."""

    rule: Rule
    matched: str  # a simple command, a path, a tool's name


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of the rules on a call."""

    effect: Effect
    # The rules that decided: one for a denial or a question, for an allowed call one for each of its
    # commands and each path that it writes; none when the default decided.
    matched_rules: tuple[MatchedRule, ...] = ()
    snapshot: int = 1  # the number of the rules that it was made by
    # Why nothing allowed the call, if there is more to say than that no rule matched (an
    # unanalyzable command), or why a rule asks that may not concern it.
    reason: str = ""
    barred: bool = field(default=False, compare=False)  # no rule of a sub-agent's type allows it

    @property
    def is_final(self) -> bool:
        """True for a denial that stands above a person's approval: not the job's default."""
        return self.effect == "deny" and (self.barred or bool(self.matched_rules))

    def shortened(self) -> Decision:
        """Return the decision with only the first rule that decided: a run needs no more later."""
        first = tuple(MatchedRule(each.rule, "") for each in self.matched_rules[:1])
        return replace(self, matched_rules=first)

    @property
    def rule(self) -> str | None:
        """The text of the first rule that decided."""
        return self.matched_rules[0].rule.text if self.matched_rules else None

    def explain(self) -> str:
        """Return one line for the model and for the record."""
        past = {"allow": "allowed", "ask": "asked", "deny": "denied"}[self.effect]
        if not self.matched_rules:
            return f"{past}: {self.reason or 'no permission rule of this job allows it'}"
        rule = self.matched_rules[0].rule
        why = f" ({rule.why})" if rule.why else ""
        more = f": {self.reason}" if self.reason else ""
        return f"{past} by the rule {rule.effect} {rule.text!r}{why}{more}"


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The resolution of a path. The two differ only if a symlink is on the way."""

    named: str  # as written, absolute and without "." and ".."
    real: str  # with symlinks resolved too

    @property
    def paths(self) -> tuple[str, ...]:
        """The path as named and, if another, as resolved."""
        return (self.named,) if self.named == self.real else (self.named, self.real)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The folders and paths of a call. Folders are absolute, symlinks resolved."""

    workspace: str | None = None
    outputs: str | None = None  # the folder of the run's long outputs
    home: str | None = None  # the user's, for "~"
    places: Mapping[str, ResolvedPath] = field(default_factory=dict)  # paths that could be resolved
    problem: str = ""  # why the call cannot run whatever the rules say: its input does not fit


@dataclass(frozen=True, slots=True)
class Request:
    """A call to decide on."""

    tool: str
    input: Mapping[str, Any]  # whether it fits the tool's schema or not: a decision is made anyway
    context: ToolContext = field(default_factory=ToolContext)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question."""

    effect: AnswerEffect
    input_digest: str  # of the input that was asked about
    by: str = ""  # who answered, or the rule that did
    reason: str = ""  # reaches the model on a denial
    input: Mapping[str, Any] | None = None  # what a person changed the input to
    # The real paths of the call at its approval.
    places: tuple[str, ...] = field(default=(), compare=False)

    def covers(self, place: ResolvedPath) -> bool:
        """True if an approval was about this place or a folder above it."""
        return any(
            place.real == known or place.real.startswith(known.rstrip("/") + "/")
            for known in self.places
        )


def digest_of(arguments: Any) -> str:
    """Return the SHA-256 of a call's input, in hex: the same for the same JSON value."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
