"""May this call run? A deny rule denies; else what a person remembered holds; else an ask rule asks;
else an allow rule allows; nothing matches: the job's default.

How special a rule is never matters, nor does the order of rules. A call with several accesses (a
script of several commands) is as allowed as the least allowed of them.

Source: https://code.claude.com/docs/en/permissions#manage-permissions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter

from runner.permissions.accesses import Access, accesses_of, file_access
from runner.permissions.rules import CommandPattern, ParsedRule, covers, quoted
from runner.permissions.values import (
    ABOVE_ASK,
    REMEMBERED,
    Answer,
    Decision,
    Default,
    Effect,
    MatchedRule,
    Request,
    ResolvedPath,
    Rule,
    ToolContext,
    digest_of,
)

_MOST_KEPT = 64  # tools whose rules are kept: a model can make up names of tools
_POSITION = itemgetter(0)
_LENIENCY: Mapping[Effect, int] = {"deny": 1, "ask": 2, "allow": 3}
# The limit keeps decisions fast (others wait for the database) and questions readable.
MOST_ACCESSES = 300
_TRUSTED = "no rule mentions all of it, and it runs in a sandbox (trust)"
_TOO_MUCH = f"it holds more than {MOST_ACCESSES} commands: split it into several calls"


class RuleIndex:
    """Rules in order, found by what the commands that they match begin with and contain."""

    def __init__(self, rules: Iterable[ParsedRule]) -> None:
        # Each rule with its position, and with a text that every command it matches contains.
        self._for_any: list[tuple[int, str, ParsedRule]] = []
        self._by_word: dict[str, list[tuple[int, str, ParsedRule]]] = {}
        for position, rule in enumerate(rules):
            command = rule.specifier if isinstance(rule.specifier, CommandPattern) else None
            found = self._for_any
            if command is not None and command.word is not None:
                found = self._by_word.setdefault(command.word, [])
            found.append((position, command.needle if command else "", rule))
        self._for_others = [rule for _, needle, rule in self._for_any if not needle]

    def about(self, access: Access) -> list[ParsedRule]:
        """Return the rules that can match an access, in order."""
        text = access.haystack
        if not text:  # it is no command
            return self._for_others
        found = [entry for entry in self._for_any if entry[1] in text]
        if words := self._by_word.keys() & access.words:
            found += [entry for word in words for entry in self._by_word[word] if entry[1] in text]
            found.sort(key=_POSITION)
        return [rule for _, _, rule in found]


# By effect. REMEMBERED has the allow rules that rank above ask rules; they are under "allow" too.
_Rules = Mapping[str, RuleIndex]


@dataclass(frozen=True)
class RuleSet:
    rules: tuple[Rule, ...] = ()

    def about(self, tools: tuple[str, ...]) -> _Rules:
        found = self._kept.get(tools)
        if found is None:
            groups: dict[str, list[ParsedRule]]
            groups = {"deny": [], REMEMBERED: [], "ask": [], "allow": []}
            for rule in map(ParsedRule.of, self.rules):
                if any(covers(rule.name, tool) for tool in tools):
                    above = rule.rule.effect == "allow" and rule.rule.origin in ABOVE_ASK
                    groups[REMEMBERED if above else rule.rule.effect].append(rule)
            groups["allow"] = [*groups[REMEMBERED], *groups["allow"]]
            found = {name: RuleIndex(rules) for name, rules in groups.items()}
            if len(self._kept) < _MOST_KEPT:
                self._kept[tools] = found
        return found

    @cached_property
    def _kept(self) -> dict[tuple[str, ...], _Rules]:
        return {}


@dataclass(frozen=True)
class Restriction(RuleSet):
    """The rules of a type of sub-agent: they tighten the job's rules and never loosen them. Deny
    and ask rules always count."""

    agent_type: str = ""
    # True if it has allow rules: a call that none of them matches is denied, even if approved.
    # Without allow rules, unmatched calls are not restricted.
    closed: bool = False


@dataclass(frozen=True)
class Policy(RuleSet):
    """The rules that hold for a run."""

    default: Default = "deny"
    snapshot: int = 1  # the rules' number
    # For a sub-agent: the rules of its type, and of its parents' types.
    restrictions: tuple[Restriction, ...] = ()
    # True if commands that no rule mentions are allowed, because they run in a sandbox.
    trusts_contained: bool = False

    def restricted(self, agent_type: str, rules: Iterable[Rule]) -> Policy:
        """Return the policy of a sub-agent of that type below this one, by the type's ``rules``."""
        own = tuple(rules)
        if not own:
            return self
        closed = any(rule.effect == "allow" for rule in own)
        restriction = Restriction(own, agent_type, closed)
        return replace(self, restrictions=(*self.restrictions, restriction))


