"""Which calls of a reply start sub-agents, which of them may, and which are next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from runner.core.agents.agent import (
    SPLIT_TOOL,
    AgentType,
    Child,
    NewChild,
)
from runner.core.agents.allot import allot
from runner.core.agents.spec import takes_snapshot
from runner.core.agents.split import parts_of
from runner.core.conversation import ToolResult
from runner.core.journal.view import Call, RunView

_TOO_DEEP = (
    "A sub-agent as deep as this one can start none itself: do this part of the work yourself."
)
_TREE_IS_FULL = (
    "{} have been started for this task, which is the most: do the rest of the work yourself."
)
_SPLIT_FIRST = f"Split the task with {SPLIT_TOOL} first."
_BLANK_PROMPT = "The prompt of a sub-agent must not be blank."


def children_of(view: RunView, call: Call) -> tuple[Child, ...]:
    """The sub-agents that a call has started, in order."""
    return tuple(child for child in view.children if child.index == call.index)


def children_work_in(view: RunView) -> bool:
    """Whether sub-agents that calls without results have started change the files of its workspace: those
    that have ended have."""
    return any(_shares(view, child) for child in view.children)


def is_busy(view: RunView) -> bool:
    """Whether sub-agents are under way in the run's workspace: what they have half done is no tree."""
    return any(child.result is None and _shares(view, child) for child in view.children)


def _shares(view: RunView, child: Child) -> bool:
    agent = view.spec.agent(child.agent_type)
    return agent is not None and agent.workspace == "parent"


def begins_with_shared(view: RunView, children: Sequence[NewChild]) -> bool:
    """Whether one of these is to have a folder of its own that begins with the files of one which the
    run only shares, so that nothing of it is recorded yet."""
    if view.depth == 0 or view.spec.workspace is None or view.spec.is_recorded:
        return False
    types = (view.spec.agent(child.agent_type) for child in children)
    return view.shared_tree is None and any(
        agent is not None and agent.workspace == "own" for agent in types
    )


def cannot_start(view: RunView, call: Call) -> ToolResult | None:
    """Why a call for a sub-agent that has none starts none, whatever the rules say; None if it may."""
    if view.depth >= view.limits.max_agent_depth:
        return ToolResult(_TOO_DEEP, "failed")
    if view.spec.coordinator is not None and view.progress.split != "done":
        return ToolResult(_SPLIT_FIRST, "failed")
    most = view.limits.max_agents
    if view.tree_size >= most:
        started = "1 sub-agent" if most == 1 else f"{most} sub-agents"
        return ToolResult(_TREE_IS_FULL.format(started), "failed")
    if call.tool_context is not None and call.tool_context.problem:
        return ToolResult(call.tool_context.problem, "invalid_input")
    arguments = call.input_to_run
    if view.spec.agent(str(arguments.get("agent_type"))) is None:
        names = ", ".join(agent.name for agent in view.spec.agents) or "none"
        unknown = f"Unknown type of sub-agent {arguments.get('agent_type')!r}. Types: {names}."
        return ToolResult(unknown, "invalid_input")
    if not str(arguments.get("prompt", "")).strip():
        return ToolResult(_BLANK_PROMPT, "invalid_input")
    return None


def next_children(view: RunView, pending: Sequence[Call]) -> tuple[NewChild, ...]:
    """The sub-agents that are to start now: of neighbouring calls together, those that wait for an
    answer left out; never before a call of another kind that comes first.

    Args:
        pending: the calls without results, each with its decision.
    """
    block = _next_block(view, pending)
    if block and view.spec.splits(block[0].name):
        return parts_of(view, block[0])
    unended = sum(child.result is None for child in view.children)
    limits = view.limits
    room = max(0, min(limits.max_agents_at_once - unended, limits.max_agents - view.tree_size))
    return tuple(_new_children(view, waiting_for_room(view, pending)[:room]))


def waiting_for_room(view: RunView, pending: Sequence[Call]) -> Sequence[Call]:
    """The calls for sub-agents that start as soon as fewer of them are under way.

    Args:
        pending: as in ``next_children``.
    """
    block = _next_block(view, pending)
    return [call for call in block if not call.waits and not view.spec.splits(call.name)]


def _next_block(view: RunView, pending: Sequence[Call]) -> Sequence[Call]:
    """The calls for sub-agents that are not started, up to a call of another kind."""
    unstarted = [call for call in pending if not children_of(view, call)]
    return list(takewhile(lambda call: view.spec.starts_children(call.name), unstarted))


def _new_children(view: RunView, calls: Sequence[Call]) -> Iterator[NewChild]:
    first = view.progress.children + 1
    for number, call in enumerate(calls, first):
        arguments: Mapping[str, Any] = call.input_to_run
        agent = _type_of(view, arguments)
        share = allot(view, agent, len(calls))
        yield NewChild(
            number,
            call.index,
            agent.name,
            str(arguments.get("description", "")),
            str(arguments["prompt"]),
            takes_snapshot(view.spec, agent, arguments.get("snapshot")),
            share.tokens,
            share.cost,
            share.deadline,
        )


def _type_of(view: RunView, arguments: Mapping[str, Any]) -> AgentType:
    agent = view.spec.agent(str(arguments["agent_type"]))
    assert agent is not None, "a call with an unknown type has its result by now"
    return agent
