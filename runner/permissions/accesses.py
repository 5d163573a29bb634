"""What a call accesses: each command and redirect of a script, each path, the host, the type of
sub-agent. Rules are tried on each access by itself.

A rule catches an access (deny and ask: any reading of it will do) or grants it (allow: every reading
of it must be covered).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.permissions.paths import PathPattern, ResolvedPath, ToolContext, absolute, is_below
from runner.permissions.rules import (
    READING,
    REMEMBERED,
    WRITING,
    AgentPattern,
    CommandPattern,
    HostPattern,
    ParsedRule,
    covers,
    host_of,
    hosts_in,
)
from runner.permissions.shell import Part, Script, analyse

_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Request:
    """A call to decide on."""

    tool: str
    input: Mapping[str, Any]  # whether it fits the tool's schema or not: a decision is made anyway
    context: ToolContext = field(default_factory=ToolContext)


# Not frozen: a decision makes several, and a frozen dataclass takes three times as long to make.
@dataclass(eq=False, slots=True, kw_only=True)
class Access:
    """One thing to decide on. By itself, a call of which rules see only the tool's name."""

    tools: tuple[str, ...]  # the tools whose rules look at it
    shown: str  # what it is, for people
    obstacle: str = ""  # why a rule may not be able to grant it
    required: bool = True  # the call needs a rule that grants it; else rules can only catch it
    unknown: bool = False  # only the run determines which file it is
    words: Collection[str] = ()  # what the command begins with

    def catches(self, rule: ParsedRule) -> str | None:
        """Return the text that a deny or ask rule matches, None if it matches none."""
        return self.shown if rule.blanket else None

    def grants(self, rule: ParsedRule) -> bool:
        """True if an allow rule covers it."""
        return rule.blanket and not rule.broken


@dataclass(eq=False, slots=True, kw_only=True)
class Command(Access):
    """A simple command of a script."""

    forms: tuple[str, ...]
    hides: str  # why it is not known what it runs, or ""
    complete: bool  # only its arguments hide something: a rule that is equal to it may allow it
    haystack: str  # all the forms, to see fast which patterns cannot match any

    @classmethod
    def of(cls, part: Part, script: Script) -> Command:
        """Return the access of a part of a script, with every way to read it."""
        forms = tuple(dict.fromkeys((part.text, *part.forms)))
        # A file system that ignores case runs /bin/rm for RM.
        lowered = (_lower_first(form) for form in forms if not form.islower())
        every = tuple(dict.fromkeys((*forms, *lowered)))
        # What cannot be read is the last part, the script as a whole; what was seen of it comes before.
        complete = script.complete or part is not script.parts[-1]
        hides = part.hides if complete else script.unanalyzable
        return cls(
            tools=("Bash",),
            shown=part.text,
            obstacle=f"the command hides what it runs: {hides}" if hides else "",
            words=frozenset(form.partition(" ")[0] for form in every),
            forms=every,
            hides=hides,
            complete=complete,
            haystack="\n".join(every),
        )

    def catches(self, rule: ParsedRule) -> str | None:
        pattern = rule.specifier
        if not isinstance(pattern, CommandPattern):
            return self.shown if rule.blanket else None
        if pattern.unanalyzable:
            return self.shown if self.hides else None
        if pattern.needle not in self.haystack:
            return None
        for form in self.forms:
            if pattern.matches(form):
                return form
        return None

    def grants(self, rule: ParsedRule) -> bool:
        pattern = rule.specifier
        if not isinstance(pattern, CommandPattern):
            return rule.blanket and not rule.broken
        if self.hides:
            return self.complete and self._is_literally(pattern.literal)
        return self.shown != "" and pattern.matches(self.shown)

    def _is_literally(self, text: str | None) -> bool:
        """True if a rule's text is this command, quotes as they were written or taken off."""
        if text is None or text == self.shown:
            return text is not None
        return text in self.forms and text.replace("'", "").replace('"', "") == self.shown


@dataclass(eq=False, slots=True, kw_only=True)
class File(Access):
    """A path that a call reads or writes. When it is ``unknown``, it may be any that a rule names."""

    tool: str  # whose rules are about it: Read or Edit for a redirect
    text: str  # as written; "" when the path is not known before the command runs
    place: ResolvedPath | None  # None when nobody knows where it leads
    known: tuple[str, ...]  # the absolute paths that it may be
    context: ToolContext
    search: bool = False  # a search begins here

    def catches(self, rule: ParsedRule) -> str | None:
        pattern = rule.specifier
        if isinstance(pattern, CommandPattern):
            return self.shown if pattern.unanalyzable and not self.text else None
        if isinstance(pattern, PathPattern):
            if self.unknown and pattern.everything:
                return self.shown
            return pattern.catches(self.known, self.context)
        return self.shown if rule.blanket else None

    def grants(self, rule: ParsedRule) -> bool:
        if rule.broken:
            return False
        if rule.blanket:
            return self.text != "" or covers(rule.name, "Bash")
        if self.place is None or not isinstance(rule.specifier, PathPattern):
            return False
        if self.search and rule.rule.origin != REMEMBERED:
            return True  # what it finds is looked at file by file
        paths, outputs = (self.place.named, self.place.real), self.context.outputs
        if self.tool in READING and all(is_below(path, outputs) for path in paths):
            return True
        folder = self.tool in ("Grep", "Glob")
        return rule.specifier.covers(self.place, self.context, folder=folder)


