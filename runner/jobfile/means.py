"""What a job gives its runs to work with: tools, rules, types of sub-agents, hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runner.core.agents import AGENT_TOOL, AgentType, agent_tool, split_tool
from runner.core.conversation import Tool
from runner.core.hooks import Hook
from runner.core.workspace import RESULT_TOOL, result_tool
from runner.errors import Problem
from runner.jobfile.check import Draft
from runner.jobfile.section import shown
from runner.jobfile.sections.agents import resolve_agents
from runner.jobfile.sections.ending import schema_of
from runner.jobfile.sections.hooks import ResolveHooks, resolve_hooks
from runner.jobfile.sections.permissions import Expanded, about_no_agent, about_no_tool, expand
from runner.jobfile.source import Source, rules_in_copies
from runner.permissions import Rule

# Takes the names under ``tools`` and the job file's folder, from which own tools are imported.
# Gives the tools in the order of the names, and (name, what is wrong with it) for each other name.
ResolveTools = Callable[[Sequence[str], Path], tuple[tuple[Tool, ...], tuple[tuple[str, str], ...]]]


@dataclass(frozen=True, slots=True)
class Means:
    """A job's tools, rules, types of sub-agents and hooks, and notes for whoever submits it."""

    tools: tuple[Tool, ...]
    rules: tuple[Rule, ...]
    agents: tuple[AgentType, ...]
    hooks: tuple[Hook, ...]
    notes: tuple[str, ...]


def find_means(
    draft: Draft,
    folder: Path,
    source: Source,
    resolvers: tuple[ResolveTools, ResolveHooks],
    problems: list[Problem],
) -> Means:
    """Find all that the job gives its runs to work with, noting what is wrong with it.

    Args:
        folder: the job file's.
        source: of the workspaces.
        resolvers: find tools and hooks by their names.
    """
    find_tools, find_hooks = resolvers
    tools = _tools(draft, folder, find_tools, problems)
    named = [name for _, name in draft.tools]
    listed = sorted({tool.name for tool in tools} | {name.rpartition(":")[2] for name in named})
    in_copies = partial(
        rules_in_copies, workspace=source.workspace, draft=draft.workspace, folder=folder
    )
    permissions = _permissions(draft, tools, listed, folder, problems)
    agents = resolve_agents(draft.agents, named, tools, folder, problems)
    return Means(
        tools=_with_ending(draft, tools, folder, problems),
        rules=in_copies(permissions.rules),
        agents=tuple(replace(agent, rules=in_copies(agent.rules)) for agent in agents),
        hooks=resolve_hooks(draft.hooks, listed, folder, find_hooks, in_copies, problems),
        notes=permissions.notes,
    )


def _tools(
    draft: Draft, folder: Path, resolve_tools: ResolveTools, problems: list[Problem]
) -> tuple[Tool, ...]:
    """The tools under ``tools``, in order."""
    index = {name: index for index, name in draft.tools}
    named = [name for name in index if name != AGENT_TOOL]
    tools, unknown = resolve_tools(tuple(named), folder)
    problems += [Problem(f"tools[{index[name]}]", message) for name, message in unknown]
    tools = _with_agents(draft, list(index), tools)
    counted = Counter(tool.name for tool in tools)
    problems += [
        Problem("tools", f"{number} tools are called {shown(name)}; the model could not choose")
        for name, number in counted.items()
        if number > 1
    ]
    return tools


def _with_agents(draft: Draft, named: Sequence[str], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools, and the one that starts sub-agents at its place among them."""
    types = [each.agent for each in draft.agents.types]
    if AGENT_TOOL not in named or not types:
        return tools
    at = named.index(AGENT_TOOL)
    return (*tools[:at], agent_tool(types, draft.limits), *tools[at:])


def _permissions(
    draft: Draft,
    tools: Sequence[Tool],
    listed: Sequence[str],
    folder: Path,
    problems: list[Problem],
) -> Expanded:
    in_order = tuple(tool.name for tool in tools)
    expanded = expand(draft.permissions, in_order, listed, folder)
    problems += expanded.problems
    external = draft.workspace.external if draft.workspace else ()
    outside = [(f"workspace.external[{index}]", rule) for index, rule in external]
    problems += about_no_tool(outside, listed)
    if AGENT_TOOL in listed:
        rules = [*draft.permissions.placed, *outside]
        rules += [placed for each in draft.agents.types for placed in each.placed]
        rules += [placed for each in draft.hooks for placed in each.placed]
        problems += about_no_agent(rules, [each.name for each in draft.agents.types])
    return expanded


def _with_ending(
    draft: Draft, tools: tuple[Tool, ...], folder: Path, problems: list[Problem]
) -> tuple[Tool, ...]:
    """The tools, the one that takes the result that the job asks for, and the one that splits a
    coordinator's task."""
    schema, found = schema_of(draft.schema, folder)
    problems += found
    index = {name.rpartition(":")[2]: index for index, name in draft.tools}
    if draft.schema is not None and RESULT_TOOL in index:
        message = f"{RESULT_TOOL} is how results of output_schema are submitted: rename this tool"
        problems.append(Problem(f"tools[{index[RESULT_TOOL]}]", message))
    if schema is not None:
        tools = (*tools, result_tool(schema))
    coordinator, agent = draft.agents.coordinator, draft.agents.coordinated
    if coordinator is not None and agent is not None:
        tools = (*tools, split_tool(coordinator, agent))
    return tools
