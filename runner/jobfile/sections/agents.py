"""``[agents.NAME]`` and ``[coordinator]``: types of sub-agents, and who splits a task for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import cast, get_args

from runner.core.agents import (
    AGENT_TOOL,
    SPLIT_TOOL,
    AgentType,
    AgentWorkspace,
    Coordinator,
)
from runner.core.budget import Limits
from runner.core.conversation import Tool
from runner.core.workspace import RESULT_TOOL
from runner.errors import Problem
from runner.jobfile.lines import place
from runner.jobfile.section import Section, shown
from runner.jobfile.sections.bounds import (
    LEAST_USD,
    MOST_MODEL_CHARACTERS,
    MOST_TOKENS,
    MOST_TURNS,
    MOST_USD,
)
from runner.jobfile.sections.ending import SCHEMA_KEYS, SchemaDraft, check_schema, schema_of
from runner.jobfile.sections.permissions import EFFECTS, about_no_tool, rules_in
from runner.jobfile.texts import Text, read_text, system_of
from runner.permissions import Rule
from runner.permissions.rules import AGENT_NAME

AGENT_LIMITS = ("max_turns", "token_ceiling", "cost_ceiling_usd", "working_time", "deadline")
AGENT_KEYS = (
    "description",
    "system",
    "system_file",
    "model",
    "tools",
    "permissions",
    "workspace",
    "snapshot",
    *SCHEMA_KEYS,
    "limits",
)
COORDINATOR_KEYS = ("agent", "fewest", "most")
MOST_DESCRIPTION_CHARACTERS = 1_000
# https://github.com/BerriAI/litellm/issues/4689
_NO_TOOLS = "needs tools: the API takes no conversation with calls of tools from who has none"

_DEFAULT_TYPE = AgentType("", "")
_DEFAULT_COORDINATOR = Coordinator("")
MOST_PARTS = _DEFAULT_COORDINATOR.most


@dataclass(frozen=True, slots=True)
class AgentDraft:
    """A type of sub-agent as it is written: ``agent`` has what the section says by itself; what it names
    keeps its index in the file."""

    agent: AgentType
    system: Text | None = None
    schema: SchemaDraft | None = None
    tools: tuple[tuple[int, str], ...] | None = None
    rules: tuple[tuple[int, Rule], ...] = ()

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def placed(self) -> list[tuple[str, Rule]]:
        """Each rule with its place in the job file."""
        at = ("agents", self.name, "permissions")
        return [(place(*at, rule.effect, index), rule) for index, rule in self.rules]


@dataclass(frozen=True, slots=True)
class AgentDrafts:
    """All types of a job, in the order of the file, and its coordinator."""

    types: tuple[AgentDraft, ...] = ()
    coordinator: Coordinator | None = None

    @property
    def coordinated(self) -> AgentType | None:
        """The type that the coordinator starts."""
        name = self.coordinator.agent if self.coordinator else None
        return next((draft.agent for draft in self.types if draft.name == name), None)


def check_agents(top: Section, limits: Limits, *, own_folder: bool) -> AgentDrafts:
    """What the sections say, after noting what is wrong with them.

    Args:
        limits: those of the job's runs.
        own_folder: whether each run of the job has a folder of its own.
    """
    agents = top.section("agents")
    types: list[AgentDraft] = []
    for name in agents.values if agents else ():
        section = agents.section(name) if agents else None
        if section is None:
            continue
        if not AGENT_NAME.fullmatch(name):
            section.note(
                f"{shown(name)} cannot be a name: letters, digits, '_' and '-', at most 64"
            )
        else:
            types.append(_agent(section, name, own_folder=own_folder))
    return AgentDrafts(tuple(types), _coordinator(top, agents.values if agents else {}, limits))


def _agent(section: Section, name: str, *, own_folder: bool) -> AgentDraft:
    section.expect_keys(AGENT_KEYS, dict.fromkeys(AGENT_LIMITS, f"in [agents.{name}.limits]"))
    if not section.has("description"):
        section.note("the key description is missing: what the model is told of the type")
    workspace = cast(
        AgentWorkspace,
        section.choice("workspace", get_args(AgentWorkspace), _DEFAULT_TYPE.workspace),
    )
    if workspace == "own" and not own_folder:
        section.note('"own" is only for a [workspace] with mode = "git" or "copy"', "workspace")
    has_tools = section.values.get("tools") != [] or any(map(section.has, SCHEMA_KEYS))
    if section.values.get("snapshot") is True and not has_tools:
        section.note(_NO_TOOLS, "snapshot")
    permissions = section.section("permissions")
    rules: list[tuple[int, Rule]] = []
    if permissions:
        permissions.expect_keys(EFFECTS, {})
        rules = [found for effect in EFFECTS for found in rules_in(permissions, effect, effect)]
    agent = AgentType(
        name=name,
        description=section.line("description", MOST_DESCRIPTION_CHARACTERS) or "",
        model=section.line("model", MOST_MODEL_CHARACTERS),
        workspace=workspace,
        snapshot=section.flag("snapshot"),
    )
    return AgentDraft(
        agent=_limited(agent, section.section("limits")),
        system=system_of(section),
        schema=check_schema(section),
        tools=tuple(section.texts("tools")) if section.has("tools") else None,
        rules=tuple(rules),
    )


def _limited(agent: AgentType, limits: Section | None) -> AgentType:
    if limits is None:
        return agent
    limits.expect_keys(AGENT_LIMITS, {})
    return replace(
        agent,
        max_turns=_whole(limits, "max_turns", MOST_TURNS),
        token_ceiling=_whole(limits, "token_ceiling", MOST_TOKENS),
        cost_ceiling_usd=limits.number("cost_ceiling_usd", least=LEAST_USD, most=MOST_USD),
        working_time=limits.seconds("working_time"),
        deadline=limits.seconds("deadline"),
    )


def _whole(section: Section, key: str, most: int) -> int | None:
    return section.integer(key, 1, most=most) if section.has(key) else None


def _coordinator(top: Section, agents: Mapping[str, object], limits: Limits) -> Coordinator | None:
    section = top.section("coordinator")
    if section is None:
        return None
    section.expect_keys(COORDINATOR_KEYS, {})
    if not section.has("agent"):
        section.note("the key agent is missing: the type of sub-agent that works on a part")
    agent = section.text("agent")
    if agent is not None and agent not in agents:
        there = f"there are {', '.join(agents)}" if agents else f"add a section [agents.{agent}]"
        section.note(f"no type of sub-agent is called {shown(agent)}; {there}", "agent")
    return _parted(section, Coordinator(agent or ""), limits)


def _parted(section: Section, coordinator: Coordinator, limits: Limits) -> Coordinator:
    """The coordinator with how many parts there may be: all of them start at once."""
    started = {"max_agents_at_once": limits.max_agents_at_once, "max_agents": limits.max_agents}
    held_by, held = min(started.items(), key=itemgetter(1))
    least = coordinator.fewest
    fewest = section.integer("fewest", least, most=MOST_PARTS)
    most = section.integer("most", max(fewest, min(coordinator.most, held)), most=MOST_PARTS)
    if fewest < least:
        section.note(f"must be at least {least}, not {fewest}", "fewest")
    elif most < fewest:
        section.note(f"must be at least as many as fewest ({fewest}), not {most}", "most")
    elif most > held and section.has("most"):
        section.note(
            f"must be at most limits.{held_by} ({held}), not {most}: all parts start at once",
            "most",
        )
    elif fewest > held:
        section.note(
            f"needs limits.{held_by} to be at least {fewest}, not {held}: all parts start at once",
            *(["fewest"] if section.has("fewest") else []),
        )
    return replace(coordinator, fewest=fewest, most=most)


def resolve_agents(
    drafts: AgentDrafts,
    listed: Sequence[str],
    tools: Sequence[Tool],
    folder: Path,
    problems: list[Problem],
) -> tuple[AgentType, ...]:
    """The types of sub-agents of a job with all that they name, after noting what is wrong with that.

    Args:
        listed: the names under ``tools``, as they are written.
        tools: those of them that were found.
        folder: the job file's.
    """
    problems += _unstarted(drafts, listed)
    if drafts.coordinator and any(tool.name == SPLIT_TOOL for tool in tools):
        message = f"{SPLIT_TOOL} is how a coordinator splits its task: rename this tool"
        problems.append(Problem("tools", message))
    return tuple(_resolve(draft, listed, tools, folder, problems) for draft in drafts.types)


def _unstarted(drafts: AgentDrafts, listed: Sequence[str]) -> Iterator[Problem]:
    """What could never be used: a tool without types, or types that nothing starts."""
    if AGENT_TOOL in listed:
        if not drafts.types:
            message = f"{AGENT_TOOL} has nothing to start: add a section [agents.NAME]"
            yield Problem(f"tools[{listed.index(AGENT_TOOL)}]", message)
        return
    for draft in drafts.types:
        if drafts.coordinator is None or draft.name != drafts.coordinator.agent:
            message = (
                f'nothing starts it: list "{AGENT_TOOL}" in tools, or name it as coordinator.agent'
            )
            yield Problem(place("agents", draft.name), message)


def _resolve(
    draft: AgentDraft,
    listed: Sequence[str],
    tools: Sequence[Tool],
    folder: Path,
    problems: list[Problem],
) -> AgentType:
    at = ("agents", draft.name)
    names = _names(draft, listed, tools, problems)
    known = sorted({tool.name for tool in tools} | {_own_name(name) for name in listed})
    problems += about_no_tool(draft.placed, known)
    schema, found = schema_of(draft.schema, folder)
    problems += [replace(each, place=place(*at, each.place)) for each in found]
    if draft.schema is not None and any(tool.name == RESULT_TOOL for tool in tools):
        message = f"{RESULT_TOOL} is how results of output_schema are submitted: rename the tool"
        problems.append(Problem(place(*at, "output_schema"), message))
    origin = place(*at)
    return replace(
        draft.agent,
        system=read_text(draft.system, (*at, "system"), folder, problems),
        tools=names,
        rules=tuple(replace(rule, origin=origin) for _, rule in draft.rules),
        result_schema=schema,
    )


def _names(
    draft: AgentDraft, listed: Sequence[str], tools: Sequence[Tool], problems: list[Problem]
) -> tuple[str, ...] | None:
    """The names of the type's tools, after noting those that the job lacks."""
    if draft.tools is None:
        return None
    names: dict[str, None] = {}
    for index, written in draft.tools:
        at = place("agents", draft.name, "tools", index)
        name = _own_name(written) if written in listed else written
        if name not in {_own_name(each) for each in listed}:
            there = ", ".join(tool.name for tool in tools) or "none"
            problems.append(
                Problem(at, f"{shown(written)} is no tool of this job, which has {there}")
            )
        elif name in names:
            problems.append(Problem(at, f"{shown(written)} is listed twice"))
        names[name] = None
    return tuple(names)


def _own_name(written: str) -> str:
    """What a tool is called that stands in ``tools`` as ``package.module:function``, or as it is."""
    return written.rpartition(":")[2]
