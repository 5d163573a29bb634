"""Which files a search may show, by the rules of the call's authorization.

The worker packs the needed rules into the child's request; the child decides file by file. A search
meets thousands of files, so rules that cannot match below a folder are sorted out once per folder.
"""

from __future__ import annotations

import re
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
from runner.permissions.paths import PathPattern, Steps, is_below
from runner.permissions.rules import covers, name_of, parse, problem

_LONGEST_NAME = 255

# What a file's name must fit for a rule to match it, as it is written or in lower case; None: any name.
_Tests = list[tuple[re.Pattern[str], bool]] | None


class Screen:
    """Sorts rules out, file by file; what it knows of a folder is kept.

    Args:
        rules: all that concern the tool.
    """

    def __init__(self, rules: Sequence[Rule], context: ToolContext) -> None:
        self._outputs = context.outputs
        self._everywhere = tuple(range(len(rules)))
        self._patterns = [_anchored(rule, context) for rule in rules]
        self._folders: dict[str, list[tuple[int, _Tests]]] = {}

    def relevant(self, path: str) -> tuple[int, ...]:
        """The positions of the rules that may match a file: all that do, and some that do not.

        Args:
            path: absolute, without ``.`` and ``..``.
        """
        # Names beyond ASCII have several spellings, and long outputs have a rule of their own.
        if not path.isascii() or len(path) > _LONGEST_NAME or is_below(path, self._outputs):
            return self._everywhere
        folder, _, name = path.rpartition("/")
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._in(folder)
        lowered = name.lower()
        return tuple(
            position
            for position, tests in known
            if tests is None
            or any(test.search(lowered if folded else name) for test, folded in tests)
        )

    def _in(self, folder: str) -> list[tuple[int, _Tests]]:
        """The rules that may match files in a folder, and what such a file's name must fit."""
        found: list[tuple[int, _Tests]] = []
        for position, anchored in enumerate(self._patterns):
            tests = None if anchored is None else _tests(*anchored, folder)
            if tests != []:
                found.append((position, tests))
        return found


def _anchored(rule: Rule, context: ToolContext) -> tuple[PathPattern, str] | None:
    """A rule's pattern and the folder that it hangs on; None for a rule that may match any file."""
    try:
        specifier = parse(rule.text).specifier
    except ValueError:  # what is no rule denies whatever its name covers
        return None
    if not isinstance(specifier, PathPattern) or specifier.whole:
        return None
    root = {"root": "/", "home": context.home, "workspace": context.workspace}[specifier.anchor]
    return None if root is None or not root.isascii() else (specifier, root.rstrip("/"))


def _tests(pattern: PathPattern, root: str, folder: str) -> _Tests:
    tests: list[tuple[re.Pattern[str], bool]] = []
    for steps, folded in ((pattern.exact, False), (pattern.folded, True)):
        start, inside = (root.lower(), folder.lower()) if folded else (root, folder)
        if inside != start and not inside.startswith(f"{start}/"):
            continue
        below = inside[len(start) + 1 :]
        if not steps.names:
            return None
        *above, last = steps.names
        if last is None or (below and steps.match(below, folder=True)):
            return None
        while above and above[-1] is None:
            above.pop()
        anywhere = not above and len(steps.names) > 1
        if anywhere or (_begins(above, below) if above else not below):
            tests.append((last, folded))
    return tests


def _begins(above: list[re.Pattern[str] | None], below: str) -> bool:
    """Whether the first names of a pattern lead to a folder, or to one that it is in."""
    return Steps(tuple(above), inside=False).match(below, folder=True)


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
        tuple(at for at, rule in enumerate(rules) if covers(name_of(rule.text), tool))
        for rules in layers
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
