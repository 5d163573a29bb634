"""May this call run? Rules of the job, deny first; nothing matches: denied.

A rule names a tool (``Bash``) or, ending in ``*``, all tools whose names start so (``mcp__git__*``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Effect = Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class Rule:
    effect: Effect
    text: str

    def matches(self, tool: str) -> bool:
        if self.text.endswith("*"):
            return tool.startswith(self.text[:-1])
        return tool == self.text


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules said of a call, and which rule it was (None: no rule matched)."""

    effect: Effect
    rule: str | None

    def explain(self) -> str:
        """One line for the model and for the record."""
        if self.effect == "allow":
            return f"allowed by the rule allow {self.rule!r}"
        if self.rule is None:
            return "denied: no permission rule of this job allows it"
        return f"denied by the rule deny {self.rule!r}"


def evaluate(rules: Iterable[Rule], tool: str) -> Decision:
    """The decision on a call of ``tool``: the first matching deny, else the first matching allow."""
    matching = [rule for rule in rules if rule.matches(tool)]
    for effect in ("deny", "allow"):
        for rule in matching:
            if rule.effect == effect:
                return Decision(rule.effect, rule.text)
    return Decision("deny", None)
