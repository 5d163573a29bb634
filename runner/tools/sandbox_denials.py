"""Finds the existing paths that rules deny to commands: below a workspace, and elsewhere.

The patterns of all rules are tried together, name by name, as an automaton: a folder in which nothing
can match is not entered. What a folder holds is kept until its status changes, so that a second look
at a tree costs one system call for each folder.
"""

# ruff: noqa: PTH112, PTH115, PTH116 - plain strings: this runs for every folder

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from runner.permissions import ToolContext
from runner.permissions.decisions import Policy
from runner.permissions.paths import PathPattern, Steps, fold
from runner.permissions.rules import ParsedRule, covers
from runner.tools.file_access import ToolFailure, inside

MOST_ENTRIES = 2_000_000  # below a workspace; with more, commands are refused
MOST_ENTRIES_ELSEWHERE = 20_000  # outside, where nothing can be made: with more, rules are not held
_MOST_BEHIND_LINKS = 5_000  # outside, where links in the workspace lead

_MOST_MOVES = 200_000  # of an automaton, and listings that are kept
_SETTLED_NS = 50_000_000  # a folder that changed later may change again without a new time
_UNSEARCHED = frozenset({"/proc", "/sys", "/dev"})
_OF_EACH_PROCESS = ("/proc/", "/dev/")  # links there lead each process somewhere else
_READING, _WRITING = 1, 2
_DEAD = 0  # the state from which nothing can match
_FOLDER, _LINK, _OTHER = "folder", "link", "other"


@dataclass(frozen=True, slots=True)
class Denied:
    """An existing path that a rule denies, with all that is in it."""

    path: str  # absolute; a link is not resolved
    rule: str  # the text of the first rule that denies it
    reading: bool  # denied to Read: nothing may be seen of it
    writing: bool  # denied to Edit
    is_link: bool = False

    @classmethod
    def of(cls, path: str, move: _Move, *, is_link: bool = False) -> Denied:
        reading, writing = bool(move.denied & _READING), bool(move.denied & _WRITING)
        return cls(path, move.rule, reading, writing, is_link)


@dataclass(frozen=True, slots=True)
class _Pattern:
    steps: Steps  # from the root of the file system
    folded: bool
    denied: int
    rule: str
    elsewhere: bool  # it is about paths outside of the workspace too


@dataclass(frozen=True, slots=True)
class _Move:
    """The state that follows when a name is read, and the denials there."""

    state: int
    denied: int
    rule: str


_State = tuple[frozenset[int], ...]  # for each pattern, the positions in it that were reached


