"""A permission rule: its text ``Tool`` or ``Tool(specifier)``, and what its specifier matches.

Commands are matched piece by piece with string searches, never with a regular expression: the time
is proportional to the command's length, whatever a rule or a model wrote.

Source: https://code.claude.com/docs/en/permissions#permission-rule-syntax.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.permissions.paths import PathPattern, fold, path_pattern
from runner.permissions.shell.prefixes import stays_below
from runner.permissions.values import Effect, Rule

UNANALYZABLE = (
    ":unanalyzable"  # Bash(:unanalyzable): a command that hides what it runs, or where it writes
)

_MCP = "mcp__"  # the names of tools of MCP servers: mcp__SERVER__TOOL
AGENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_ENDS_IN_HOST = re.compile(r" https?://[A-Za-z0-9.-]+\Z")
_PORT = re.compile(r":[0-9]{1,5}(?:[/?#][^@\s]*)?(?=\s|\Z)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_ARGUMENT = re.compile(r"([A-Za-z0-9_.-]{1,64}):(.+)", re.DOTALL)
_CLIMBS = re.compile(r"(?:^|[/\\])(?:\.|%2e){2}(?:[/\\]|$)", re.IGNORECASE)
_HOST = re.compile(r"(?:\*\.)?(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}|\*")


@dataclass(frozen=True, slots=True)
class Glob:
    """A text in which ``*`` stands for any characters: its literal pieces, in order."""

    pieces: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """True if the whole text fits. The leftmost place of each piece is as good as any other."""
        first, last = self.pieces[0], self.pieces[-1]
        if not text.startswith(first):
            return False
        if len(self.pieces) == 1:
            return len(text) == len(first)
        at, end = len(first), len(text) - len(last)
        if end < at or not text.endswith(last):
            return False
        for piece in self.pieces[1:-1]:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


@dataclass(frozen=True, slots=True)
class CommandPattern:
    globs: tuple[Glob, ...]
    word: str | None = None  # the first word of every command that fits, if there is such a word
    needle: str = ""  # a text in every command that fits
    literal: str | None = None  # the one command that a rule without * (but in quotes) names
    unanalyzable: bool = False  # it matches commands that hide what they run
    address: str = ""  # the beginning of the pattern up to its host, if any port fits

    def matches(self, command: str) -> bool:
        """True if a simple command, its words joined by one blank, fits."""
        return any(glob.matches(command) for glob in self.globs)

    def allows(self, command: str) -> bool:
        """True if it fits, and goes on below the folder or address that the only ``*`` is in."""
        if self.address and command.startswith(f"{self.address}:"):
            return _PORT.match(command, len(self.address)) is not None
        pieces = self.globs[0].pieces if self.globs else ()
        if len(pieces) != 2 or not pieces[0].endswith("/"):
            return self.matches(command)
        return self.matches(command) and stays_below(command, pieces[0], pieces[1] == "")


@dataclass(frozen=True, slots=True)
class HostPattern:
    """The specifier of a WebFetch rule: a host, ``*.`` and a host for all below it, ``*`` for all."""

    host: str

    def matches(self, host: str) -> bool:
        """True if a host's name, in lower case and without the last dot, fits."""
        if self.host == "*":
            return host != ""
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and host != self.host[1:]
        return host == self.host


@dataclass(frozen=True, slots=True)
class AgentPattern:
    """The specifier of an Agent rule: the name of a type of sub-agent."""

    agent_type: str


