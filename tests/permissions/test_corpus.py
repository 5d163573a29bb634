"""The corpus: what must be decided of commands and paths, plain ones and attacks.

A file of ``corpus/`` is a list of groups, each with rules and the cases that they decide. A case
names a call (``bash``, ``read``, ``edit``, ``write``, ``grep``, ``glob``, ``url``, or ``tool`` for one
without a specifier), the effect that must come out (``refused``: ask or deny, whichever) and why;
``source`` is where a bypass was published. ``{pad}`` in a command stands for ``pad`` letters. The
paths of a call lead where ``links`` of the group say, as the engine would have found.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Policy, evaluate

FOLDER = Path(__file__).parent / "corpus"
WORKSPACE, HOME, OUTPUTS = "/ws", "/home/dev", "/runner/outputs/run_1"
OF_EACH_PROCESS = ("/proc/", "/dev/fd/", "/dev/std")  # the engine says of no path where it leads
CALLS = {
    "bash": ("Bash", "command"),
    "read": ("Read", "file_path"),
    "edit": ("Edit", "file_path"),
    "write": ("Write", "file_path"),
    "grep": ("Grep", "path"),
    "glob": ("Glob", "path"),
    "url": ("WebFetch", "url"),
}


@dataclass(frozen=True)
class Case:
    """One call and what must be decided of it; ``group`` has the rules."""

    group: Mapping[str, Any]
    text: Mapping[str, Any]

    @property
    def call(self) -> tuple[str, dict[str, str]]:
        """The tool and its input."""
        for key, (tool, argument) in CALLS.items():
            if key in self.text:
                pad = "a" * self.text.get("pad", 0)
                return tool, {argument: self.text[key].replace("{pad}", pad)}
        return self.text["tool"], {}

    @property
    def policy(self) -> Policy:
        """The rules of the group, those that a person's answer left among them."""
        rules = [
            Rule(effect, text, origin="remembered" if "remembered" in key else "job")
            for key, effect in {
                "allow": "allow",
                "ask": "ask",
                "deny": "deny",
                "remembered": "allow",
                "remembered_deny": "deny",
            }.items()
            for text in self.group.get(key, [])
        ]
        return Policy(tuple(rules), self.group.get("default", "ask"))

    @property
    def context(self) -> ToolContext:
        """Where the call runs, its paths resolved."""
        tool, arguments = self.call
        links = self.group.get("links", {})
        places = {}
        if not self.text.get("unresolved"):
            for path in paths_of(tool, arguments):
                place = place_of(path, links, tilde=tool == "Bash")
                if not f"{place.real}/".startswith(OF_EACH_PROCESS):
                    places[path] = place
        return ToolContext(WORKSPACE, OUTPUTS, HOME, places)


def place_of(path: str, links: Mapping[str, str], tilde: bool) -> ResolvedPath:
    """Where ``path`` leads, symlinks resolved as a kernel does: component by component. ``tilde``
    says whether ``~`` is the home, as it is for a shell."""
    if tilde and (path == "~" or path.startswith("~/")):
        path = HOME + path[1:]
    path = posixpath.join(WORKSPACE, path)
    named = re.sub("^//", "/", posixpath.normpath(path))
    return ResolvedPath(named, _resolve(path, links))


def _resolve(path: str, links: Mapping[str, str]) -> str:
    real, left, hops = "/", path.split("/"), 0
    while left:
        component = left.pop(0)
        if component in ("", "."):
            continue
        if component == "..":
            real = posixpath.dirname(real)
            continue
        real = posixpath.join(real, component)
        if real in links and hops < 40:
            hops += 1
            left = links[real].split("/") + left
            real = "/" if links[real].startswith("/") else posixpath.dirname(real)
    return real


def _named(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _groups() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.toml")):
        for group in tomllib.loads(file.read_text(encoding="utf-8"))["group"]:
            yield pytest.param(
                [Case(group, text) for text in group["cases"]],
                id=f"{file.stem}-{_named(group['about'])}",
            )


GROUPS = list(_groups())


@pytest.mark.parametrize("cases", GROUPS)
def test_corpus_is_decided_as_written(cases: list[Case]) -> None:
    wrong = []
    for case in cases:
        tool, arguments = case.call
        decision = evaluate(case.policy, Request(tool, arguments, case.context))
        expected = case.text["expect"]
        wanted = {"ask", "deny"} if expected == "refused" else {expected}
        if decision.effect not in wanted:
            wrong.append(f"{case.text['why']}: {decision.explain()}: {str(arguments)[:300]}")
    assert not wrong, "\n".join(wrong)


def test_corpus_is_large_enough_and_every_case_has_its_own_name() -> None:
    files = {group.id: group.id.partition("-")[0] for group in GROUPS}
    assert len(files) == len(GROUPS)
    names = Counter(
        (files[group.id], _named(case.text["why"])) for group in GROUPS for case in group.values[0]
    )
    assert [name for name, times in names.items() if times > 1] == []
    effects = Counter(case.text["expect"] for group in GROUPS for case in group.values[0])
    assert sum(effects.values()) >= 350
    assert effects["allow"] >= 120