@dataclass(slots=True)
class _Verdict:
    access: Access
    effect: Effect | None  # None when no rule matched
    matched: tuple[MatchedRule, ...] = ()  # one at most
    doubt: str = ""  # which rule may be about it, when nobody knows whether it is

    @property
    def is_open(self) -> bool:
        """True if it lacks a rule that allows it."""
        return self.effect is None and (self.access.required or bool(self.doubt))


def evaluate(policy: Policy, request: Request) -> Decision:
    """Return the decision on a call; never raises, whatever is in the request."""
    accesses = _accesses(request)
    if len(accesses) > MOST_ACCESSES:
        return Decision("deny", (), policy.snapshot, _TOO_MUCH)
    return _decide(policy, accesses, trusts=_trusts(policy, request.tool))


def evaluate_each(policy: Policy, request: Request) -> tuple[tuple[Access, Decision], ...]:
    """Return each access of a call with the decision on it, in order, for a reader. Optional
    accesses that no rule matched are left out. Never raises."""
    trusts = _trusts(policy, request.tool)
    decided = ((access, _decide(policy, (access,), trusts=trusts)) for access in _accesses(request))
    return tuple(
        (access, decision)
        for access, decision in decided
        if access.required or decision.effect != "allow"
    )


def may_touch(policy: Policy, tool: str, place: ResolvedPath, context: ToolContext) -> Decision:
    """Return the decision on one file that a tool would show (Read, Grep, Glob) or change (Edit,
    Write), at the place where the tool found it."""
    return _decide(policy, (file_access(tool, place.named, context, place),))


def any_rule_matches(rules: tuple[Rule, ...], request: Request) -> bool:
    """True if one of the rules, of any effect, matches a part of a call: a command of its script, a
    path. A call with too many parts counts as matched."""
    decision = evaluate(_asking_about(rules), request)
    return decision.effect == "deny" or bool(decision.matched_rules)


@lru_cache(maxsize=64)
def _asking_about(rules: tuple[Rule, ...]) -> Policy:
    return Policy(tuple(replace(rule, effect="ask", origin="job") for rule in rules), "ask")


def _accesses(request: Request) -> tuple[Access, ...]:
    arguments = request.input if isinstance(request.input, Mapping) else {}
    return accesses_of(request.tool, arguments, request.context)


def _trusts(policy: Policy, tool: str) -> bool:
    """True if what no rule mentions is allowed to a tool: only commands run in a sandbox."""
    return policy.trusts_contained and tool == "Bash"


def _decide(policy: Policy, accesses: Sequence[Access], *, trusts: bool = False) -> Decision:
    """Return the strictest decision among the policy's own rules and its restrictions."""
    rules = [policy.about(access.tools) for access in accesses]
    verdicts = list(map(_judge, accesses, rules, rules))
    decisions = [_sum(policy, verdicts, trusts=trusts)]
    if not decisions[0].is_final:
        for restriction in policy.restrictions:
            tighter = [restriction.about(access.tools) for access in accesses]
            verdicts = list(map(_judge, accesses, tighter, rules))
            if restriction.closed:
                whose = f"the agent type {quoted(restriction.agent_type)}"
                decision = _sum(replace(policy, default="deny"), verdicts, whose)
                decisions.append(replace(decision, barred=decision.effect == "deny"))
            elif said := [each for each in verdicts if each.effect is not None or each.doubt]:
                decisions.append(_sum(policy, said))
    return min(decisions, key=lambda each: 0 if each.is_final else _LENIENCY[each.effect])


