"""Sub-agents of a run: which calls start them, what each may use, and what the calls are given.

A coordinator is a run that first splits its task into parts for sub-agents, and joins their results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

from runner.core.agents import SPLIT_SOURCE, SPLIT_TOOL, AgentType, Child, NewChild, Split, child_id
from runner.core.budget import Limits, billionths
from runner.core.compaction import truncate_text, where_output_is
from runner.core.conversation import UNREADABLE_INPUT, Message, Tool, ToolResult
from runner.core.entries import ChildrenStarted, UserMessageAdded
from runner.core.run import Waiting
from runner.core.spec import JobSpec
from runner.core.state import Call, RunState
from runner.core.steps import Record, Step, leave, settle, stop_at_deadline
from runner.core.text import SPLIT_AGAIN_TEXT, SPLIT_TEXT, WHOLE_TEXT, shorten
from runner.core.workspace import RESULT_SOURCE, Workspace, result_tool

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


MOST_CHARACTERS = 50_000

_SAID_NOTHING = "(The sub-agent is done, and its last message has no text.)"
_NOT_DONE = "The sub-agent did not finish its task: {}"
_LEFT = "\n\n[Its files are in the commit {1}, which the branch {0} of the repository has.]"
_DETAIL_LENGTH = 500


def outcome_of(
    state: str,
    reason: str,
    detail: str,
    said: str,
    submitted: Mapping[str, Any] | None = None,
    left: tuple[str, str] | None = None,
) -> ToolResult:
    """The result of a child that has ended: what it said last or submitted, or why it did not come
    to an end.

    Args:
        state, reason, detail: how it has ended.
        said: the text of its last message.
        submitted: its structured result, None when it gave none.
        left: the branch and the commit that it has left, None without.
    """
    files = "" if left is None else _LEFT.format(*left)
    if state != "succeeded":
        why = ": ".join(part for part in (f"{state} ({reason})", detail.strip()) if part)
        return ToolResult(_NOT_DONE.format(shorten(why, _DETAIL_LENGTH)) + files, "failed")
    if submitted is not None:
        said = json.dumps(submitted, ensure_ascii=False)
    return ToolResult((said if said.strip() else _SAID_NOTHING) + files)


def fitted(state: RunState, call: Call, result: ToolResult) -> ToolResult:
    """The result of a call, no longer than the output of a tool may be: all of it can be read where those
    outputs are.

    Args:
        state: of the run that made the call.
    """
    text = result.content
    if len(text) <= MOST_CHARACTERS:
        return result
    content = truncate_text(text, MOST_CHARACTERS, where_output_is(state, call.id, call.name))
    return replace(result, content=content, output=text.encode("utf-8", "replace"))


N = TypeVar("N", int, float)


def new_child(
    state: RunState,
    agent: AgentType,
    *,
    number: int,
    index: int | None,
    description: str,
    prompt: str,
    snapshot: bool | None = None,
    together: int,
) -> NewChild:
    """One of several children that start together. Each may use what its type says, and no more than an
    equal share of what the parent has left, of which one share stays with the parent.

    Args:
        snapshot: what the call for it says; None: nothing.
        together: how many start together.
    """
    limits, used, shares = state.spec.limits, state.used, together + 1
    tokens = limits.token_ceiling if agent.token_ceiling is None else agent.token_ceiling
    usd = limits.cost_ceiling_usd if agent.cost_ceiling_usd is None else agent.cost_ceiling_usd
    ceiling = state.limits.cost_ceiling
    return NewChild(
        number,
        index,
        agent.name,
        description,
        prompt,
        takes_snapshot(state.spec, agent, snapshot),
        tokens=min(tokens, max(0, state.limits.token_ceiling - used.tokens) // shares),
        cost=_least(
            None if usd is None else billionths(usd),
            None if ceiling is None else max(0, ceiling - used.cost) // shares,
        ),
        deadline=_least(
            agent.deadline, None if state.ends_at is None else state.ends_at - state.now
        ),
    )


def _least(*limits: N | None) -> N | None:
    return min((limit for limit in limits if limit is not None), default=None)


_BEFORE = "The task has been split: a task is split once. Go on with what its parts gave."
_NO_OBJECT = "The arguments must be a JSON object."
_BLANK = "The description and the prompt of a part must not be blank."
_AGAIN = f" Call {SPLIT_TOOL} once more with parts that fit."


def refused_split(state: RunState, call: Call) -> ToolResult | None:
    """The result of a call to split the task that starts nothing: the task is split already, or its
    first split is no good. None while it has not been looked whether it fits its schema."""
    if state.children.split == "done":
        return ToolResult(_BEFORE, "failed")
    problem = _problem(call)
    if not problem:
        return None
    again = state.children.split == "asked_again"
    if again and not any(_is_bad_split(state, other) for other in state.calls):
        return None  # the second reply with a bad one: the task is not split
    return ToolResult(problem.rstrip() + _AGAIN, "invalid_input")


def parts_of(state: RunState, call: Call) -> tuple[NewChild, ...]:
    """The children for a task that is split: one for each part, or one for all of it, where the split
    is no good."""
    if _problem(call):
        return (_whole(state, call.index),)
    parts, first = call.input_to_run["parts"], state.children.started + 1
    return tuple(
        _part(state, number, call.index, part["description"], part["prompt"], len(parts))
        for number, part in enumerate(parts, first)
    )


def joined(state: RunState, call: Call, children: Sequence[Child]) -> ToolResult | None:
    """The result of a call that has started children; None while one of them has not ended. Those of
    several parts stand under headings, in the order of the parts."""
    results = [child.result for child in children if child.result is not None]
    if len(results) < len(children):
        return None
    if len(results) == 1:
        return fitted(state, call, results[0])
    whole, output = _under_headings(call, results), None
    if len(whole) > MOST_CHARACTERS:
        output = whole.encode("utf-8", "replace")
        most = MOST_CHARACTERS // len(results)
        whole = _under_headings(call, [_cut(state, call, result, most) for result in results])
    nothing = all(result.is_error for result in results)
    return ToolResult(whole, "failed" if nothing else "succeeded", output)


def coordinate(state: RunState) -> Step | None:
    """The next step of a coordinator beside its calls: it is told to split its task, or what came of
    the whole of it."""
    if state.spec.coordinator is None:
        return None
    if not state.children.split:
        return Record(UserMessageAdded((SPLIT_TEXT,), "split"))
    if state.children.split != "whole":
        return None
    if (step := leave(state)) is not None:
        return step
    child = next(child for child in state.children.current if child.index is None)
    if child.result is None:
        return settle(Waiting("children"))
    content = child.result.content
    if len(content) > MOST_CHARACTERS:
        where = f"the conversation of {child_id(state.run_id, child.number)} has all of it"
        content = truncate_text(content, MOST_CHARACTERS, where)
    return Record(UserMessageAdded((WHOLE_TEXT.format(result=content),), "children"))


def split_first(state: RunState) -> Step | None:
    """What comes before the end of a coordinator that has not split its task; None if it has."""
    match state.children.split:
        case "asked":
            return Record(UserMessageAdded((SPLIT_AGAIN_TEXT,), "split"))
        case "asked_again":
            if state.ends_at is not None and state.ends_at <= state.now:
                return stop_at_deadline(state)
            return Record(ChildrenStarted((_whole(state, None),)))
        case _:
            return None


def split_of(spec: JobSpec, messages: Sequence[Message], started: Sequence[bool]) -> Split:
    """How far a coordinator is that goes on from a copied conversation.

    Args:
        started: of each call in it to split the task, whether it has started sub-agents.
    """
    if spec.coordinator is None:
        return ""
    texts = [
        block["text"]
        for message in messages
        if message.role == "user"
        for block in message.blocks
        if block["type"] == "text"
    ]
    told_of_whole = WHOLE_TEXT.partition("{")[0]
    if any(started) or any(text.startswith(told_of_whole) for text in texts):
        return "done"
    if started or SPLIT_AGAIN_TEXT in texts:
        return "asked_again"
    return "asked" if SPLIT_TEXT in texts else ""


def _problem(call: Call) -> str:
    """What is wrong with a split; empty when nothing is, or when it has not been looked at."""
    arguments = call.input_to_run
    if not isinstance(arguments, Mapping) or list(arguments) == [UNREADABLE_INPUT]:
        return _NO_OBJECT
    if call.tool_context is None or call.tool_context.problem:
        return call.tool_context.problem if call.tool_context is not None else ""
    parts = arguments["parts"]
    blank = any(not part[name].strip() for part in parts for name in ("description", "prompt"))
    return _BLANK if blank else ""


def _is_bad_split(state: RunState, call: Call) -> bool:
    return state.spec.splits(call.name) and (call.result or {}).get("is_error") is True


def _whole(state: RunState, index: int | None) -> NewChild:
    task: str = state.messages[0].blocks[0]["text"]
    return _part(state, state.children.started + 1, index, "the whole task", task, 1)


def _part(
    state: RunState, number: int, index: int | None, title: str, prompt: str, together: int
) -> NewChild:
    coordinator = state.spec.coordinator
    agent = state.spec.agent(coordinator.agent) if coordinator is not None else None
    assert agent is not None, "a job with a coordinator has the type of its children"
    return new_child(
        state,
        agent,
        number=number,
        index=index,
        description=title,
        prompt=prompt,
        together=together,
    )


def _cut(state: RunState, call: Call, result: ToolResult, most: int) -> ToolResult:
    """Each part's is cut by itself, so that none is left out."""
    if len(result.content) <= most:
        return result
    where = where_output_is(state, call.id, call.name)
    content = truncate_text(result.content, most, where)
    return replace(result, content=content)