class Denials:
    """The denials of a policy that are about paths: of Read and Edit, as for redirects of a command."""

    def __init__(self, policy: Policy, context: ToolContext) -> None:
        rules = [*policy.rules, *(rule for each in policy.restrictions for rule in each.rules)]
        self._patterns = tuple(
            pattern
            for rule in map(ParsedRule.of, rules)
            for tool, denied in (("Read", _READING), ("Edit", _WRITING))
            if rule.rule.effect == "deny" and covers(rule.name, tool)
            for pattern in _patterns_of(rule, denied, context)
        )
        self._lock = threading.Lock()
        self._states: list[_State] = [tuple(frozenset() for _ in self._patterns)]
        self._known: dict[_State, int] = {self._states[0]: _DEAD}
        self._moves: dict[tuple[int, str], _Move] = {}
        self._looked_at: dict[tuple[str, int], _LookedAt] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def below(self, folder: str, leave_out: str, *, writing: bool = False) -> list[Denied]:
        """Return the denied paths at or below a folder, which has no symlinks in it; behind links that
        lead out of it, among the first files only: there they have names that nothing denies. Raises
        ``ToolFailure`` if there is too much in it.

        Args:
            leave_out: a folder that is not searched.
            writing: only what is denied to Edit.
        """
        patterns = [each for each in self._patterns if each.denied == _WRITING or not writing]
        start = self._start(folder, patterns)
        found = [Denied.of(folder, start)] if start.denied else []
        if start.denied & _READING:
            return found
        search = _Search(self, frozenset({leave_out}), MOST_ENTRIES)
        found += search.run(folder, start.state)
        if search.ended_early:
            raise ToolFailure(
                f"no command can run in {folder}: it has more than {MOST_ENTRIES:,} files, too many to "
                "look for what the rules deny; name folders in the deny rules of Read and Edit"
            )
        return found

    def elsewhere(self, leave_out: str) -> tuple[list[Denied], list[str]]:
        """Return the paths anywhere else that are denied to Read, and the texts of rules about so many
        files that they are not looked for. ``leave_out``: the workspace."""
        patterns = [each for each in self._patterns if each.elsewhere and each.denied == _READING]
        if not patterns:
            return [], []
        start = self._start("/", patterns)
        search = _Search(self, _UNSEARCHED | {leave_out}, MOST_ENTRIES_ELSEWHERE)
        found = list(search.run("/", start.state))
        if start.denied or search.ended_early:
            return found, sorted({each.rule for each in patterns})
        return found, []

    def move(self, state: int, name: str) -> _Move:
        """Return where a name leads from a state."""
        known = self._moves.get((state, name))
        if known is None:
            with self._lock:
                if len(self._moves) > _MOST_MOVES:
                    self._moves = {}
                known = self._moves[state, name] = self._moved(state, name)
        return known

    def looked_at(self, folder: str, state: int, listing: _Listing) -> _LookedAt:
        """Return what the patterns make of the content of a folder."""
        kept = self._looked_at.get((folder, state))
        if kept is None or kept.listing is not listing:
            if len(self._looked_at) > _MOST_MOVES:
                self._looked_at = {}
            kept = self._look_at(folder.rstrip("/") + "/", state, listing)
            self._looked_at[folder, state] = kept
        return kept

    def _look_at(self, prefix: str, state: int, listing: _Listing) -> _LookedAt:
        looked_at = _LookedAt(listing)
        for name, kind in listing.entries:
            path, move = prefix + name, self.move(state, name)
            if move.denied:
                looked_at.denied.append(Denied.of(path, move, is_link=kind == _LINK))
            if move.state == _DEAD or kind == _OTHER or move.denied & _READING:
                continue
            if kind == _LINK:
                looked_at.links.append((path, move.state))
            elif not path.endswith("/.git/objects"):  # git names what is in it by digests
                looked_at.folders.append((path, move.state))
        return looked_at

    def _moved(self, state: int, name: str) -> _Move:
        plain = fold(name)
        reached = (
            pattern.steps.advance(before, plain if pattern.folded else name)
            for pattern, before in zip(self._patterns, self._states[state], strict=True)
        )
        return self._arrived([frozenset(each) for each in reached])

    def _start(self, folder: str, patterns: Sequence[_Pattern]) -> _Move:
        """Return the state at a folder, of some of the patterns, and what it is denied: itself, or by
        a folder above it."""
        reached = [each.steps.reach({0}) if each in patterns else () for each in self._patterns]
        with self._lock:
            here = self._arrived([frozenset(each) for each in reached])
        for name in filter(None, folder.split("/")):
            below = self.move(here.state, name)
            here = _Move(below.state, here.denied | below.denied, here.rule or below.rule)
        return here

    def _arrived(self, reached: list[frozenset[int]]) -> _Move:
        """Number a state. A pattern that has matched does so for all that is below, and ends there."""
        denied, rule = 0, ""
        for at, pattern in enumerate(self._patterns):
            if len(pattern.steps.names) in reached[at]:
                denied, rule = denied | pattern.denied, rule or pattern.rule
                reached[at] = frozenset()
        state = tuple(reached)
        if state not in self._known:
            self._states.append(state)
            self._known[state] = len(self._states) - 1
        return _Move(self._known[state], denied, rule)


