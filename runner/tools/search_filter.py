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

# Of a policy's own rules, then of each restriction's: the positions of some of them.
_Positions = tuple[tuple[int, ...], ...]
# What a file's name must fit for a rule to match it, as it is written or in lower case; None: any name.
_Tests = list[tuple[re.Pattern[str], bool]] | None


def packed(
    authorization: Authorization, tool: str, named_base: str, context: ToolContext
) -> dict[str, Any] | None:
    """Return what ``shown`` needs, as a JSON object; None when the rules let the tool show every file.

    Args:
        named_base: the path that is searched, as ``ResolvedPath.named``.
    """
    policy = authorization.policy
    layers = _layers(policy)
    positions = tuple(
        tuple(at for at, rule in enumerate(rules) if covers(name_of(rule.text), tool))
        for rules in layers
    )
    needed = (True, *(restriction.closed for restriction in policy.restrictions))
    if all(
        (found or not is_needed) and all(_shows_everything(rules[at]) for at in found)
        for rules, found, is_needed in zip(layers, positions, needed, strict=True)
    ):
        return None
    return {
        "tool": tool,
        "named_base": named_base,
        "authorization": asdict(_narrowed(authorization, positions)),
        "context": {each: getattr(context, each) for each in ("workspace", "outputs", "home")},
    }


def shown(files: Sequence[str], base: str, permission: dict[str, Any]) -> list[str]:
    """Return the files that may be shown.

    Args:
        files: paths at or below ``base``, which is absolute and has no symlinks in it.
        permission: what ``packed`` gave.
    """
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
    screens = [_Screen(rules, context) for rules in _layers(authorization.policy)]
    named_base, start = permission["named_base"].rstrip("/"), len(base.rstrip("/"))
    narrowed: dict[_Positions, Authorization] = {}
    kept = []
    for path in files:
        place = ResolvedPath(named_base + path[start:], path)
        relevant = tuple(screen.relevant(place) for screen in screens)
        if relevant not in narrowed:
            narrowed[relevant] = _narrowed(authorization, relevant)
        if narrowed[relevant].check(tool, place, context).effect == "allow":
            kept.append(path)
    return kept


def _rules(packed: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(Rule(**rule) for rule in packed["rules"])


def _layers(policy: Policy) -> list[tuple[Rule, ...]]:
    """Return a policy's own rules, then those of each restriction."""
    return [policy.rules, *(restriction.rules for restriction in policy.restrictions)]


def _narrowed(authorization: Authorization, positions: _Positions) -> Authorization:
    """Return the authorization with the rules at some positions alone."""
    policy = authorization.policy
    own, *narrower = (
        tuple(rules[at] for at in found)
        for rules, found in zip(_layers(policy), positions, strict=True)
    )
    restrictions = tuple(
        replace(restriction, rules=rules)  # it is as closed as it was
        for restriction, rules in zip(policy.restrictions, narrower, strict=True)
    )
    return replace(authorization, policy=replace(policy, rules=own, restrictions=restrictions))


def _shows_everything(rule: Rule) -> bool:
    if rule.effect != "allow" or problem(rule.text) is not None:
        return False
    return parse(rule.text).specifier is None


class _Screen:
    """Sorts rules out, file by file; what it knows of a folder is kept.

    Args:
        rules: all that concern the tool.
    """

    def __init__(self, rules: Sequence[Rule], context: ToolContext) -> None:
        self._outputs = context.outputs
        self._everywhere = tuple(range(len(rules)))
        self._patterns = [_anchored(rule, context) for rule in rules]
        self._folders: dict[str, list[tuple[int, _Tests]]] = {}

    def relevant(self, place: ResolvedPath) -> tuple[int, ...]:
        """Return the positions of the rules that may match a file: all that do, and some that do not."""
        relevant = self._relevant(place.real)
        if place.named == place.real:
            return relevant
        return tuple(sorted({*relevant, *self._relevant(place.named)}))

    def _relevant(self, path: str) -> tuple[int, ...]:
        # Names beyond ASCII have several spellings, and long outputs have a rule of their own.
        if not path.isascii() or len(path) > _LONGEST_NAME or is_below(path, self._outputs):
            return self._everywhere
        folder, _, name = path.rpartition("/")
        if (known := self._folders.get(folder)) is None:
            tests = (None if each is None else _tests(*each, folder) for each in self._patterns)
            known = [(position, each) for position, each in enumerate(tests) if each != []]
            self._folders[folder] = known
        lowered = name.lower()
        return tuple(
            position
            for position, tests in known
            if tests is None
            or any(test.search(lowered if folded else name) for test, folded in tests)
        )


def _anchored(rule: Rule, context: ToolContext) -> tuple[PathPattern, str] | None:
    """Return a rule's pattern and the folder that it hangs on; None if it may match any file."""
    try:
        specifier = parse(rule.text).specifier
    except ValueError:  # what is no rule denies whatever its name covers
        return None
    if not isinstance(specifier, PathPattern) or specifier.whole:
        return None
    root = {"root": "/", "home": context.home, "workspace": context.workspace}[specifier.anchor]
    return None if root is None or not root.isascii() else (specifier, root.rstrip("/"))


def _tests(pattern: PathPattern, root: str, folder: str) -> _Tests:
    """Return what the name of a file in a folder must fit for a pattern to match it."""
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
        # The first names of the pattern must lead to the folder, or to one that it is in.
        leads = not below or len(steps.names) > 1
        if above:
            leads = Steps(tuple(above), inside=False).match(below, folder=True)
        if leads:
            tests.append((last, folded))
    return tests