@dataclass(eq=False, slots=True, kw_only=True)
class Host(Access):
    """The URL that a call asks for."""

    def catches(self, rule: ParsedRule) -> str | None:
        if not isinstance(rule.specifier, HostPattern):
            return self.shown if rule.blanket else None
        return next(filter(rule.specifier.matches, hosts_in(self.shown)), None)

    def grants(self, rule: ParsedRule) -> bool:
        if not isinstance(rule.specifier, HostPattern):
            return rule.blanket and not rule.broken
        host = host_of(self.shown)
        return host is not None and rule.specifier.matches(host)


@dataclass(eq=False, slots=True, kw_only=True)
class SubAgent(Access):
    """The type of sub-agent that a call starts."""

    def catches(self, rule: ParsedRule) -> str | None:
        return self.shown if rule.blanket or self._is_named(rule) else None

    def grants(self, rule: ParsedRule) -> bool:
        return not rule.broken and (rule.blanket or self._is_named(rule))

    def _is_named(self, rule: ParsedRule) -> bool:
        return rule.specifier == AgentPattern(self.shown)


def paths_of(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that rules look at in a call, as written: what a file tool is given, what a
    Bash command redirects to or from. A search without a path looks at ``.``."""
    match tool:
        case "Read" | "Write" | "Edit":
            return _texts(arguments.get("file_path"))
        case "Glob" | "Grep":
            return _texts(arguments.get("path")) or (".",)
        case "Bash":
            found: list[str] = []
            for script in map(analyse, _texts(arguments.get("command"))):
                found += (*script.writes, *script.after_cd, *script.reads, *script.guesses)
            return tuple(dict.fromkeys(path for path in found if path))
        case _:
            return ()


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else ()


def accesses_of(
    tool: str, arguments: Mapping[str, Any], context: ToolContext
) -> tuple[Access, ...]:
    """Return what a call accesses; at least one access is required."""
    found: tuple[Access, ...] = ()
    command, url = arguments.get("command"), arguments.get("url")
    agent_type = arguments.get("agent_type")
    if tool == "Bash" and isinstance(command, str):
        found = _of_script(command, context)
    elif tool in READING or tool in WRITING:
        search = tool in ("Grep", "Glob")
        found = tuple(
            file_access(tool, path, context, search=search) for path in paths_of(tool, arguments)
        )
    elif tool == "WebFetch" and isinstance(url, str):
        uncertain = f"which host {shorten(url)} names is not certain"
        found = (Host(tools=(tool,), shown=url, obstacle="" if host_of(url) else uncertain),)
    elif tool == "Agent" and isinstance(agent_type, str):
        found = (SubAgent(tools=(tool,), shown=agent_type),)
    return found or (Access(tools=(tool,), shown=tool),)


def shorten(text: str) -> str:
    """Return a text from the model, quoted, for one line."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def _of_script(command: str, context: ToolContext) -> tuple[Access, ...]:
    script = analyse(command)
    found: list[Access] = [Command.of(part, script) for part in script.parts]
    for path in script.writes:
        unknown = script.writes_anywhere and not path
        found.append(file_access("Edit", path, context, redirect=True, unknown=unknown))
    for path in (*script.reads, *script.guesses):
        unknown = script.reads_anywhere and not path
        found.append(file_access("Read", path, context, required=False, unknown=unknown))
    for path in (*script.after_cd, *script.guesses):
        found.append(file_access("Edit", path, context, required=False))
    if not any(access.required for access in found):
        found.append(Access(tools=("Bash",), shown=command))
    return tuple(found)


def _lower_first(form: str) -> str:
    name, blank, rest = form.partition(" ")
    return name.lower() + blank + rest


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
    """Return the access of a path.

    Args:
        place: where it leads, if the context does not say it.
        redirect: a command writes it.
    """
    if place is None and text:
        place = context.places.get(text)
    obstacle = ""
    known: tuple[str, ...] = ()
    if place is not None:
        known = (place.named, place.real)
    elif text:
        obstacle = f"where the path {shorten(text)} leads is not known"
        known = absolute(text, context)
    else:
        does = "writes" if redirect else "reads"
        obstacle = f"where the command {does} is known only when it runs"
    return File(
        tools=("Bash", tool) if redirect else (tool,),
        shown=text if place is None else place.named,
        obstacle=obstacle,
        required=required,
        unknown=unknown,
        tool=tool,
        text=text,
        place=place,
        known=known,
        context=context,
        search=search,
    )
