"""What the rules say of a call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from runner.core.permissions.rule import Effect, Rule


@dataclass(frozen=True, slots=True)
class Ground:
    """A rule, and the text of the call that it matched (a simple command, a path, a tool's name)."""

    rule: Rule
    matched: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules of snapshot ``snapshot`` said of a call.

    ``grounds`` are the rules that decided: one for a denial or a question, for an allowed command
    one for each of its parts; none when the job's default decided. ``reason`` says for a reader why
    nothing allowed the call, where there is more to say than that no rule matched (a command that
    hides what it runs), or why a rule asks that may not be about it. A ``barred`` call is denied as
    no rule of a sub-agent's type allows it.
    """

    effect: Effect
    grounds: tuple[Ground, ...] = ()
    snapshot: int = 1
    reason: str = ""
    barred: bool = field(default=False, compare=False)

    @property
    def is_final(self) -> bool:
        """Whether it is a denial that stands above a person's approval: not the job's default."""
        return self.effect == "deny" and (self.barred or bool(self.grounds))

    def in_short(self) -> Decision:
        """The decision with the first rule that decided alone: all that a run goes by later."""
        return replace(self, grounds=tuple(Ground(each.rule, "") for each in self.grounds[:1]))

    @property
    def rule(self) -> str | None:
        """The text of the first rule that decided."""
        return self.grounds[0].rule.text if self.grounds else None

    def explain(self) -> str:
        """One line for the model and for the record."""
        past = {"allow": "allowed", "ask": "asked", "deny": "denied"}[self.effect]
        if not self.grounds:
            why = self.reason or "no permission rule of this job allows it"
            return f"{past}: {why}"
        rule = self.grounds[0].rule
        why = f" ({rule.why})" if rule.why else ""
        more = f": {self.reason}" if self.reason else ""
        return f"{past} by the rule {rule.effect} {rule.text!r}{why}{more}"
