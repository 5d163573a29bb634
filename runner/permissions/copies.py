"""Rules about absolute paths, for runs that work in copies of the folder that those paths name.

A rule such as ``Edit(//srv/tree/docs/**)`` would say nothing of the copy of ``/srv/tree`` that a run
works in. Beside it stands what it means there: ``Edit(/docs/**)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.permissions.paths import PathPattern, Steps, fold, path_pattern
from runner.permissions.rules import Rule, parse

_SPECIAL = re.compile(r"[*?\[\]\\]")


def with_copies(rules: Sequence[Rule], folders: Sequence[str], home: str | None) -> list[Rule]:
    """The rules, each that leads into the workspace by an absolute path followed by what it means
    in a copy of it.

    Args:
        folders: the workspace's absolute path with symlinks resolved, then other names of it: by
            those, too, rules deny and ask, but never allow.
        home: the user's, for ``~``, symlinks resolved.
    """
    found: list[Rule] = []
    for rule in rules:
        names = folders[:1] if rule.effect == "allow" else folders
        texts = dict.fromkeys(text for name in names for text in _rebased(rule, name, home))
        found += [rule, *(replace(rule, text=text) for text in texts if text != rule.text)]
    return found


def _rebased(rule: Rule, folder: str, home: str | None) -> Iterator[str]:
    syntax = parse(rule.text)
    pattern = syntax.specifier
    if not isinstance(pattern, PathPattern) or pattern.anchor == "workspace":
        return
    written = rule.text.partition("(")[2][:-1]
    if pattern.anchor == "home":
        if home is None:
            return
        written = f"/{_SPECIAL.sub(_escaped, home.rstrip('/'))}{written[1:] or '/'}"
        pattern = path_pattern(written)
    if pattern.whole:  # the root of the file system: the copy is there too
        return
    loose = rule.effect != "allow"
    steps = pattern.folded if loose else pattern.exact
    rests = _rests(steps, (fold(folder) if loose else folder).strip("/").split("/"))
    names = written.strip("/").split("/")
    if any(at == len(steps.names) for at in rests):
        yield f"{syntax.name}(/**)"
        return
    end = "/" if written.endswith("/") else ""
    for at in sorted(rests - {0}):  # from its beginning it holds at any depth, in the copy as well
        if steps.names[at - 1] is not None or at - 1 not in rests:
            yield f"{syntax.name}(/{'/'.join(names[at:])}{end})"


def _rests(steps: Steps, folder: Sequence[str]) -> set[int]:
    """Where in a pattern one may be when one stands in a folder: at its end, when the pattern covers
    the folder or one above it."""
    last = len(steps.names)
    reached = _passed(steps, {0})
    for name in folder:
        if last in reached:
            break
        moved: set[int] = set()
        for at in reached:
            step = steps.names[at]
            if step is None:
                moved.add(at)
            elif step.search(name):
                moved.add(at + 1)
        reached = _passed(steps, moved)
    return reached


def _passed(steps: Steps, reached: set[int]) -> set[int]:
    """The same, and what is behind each ``**``, which may stand for nothing."""
    found = set(reached)
    for at in sorted(reached):
        while at < len(steps.names) and steps.names[at] is None:
            at += 1
            found.add(at)
    return found


def _escaped(sign: re.Match[str]) -> str:
    return f"\\{sign.group()}"
