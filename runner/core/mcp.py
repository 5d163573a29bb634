"""MCP servers of a job (https://modelcontextprotocol.io), as the job stores them.

Texts of a server may name variables of the worker's environment, ``${VAR}`` or ``${VAR:-default}``.
They are stored as written: only the worker that starts the server or connects to it looks them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.core.conversation import Tool

Scope = Literal["job", "run"]
Transport = Literal["http", "sse"]  # to a server with a URL

PREFIX = "mcp__"
_SOURCE = "mcp:"
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_BEGIN_OF_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
# Runner's own settings and keys: a file of a repository could send them anywhere.
_WITHHELD = ("RUNNER_", "ANTHROPIC_", "PGPASSWORD")
# One underscore at a time: mcp__SERVER__TOOL must have one reading.
_NAME = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME = 32
_LONGEST_TOOL_NAME = 64  # the API's

# Groups of names with or without ``*``. A tool is chosen if one name of each group covers it.
Choice = tuple[tuple[str, ...], ...]
# The tools of a server that the API takes, and what is wrong with others, by name.
Usable = tuple[tuple[Tool, ...], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class McpServer:
    """A section ``[mcp.NAME]`` of a job file. It has either a command or a URL."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    type: Transport = "http"
    scope: Scope = "job"  # what shares one server: all runs of the job in a worker, or one run
    trust_hints: bool = False  # calls that the server says only read may run again
    start_timeout: float = 30.0  # seconds until it has answered first
    folder: str = ""  # of the file that names its command: a server of the job runs here

    def expanded(self, environment: Mapping[str, str]) -> tuple[McpServer, dict[str, str]]:
        """Return the server with its variables looked up, and the values that were found, by name.
        Raises ``LookupError`` if one is not set and has no default."""
        found: dict[str, str] = {}

        def value(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if name.startswith(_WITHHELD):
                raise LookupError(f"${{{name}}} is a setting that only Runner itself gets")
            if environment.get(name):
                found[name] = environment[name]
                return found[name]
            if default is None:
                raise LookupError(f"the variable {name} is not set in this environment")
            return default

        def look_up(text: str) -> str:
            return _VARIABLE.sub(value, text)

        expanded = replace(
            self,
            command=self.command and look_up(self.command),
            args=tuple(map(look_up, self.args)),
            env={name: look_up(text) for name, text in self.env.items()},
            url=self.url and look_up(self.url),
            headers={name: look_up(text) for name, text in self.headers.items()},
        )
        return expanded, found

    def tool_name(self, tool: str) -> str:
        """Return the name that the model calls one of its tools by, of the API's characters."""
        return f"{PREFIX}{self.name}__{_NOT_IN_A_NAME.sub('_', tool)}"

    def source(self, tool: str) -> str:
        """Return the source of one of its tools, for the job to store."""
        return f"{_SOURCE}{self.name}:{tool}"


def source_parts(source: str) -> tuple[str, str] | None:
    """Return the server's name and its own name for a tool; None if the source is no server."""
    if not source.startswith(_SOURCE):
        return None
    name, _, tool = source.removeprefix(_SOURCE).partition(":")
    return name, tool


def usable(listed: Iterable[Tool], schema_problem: Callable[[Any], str | None]) -> Usable:
    """Return the tools of a server that the API takes, and why it takes no others. ``schema_problem``
    returns why the API takes no such ``input_schema``, or None."""
    good: dict[str, Tool] = {}
    refused = {}
    for tool in listed:
        if len(tool.name) > _LONGEST_TOOL_NAME:
            wrong: str | None = f"is longer than {_LONGEST_TOOL_NAME} characters"
        elif tool.name in good:
            wrong = "is the name of two tools"
        else:
            wrong = schema_problem(tool.input_schema)
        if wrong:
            refused[tool.name] = wrong
        else:
            good[tool.name] = tool
    return tuple(good.values()), refused


def chosen(choice: Choice, tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Return the chosen tools, in the order of the first group, those of one name with ``*`` by name."""
    left = sorted(tools, key=lambda tool: tool.name)
    found: dict[str, Tool] = {}
    for name in choice[0]:
        found |= {tool.name: tool for tool in left if is_named((name,), tool.name)}
    return tuple(tool for tool in found.values() if is_chosen(choice, tool.name))


def is_chosen(choice: Choice, tool: str) -> bool:
    return all(is_named(group, tool) for group in choice)


def is_named(names: Iterable[str], tool: str) -> bool:
    """True if one of the names, with or without ``*``, is that of a server's tool."""
    from runner.permissions.rules import covers  # late: commands that list jobs match no rules

    return any(covers(name, tool) for name in names)


def is_server_name(name: str) -> bool:
    return len(name) <= _MOST_NAME and _NAME.fullmatch(name) is not None


def variables_in(written: Mapping[str, Any]) -> set[str]:
    """Return the names of all variables that the texts of a server, as it is written, may name."""
    return set(_BEGIN_OF_VARIABLE.findall(str(written)))


def has_variable(text: str) -> bool:
    return _VARIABLE.search(text) is not None
