"""Which files a search may show: worked out in the search child, by the rules of the call's permit.

The worker packs what the rules need into the child's request, when there is something to leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from runner.core.permissions import Answer, Decision, Permit, Place, Policy, Rule, Setting
from runner.core.permissions.language.syntax import names, parse, problem
from runner.tools.search.screen import Screen


def packed(permit: Permit, tool: str, named_base: str, setting: Setting) -> dict[str, Any] | None:
    """What ``shown`` needs, as a JSON object; None when the rules let the tool show every file.

    Args:
        named_base: the path that is searched, as ``Place.named``.
    """
    rules = permit.policy.rules
    positions = [at for at, rule in enumerate(rules) if names(rule.text, tool)]
    if positions and all(_shows_everything(rules[at]) for at in positions):
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
    screen = Screen(permit.policy.rules, setting)
    named_base, start = permission["named_base"].rstrip("/"), len(base.rstrip("/"))
    narrowed: dict[tuple[int, ...], Permit] = {}
    kept = []
    for path in files:
        place = Place(named_base + path[start:], path)
        relevant = screen.relevant(path)
        if place.named != path:
            relevant = tuple(sorted({*relevant, *screen.relevant(place.named)}))
        if relevant not in narrowed:
            narrowed[relevant] = _narrowed(permit, relevant)
        if narrowed[relevant].check(tool, place, setting).effect == "allow":
            kept.append(path)
    return kept


def _narrowed(permit: Permit, positions: Sequence[int]) -> Permit:
    """The permit with some of its rules."""
    rules = tuple(permit.policy.rules[position] for position in positions)
    return replace(permit, policy=replace(permit.policy, rules=rules))


def _shows_everything(rule: Rule) -> bool:
    if rule.effect != "allow" or problem(rule.text) is not None:
        return False
    return parse(rule.text).specifier is None


def _unpacked(permit: dict[str, Any]) -> Permit:
    answer, policy = permit["answer"], permit["policy"]
    if answer is not None:
        answer = Answer(**{**answer, "places": tuple(answer["places"])})
    rules = tuple(Rule(**rule) for rule in policy["rules"])
    return Permit(
        decision=Decision(permit["decision"]["effect"]),
        answer=answer,
        input_digest=permit["input_digest"],
        policy=Policy(rules, policy["default"], policy["snapshot"]),
    )
