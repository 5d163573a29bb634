"""A rule's text: ``Tool`` or ``Tool(specifier)``; which tools it names, and what is wrong with it.

Source: https://code.claude.com/docs/en/permissions#permission-rule-syntax.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from runner.core.permissions.language.paths import PathPattern, path_pattern
from runner.core.permissions.language.patterns import (
    OPAQUE,
    AgentPattern,
    CommandPattern,
    HostPattern,
    agent_pattern,
    command_pattern,
    host_pattern,
)

Specifier = CommandPattern | PathPattern | HostPattern | AgentPattern

READING = frozenset({"Read", "Grep", "Glob"})
WRITING = frozenset({"Edit", "Write"})

_LONGEST = 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\*?|\*")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Syntax:
    """A rule's text, read. Without a ``specifier`` it covers every call of the tools it names."""

    name: str
    specifier: Specifier | None


@lru_cache(maxsize=8192)
def parse(text: str) -> Syntax:
    """Reads a rule's text.

    Raises:
        ValueError: it is not a rule; the message goes on from "the rule …".
    """
    if len(text) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} characters")
    if any(unicodedata.category(sign) in _INVISIBLE for sign in text):
        raise ValueError("contains a character that cannot be seen: type it anew")
    if text != text.strip():
        raise ValueError("begins or ends with a blank: leave it out")
    name, bracket, rest = text.partition("(")
    if not _NAME.fullmatch(name):
        raise ValueError("does not begin with a tool's name, such as Bash or mcp__server__*")
    if not bracket:
        return Syntax(name, None)
    if not rest.endswith(")"):
        raise ValueError("has no ')' at its end")
    return Syntax(name, None if rest == "*)" else _specifier(name, rest[:-1]))


def problem(text: str) -> str | None:
    """What is wrong with a rule's text, in one line; None when it is a rule."""
    try:
        parse(text)
    except ValueError as error:
        shown = text if len(text) <= 100 else f"{text[:100]}…"
        return f"the rule {shown!r} {error}"
    return None


def allows_nothing(text: str) -> str | None:
    """Why a rule's text is of no use as an ``allow``, in one line; None when it is of use."""
    if name_of(text) != "Bash" or _specified(text) != OPAQUE:
        return None
    return (
        f"the rule {text!r} allows nothing: a command that hides what it runs is allowed by "
        "'Bash' alone"
    )


def is_name(text: str) -> bool:
    """Whether a rule's name part can be one."""
    return _NAME.fullmatch(text) is not None


def names(text: str, tool: str) -> bool:
    """Whether the tool is one of those that the rule's name stands for.

    ``Read`` stands for Grep and Glob too, ``Edit`` for Write, ``mcp__server`` for every tool of that
    server, a name that ends in ``*`` for all that begin so.
    """
    return covers(name_of(text), tool)


def concerns(text: str, tool: str) -> bool:
    """Whether the rule can have a say in calls of the tool: it names it, or it is about files that
    a command of Bash is redirected into or from."""
    name = name_of(text)
    return covers(name, tool) or (tool == "Bash" and name in ("Read", "Edit"))


def name_of(text: str) -> str:
    """The part of a rule's text that names tools."""
    return text.partition("(")[0].strip()


def _specified(text: str) -> str:
    """What stands in a rule's brackets."""
    return text.partition("(")[2].removesuffix(")")


def covers(name: str, tool: str) -> bool:
    """``names`` for a rule's name alone."""
    if name == tool:
        return True
    if name.endswith("*"):
        return tool.startswith(name[:-1])
    if name == "Read":
        return tool in READING
    if name == "Edit":
        return tool in WRITING
    server = name.startswith("mcp__") and "__" not in name[len("mcp__") :]
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
        return agent_pattern(text)
    raise ValueError(f"has brackets, which mean nothing for {name}: write {name!r}")
