"""The files that a search may show, by the rules of the call's authorization.

The worker packs the needed rules into the child's request; the child decides file by file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from runner.permissions import Answer, Decision, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import Authorization, Policy, Restriction
from runner.permissions.rules import covers, name_of, parse, problem


def packed(
    authorization: Authorization, tool: str, named_base: str, context: ToolContext
) -> dict[str, Any] | None:
    """Return what ``shown`` needs for a search in ``named_base``, as a JSON object; None when the
    rules let the tool show every file."""
    policy = authorization.policy
    own, *narrower = (
        tuple(rule for rule in rules if covers(name_of(rule.text), tool))
        for rules in (policy.rules, *(restriction.rules for restriction in policy.restrictions))
    )
    restrictions = tuple(
        replace(restriction, rules=rules)  # it stays as closed
        for restriction, rules in zip(policy.restrictions, narrower, strict=True)
    )
    # Where there is no rule, a closed restriction shows nothing.
    needed = [own, *(each.rules for each in restrictions if each.closed)]
    if all(needed) and all(map(_shows_everything, chain(own, *narrower))):
        return None
    policy = replace(policy, rules=own, restrictions=restrictions)
    return {
        "tool": tool,
        "named_base": named_base,
        "authorization": asdict(replace(authorization, policy=policy)),
        "context": {each: getattr(context, each) for each in ("workspace", "outputs", "home")},
    }


def shown(files: Sequence[str], base: str, permission: dict[str, Any]) -> list[str]:
    """Return the files that may be shown of ``files``, which are at or below ``base``, an absolute
    path without symlinks. ``permission`` is of ``packed``."""
    tool, context = permission["tool"], ToolContext(**permission["context"])
    packed_one = permission["authorization"]
    answer, policy = packed_one["answer"], packed_one["policy"]
    if answer is not None:
        answer = Answer(**{**answer, "places": tuple(answer["places"])})
    restrictions = tuple(
        Restriction(**{**each, "rules": _rules(each)}) for each in policy["restrictions"]
    )
    authorization = Authorization(
        decision=Decision(packed_one["decision"]["effect"]),
        answer=answer,
        input_digest=packed_one["input_digest"],
        policy=Policy(_rules(policy), policy["default"], policy["snapshot"], restrictions),
    )
    named_base, start = permission["named_base"].rstrip("/"), len(base.rstrip("/"))
    places = (ResolvedPath(named_base + path[start:], path) for path in files)
    return [
        place.real
        for place in places
        if authorization.check(tool, place, context).effect == "allow"
    ]


def _rules(packed: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(Rule(**rule) for rule in packed["rules"])


def _shows_everything(rule: Rule) -> bool:
    if rule.effect != "allow" or problem(rule.text) is not None:
        return False
    return parse(rule.text).specifier is None
