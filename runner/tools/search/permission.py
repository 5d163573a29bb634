"""Which files a search may show: worked out in the search child, by the rules of the call's permit.

The worker packs what the rules need into the child's request, when there is something to leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from runner.permissions import Answer, Decision, Permit, Place, Policy, Rule, Setting
from runner.permissions.decisions import Narrowing
from runner.permissions.rules import names, parse, problem
from runner.tools.search.screen import Screen

# Of a policy's own rules, then of each of those that narrow it: the positions of some of them.
_Positions = tuple[tuple[int, ...], ...]


def packed(permit: Permit, tool: str, named_base: str, setting: Setting) -> dict[str, Any] | None:
    """What ``shown`` needs, as a JSON object; None when the rules let the tool show every file.

    Args:
        named_base: the path that is searched, as ``Place.named``.
    """
    layers = _layers(permit.policy)
    positions = tuple(
        tuple(at for at, rule in enumerate(rules) if names(rule.text, tool)) for rules in layers
    )
    needed = (True, *(narrowing.closed for narrowing in permit.policy.narrowing))
    if all(
        (found or not is_needed) and all(_shows_everything(rules[at]) for at in found)
        for rules, found, is_needed in zip(layers, positions, needed, strict=True)
    ):
        return None
    return {
        "tool": tool,
        "named_base": named_base,
        "permit": asdict(_narrowed(permit, positions)),
        "workspace": setting.workspace,
        "outputs": setting.outputs,
        "home": setting.home,
    }


def shown(files: Sequence[str], base: str, permission: dict[str, Any]) -> list[str]:
    """Those of the files that may be shown.

    Args:
        files: paths at or below ``base``, which is absolute and has no symlinks in it.
        permission: what ``packed`` gave.
    """
    permit = _unpacked(permission["permit"])
    tool = permission["tool"]
    setting = Setting(permission["workspace"], permission["outputs"], permission["home"])
    screens = [Screen(rules, setting) for rules in _layers(permit.policy)]
    named_base, start = permission["named_base"].rstrip("/"), len(base.rstrip("/"))
    narrowed: dict[_Positions, Permit] = {}
    kept = []
    for path in files:
        place = Place(named_base + path[start:], path)
        relevant = tuple(_relevant(screen, place) for screen in screens)
        if relevant not in narrowed:
            narrowed[relevant] = _narrowed(permit, relevant)
        if narrowed[relevant].check(tool, place, setting).effect == "allow":
            kept.append(path)
    return kept


def _layers(policy: Policy) -> list[tuple[Rule, ...]]:
    """A policy's own rules, then those of each of those that narrow it."""
    return [policy.rules, *(narrowing.rules for narrowing in policy.narrowing)]


def _relevant(screen: Screen, place: Place) -> tuple[int, ...]:
    relevant = screen.relevant(place.real)
    if place.named == place.real:
        return relevant
    return tuple(sorted({*relevant, *screen.relevant(place.named)}))


def _narrowed(permit: Permit, positions: _Positions) -> Permit:
    """The permit with some of its rules."""
    policy = permit.policy
    own, *narrower = (
        tuple(rules[at] for at in found)
        for rules, found in zip(_layers(policy), positions, strict=True)
    )
    narrowing = tuple(map(_with_rules, policy.narrowing, narrower))
    return replace(permit, policy=replace(policy, rules=own, narrowing=narrowing))


def _with_rules(narrowing: Narrowing, rules: tuple[Rule, ...]) -> Narrowing:
    return replace(narrowing, rules=rules)  # it is as closed as it was


def _shows_everything(rule: Rule) -> bool:
    if rule.effect != "allow" or problem(rule.text) is not None:
        return False
    return parse(rule.text).specifier is None


def _unpacked(permit: dict[str, Any]) -> Permit:
    answer, policy = permit["answer"], permit["policy"]
    if answer is not None:
        answer = Answer(**{**answer, "places": tuple(answer["places"])})
    narrowing = tuple(Narrowing(**{**each, "rules": _rules(each)}) for each in policy["narrowing"])
    return Permit(
        decision=Decision(permit["decision"]["effect"]),
        answer=answer,
        input_digest=permit["input_digest"],
        policy=Policy(_rules(policy), policy["default"], policy["snapshot"], narrowing),
    )


def _rules(packed: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(Rule(**rule) for rule in packed["rules"])
