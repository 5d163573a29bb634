"""From the names in a job's ``tools`` and ``hooks`` to the tools and functions that the job stores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.agents.agent import AGENT_TOOL
from runner.core.conversation import Tool
from runner.errors import UsageError
from runner.tools.builtin import BUILTIN
from runner.tools.environment import tool_environment
from runner.tools.own.source import OwnSource
from runner.tools.own.tool import Undescribed, describe, look_at

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the Messages API takes


@dataclass(frozen=True, slots=True)
class UnusableTool:
    """A name in ``tools`` that cannot be used: its position (from 0), the name, and why."""

    index: int
    name: str
    message: str


class ToolsError(UsageError):
    """Names in ``tools`` that cannot be used; ``problems`` lists all of them, in order."""

    def __init__(self, problems: tuple[UnusableTool, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.name}: {problem.message}" for problem in problems))


def resolve(
    names: Sequence[str], import_from: Path, environ: Mapping[str, str] | None = None
) -> tuple[Tool, ...]:
    """The tools that a job file names, in its order.

    Args:
        names: builtin names (``Bash``), or ``package.module:function`` for own tools, each of which a
            child process imports and describes.
        import_from: the folder where own tools are looked for first, the job file's own.
        environ: the environment of those children before secrets are taken out of it; this
            process's when left out.

    Raises:
        ToolsError: some cannot be used.
    """
    environment = tool_environment(os.environ if environ is None else environ, ())
    tools: dict[str, Tool] = {}
    problems: list[UnusableTool] = []
    for index, name in enumerate(names):
        try:
            tool = _one(name, import_from, environment)
            if tool.name in tools:
                raise Undescribed(f"there is already a tool with the name {tool.name} in the list")
            tools[tool.name] = tool
        except Undescribed as error:
            problems.append(UnusableTool(index, name, str(error)))
    if problems:
        raise ToolsError(tuple(problems))
    return tuple(tools.values())


def resolve_hooks(
    names: Sequence[str], import_from: Path, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The functions that a job file names as hooks: by name, each as the job stores it, and what is
    wrong with the other names.

    Args:
        names: ``package.module:function``, each of which a child process imports.
        import_from, environ: as of ``resolve``.
    """
    environment = tool_environment(os.environ if environ is None else environ, ())
    found: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    for name in dict.fromkeys(names):
        try:
            source = OwnSource.named(name, import_from)
            if source is None:
                raise Undescribed("there is no such function: name it package.module:function")
            look_at(source, environment)
            found[name] = str(source)
        except Undescribed as error:
            problems.append((name, str(error)))
    return found, tuple(problems)


def _one(name: str, import_from: Path, environment: Mapping[str, str]) -> Tool:
    if name in BUILTIN:
        return BUILTIN[name]
    source = OwnSource.named(name, import_from)
    if source is None:
        raise Undescribed(
            f"there is no such tool: the builtin ones are {', '.join((*BUILTIN, AGENT_TOOL))}, "
            "and own tools are named package.module:function"
        )
    tool = describe(source, environment)
    if tool.name in (*BUILTIN, AGENT_TOOL):
        raise Undescribed(
            f"{tool.name} is the name of a builtin tool: call the function something else"
        )
    if not _TOOL_NAME.fullmatch(tool.name):
        raise Undescribed(
            f"{tool.name} cannot be a tool's name: letters, digits, _ and -, at most 64"
        )
    return tool