@lru_cache(maxsize=64)
def denials_of(policy: Policy, workspace: str | None, home: str | None) -> Denials:
    """Return the denials of a policy for a run in a workspace; ``home`` is the user's."""
    return Denials(policy, ToolContext(workspace, home=home))


def _patterns_of(rule: ParsedRule, denied: int, context: ToolContext) -> Iterator[_Pattern]:
    pattern, text = rule.specifier, rule.rule.text
    if rule.broken or pattern is None:  # every path of the workspace
        root, elsewhere, versions = context.workspace, False, [(Steps((), inside=True), True)]
    elif isinstance(pattern, PathPattern):
        roots = {"root": "/", "home": context.home, "workspace": context.workspace}
        root, elsewhere = roots[pattern.anchor], pattern.anchor != "workspace"
        versions = [(pattern.folded, True)]
        if pattern.exact is not pattern.folded:
            versions.append((pattern.exact, False))
        if root is None:  # where its anchor is, is not known: it holds at any depth
            root, versions = "/", [(pattern.unanchored, True)]
    else:
        return
    for steps, folded in versions:
        above = (fold(root or "/") if folded else root or "/").split("/")
        names = (re.compile(rf"\A{re.escape(name)}\Z") for name in above if name)
        whole = Steps((*names, *steps.names), steps.inside)
        yield _Pattern(whole, folded, denied, text, elsewhere)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The content of a folder: names and kinds."""

    status: tuple[int, int, int]
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """The entries of a folder, in one state, that patterns match."""

    listing: _Listing
    denied: list[Denied] = field(default_factory=list)
    folders: list[tuple[str, int]] = field(default_factory=list)  # to look at next, with states
    links: list[tuple[str, int]] = field(default_factory=list)  # that may lead to such


_LISTINGS: dict[str, _Listing] = {}


@dataclass(slots=True)
class _Search:
    """One search through a tree."""

    denials: Denials
    leave_out: frozenset[str]
    most: int
    ended_early: bool = False
    _entries: int = 0
    _behind_links: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def run(self, folder: str, state: int) -> Iterator[Denied]:
        waiting = [(folder, state)]
        while waiting and not self.ended_early:
            here, state = waiting.pop()
            if state == _DEAD or (here, state) in self._seen or here in self.leave_out:
                continue
            self._seen.add((here, state))
            listing = _listed(here)
            if listing is None:
                if self.most == MOST_ENTRIES:  # a command could make it readable again
                    yield Denied(here, "", reading=True, writing=False)
                continue
            entries = 1 + len(listing.entries)
            if self.most == MOST_ENTRIES and not inside(here, folder):
                self._behind_links += entries
                if self._behind_links > _MOST_BEHIND_LINKS:
                    continue
            self._entries += entries
            self.ended_early = self._entries > self.most
            looked_at = self.denials.looked_at(here, state, listing)
            yield from looked_at.denied
            waiting += looked_at.folders
            for path, after in looked_at.links:
                if os.path.isdir(path) and not os.readlink(path).startswith(_OF_EACH_PROCESS):
                    waiting.append((os.path.realpath(path), after))


def _listed(folder: str) -> _Listing | None:
    """Return what is in a folder, nothing if it is gone; None if it cannot be read."""
    found: list[tuple[str, str]] = []
    try:
        status = os.stat(folder, follow_symlinks=False)
        stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
        kept = _LISTINGS.get(folder)
        if kept is not None and kept.status == stamp:
            return kept
        with os.scandir(folder) as entries:
            for entry in entries:
                kind = _LINK if entry.is_symlink() else _FOLDER if entry.is_dir() else _OTHER
                found.append((entry.name, kind))
    except (FileNotFoundError, NotADirectoryError):
        return _Listing((0, 0, 0), ())
    except OSError:
        return None
    listing = _Listing(stamp, found)
    if time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
        if len(_LISTINGS) > _MOST_MOVES:
            _LISTINGS.clear()
        _LISTINGS[folder] = listing
    return listing
