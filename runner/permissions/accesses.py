"""What there is to decide on in a call: each command and redirect of a script, each path, the host,
the type of sub-agent.

An aspect says of a rule whether it catches it (deny and ask: any reading of it will do) and whether
it grants it (allow: every reading of it must be covered).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.permissions.paths import PathPattern, ResolvedPath, ToolContext, absolute, is_below
from runner.permissions.rules import (
    READING,
    REMEMBERED,
    WRITING,
    AgentPattern,
    CommandPattern,
    HostPattern,
    Rule,
    Specifier,
    covers,
    host_of,
    hosts_in,
    name_of,
    parse,
)
from runner.permissions.shell import Part, Script, analyse


@dataclass(frozen=True, slots=True)
class Request:
    """A call to decide on. ``input`` is an object that fits the tool's schema or does not: a
    decision is made all the same."""

    tool: str
    input: Mapping[str, Any]
    context: ToolContext = field(default_factory=ToolContext)


def paths_of(tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths that rules look at in a call, as written: what a file tool is given, what a Bash
    command redirects to or from. A search without a path looks at ``.``."""
    match tool:
        case "Read" | "Write" | "Edit":
            return _texts(arguments.get("file_path"))
        case "Glob" | "Grep":
            return _texts(arguments.get("path")) or (".",)
        case "Bash":
            return tuple(
                path
                for command in _texts(arguments.get("command"))
                for path in _redirected(command)
            )
        case _:
            return ()


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else ()


def _redirected(command: str) -> tuple[str, ...]:
    script = analyse(command)
    paths = dict.fromkeys((*script.writes, *script.after_cd, *script.reads, *script.guesses))
    return tuple(path for path in paths if path)


_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ParsedRule:
    """A rule, read. One that is ``broken`` grants nothing and catches whatever its name covers."""

    rule: Rule
    name: str
    specifier: Specifier | None = None
    broken: bool = False

    @classmethod
    def of(cls, rule: Rule) -> ParsedRule:
        """Reads a rule, whatever its text."""
        try:
            syntax = parse(rule.text)
        except ValueError:
            return cls(rule, name_of(rule.text), broken=True)
        return cls(rule, syntax.name, syntax.specifier)

    @property
    def blanket(self) -> bool:
        """Whether it covers every call of its tools."""
        return self.specifier is None


class Access(Protocol):
    """One thing to decide on. ``tools`` are the names whose rules look at it, ``words`` what commands
    in it begin with; ``required``: it must be granted for the call to be allowed, else it can only
    be caught. ``unplaced``: a file of which nobody knows which one it is."""

    @property
    def tools(self) -> tuple[str, ...]: ...
    @property
    def words(self) -> Collection[str]: ...
    @property
    def required(self) -> bool: ...
    @property
    def unplaced(self) -> bool: ...
    @property
    def shown(self) -> str: ...
    @property
    def obstacle(self) -> str: ...
    def catches(self, line: ParsedRule) -> str | None: ...
    def grants(self, line: ParsedRule) -> bool: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call of which rules see the tool's name alone."""

    tool: str
    shown: str
    obstacle: str = ""
    required: bool = True
    unplaced: bool = False
    words: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return (self.tool,)

    def catches(self, line: ParsedRule) -> str | None:
        return self.shown if line.blanket else None

    def grants(self, line: ParsedRule) -> bool:
        return line.blanket and not line.broken


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command of a script. ``hides`` says what it hides, "" when nothing; ``legible``: that is
    in its arguments, so that a rule which is equal to it may allow it. ``words`` and ``haystack``
    are there to see fast which patterns cannot match any of the forms."""

    shown: str
    forms: tuple[str, ...]
    hides: str
    legible: bool
    words: frozenset[str]
    haystack: str
    required: bool = True
    unplaced: bool = False

    @classmethod
    def of(cls, part: Part, script: Script) -> Command:
        """A part of a script, and every way to read it."""
        forms = tuple(dict.fromkeys((part.text, *part.forms)))
        # a file system that ignores case runs /bin/rm for RM
        lowered = (_lower_first(form) for form in forms if not form.islower())
        every = tuple(dict.fromkeys((*forms, *lowered)))
        words = frozenset(form.partition(" ")[0] for form in every)
        # What cannot be read is the last part, the script as a whole; what was seen of it comes before.
        legible = script.complete or part is not script.parts[-1]
        hides = part.hides if legible else script.unanalyzable
        return cls(part.text, every, hides, legible, words, "\n".join(every))

    @property
    def tools(self) -> tuple[str, ...]:
        return ("Bash",)

    @property
    def obstacle(self) -> str:
        return f"the command hides what it runs: {self.hides}" if self.hides else ""

    def catches(self, line: ParsedRule) -> str | None:
        if not isinstance(line.specifier, CommandPattern):
            return self.shown if line.blanket else None
        if line.specifier.unanalyzable:
            return self.shown if self.hides else None
        if line.specifier.needle not in self.haystack:
            return None
        for form in self.forms:
            if line.specifier.matches(form):
                return form
        return None

    def grants(self, line: ParsedRule) -> bool:
        pattern = line.specifier
        if not isinstance(pattern, CommandPattern):
            return line.blanket and not line.broken
        if self.hides:
            return self.legible and self._is_literally(pattern.literal)
        return self.shown != "" and pattern.matches(self.shown)

    def _is_literally(self, text: str | None) -> bool:
        """Whether a rule's text is this command, quotes as they were written or taken off."""
        if text is None or text == self.shown:
            return text is not None
        return text in self.forms and text.replace("'", "").replace('"', "") == self.shown