@dataclass(frozen=True, slots=True)
class ArgumentPattern:
    """The specifier of a rule for a tool of one's own or of an MCP server: an argument, and its text."""

    key: str
    glob: Glob

    def caught(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the first text of the argument that fits, None if none does."""
        return next(filter(self.glob.matches, _texts_of(arguments.get(self.key))), None)

    def allows(self, arguments: Mapping[str, Any]) -> bool:
        """True if every text of the argument fits, and goes on below the folder that a ``*`` is in."""
        texts = _texts_of(arguments.get(self.key))
        climbs = any("/" in piece for piece in self.glob.pieces[:-1]) and any(
            map(_CLIMBS.search, texts)
        )
        return bool(texts) and not climbs and all(map(self.glob.matches, texts))


def _texts_of(value: Any) -> list[str]:
    """Return the texts of an argument: a text itself, each text of a list, else its JSON."""
    if value is None:
        return []
    if isinstance(value, list):
        return [text for each in value for text in _texts_of(each)]
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]


@lru_cache(maxsize=8192)
def command_pattern(specifier: str) -> CommandPattern:
    """Read the specifier of a Bash rule. A trailing `` *`` and a trailing ``:*`` mean the same: the
    command alone, or followed by a blank and anything; behind a host ``:*`` means any port too. Raises
    ValueError when it can match nothing, or not what its author meant."""
    if specifier == UNANALYZABLE:
        return CommandPattern((), unanalyzable=True)
    if specifier != specifier.strip():
        raise ValueError("begins or ends with whitespace: remove it")
    if specifier.endswith((":*", " *")):
        start = specifier[:-2]
        if not start.strip(" *"):
            raise ValueError("names no command: write 'Bash' for every command")
    else:
        start = None
    if ":*" in (specifier if start is None else start):
        raise ValueError("has ':*' before its end: use '*' there")
    texts = [specifier] if start is None else [start, f"{start} *"]
    address = start if start and specifier[-2] == ":" and _ENDS_IN_HOST.search(start) else ""
    texts += [f"{address}:*"] if address else []
    globs = tuple(Glob(tuple(re.split(r"\*+", text))) for text in texts)
    literal = None if "*" in _QUOTED.sub("", specifier) else specifier
    pieces = globs[0].pieces
    word, blank, _ = pieces[0].partition(" ")
    first = word if blank or len(pieces) == 1 else None
    return CommandPattern(globs, first, max(pieces, key=len), literal, address=address)


@lru_cache(maxsize=1024)
def host_pattern(specifier: str) -> HostPattern:
    """Read a specifier of hosts. Raises ValueError unless it is ``domain:`` and a name in ASCII."""
    kind, _, host = specifier.partition(":")
    host = host.lower()
    if kind != "domain":
        raise ValueError("is not 'domain:' and a host, such as WebFetch(domain:example.com)")
    if not host.isascii():
        raise ValueError("has a host that is not in ASCII: write its 'xn--' form")
    if not _HOST.fullmatch(host.removesuffix(".")) or host == "*.":
        raise ValueError("has no host after 'domain:': write it without scheme, port and path")
    return HostPattern(host.removesuffix("."))


def host_of(url: str) -> str | None:
    """Return the host that every reader of the URL would connect to, in lower case; None when readers may
    differ (user names, backslashes, blanks, escapes, letters beyond ASCII) or it is not http."""
    if not url.isascii() or not url.isprintable() or any(sign in url for sign in "\\ <>\"'`{}|^"):
        return None
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises when it is not a number
    except ValueError:
        return None
    plain = parts.scheme in ("http", "https") and "@" not in parts.netloc
    host = host.removesuffix(".")
    return host if plain and _HOST.fullmatch(host) and "*" not in host else None


def hosts_in(url: str) -> tuple[str, ...]:
    """Return every host that some reader of the URL might connect to: for denials, more is better."""
    found: dict[str, None] = {}
    for text in (url, url.replace("\\", "/"), unquote(url)):
        rest = re.sub(r"[\s\x00-\x20]", "", text).partition(":")[2] or text
        readings = [re.split(ends, rest.lstrip("/\\"), maxsplit=1)[0] for ends in (r"[/?#\\]", "/")]
        for name in (name for reading in readings for name in reading.split("@")):
            plain = re.sub(r":\d*$", "", name).lower().strip("[]").removesuffix(".")
            found.setdefault(plain)
            with suppress(UnicodeError):  # no name that a resolver could look up
                found.setdefault(plain.encode("idna").decode().lower().removesuffix("."))
    return tuple(found)


Specifier = CommandPattern | PathPattern | HostPattern | AgentPattern | ArgumentPattern

READING = frozenset({"Read", "Grep", "Glob"})
WRITING = frozenset({"Edit", "Write"})

_LONGEST = 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\*?|\*")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Syntax:
    name: str  # of one tool or several
    specifier: Specifier | None  # without one it covers every call of these tools


@lru_cache(maxsize=8192)
def parse(text: str) -> Syntax:
    """Read a rule's text. Raises ValueError, whose message goes on from "the rule …"."""
    if len(text) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} characters")
    if any(unicodedata.category(sign) in _INVISIBLE for sign in text):
        raise ValueError("contains an invisible character: type it again")
    if text != text.strip():
        raise ValueError("begins or ends with whitespace: remove it")
    name, bracket, rest = text.partition("(")
    if not _NAME.fullmatch(name):
        raise ValueError("does not begin with a tool's name, such as Bash or mcp__server__*")
    if not bracket:
        return Syntax(name, None)
    if not rest.endswith(")"):
        raise ValueError("has no ')' at its end")
    return Syntax(name, None if rest == "*)" else _specifier(name, rest[:-1]))


