"""Which rules can have a say about a file: a search asks about thousands of files, and of most rules
it is plain from a file's folder that they are about something else."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.permissions import Rule, ToolContext
from runner.permissions.paths import PathPattern, Steps, is_below
from runner.permissions.rules import parse

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
