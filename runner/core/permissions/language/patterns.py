"""What a specifier of Bash, WebFetch or Agent matches: commands, hosts, types of sub-agents.

Commands are matched piece by piece with string searches, never with a regular expression: the time
is proportional to the command's length, whatever a rule or a model wrote.

Source: https://code.claude.com/docs/en/permissions (Bash rules, WebFetch rules, Agent rules).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote, urlsplit

OPAQUE = ":opaque"  # Bash(:opaque): a command that hides what it runs, or where it writes

AGENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_HOST = re.compile(r"(?:\*\.)?(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}|\*")


@dataclass(frozen=True, slots=True)
class Glob:
    """A text in which ``*`` stands for any characters: its literal pieces, in order."""

    pieces: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Whether the whole text fits. The leftmost place of each piece is as good as any other."""
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
    """The specifier of a Bash rule. ``opaque``: it matches commands that hide what they run.
    ``word`` is the first word of every command that fits, None when there is no such word;
    ``needle`` is in every command that fits; ``literal`` is the one command that a rule without
    ``*`` (but in quotes) names to the letter."""

    globs: tuple[Glob, ...]
    word: str | None = None
    needle: str = ""
    literal: str | None = None
    opaque: bool = False

    def matches(self, command: str) -> bool:
        """Whether a simple command, its words joined by one blank, fits."""
        return any(glob.matches(command) for glob in self.globs)


@dataclass(frozen=True, slots=True)
class HostPattern:
    """The specifier of a WebFetch rule: a host, ``*.`` and a host for all below it, ``*`` for all."""

    host: str

    def matches(self, host: str) -> bool:
        """Whether a host's name, in lower case and without the last dot, fits."""
        if self.host == "*":
            return host != ""
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and host != self.host[1:]
        return host == self.host


@dataclass(frozen=True, slots=True)
class AgentPattern:
    """The specifier of an Agent rule: the name of a type of sub-agent."""

    agent_type: str


@lru_cache(maxsize=8192)
def command_pattern(specifier: str) -> CommandPattern:
    """Reads the specifier of a Bash rule.

    A trailing `` *`` and a trailing ``:*`` mean the same: the command alone, or followed by a blank
    and anything.

    Raises:
        ValueError: it can match nothing, or not what its author meant.
    """
    if specifier == OPAQUE:
        return CommandPattern((), opaque=True)
    if specifier != specifier.strip():
        raise ValueError("begins or ends with a blank: no command does")
    if specifier.endswith((":*", " *")):
        start = specifier[:-2]
        if not start.strip(" *"):
            raise ValueError("names no command: write 'Bash' for every command")
    else:
        start = None
    if ":*" in (specifier if start is None else start):
        raise ValueError("has ':*' before its end: use '*' there")
    texts = [specifier] if start is None else [start, f"{start} *"]
    globs = tuple(Glob(tuple(re.split(r"\*+", text))) for text in texts)
    literal = None if "*" in _QUOTED.sub("", specifier) else specifier
    needle = max(globs[0].pieces, key=len)
    return CommandPattern(globs, _first_word(globs[0]), needle, literal)


def _first_word(glob: Glob) -> str | None:
    word, blank, _ = glob.pieces[0].partition(" ")
    return word if blank or len(glob.pieces) == 1 else None


@lru_cache(maxsize=1024)
def host_pattern(specifier: str) -> HostPattern:
    """Reads the specifier of a WebFetch rule.

    Raises:
        ValueError: it is not ``domain:`` and a host's name in ASCII.
    """
    kind, _, host = specifier.partition(":")
    host = host.lower()
    if kind != "domain":
        raise ValueError("is not 'domain:' and a host, such as WebFetch(domain:example.com)")
    if not host.isascii():
        raise ValueError("has a host that is not in ASCII: write its 'xn--' form")
    if not _HOST.fullmatch(host.removesuffix(".")) or host == "*.":
        raise ValueError("has no host after 'domain:': write it without scheme, port and path")
    return HostPattern(host.removesuffix("."))


def agent_pattern(specifier: str) -> AgentPattern:
    """Reads the specifier of an Agent rule.

    Raises:
        ValueError: it is no name that a type of sub-agent can have.
    """
    if not AGENT_NAME.fullmatch(specifier):
        raise ValueError("does not name a type of sub-agent, as in Agent(reviewer)")
    return AgentPattern(specifier)


def host_of(url: str) -> str | None:
    """The host that every reader of the URL would connect to, in lower case; None when readers may
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
    """Every host that some reader of the URL might connect to: for denials, more is better."""
    found: dict[str, None] = {}
    for text in (url, url.replace("\\", "/"), unquote(url)):
        rest = re.sub(r"[\s\x00-\x20]", "", text).partition(":")[2] or text
        authority = re.split(r"[/?#\\]", rest.lstrip("/\\"), maxsplit=1)[0]
        for name in (*authority.split("@"), authority.rpartition("@")[2]):
            found.update(dict.fromkeys(_spellings(re.sub(r":\d*$", "", name))))
    return tuple(found)


def _spellings(host: str) -> Iterable[str]:
    plain = host.lower().strip("[]").removesuffix(".")
    yield plain
    try:
        yield plain.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:  # no name that a resolver could look up
        return