@dataclass(frozen=True, slots=True)
class File:
    """A path that a call reads or writes. ``place`` is None when nobody knows where it leads;
    ``text`` is "" when the path itself is not known before the command runs; if it is ``unplaced``,
    it may be any that a rule names."""

    tool: str
    text: str
    place: ResolvedPath | None
    context: ToolContext
    required: bool = True
    search: bool = False
    redirect: bool = False
    known: tuple[str, ...] = ()
    unplaced: bool = False
    words: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return ("Bash", self.tool) if self.redirect else (self.tool,)

    @property
    def shown(self) -> str:
        return self.place.named if self.place is not None else self.text

    @property
    def obstacle(self) -> str:
        if not self.text:
            does = "writes" if self.redirect else "reads"
            return f"where the command {does} is known only when it runs"
        if self.place is None and self.text:
            return f"where the path {shorten(self.text)} leads is not known"
        return ""

    def catches(self, line: ParsedRule) -> str | None:
        if isinstance(line.specifier, CommandPattern):
            return self.shown if line.specifier.unanalyzable and not self.text else None
        if isinstance(line.specifier, PathPattern):
            if self.unplaced and line.specifier.everything:
                return self.shown
            return line.specifier.catches(self.known, self.context)
        return self.shown if line.blanket else None

    def grants(self, line: ParsedRule) -> bool:
        if line.broken:
            return False
        if line.blanket:
            return self.text != "" or covers(line.name, "Bash")
        if self.place is None or not isinstance(line.specifier, PathPattern):
            return False
        if self.search and line.rule.origin != REMEMBERED:
            return True  # what it finds is looked at file by file
        if self.tool in READING and self._is_output(self.place):
            return True
        folder = self.tool in ("Grep", "Glob")
        return line.specifier.covers(self.place, self.context, folder=folder)

    def _is_output(self, place: ResolvedPath) -> bool:
        outputs = self.context.outputs
        return is_below(place.named, outputs) and is_below(place.real, outputs)


@dataclass(frozen=True, slots=True)
class Host:
    """The URL that a call asks for."""

    url: str
    required: bool = True
    unplaced: bool = False
    words: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return ("WebFetch",)

    @property
    def shown(self) -> str:
        return self.url

    @property
    def obstacle(self) -> str:
        return "" if host_of(self.url) else f"which host {shorten(self.url)} names is not certain"

    def catches(self, line: ParsedRule) -> str | None:
        if not isinstance(line.specifier, HostPattern):
            return self.shown if line.blanket else None
        return next(filter(line.specifier.matches, hosts_in(self.url)), None)

    def grants(self, line: ParsedRule) -> bool:
        if not isinstance(line.specifier, HostPattern):
            return line.blanket and not line.broken
        host = host_of(self.url)
        return host is not None and line.specifier.matches(host)


@dataclass(frozen=True, slots=True)
class SubAgent:
    """The type of sub-agent that a call starts."""

    agent_type: str
    obstacle: str = ""
    required: bool = True
    unplaced: bool = False
    words: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        return ("Agent",)

    @property
    def shown(self) -> str:
        return self.agent_type

    def catches(self, line: ParsedRule) -> str | None:
        return self.shown if line.blanket or self._is_named(line) else None

    def grants(self, line: ParsedRule) -> bool:
        return not line.broken and (line.blanket or self._is_named(line))

    def _is_named(self, line: ParsedRule) -> bool:
        return line.specifier == AgentPattern(self.agent_type)


def accesses_of(
    tool: str, arguments: Mapping[str, Any], context: ToolContext
) -> tuple[Access, ...]:
    """What there is to decide on in a call; at least one thing that must be granted."""
    if tool == "Bash":
        command = arguments.get("command")
        return _script(command, context) if isinstance(command, str) else (Call(tool, tool),)
    if tool in READING or tool in WRITING:
        search = tool in ("Grep", "Glob")
        paths = paths_of(tool, arguments)
        return tuple(_file(tool, path, context, search=search) for path in paths) or (
            Call(tool, tool),
        )
    url = arguments.get("url")
    if tool == "WebFetch" and isinstance(url, str):
        return (Host(url),)
    agent_type = arguments.get("agent_type")
    if tool == "Agent" and isinstance(agent_type, str):
        return (SubAgent(agent_type),)
    return (Call(tool, tool),)


def shorten(text: str) -> str:
    """A text from the model, quoted, for one line."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def file_touched(tool: str, place: ResolvedPath, context: ToolContext) -> Access:
    """One file that a tool is about to show or change."""
    known = (place.named, place.real)
    return File(tool, place.named, place, context, known=known)


def _script(command: str, context: ToolContext) -> tuple[Access, ...]:
    script = analyse(command)
    found: list[Access] = [Command.of(part, script) for part in script.parts]
    for path in script.writes:
        unplaced = script.writes_anywhere and not path
        found.append(_file("Edit", path, context, redirect=True, unplaced=unplaced))
    for path in (*script.reads, *script.guesses):
        unplaced = script.reads_anywhere and not path
        found.append(_file("Read", path, context, required=False, unplaced=unplaced))
    for path in (*script.after_cd, *script.guesses):
        found.append(_file("Edit", path, context, required=False))
    if not any(access.required for access in found):
        found.append(Call("Bash", command))
    return tuple(found)


def _lower_first(form: str) -> str:
    name, blank, rest = form.partition(" ")
    return name.lower() + blank + rest


def _file(
    tool: str,
    text: str,
    context: ToolContext,
    *,
    required: bool = True,
    search: bool = False,
    redirect: bool = False,
    unplaced: bool = False,
) -> File:
    place = context.places.get(text) if text else None
    if place is not None:
        known: tuple[str, ...] = (place.named, place.real)
    else:
        known = absolute(text, context) if text else ()
    return File(tool, text, place, context, required, search, redirect, known, unplaced)
