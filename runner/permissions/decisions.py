"""May this call run? A deny rule denies; else what a person remembered holds; else an ask rule asks;
else an allow rule allows; nothing matches: the job's default.

How special a rule is never matters, nor does the order of rules. A call with several aspects (a script
of several commands) is as allowed as the least allowed of them.

Source: https://code.claude.com/docs/en/permissions#manage-permissions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Literal

from runner.permissions.accesses import (
    Access,
    ParsedRule,
    Request,
    accesses_of,
    file_touched,
    shorten,
)
from runner.permissions.paths import PathPattern, ResolvedPath, ToolContext
from runner.permissions.rules import REMEMBERED, CommandPattern, Effect, Rule, covers


@dataclass(frozen=True, slots=True)
class MatchedRule:
    """A rule, and the text of the call that it matched (a simple command, a path, a tool's name)."""

    rule: Rule
    matched: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules of snapshot ``snapshot`` said of a call.

    ``matched_rules`` are the rules that decided: one for a denial or a question, for an allowed command
    one for each of its parts; none when the job's default decided. ``reason`` says for a reader why
    nothing allowed the call, where there is more to say than that no rule matched (a command that
    hides what it runs), or why a rule asks that may not be about it. A ``barred`` call is denied as
    no rule of a sub-agent's type allows it.
    """

    effect: Effect
    matched_rules: tuple[MatchedRule, ...] = ()
    snapshot: int = 1
    reason: str = ""
    barred: bool = field(default=False, compare=False)

    @property
    def is_final(self) -> bool:
        """Whether it is a denial that stands above a person's approval: not the job's default."""
        return self.effect == "deny" and (self.barred or bool(self.matched_rules))

    def shortened(self) -> Decision:
        """The decision with the first rule that decided alone: all that a run goes by later."""
        return replace(
            self, matched_rules=tuple(MatchedRule(each.rule, "") for each in self.matched_rules[:1])
        )

    @property
    def rule(self) -> str | None:
        """The text of the first rule that decided."""
        return self.matched_rules[0].rule.text if self.matched_rules else None

    def explain(self) -> str:
        """One line for the model and for the record."""
        past = {"allow": "allowed", "ask": "asked", "deny": "denied"}[self.effect]
        if not self.matched_rules:
            why = self.reason or "no permission rule of this job allows it"
            return f"{past}: {why}"
        rule = self.matched_rules[0].rule
        why = f" ({rule.why})" if rule.why else ""
        more = f": {self.reason}" if self.reason else ""
        return f"{past} by the rule {rule.effect} {rule.text!r}{why}{more}"


_MOST_KEPT = 64  # a model can make up names of tools
_PLACE = itemgetter(0)


@dataclass(frozen=True, slots=True)
class RuleIndex:
    """Rules with their places in order, by the first word of the commands that they match; under
    None those that must always be looked at."""

    by_word: Mapping[str | None, tuple[tuple[int, ParsedRule], ...]]
    always: Sequence[ParsedRule]

    @classmethod
    def of(cls, lines: Iterable[ParsedRule]) -> RuleIndex:
        """Puts the rules where they are found."""
        found: dict[str | None, tuple[tuple[int, ParsedRule], ...]] = {}
        for place, line in enumerate(lines):
            word = line.specifier.word if isinstance(line.specifier, CommandPattern) else None
            found[word] = (*found.get(word, ()), (place, line))
        return cls(found, tuple(line for _, line in found.get(None, ())))

    def beside(self, words: Collection[str]) -> Sequence[ParsedRule]:
        """The rules that can match commands which begin with one of the words, in order."""
        found = [entry for word in words for entry in self.by_word.get(word, ())]
        if not found:
            return self.always
        return [line for _, line in sorted((*self.by_word.get(None, ()), *found), key=_PLACE)]


@dataclass(frozen=True, slots=True)
class RulesByEffect:
    """The rules that have a say in calls of some tools, by what they do. What a person remembered is
    apart from what else allows."""

    deny: RuleIndex
    remembered: RuleIndex
    ask: RuleIndex
    allow: RuleIndex


@dataclass(frozen=True)
class RuleSet:
    """Rules, in order."""

    rules: tuple[Rule, ...] = ()

    def lines(self, tools: Iterable[str]) -> RulesByEffect:
        """The rules that have a say in calls of one of the tools."""
        key = tuple(tools)
        found = self._looked_up.get(key)
        if found is None:
            lines = [line for line in self._lines if any(covers(line.name, tool) for tool in key)]
            found = RulesByEffect(
                RuleIndex.of(line for line in lines if line.rule.effect == "deny"),
                RuleIndex.of(line for line in lines if _is_remembered(line.rule)),
                RuleIndex.of(line for line in lines if line.rule.effect == "ask"),
                RuleIndex.of(line for line in lines if line.rule.effect == "allow"),
            )
            if len(self._looked_up) < _MOST_KEPT:
                self._looked_up[key] = found
        return found

    @cached_property
    def _lines(self) -> tuple[ParsedRule, ...]:
        return tuple(map(ParsedRule.of, self.rules))

    @cached_property
    def _looked_up(self) -> dict[tuple[str, ...], RulesByEffect]:
        return {}


def _is_remembered(rule: Rule) -> bool:
    return rule.effect == "allow" and rule.origin == REMEMBERED


Default = Literal["ask", "deny"]


@dataclass(frozen=True)
class Restriction(RuleSet):
    """The rules of a type of sub-agent: they tighten what the job's allow, and never loosen it.

    Its deny and ask rules always count. A ``closed`` one has rules that allow: what none of them
    matches is denied, whoever approves it. Without any it says nothing of what none of its rules matches.
    """

    agent_type: str = ""
    closed: bool = False


@dataclass(frozen=True)
class Policy(RuleSet):
    """The rules that hold for a run, in order, and their snapshot's number. A sub-agent has to keep to
    ``restrictions`` too: the rules of its type, and of the types of those that it works for."""

    default: Default = "deny"
    snapshot: int = 1
    restrictions: tuple[Restriction, ...] = ()

    def restricted(self, agent_type: str, rules: Iterable[Rule]) -> Policy:
        """What holds for a sub-agent of that type, started by whoever this holds for.

        Args:
            rules: the type's own, if it has any.
        """
        own = tuple(rules)
        if not own:
            return self
        closed = any(rule.effect == "allow" for rule in own)
        return replace(
            self, restrictions=(*self.restrictions, Restriction(own, agent_type, closed))
        )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the rules say of one aspect. ``effect`` is None when none of them matched. ``doubt`` says
    which rule may be about it, when nobody knows whether it is."""

    access: Access
    effect: Effect | None
    matched: MatchedRule | None = None
    doubt: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it lacks a rule that allows it."""
        return self.effect is None and (self.access.required or bool(self.doubt))


# A decision is made while others wait for the database, and who is asked has to be able to read it.
MOST_ACCESSES = 300
_TOO_MUCH = f"it holds more than {MOST_ACCESSES} commands: split it into several calls"


def evaluate(policy: Policy, request: Request) -> Decision:
    """The decision on a call; never raises, whatever is in the request.

    A denial and a question have the rule that decided as their ground; an allowed call has one for
    each of its commands and each path that it writes.
    """
    arguments = request.input if isinstance(request.input, Mapping) else {}
    found = accesses_of(request.tool, arguments, request.context)
    if len(found) > MOST_ACCESSES:
        return Decision("deny", (), policy.snapshot, _TOO_MUCH)
    return _decide(policy, found)


def evaluate_each(policy: Policy, request: Request) -> tuple[tuple[Access, Decision], ...]:
    """What the rules say of each aspect of a call by itself, for a reader; never raises. What is not
    required and that no rule matched is left out.

    Returns:
        Each command, path or host with its decision, in the order of the call.
    """
    arguments = request.input if isinstance(request.input, Mapping) else {}
    found = accesses_of(request.tool, arguments, request.context)
    decided = ((access, _decide(policy, (access,))) for access in found)
    return tuple(
        (access, decision)
        for access, decision in decided
        if access.required or decision.effect != "allow"
    )


def may_touch(policy: Policy, tool: str, place: ResolvedPath, context: ToolContext) -> Decision:
    """The decision on one file that a tool would show (Read, Grep, Glob) or change (Edit, Write).

    Args:
        place: absolute paths, as the tool found them.
        context: where the workspace, the outputs and the home are.
    """
    return _decide(policy, (file_touched(tool, place, context),))


def _decide(policy: Policy, found: Sequence[Access]) -> Decision:
    """The strictest of what the policy's own rules say and each of those that narrow it."""
    decision = _sum(policy, [_judge(policy, access) for access in found])
    if not policy.restrictions or decision.is_final:
        return decision
    narrower = (_restrict(policy, each, found) for each in policy.restrictions)
    return min((decision, *filter(None, narrower)), key=_leniency)


def _leniency(decision: Decision) -> int:
    return 0 if decision.is_final else _LENIENCY[decision.effect]


_LENIENCY: Mapping[Effect, int] = {"deny": 1, "ask": 2, "allow": 3}


def _restrict(policy: Policy, restriction: Restriction, found: Sequence[Access]) -> Decision | None:
    """What rules that narrow a policy say of a call; None when they let it be."""
    verdicts = [_judge_restricted(policy, restriction, access) for access in found]
    if not restriction.closed:
        said = [each for each in verdicts if each.effect is not None or each.doubt]
        return _sum(policy, said) if said else None
    closed = replace(policy, default="deny")
    decision = _sum(closed, verdicts, f"the agent type {shorten(restriction.agent_type)}")
    return replace(decision, barred=decision.effect == "deny")


def _judge_restricted(policy: Policy, restriction: Restriction, access: Access) -> _Verdict:
    """What a person remembered for the runs of a job answers the questions of these rules as well,
    and allows nothing else."""
    lines = restriction.lines(access.tools)
    denied = _denied(access, lines.deny)
    if denied is not None:
        return denied
    asked = _asked(access, lines.ask)
    if asked is not None:
        return _granted(access, policy.lines(access.tools).remembered) or asked
    return _granted(access, lines.allow) or _Verdict(access, None)


def _judge(policy: Policy, access: Access) -> _Verdict:
    lines = policy.lines(access.tools)
    return (
        _denied(access, lines.deny)
        or _granted(access, lines.remembered)
        or _asked(access, lines.ask)
        or _granted(access, lines.allow)
        or _Verdict(access, None)
    )


def _denied(access: Access, lines: RuleIndex) -> _Verdict | None:
    found = _caught(access, "deny", lines)
    return found or (_doubted(access, None, lines) if access.unplaced else None)


def _asked(access: Access, lines: RuleIndex) -> _Verdict | None:
    found = _caught(access, "ask", lines)
    return found or (_doubted(access, "ask", lines) if access.unplaced else None)


def _caught(access: Access, effect: Effect, lines: RuleIndex) -> _Verdict | None:
    for line in lines.beside(access.words):
        matched = access.catches(line)
        if matched is not None:
            return _Verdict(access, effect, MatchedRule(line.rule, matched))
    return None


def _doubted(access: Access, effect: Effect | None, lines: RuleIndex) -> _Verdict | None:
    """A file that nobody knows may be one that a rule is about: nothing allows it then."""
    for line in lines.always:
        if isinstance(line.specifier, PathPattern):
            about = f", and the rule {line.rule.effect} {line.rule.text!r} may be about that file"
            doubt = access.obstacle + (about if effect is None else "")
            return _Verdict(access, effect, MatchedRule(line.rule, access.shown), doubt)
    return None


def _granted(access: Access, lines: RuleIndex) -> _Verdict | None:
    for line in lines.beside(access.words):
        if access.grants(line):
            return _Verdict(access, "allow", MatchedRule(line.rule, access.shown))
    return None


def _sum(policy: Policy, verdicts: list[_Verdict], whose: str = "") -> Decision:
    """The least allowed of what was said of each aspect. ``whose`` the rules are, if not the job's."""
    by_effect: dict[Effect, list[MatchedRule]] = {"deny": [], "ask": [], "allow": []}
    doubts = []
    for verdict in verdicts:
        granted_aside = verdict.effect == "allow" and not verdict.access.required
        if verdict.effect is not None and verdict.matched is not None and not granted_aside:
            by_effect[verdict.effect].append(verdict.matched)
            if verdict.effect == "ask":
                doubts.append(verdict.doubt)
    unmatched = [each for each in verdicts if each.effect is None and each.is_open]
    if by_effect["deny"]:
        return Decision("deny", tuple(by_effect["deny"][:1]), policy.snapshot)
    if unmatched and not (policy.default == "ask" and by_effect["ask"]):
        return Decision(policy.default, (), policy.snapshot, _reason(unmatched[0], verdicts, whose))
    if by_effect["ask"]:
        return Decision("ask", tuple(by_effect["ask"][:1]), policy.snapshot, doubts[0])
    return Decision("allow", tuple(by_effect["allow"]), policy.snapshot)


def _reason(verdict: _Verdict, verdicts: list[_Verdict], whose: str) -> str:
    """Why an aspect that no rule matched was not allowed, where there is more to say than that."""
    access = verdict.access
    if verdict.doubt or access.obstacle:
        return verdict.doubt or access.obstacle
    if len(verdicts) == 1 and not whose:
        return ""
    return f"no permission rule of {whose or 'this job'} allows {shorten(access.shown)}"


def any_rule_matches(rules: tuple[Rule, ...], request: Request) -> bool:
    """Whether one of the rules matches any part of a call: a command of its script, a path. A call with
    too many parts to look at is one."""
    decision = evaluate(_asking_about(rules), request)
    return decision.effect == "deny" or bool(decision.matched_rules)


@lru_cache(maxsize=64)
def _asking_about(rules: tuple[Rule, ...]) -> Policy:
    """A policy that has grounds for what one of the rules matches, and none for anything else."""
    return Policy(tuple(replace(rule, effect="ask", origin="job") for rule in rules), "ask")
