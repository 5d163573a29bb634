"""Resolved paths of a call, and the path patterns of rules of Read, Edit, Write, Grep and Glob, by
gitignore's syntax.

A pattern hangs on an anchor: ``//etc/**`` on the root, ``~/notes/*`` on the home folder, all others on
the workspace: ``/docs/*.md`` and ``./docs/*.md`` from its top, ``*.env`` at any depth. It never matches
outside of its anchor. One that names a folder covers what is in it.

Sources: https://git-scm.com/docs/gitignore#_pattern_format,
https://code.claude.com/docs/en/permissions#read-and-edit.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from runner.permissions.values import ResolvedPath, ToolContext

Anchor = Literal["root", "home", "workspace"]

_LONGEST_PATH = 4096  # PATH_MAX of Linux: what is longer cannot be opened
_LONGEST_NAME = 255
_WHOLE = ("", ".", "*", "**", "**/*", "**/", "**/**")
_STAR = "[^/]*"  # what pathspec makes of "*"; no pattern for one name can contain it otherwise
# What HFS+ leaves out when it compares names: ".g\u200cit" opens ".git" there.
_IGNORED = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)
_SIGNS = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)
_ANY = "\ue000\ue001"  # a name that no rule spells out
# A rule about ``.env.*`` is about no source code: ``find src -name "*.py"`` may find ``.env.py`` as well.
_SETTINGS = re.compile(r"\.\w.*\*")
_SOURCE = re.compile(
    r"(?:\.\*[^*?\[]*)?\.(?:pyi?|ipynb|[cm]?[jt]sx?|go|rs|rb|java|kts?|scala|cc|[ch](?:pp|xx)?|hh|cs|swift|vue|svelte|s?css|html?"
    r"|md|rst|proto|sql|tf|exs?|erl|hs|ml|lua|dart|jl)"
)
_DOUBLE = re.compile(r"\A/(?=/)")
_TOKEN = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Steps:
    """A pattern, name by name."""

    names: tuple[re.Pattern[str] | None, ...]  # what each name must look like; None for "**"
    inside: bool  # it matches what is in the folder at its end, not the folder as a file
    globs: tuple[str, ...] = ()  # the names as written

    def match(self, path: str, *, folder: bool) -> bool:
        """True if the path (relative to the anchor), or a folder that it is in, matches. The time
        is proportional to its length. ``folder``: the path may be a folder."""
        above, slash, name = path.rpartition("/")
        reached = _reached(self, above) if slash else self.reach({0})
        if reached is None:
            return True
        return (folder or not self.inside) and len(self.names) in self.advance(reached, name)

    def advance(self, reached: Iterable[int], name: str) -> set[int]:
        """Return the positions in the pattern that a name leads to."""
        moved: set[int] = set()
        for at in reached:
            if at < len(self.names):
                step = self.names[at]
                if step is None:
                    moved.add(at)
                elif step.search(name):
                    moved.add(at + 1)
        return self.reach(moved) if moved else moved

    def reach(self, steps: set[int]) -> set[int]:
        """Add the position after each reached ``**``, because a ``**`` may match no folder at all."""
        last = len(self.names)
        for step in sorted(steps):
            at = step
            while at < last and self.names[at] is None:
                at += 1
                steps.add(at)
        return steps


@lru_cache(maxsize=8192)  # a search asks about thousands of files in the same folders
def _reached(steps: Steps, folder: str) -> frozenset[int] | None:
    """Return the positions in a pattern that a folder leads to; None if the folder itself matches."""
    reached = steps.reach({0})
    for part in folder.split("/"):
        reached = steps.advance(reached, part)
        if len(steps.names) in reached:
            return None
    return frozenset(reached)


@dataclass(frozen=True, slots=True)
class PathPattern:
    """The specifier of a rule about files."""

    anchor: Anchor
    whole: bool  # it covers its anchor itself and everything below it
    exact: Steps  # for a path below the anchor
    folded: Steps  # for the same path without case
    unanchored: Steps  # for a path when the folder of its anchor is not known

    def covers(self, place: ResolvedPath, context: ToolContext, *, folder: bool = False) -> bool:
        """True if the path as named and where it leads both match, to the letter. ``folder``: the place
        is one, whose content is asked for."""
        root = self._root(context)
        return root is not None and all(
            not _too_long(path) and self._matches(self.exact, path, root, folder)
            for path in place.paths
        )

    def catches(self, paths: Iterable[str], context: ToolContext) -> str | None:
        """Return the first of absolute paths that matches in some reading: as a file or a folder,
        whatever the case, and at any depth when it is not known where the anchor is."""
        root = self._root(context)
        for path in paths:
            if _too_long(path):
                return path
            plain = fold(path)
            if root is None:
                found = self.whole or self.unanchored.match(plain.strip("/"), folder=True)
            else:
                found = self._matches(self.folded, plain, fold(root), True)
                if not found and (plain != path or self.folded is not self.exact):
                    found = self._matches(self.exact, path, root, True)
            if found:
                return path
        return None

    def reaches_below(
        self, folders: Iterable[str], name: str, deep: bool, context: ToolContext
    ) -> bool:
        """True if it may match a path below one of absolute folders whose first name there fits a glob
        of bash; "" for any name, "**" for anything at any depth. ``deep``: or what is below that name. A
        pattern that holds at any depth counts below its anchor, not deep in each folder."""
        root = fold(self._root(context) or "/")
        for folder in map(fold, folders):
            below = _below(folder, root)
            if below is None:
                if deep and _below(root, folder) is not None:
                    return True
            elif self.whole or self._fits_below(below, fold(name), deep):
                return True
        return False

    def covers_below(
        self, folders: Iterable[str], name: str, deep: bool, context: ToolContext
    ) -> bool:
        """True if the rule surely matches every path below each absolute folder that fits ``name`` and
        ``deep`` (see ``reaches_below``)."""
        root = self._root(context)
        if root is None or any("[" in glob or "?" in glob for glob in self.exact.globs):
            return False
        names = [f"{_ANY}/{_ANY}", _ANY] if name == "**" else _examples(name)
        names += [f"{each}/{_ANY}" for each in names if deep]
        return all(
            self._matches(self.exact, f"{folder}/{each}", root, False)
            for folder in folders
            for each in names
        )

    def _fits_below(self, folder: str, name: str, deep: bool) -> bool:
        steps = self.folded
        reached = _reached(steps, folder) if folder else frozenset(steps.reach({0}))
        if reached is None:
            return True
        for at in reached:
            led = not folder or any(step is not None for step in steps.names[:at])
            if name == "**":
                if led:
                    return True
                continue
            last = at + 1 == len(steps.names) and not steps.inside
            follows = at < len(steps.names) and steps.names[at] is not None
            if follows and (last or (deep and led)) and _overlap(name, steps.globs[at]):
                return True
        return False

    @property
    def everything(self) -> bool:
        """True if no path is outside of it."""
        return self.whole and self.anchor == "root"

    @property
    def is_git(self) -> bool:
        """True if it matches nothing but git's own files at the workspace's top."""
        return self.anchor == "workspace" and self.exact.globs[:1] == (".git",)

    def _root(self, context: ToolContext) -> str | None:
        if self.anchor == "root":
            return "/"
        return context.home if self.anchor == "home" else context.workspace

    def _matches(self, steps: Steps, path: str, root: str, folder: bool) -> bool:
        below = _below(path, root)
        return below is not None and (
            self.whole or (below != "" and steps.match(below, folder=folder))
        )


@lru_cache(maxsize=8192)
def path_pattern(specifier: str) -> PathPattern:
    """Read a specifier of files. Raises ValueError if it matches nothing, or not what was meant."""
    if specifier.startswith("!"):
        raise ValueError("begins with '!', which no rule understands: write a deny rule")
    if specifier != specifier.strip():
        raise ValueError("begins or ends with whitespace: remove it")
    anchor, rest = _anchored(specifier)
    if ".." in rest.split("/"):
        raise ValueError("has '..': write '//' and the absolute path")
    whole = rest.lstrip("/") in _WHOLE or set(rest.strip("/").split("/")) == {"**"}
    if not whole and "//" in rest:
        raise ValueError("has '//' after its beginning: no path does")
    exact = _steps("**" if whole else rest)
    try:
        folded = exact if whole or fold(rest) == rest else _steps(fold(rest))
    except ValueError:  # case folding turned a range around
        folded = exact
    unanchored = Steps((None, *folded.names), folded.inside, ("**", *folded.globs))
    return PathPattern(anchor, whole, exact, folded, unanchored)


@lru_cache(maxsize=4096)
def fold(path: str) -> str:
    """Return the path as a file system sees it that ignores case and knows one spelling of a letter."""
    if path.isascii():
        return path.lower()
    plain = unicodedata.normalize("NFD", path.translate(_IGNORED)).casefold()
    return unicodedata.normalize("NFC", plain)


def absolute(text: str, context: ToolContext) -> tuple[str, ...]:
    """Return the absolute path of an unresolved one, by its letters alone."""
    found = [posixpath.join(context.workspace or "/", text)]
    if context.home is not None and (text == "~" or text.startswith("~/")):
        found.append(context.home + text[1:])
    return tuple(_DOUBLE.sub("", posixpath.normpath(path)) for path in found)


def is_below(path: str, folder: str | None) -> bool:
    """True if an absolute path is the folder or in it."""
    return folder is not None and _below(path, folder) is not None


def _anchored(specifier: str) -> tuple[Anchor, str]:
    """Return the anchor, and the pattern below it: it starts with a slash unless it holds at any depth."""
    if specifier.startswith("//"):
        return "root", specifier[1:]
    if specifier == "~" or specifier.startswith("~/"):
        return "home", specifier[1:] or "/"
    if specifier.startswith("~"):
        raise ValueError("names another user's home: write '//' and the absolute path")
    if specifier == "." or specifier.startswith("./"):
        return "workspace", specifier[1:] or "/"
    if specifier.startswith("/") or "/" in specifier.rstrip("/"):
        return "workspace", specifier
    return "workspace", f"**/{specifier}" if specifier != "**" else specifier


def _steps(rest: str) -> Steps:
    names = rest.strip("/").split("/")
    inside = rest.endswith("/")
    while names[-1:] == ["**"]:
        names.pop()
        inside = True
    found = tuple(None if name == "**" else _name(name) for name in names)
    return Steps(found, inside, tuple(names))


def _name(pattern: str) -> re.Pattern[str]:
    """Return the regular expression that pathspec makes of one name's pattern, made strict: a name may
    hold a line break, a bracket never matches a slash, and a ``*`` takes the first fit, for good."""
    if re.search(r"\[\^?!?\]?[^\]]*(--|\[[:.=])", pattern):
        raise ValueError("has a bracket that Runner does not understand: list its characters")
    try:
        source, included = GitIgnoreSpecPattern.pattern_to_regex(f"/{pattern}")
    except ValueError as error:
        raise ValueError("is not a gitignore pattern: it ends with a backslash") from error
    if source is None or not included:
        raise ValueError("is not a gitignore pattern: '[' is never closed (or write '\\[')")
    first, *others = [_TOKEN.sub(_strict, piece) for piece in source.split(_STAR)]
    if others:
        middle = "".join(f"(?>{_STAR}?{piece})" for piece in others[:-1])
        first = f"{first}{middle}{_STAR}{others[-1]}"
    try:
        return re.compile(first, re.DOTALL)
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a gitignore pattern: {error}") from error


def _strict(token: re.Match[str]) -> str:
    text = token.group()
    if text == "$":
        return r"\Z"
    if text.startswith("\\") or text == "[^/]":
        return text
    return "(?!/)" + "[" + re.sub(r"[\[&~|]", r"\\\g<0>", text[1:-1]) + "]"


def _below(path: str, root: str) -> str | None:
    if path == root:
        return ""
    start = root if root.endswith("/") else f"{root}/"
    return path[len(start) :] if path.startswith(start) else None


def _examples(glob: str) -> list[str]:
    """Return sample names that fit a glob of ``*`` and ``?``. A pattern without brackets that matches all
    of them matches every name that fits."""
    plain = glob.replace("?", _ANY[0])
    return list(filter(None, (plain.replace("*", each) for each in ("", _ANY[0], _ANY))))


def _overlap(name: str, pattern: str) -> bool:
    """True if one name can fit a glob of bash ("": any) and one of gitignore (brackets: any)."""
    if name[:1] in ("*", "?", "[") and pattern.startswith("."):
        return False  # bash lets these match no dot at the beginning
    if _SETTINGS.fullmatch(pattern) and _SOURCE.fullmatch(name):
        return False
    one, other = _SIGNS.findall(name or "*"), _SIGNS.findall(pattern)
    seen, left = set[tuple[int, int]](), [(0, 0)]
    while left:
        first, second = left.pop()
        if (first, second) in seen:
            continue
        seen.add((first, second))
        a, b = "".join(one[first : first + 1]), "".join(other[second : second + 1])
        if not a and not b:
            return True
        if a == "*":
            left.append((first + 1, second))
        if b == "*":
            left.append((first, second + 1))
        if a and b and (a[-1] == b[-1] or a[0] in "*?[" or b[0] in "*?["):
            left.append((first + (a != "*"), second + (b != "*")))
    return False


def _too_long(path: str) -> bool:
    if len(path) <= _LONGEST_NAME:
        return False
    return len(path) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in path.split("/"))
