"""The accesses of a call: each command and redirect of a script, each path, the host, the type of
sub-agent. Rules are tried on each access by itself.

A rule catches an access (deny and ask: any reading of it will do) or grants it (allow: every reading
of it must be covered).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.permissions import rules as syntax
from runner.permissions.paths import PathPattern, absolute, is_below
from runner.permissions.shell import Part, Script, analyse
from runner.permissions.values import ABOVE_ASK, ResolvedPath, ToolContext

# Reading these needs no rule: a call's own input, and files of the kernel that are the same for every
# process.
_HARMLESS_TO_READ = frozenset(("/dev/stdin", "/dev/fd/0")) | frozenset(
    f"/proc/{name}" for name in ("cpuinfo", "meminfo", "loadavg", "uptime", "version", "stat")
)


# Not frozen: a decision makes several, and a frozen dataclass takes three times as long to make.
@dataclass(eq=False, slots=True, kw_only=True)
class Access:
    """One thing to decide on. Not subclassed, it is a Bash call that only rules without brackets match."""

    tools: tuple[str, ...]  # the tools whose rules look at it
    shown: str  # what it is, for people
    obstacle: str = ""  # why a rule may not be able to grant it
    required: bool = True  # the call needs a rule that grants it; else rules can only catch it
    unknown: bool = False  # only the run determines which file it is: it may be any
    words: Set[str] = frozenset()  # what the command begins with
    haystack: str = ""  # all texts of the command that a rule may match
    # The commands that it runs. A rule that grants it grants these only if ``is_named`` says so.
    inner: tuple[Access, ...] = ()

    def catches(self, rule: syntax.ParsedRule) -> str | None:
        """Return the text that a deny or ask rule matches, None if it matches none."""
        return self.shown if rule.specifier is None else self._matched(rule.specifier)

    def may_be(self, rule: syntax.ParsedRule) -> bool:
        """True if the rule may be about this file, whose path is unknown."""
        return False

    def grants(self, rule: syntax.ParsedRule) -> bool:
        return not rule.broken and (rule.specifier is None or self._covered(rule.specifier))

    def is_named(self, rule: syntax.ParsedRule) -> bool:
        """True if a rule that grants it has no wildcard, or is about every call."""
        specifier = rule.specifier
        return not isinstance(specifier, syntax.CommandPattern) or specifier.literal is not None

    def _matched(self, specifier: syntax.Specifier) -> str | None:
        return self.shown if self._covered(specifier) else None

    def _covered(self, specifier: syntax.Specifier) -> bool:
        return False


@dataclass(eq=False, slots=True, kw_only=True)
class Command(Access):
    forms: tuple[str, ...]
    hides: str  # why it is not known what it runs, or ""
    complete: bool  # only its arguments hide something: a rule that is equal to it may allow it
    plain: str  # another text that an allow rule may match, or ""

    @classmethod
    def of(cls, part: Part, script: Script, workspace: str | None) -> Command:
        """Return the access of a part of a script, with every way to read it."""
        every = dict.fromkeys((part.text, *part.forms))
        # A file system that ignores case runs /bin/rm for RM.
        for name, blank, rest in [form.partition(" ") for form in every if not form.islower()]:
            every.setdefault(name.lower() + blank + rest)
        # An unreadable script is the last part, as a whole; its readable commands come before.
        complete = script.complete or part is not script.parts[-1]
        hides = part.hides if complete else script.unanalyzable
        outside = (f for f in part.folders if not is_below(posixpath.normpath(f), workspace))
        hides = hides or next((f"git reads the configuration in {each}" for each in outside), "")
        obstacle = f"the command hides what it runs: {hides}" if hides else ""
        if part.inner and not obstacle:
            runs = ", ".join(syntax.quoted(each.text) for each in part.inner)
            obstacle = f"a rule must allow {syntax.quoted(part.text)}, and what it runs: {runs}"
        return cls(
            tools=("Bash",),
            shown=part.text,
            inner=tuple(cls.of(each, script, workspace) for each in part.inner),
            obstacle=obstacle,
            words=frozenset(form.partition(" ")[0] for form in every),
            forms=tuple(every),
            hides=hides,
            complete=complete,
            haystack="\n".join((*every, part.plain)),
            plain=part.plain,
        )

    def _matched(self, specifier: syntax.Specifier) -> str | None:
        if not isinstance(specifier, syntax.CommandPattern):
            return None
        if specifier.unanalyzable:
            return self.shown if self.hides else None
        return next(filter(specifier.matches, self.forms), None)

    def _covered(self, specifier: syntax.Specifier) -> bool:
        if not isinstance(specifier, syntax.CommandPattern):
            return False
        if not self.hides:
            return any(text and specifier.allows(text) for text in (self.shown, self.plain))
        # It must be this command to the letter, quotes as they were written or taken off.
        text = specifier.literal
        if text is None or not self.complete:
            return False
        bare = text.replace("'", "").replace('"', "")
        return text == self.shown or (text in self.forms and bare == self.shown)


@dataclass(eq=False, slots=True, kw_only=True)
class File(Access):
    """A path that a call reads or writes. When it is ``unknown``, it may be any that a rule names."""

    text: str = ""  # as written; "" when the path is not known before the command runs
    place: ResolvedPath | None = None  # None when nobody knows where it leads
    known: tuple[str, ...]  # the absolute paths that it may be
    context: ToolContext
    search: bool = False  # a search begins here
    # When it is unknown: the glob of its name below the folders ``known``, and True if it may be anything
    # below that name.
    below: tuple[str, bool] | None = None
    tracked: bool = False  # git tracks it or could track it: not a file in .git

    @property
    def tool(self) -> str:
        """The tool whose rules apply to this access: Read or Edit for a redirect."""
        return self.tools[-1]

    def _matched(self, specifier: syntax.Specifier) -> str | None:
        if isinstance(specifier, syntax.CommandPattern):
            return self.shown if specifier.unanalyzable and not self.text else None
        if not isinstance(specifier, PathPattern):
            return None
        if self.unknown and specifier.everything:
            return self.shown
        return specifier.catches(self.known, self.context)

    def may_be(self, rule: syntax.ParsedRule) -> bool:
        if not isinstance(rule.specifier, PathPattern):
            return False
        if self.below is None:
            return True
        if rule.rule.effect == "ask" or (self.tracked and rule.specifier.is_git):
            return False
        name, deep = self.below
        return rule.specifier.reaches_below(self.known, name, deep, self.context)

    def grants(self, rule: syntax.ParsedRule) -> bool:
        if rule.broken:
            return False
        if rule.specifier is None:
            return bool(self.text or self.below) or syntax.covers(rule.name, "Bash")
        if self.below is not None:
            return isinstance(rule.specifier, PathPattern) and rule.specifier.covers_below(
                self.known, *self.below, self.context
            )
        if self.place is None or not isinstance(rule.specifier, PathPattern):
            return False
        if self.search and rule.rule.origin not in ABOVE_ASK:
            return True  # what it finds is looked at file by file
        outputs = self.context.outputs
        if self.tool in syntax.READING and all(is_below(p, outputs) for p in self.place.paths):
            return True
        folder = self.tool in ("Grep", "Glob")
        return rule.specifier.covers(self.place, self.context, folder=folder)


@dataclass(eq=False, kw_only=True)
class Mention(Access):
    """Paths in arguments, which programs may read. Only rules with a specific path catch them."""

    paths: tuple[str, ...]  # as written
    context: ToolContext

    def catches(self, rule: syntax.ParsedRule) -> str | None:
        if not isinstance(rule.specifier, PathPattern) or rule.specifier.whole:
            return None
        return rule.specifier.catches(self._known, self.context)

    @cached_property
    def _known(self) -> list[str]:
        return [known for path in self.paths for known in _places(path, self.context)]


@dataclass(eq=False, slots=True, kw_only=True)
class Host(Access):
    def _matched(self, specifier: syntax.Specifier) -> str | None:
        if not isinstance(specifier, syntax.HostPattern):
            return None
        return next(filter(specifier.matches, syntax.hosts_in(self.shown)), None)

    def _covered(self, specifier: syntax.Specifier) -> bool:
        host = syntax.host_of(self.shown)
        return (
            isinstance(specifier, syntax.HostPattern)
            and host is not None
            and specifier.matches(host)
        )


@dataclass(eq=False, slots=True, kw_only=True)
class SubAgent(Access):
    def _covered(self, specifier: syntax.Specifier) -> bool:
        return specifier == syntax.AgentPattern(self.shown)


@dataclass(eq=False, slots=True, kw_only=True)
class OtherCall(Access):
    """A call of a tool of one's own or of an MCP server."""

    arguments: Mapping[str, Any]

    def _matched(self, specifier: syntax.Specifier) -> str | None:
        if not isinstance(specifier, syntax.ArgumentPattern):
            return None
        text = specifier.caught(self.arguments)
        return None if text is None else f"{specifier.key}:{text}"

    def _covered(self, specifier: syntax.Specifier) -> bool:
        return isinstance(specifier, syntax.ArgumentPattern) and specifier.allows(self.arguments)