def _under_headings(call: Call, results: Sequence[ToolResult]) -> str:
    parts = call.input_to_run["parts"]
    texts = []
    for number, (part, result) in enumerate(zip(parts, results, strict=True), 1):
        title, failed = (
            " ".join(part["description"].split()),
            " (failed)" if result.is_error else "",
        )
        texts.append(f"## {number}. {title}{failed}\n\n{result.content}")
    return "\n\n".join(texts)


_TOO_DEEP = (
    "A sub-agent as deep as this one can start none itself: do this part of the work yourself."
)
_TREE_IS_FULL = (
    "{} have been started for this task, which is the most: do the rest of the work yourself."
)
_SPLIT_FIRST = f"Split the task with {SPLIT_TOOL} first."
_BLANK_PROMPT = "The prompt of a sub-agent must not be blank."


def children_of(state: RunState, call: Call) -> tuple[Child, ...]:
    """The sub-agents that a call has started, in order."""
    return tuple(child for child in state.children.current if child.index == call.index)


def children_work_in(state: RunState) -> bool:
    """Whether sub-agents that calls without results have started change the files of its workspace: those
    that have ended have."""
    return any(_shares(state, child) for child in state.children.current)


def is_busy(state: RunState) -> bool:
    """Whether sub-agents are under way in the run's workspace: what they have half done is no tree."""
    return any(child.result is None and _shares(state, child) for child in state.children.current)