def _judge(access: Access, rules: _Rules, remembered: _Rules) -> _Verdict:
    """Return the verdict of rules: a deny rule wins, then an ask rule unless a ``remembered`` rule allows
    the access, then an allow rule."""
    if (denied := _caught(access, "deny", rules)) is not None:
        return denied
    if (asked := _caught(access, "ask", rules)) is not None:
        return _granted(access, REMEMBERED, remembered) or asked
    return _granted(access, "allow", rules) or _Verdict(access, None)


def _caught(access: Access, effect: Effect, rules: _Rules) -> _Verdict | None:
    for rule in rules[effect].about(access):
        matched = access.catches(rule)
        if matched is not None:
            return _Verdict(access, effect, (MatchedRule(rule.rule, matched),))
    if not access.unknown:
        return None
    # An unknown file may be one that a rule names: nothing allows it then.
    for rule in rules[effect].about(access):
        if access.may_be(rule):
            maybe = (MatchedRule(rule.rule, access.shown),)
            if effect == "ask":
                return _Verdict(access, "ask", maybe, access.obstacle)
            about = f", and the rule {effect} {rule.rule.text!r} may be about that file"
            return _Verdict(access, None, maybe, access.obstacle + about)
    return None


def _granted(access: Access, kind: str, rules: _Rules) -> _Verdict | None:
    for rule in rules[kind].about(access):
        if access.grants(rule) and (
            access.is_named(rule) or all(_granted(each, kind, rules) for each in access.inner)
        ):
            return _Verdict(access, "allow", (MatchedRule(rule.rule, access.shown),))
    return None


def _sum(
    policy: Policy, verdicts: list[_Verdict], whose: str = "", *, trusts: bool = False
) -> Decision:
    """Return the decision on a call: the strictest of the verdicts on its accesses, by the rules of the
    job or of ``whose``. With ``trusts``, accesses that no rule mentions are allowed."""
    first = {verdict.effect: verdict for verdict in reversed(verdicts)}
    unmatched = next((each for each in verdicts if each.is_open), None)
    if "deny" in first:
        return Decision("deny", first["deny"].matched, policy.snapshot)
    # What a command hides may be what a rule mentions.
    unclear = any(each.is_open and (each.doubt or each.access.obstacle) for each in verdicts)
    trusted = trusts and unmatched is not None and not unclear
    asks = policy.default == "ask" and "ask" in first
    if unmatched is not None and not trusted and not asks:
        reason = unmatched.doubt or unmatched.access.obstacle
        if not reason and (whose or len(verdicts) > 1):
            access = unmatched.access
            of = "" if "Bash" in access.tools else f"{access.tools[0]} of "
            shown = of + quoted(access.shown)
            reason = f"no permission rule of {whose or 'this job'} allows {shown}"
        return Decision(policy.default, (), policy.snapshot, reason)
    if "ask" in first:
        return Decision("ask", first["ask"].matched, policy.snapshot, first["ask"].doubt)
    granted = chain.from_iterable(each.matched for each in verdicts if each.access.required)
    return Decision("allow", tuple(granted), policy.snapshot, _TRUSTED if trusted else "")


@dataclass(frozen=True, slots=True)
class Authorization:
    """The proof that one call, with one input, may run: no tool runs without one. Raises ValueError
    when the decision is not to allow it, and no answer approved this very input."""

    decision: Decision
    answer: Answer | None
    input_digest: str
    policy: Policy  # what else the call must keep to: the files that it may show or change

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
        """Return the decision (allow or deny) to show or change the file at this real place."""
        return self._settled(may_touch(self.policy, tool, place, context), (place,))

    def check_again(self, request: Request) -> Decision:
        """Return the decision (allow or deny) to run the call now, by its paths' places now."""
        return self._settled(evaluate(self.policy, request), request.context.places.values())

    def _settled(self, decision: Decision, places: Iterable[ResolvedPath]) -> Decision:
        """A person's approval overrides all but a final denial."""
        if decision.effect == "allow" or decision.is_final:
            return decision
        approved = self.answer is not None and all(map(self.answer.covers, places))
        return replace(decision, effect="allow" if approved else "deny")
