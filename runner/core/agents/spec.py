"""What a sub-agent of a type is given of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from runner.core.agents.agent import SPLIT_SOURCE, AgentType
from runner.core.conversation import Tool
from runner.core.ending.result import RESULT_SOURCE, result_tool
from runner.core.files.workspace import Workspace
from runner.core.money.budget import Limits
from runner.core.spec import JobSpec

T = TypeVar("T")


def spec_of(spec: JobSpec, *types: str) -> JobSpec:
    """The spec that a sub-agent works by.

    Args:
        types: names of ``spec.agents``: of the child of an item's run, of its child, and so on to the
            sub-agent itself, which has no tool that one above it lacks. None: the job's own spec.

    Raises:
        LookupError: the job has no such type.
    """
    if not types:
        return spec
    lineage = [_agent(spec, name) for name in types]
    agent = lineage[-1]
    context = spec.context
    if agent.model not in (None, spec.model):
        context = replace(context, window=None)
    return replace(
        spec,
        model=_given(agent.model, spec.model),
        system=_given(agent.system, spec.system),
        tools=_tools(spec, lineage),
        limits=_limits(spec.limits, agent),
        context=context,
        workspace=_workspace(spec.workspace, agent),
        verify=None,
        coordinator=None,
    )


def takes_snapshot(spec: JobSpec, agent: AgentType, asked: bool | None) -> bool:
    """Whether a child begins with its parent's conversation: as the call for it says, or else its type.
    One without tools never does: the API refuses calls and results in a request that defines none.

    Args:
        spec: the parent's.
        asked: what the call says, None when it says nothing.
    """
    wanted = agent.snapshot if asked is None else asked
    return wanted and bool(spec_of(spec, agent.name).tools)


def _agent(spec: JobSpec, name: str) -> AgentType:
    agent = spec.agent(name)
    if agent is None:
        raise LookupError(f"the job {spec.name!r} has no type of sub-agent {name!r}")
    return agent


def _tools(spec: JobSpec, lineage: Sequence[AgentType]) -> tuple[Tool, ...]:
    """Those of the job that all of the types have, in the job's order: never a tool that splits the
    job's task, nor one that takes the job's own result."""
    kept = tuple(
        tool
        for tool in spec.tools
        if tool.source not in (SPLIT_SOURCE, RESULT_SOURCE)
        and all(agent.tools is None or tool.name in agent.tools for agent in lineage)
    )
    schema = lineage[-1].result_schema
    return kept if schema is None else (*kept, result_tool(schema))


def _limits(limits: Limits, agent: AgentType) -> Limits:
    return replace(
        limits,
        max_turns=_given(agent.max_turns, limits.max_turns),
        token_ceiling=_given(agent.token_ceiling, limits.token_ceiling),
        cost_ceiling_usd=_given(agent.cost_ceiling_usd, limits.cost_ceiling_usd),
        working_time=_given(agent.working_time, limits.working_time),
        deadline=_given(agent.deadline, limits.deadline),
    )


def _given(own: T | None, of_job: T) -> T:
    return of_job if own is None else own


def _workspace(workspace: Workspace | None, agent: AgentType) -> Workspace | None:
    """Who works in another's folder records nothing of it: its trees are the other's."""
    if workspace is None or not workspace.is_recorded or agent.workspace == "own":
        return workspace
    return replace(workspace, mode="shared")