def _shares(state: RunState, child: Child) -> bool:
    agent = state.spec.agent(child.agent_type)
    return agent is not None and agent.workspace == "parent"


def begins_with_shared(state: RunState, children: Sequence[NewChild]) -> bool:
    """Whether one of these is to have a folder of its own that begins with the files of one which the
    run only shares, so that nothing of it is recorded yet."""
    if state.depth == 0 or state.spec.workspace is None or state.spec.is_recorded:
        return False
    types = (state.spec.agent(child.agent_type) for child in children)
    return state.files.shared_tree is None and any(
        agent is not None and agent.workspace == "own" for agent in types
    )


def cannot_start(state: RunState, call: Call) -> ToolResult | None:
    """Why a call for a sub-agent that has none starts none, whatever the rules say; None if it may."""
    if state.depth >= state.limits.max_agent_depth:
        return ToolResult(_TOO_DEEP, "failed")
    if state.spec.coordinator is not None and state.children.split != "done":
        return ToolResult(_SPLIT_FIRST, "failed")
    most = state.limits.max_agents
    if state.children.tree_size >= most:
        started = "1 sub-agent" if most == 1 else f"{most} sub-agents"
        return ToolResult(_TREE_IS_FULL.format(started), "failed")
    if call.tool_context is not None and call.tool_context.problem:
        return ToolResult(call.tool_context.problem, "invalid_input")
    arguments = call.input_to_run
    if state.spec.agent(str(arguments.get("agent_type"))) is None:
        names = ", ".join(agent.name for agent in state.spec.agents) or "none"
        unknown = f"Unknown type of sub-agent {arguments.get('agent_type')!r}. Types: {names}."
        return ToolResult(unknown, "invalid_input")
    if not str(arguments.get("prompt", "")).strip():
        return ToolResult(_BLANK_PROMPT, "invalid_input")
    return None


def next_children(state: RunState, pending: Sequence[Call]) -> tuple[NewChild, ...]:
    """The sub-agents that are to start now: of neighbouring calls together, those that wait for an
    answer left out; never before a call of another kind that comes first.

    Args:
        pending: the calls without results, each with its decision.
    """
    block = _next_block(state, pending)
    if block and state.spec.splits(block[0].name):
        return parts_of(state, block[0])
    limits = state.limits
    free = min(
        limits.max_agents_at_once - len(state.children.running),
        limits.max_agents - state.children.tree_size,
    )
    return tuple(_new_children(state, waiting_for_room(state, pending)[: max(0, free)]))


def waiting_for_room(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """The calls for sub-agents that start as soon as fewer of them are under way.

    Args:
        pending: as in ``next_children``.
    """
    block = _next_block(state, pending)
    return [call for call in block if not call.waits and not state.spec.splits(call.name)]


def _next_block(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """The calls for sub-agents that are not started, up to a call of another kind."""
    unstarted = [call for call in pending if not children_of(state, call)]
    return list(takewhile(lambda call: state.spec.starts_children(call.name), unstarted))


def _new_children(state: RunState, calls: Sequence[Call]) -> Iterator[NewChild]:
    for number, call in enumerate(calls, state.children.started + 1):
        arguments: Mapping[str, Any] = call.input_to_run
        yield new_child(
            state,
            _type_of(state, arguments),
            number=number,
            index=call.index,
            description=str(arguments.get("description", "")),
            prompt=str(arguments["prompt"]),
            snapshot=arguments.get("snapshot"),
            together=len(calls),
        )


def _type_of(state: RunState, arguments: Mapping[str, Any]) -> AgentType:
    agent = state.spec.agent(str(arguments["agent_type"]))
    assert agent is not None, "a call with an unknown type has its result by now"
    return agent