def problem(text: str, effect: Effect = "deny") -> str | None:
    """Return why a rule is none, or allows nothing, in one line; None if it is all right."""
    try:
        specifier = parse(text).specifier
    except ValueError as error:
        return f"the rule {quoted(text, 100)} {error}"
    name = name_of(text)
    if effect == "allow" and _allows_any_server(name):
        return (
            f"the rule {text!r} allows tools of any MCP server: name the server, as in "
            "mcp__github__get_*; only ask and deny rules can be about all"
        )
    if effect == "allow" and isinstance(specifier, CommandPattern) and specifier.unanalyzable:
        return (
            f"the rule {text!r} allows nothing: a command that hides what it runs is allowed by "
            "'Bash' alone"
        )
    return None


def _allows_any_server(name: str) -> bool:
    """True if a name with ``*`` stands for tools of MCP servers that it does not name. ``*`` alone means
    every tool, and says so."""
    start = name.removesuffix("*")
    if start == name or not start:
        return False
    return _MCP.startswith(start) or (start.startswith(_MCP) and "__" not in start[len(_MCP) :])


def quoted(text: str, most: int = 200) -> str:
    """Return a text, quoted and not too long, for one line."""
    return repr(text if len(text) <= most else f"{text[:most]}…")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def concerns(text: str, tool: str) -> bool:
    """True if the rule can have a say in calls of the tool: it names it, or it is about files that a
    command of Bash is redirected into or from."""
    name = name_of(text)
    return covers(name, tool) or (tool == "Bash" and name in ("Read", "Edit"))


def name_of(text: str) -> str:
    return text.partition("(")[0].strip()


def covers(name: str, tool: str) -> bool:
    """True if the name of a rule stands for the tool. ``Read`` stands for Grep and Glob too, ``Edit``
    for Write, ``mcp__server`` for every tool of that server, a name that ends in ``*`` for all that
    begin so."""
    if name == tool:
        return True
    if name.endswith("*"):
        return tool.startswith(name[:-1])
    if name == "Read":
        return tool in READING
    if name == "Edit":
        return tool in WRITING
    server = name.startswith(_MCP) and "__" not in name[len(_MCP) :]
    return server and tool.startswith(f"{name}__")