def paths_of(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in a call that rules match, as written: a file tool's arguments, and a Bash
    command's redirects. A search without a path has ``.``."""
    match tool:
        case "Read" | "Write" | "Edit":
            return _texts(arguments.get("file_path"))
        case "Glob" | "Grep":
            return _texts(arguments.get("path")) or (".",)
        case "Bash":
            found: list[str] = []
            for script in map(analyse, _texts(arguments.get("command"))):
                found += (*script.writes, *script.after_cd, *script.reads, *script.guesses)
                below = (*script.below, *script.matches)
                found += (*(each.folder for each in below), *script.mentions)
            return tuple(dict.fromkeys(filter(None, found)))
        case _:
            return ()


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else ()


def accesses_of(
    tool: str, arguments: Mapping[str, Any], context: ToolContext
) -> tuple[Access, ...]:
    """Return the accesses of a call; at least one is required."""
    found: list[Access] = []
    command, url = arguments.get("command"), arguments.get("url")
    agent_type = arguments.get("agent_type")
    if tool == "Bash" and isinstance(command, str):
        found = _of_script(command, context)
    elif tool in syntax.READING or tool in syntax.WRITING:
        search = tool in ("Grep", "Glob")
        paths = paths_of(tool, arguments)
        found = [file_access(tool, path, context, search=search) for path in paths]
    elif tool == "WebFetch" and isinstance(url, str):
        uncertain = f"which host {syntax.quoted(url)} names is not certain"
        found = [Host(tools=(tool,), shown=url, obstacle="" if syntax.host_of(url) else uncertain)]
    elif tool == "Agent" and isinstance(agent_type, str):
        found = [SubAgent(tools=(tool,), shown=agent_type)]
    return tuple(found) or (OtherCall(tools=(tool,), shown=tool, arguments=arguments),)


def _of_script(command: str, context: ToolContext) -> list[Access]:
    script = analyse(command)
    found: list[Access] = [Command.of(part, script, context.workspace) for part in script.parts]
    for path in script.writes:
        unknown = script.writes_anywhere and not path
        found.append(file_access("Edit", path, context, redirect=True, unknown=unknown))
    for path in (*script.reads, *script.guesses):
        unknown = script.reads_anywhere and not path
        found.append(file_access("Read", path, context, required=False, unknown=unknown))
    for path in (*script.after_cd, *script.guesses):
        found.append(file_access("Edit", path, context, required=False))
    found += _changed_below(script, context)
    if paths := script.mentions:
        shown = _places(paths[0], context)[0]
        found.append(
            Mention(tools=("Read",), shown=shown, required=False, paths=paths, context=context)
        )
    if not any(access.required for access in found):
        found.append(Access(tools=("Bash",), shown=command))
    return found


def _places(path: str, context: ToolContext) -> tuple[str, ...]:
    """Return the absolute paths that a path may be."""
    place = context.places.get(path)
    return absolute(path, context) if place is None else place.paths


def _changed_below(script: Script, context: ToolContext) -> Iterator[Access]:
    """Yield the paths that programs change or read and that are known only when they run."""
    folders: dict[tuple[str, bool, bool, bool], dict[str, None]] = {}
    for folder, name, deep, *_ in script.matches:
        where = _places(folder, context)
        yield _somewhere(where, name, deep, context, "writes", required=True)
    for folder, name, deep, reads, tracked in script.below:
        known = _places(folder or "/", context)
        folders.setdefault((name, deep, reads, tracked), {}).update(dict.fromkeys(known))
    for (name, deep, reads, tracked), known_folders in folders.items():
        does = "reads" if reads else "changes"
        yield _somewhere(tuple(known_folders), name, deep, context, does, tracked=tracked)


def _somewhere(
    folders: tuple[str, ...],
    name: str,
    deep: bool,
    context: ToolContext,
    does: str,
    *,
    required: bool = False,
    tracked: bool = False,
) -> File:
    """Return the access of a file that fits a glob below one of absolute folders."""
    return File(
        tools=("Read" if does == "reads" else "Edit",),
        shown=folders[0],
        obstacle=f"which files the command {does} is known only when it runs",
        required=required,
        unknown=True,
        known=folders,
        context=context,
        below=(name, deep),
        tracked=tracked,
    )


def file_access(
    tool: str,
    text: str,
    context: ToolContext,
    place: ResolvedPath | None = None,
    *,
    redirect: bool = False,
    required: bool = True,
    unknown: bool = False,
    search: bool = False,
) -> File:
    """Return the access of a path. ``redirect``: a command writes it; ``place``: its real path."""
    if place is None and text:
        place = context.places.get(text)
    obstacle = ""
    known: tuple[str, ...] = ()
    if place is not None:
        known = place.paths
    elif text:
        obstacle = f"where the path {syntax.quoted(text)} leads is not known"
        known = absolute(text, context)
        unknown = tool not in syntax.READING or known[0] not in _HARMLESS_TO_READ
    else:
        does = "writes" if redirect else "reads"
        obstacle = f"where the command {does} is known only when it runs"
    return File(
        tools=("Bash", tool) if redirect else (tool,),
        shown=text if place is None else place.named,
        obstacle=obstacle,
        required=required,
        unknown=unknown,
        text=text,
        place=place,
        known=known,
        context=context,
        search=search,
    )
