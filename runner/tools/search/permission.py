"""Which files a search may show: worked out in the search child, by the rules of the call's authorization.

The worker packs what the rules need into the child's request, when there is something to leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from runner.permissions import (
    Answer,
    Authorization,
    Decision,
    Policy,
    ResolvedPath,
    Rule,
    ToolContext,
)
from runner.permissions.decisions import Restriction
from runner.permissions.rules import names, parse, problem
from runner.tools.search.screen import Screen

# Of a policy's own rules, then of each of those that narrow it: the positions of some of them.
_Positions = tuple[tuple[int, ...], ...]


def packed(
    authorization: Authorization, tool: str, named_base: str, context: ToolContext
) -> dict[str, Any] | None:
    """What ``shown`` needs, as a JSON object; None when the rules let the tool show every file.

    Args:
        named_base: the path that is searched, as ``Place.named``.
    """
    layers = _layers(authorization.policy)
    positions = tuple(
        tuple(at for at, rule in enumerate(rules) if names(rule.text, tool)) for rules in layers
    )
    needed = (True, *(restriction.closed for restriction in authorization.policy.restrictions))
    if all(
        (found or not is_needed) and all(_shows_everything(rules[at]) for at in found)
        for rules, found, is_needed in zip(layers, positions, needed, strict=True)
    ):
        return None
    return {
        "tool": tool,
        "named_base": named_base,
        "authorization": asdict(_narrowed(authorization, positions)),
        "workspace": context.workspace,
        "outputs": context.outputs,
        "home": context.home,
    }


def shown(files: Sequence[str], base: str, permission: dict[str, Any]) -> list[str]:
    """Those of the files that may be shown.

    Args:
        files: paths at or below ``base``, which is absolute and has no symlinks in it.
        permission: what ``packed`` gave.
    """
    authorization = _unpacked(permission["authorization"])
    tool = permission["tool"]
    context = ToolContext(permission["workspace"], permission["outputs"], permission["home"])
    screens = [Screen(rules, context) for rules in _layers(authorization.policy)]
    named_base, start = permission["named_base"].rstrip("/"), len(base.rstrip("/"))
    narrowed: dict[_Positions, Authorization] = {}
    kept = []
    for path in files:
        place = ResolvedPath(named_base + path[start:], path)
        relevant = tuple(_relevant(screen, place) for screen in screens)
        if relevant not in narrowed:
            narrowed[relevant] = _narrowed(authorization, relevant)
        if narrowed[relevant].check(tool, place, context).effect == "allow":
            kept.append(path)
    return kept


def _layers(policy: Policy) -> list[tuple[Rule, ...]]:
    """A policy's own rules, then those of each of those that narrow it."""
    return [policy.rules, *(restriction.rules for restriction in policy.restrictions)]


def _relevant(screen: Screen, place: ResolvedPath) -> tuple[int, ...]:
    relevant = screen.relevant(place.real)
    if place.named == place.real:
        return relevant
    return tuple(sorted({*relevant, *screen.relevant(place.named)}))


def _narrowed(authorization: Authorization, positions: _Positions) -> Authorization:
    """The authorization with some of its rules."""
    policy = authorization.policy
    own, *narrower = (
        tuple(rules[at] for at in found)
        for rules, found in zip(_layers(policy), positions, strict=True)
    )
    restrictions = tuple(map(_with_rules, policy.restrictions, narrower))
    return replace(authorization, policy=replace(policy, rules=own, restrictions=restrictions))


def _with_rules(restriction: Restriction, rules: tuple[Rule, ...]) -> Restriction:
    return replace(restriction, rules=rules)  # it is as closed as it was


def _shows_everything(rule: Rule) -> bool:
    if rule.effect != "allow" or problem(rule.text) is not None:
        return False
    return parse(rule.text).specifier is None


def _unpacked(authorization: dict[str, Any]) -> Authorization:
    answer, policy = authorization["answer"], authorization["policy"]
    if answer is not None:
        answer = Answer(**{**answer, "places": tuple(answer["places"])})
    restrictions = tuple(
        Restriction(**{**each, "rules": _rules(each)}) for each in policy["restrictions"]
    )
    return Authorization(
        decision=Decision(authorization["decision"]["effect"]),
        answer=answer,
        input_digest=authorization["input_digest"],
        policy=Policy(_rules(policy), policy["default"], policy["snapshot"], restrictions),
    )


def _rules(packed: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(Rule(**rule) for rule in packed["rules"])