def _specifier(name: str, text: str) -> Specifier:
    if not text:
        raise ValueError(f"has nothing in its brackets: write {name!r} for every call")
    if name == "Bash":
        return command_pattern(text)
    if name in READING or name in WRITING:
        return path_pattern(text)
    if name == "WebFetch":
        return host_pattern(text)
    if name == "Agent":
        if not AGENT_NAME.fullmatch(text):
            raise ValueError("does not name a type of sub-agent, as in Agent(reviewer)")
        return AgentPattern(text)
    near = get_close_matches(
        name, ("Bash", "WebFetch", "Agent", *sorted(READING | WRITING)), 1, 0.75
    )
    argument = _ARGUMENT.fullmatch(text)
    if argument and not near and (name.startswith(_MCP) or not name.endswith("*")):
        return ArgumentPattern(argument[1], Glob(tuple(re.split(r"\*+", argument[2]))))
    how = f"did you mean {near[0]}({text})?" if near else f"write {name!r} or {name}(ARGUMENT:TEXT)"
    raise ValueError(f"has brackets, which mean nothing for {name}: {how}")


@dataclass(frozen=True, slots=True)
class ParsedRule:
    """A rule, read. A broken one grants nothing and catches whatever its name covers."""

    rule: Rule
    name: str
    specifier: Specifier | None = None  # without one it covers every call of its tools
    broken: bool = False  # its text is no rule

    @classmethod
    def of(cls, rule: Rule) -> ParsedRule:
        """Read a rule, whatever its text."""
        try:
            syntax = parse(rule.text)
        except ValueError:
            return cls(rule, name_of(rule.text), broken=True)
        return cls(rule, syntax.name, syntax.specifier)


# Rules about absolute paths, for runs that work in copies of the folder that those paths name. A rule
# such as Edit(//srv/tree/docs/**) would say nothing of the copy of /srv/tree that a run works in.
# Beside it stands what it means there: Edit(/docs/**).

_SPECIAL = re.compile(r"[*?\[\]\\]")


def with_copies(rules: Sequence[Rule], folders: Sequence[str], home: str | None) -> list[Rule]:
    """Return the rules. After each one with an absolute path into the workspace comes the same rule for
    the run's copy. ``folders`` are the workspace's real path, then its other names: by those, rules deny
    and ask, but never allow. ``home`` is the real path of the user's home, for ``~``."""
    found: list[Rule] = []
    for rule in rules:
        names = folders[:1] if rule.effect == "allow" else folders
        texts = dict.fromkeys(text for name in names for text in _rebased(rule, name, home))
        found += [rule, *(replace(rule, text=text) for text in texts if text != rule.text)]
    return found


def _rebased(rule: Rule, folder: str, home: str | None) -> Iterator[str]:
    syntax = ParsedRule.of(rule)
    pattern = syntax.specifier
    if not isinstance(pattern, PathPattern) or pattern.anchor == "workspace":
        return
    written = rule.text.partition("(")[2][:-1]
    if pattern.anchor == "home":
        if home is None:
            return
        escaped = _SPECIAL.sub(r"\\\g<0>", home.rstrip("/"))
        written = f"/{escaped}{written[1:] or '/'}"
        pattern = path_pattern(written)
    if pattern.whole:  # the root of the file system: the copy is there too
        return
    loose = rule.effect != "allow"
    steps = pattern.folded if loose else pattern.exact
    # The positions in the pattern that the names of the folder reach. Its end, when the pattern covers
    # the folder or one above it.
    reached, last = steps.reach({0}), len(steps.names)
    for name in (fold(folder) if loose else folder).strip("/").split("/"):
        if last not in reached:
            reached = steps.advance(reached, name)
    if last in reached:
        yield f"{syntax.name}(/**)"
        return
    names = written.strip("/").split("/")
    end = "/" if written.endswith("/") else ""
    for at in sorted(reached - {0}):  # what holds from 0 on holds at any depth, in the copy as well
        if steps.names[at - 1] is not None or at - 1 not in reached:
            yield f"{syntax.name}(/{'/'.join(names[at:])}{end})"
