"""Sub-agents of a run: the calls that start them, their limits, and the results of these calls.

A coordinator is a run that first splits its task into parts for sub-agents, and joins their results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from runner.core.agents import SPLIT_TOOL, Child, NewChild, Split, child_id
from runner.core.compaction import truncate_text, where_output_is
from runner.core.conversation import UNREADABLE_INPUT, Message, ToolResult
from runner.core.entries import ChildrenStarted, RunSettled
from runner.core.run import Ended, Waiting
from runner.core.spec import JobSpec, spec_of
from runner.core.state import Call, RunState
from runner.core.steps import Step, leave, stop_at_deadline, tell
from runner.core.text import SPLIT_AGAIN_TEXT, SPLIT_TEXT, WHOLE_TEXT, shorten

MOST_CHARACTERS = 50_000  # of a result

_LEFT = "\n\n[Its files are in the commit {1}, which the branch {0} of the repository has.]"
_TOO_DEEP = (
    "A sub-agent as deep as this one can start none itself: do this part of the work yourself."
)
_MOST_STARTED = (
    "{} have been started for this task, which is the most: do the rest of the work yourself."
)


def outcome_of(
    outcome: Ended, said: str, submitted: Mapping[str, Any] | None, left: tuple[str, str] | None
) -> ToolResult:
    """Return the result of an ended child: its last text, submission or failure; and its branch."""
    files = "" if left is None else _LEFT.format(*left)
    if outcome.state != "succeeded":
        why = f"{outcome.state} ({outcome.reason})"
        if outcome.detail.strip():
            why += f": {outcome.detail.strip()}"
        text = f"The sub-agent did not finish its task: {shorten(why, 500)}"
        return ToolResult(text + files, "failed")
    if submitted is not None:
        said = json.dumps(submitted, ensure_ascii=False)
    if not said.strip():
        said = "(The sub-agent is done, and its last message has no text.)"
    return ToolResult(said + files)


def children_of(state: RunState, call: Call) -> tuple[Child, ...]:
    """Return the sub-agents that a call has started, in order."""
    return tuple(child for child in state.children.current if child.index == call.index)


def joined(state: RunState, call: Call, children: Sequence[Child]) -> ToolResult | None:
    """Return the result of a call that started children; None until all have ended. Several parts
    have headings and are in order. Long results are truncated part by part; the tools' outputs
    folder has them whole."""
    results = [child.result for child in children if child.result is not None]
    if len(results) < len(children):
        return None
    content, output = _under_headings(call, results), None
    if len(content) > MOST_CHARACTERS:
        output = content.encode("utf-8", "replace")
        most, where = MOST_CHARACTERS // len(results), where_output_is(state, call.id, call.name)
        content = _under_headings(
            call, [replace(r, content=truncate_text(r.content, most, where)) for r in results]
        )
    if len(results) == 1:
        return replace(results[0], content=content, output=output or results[0].output)
    nothing = all(result.is_error for result in results)
    return ToolResult(content, "failed" if nothing else "succeeded", output)


def _under_headings(call: Call, results: Sequence[ToolResult]) -> str:
    if len(results) == 1:
        return results[0].content
    texts = []
    parts = zip(call.input_to_run["parts"], results, strict=True)
    for number, (part, result) in enumerate(parts, 1):
        title = " ".join(part["description"].split()) + (" (failed)" if result.is_error else "")
        texts.append(f"## {number}. {title}\n\n{result.content}")
    return "\n\n".join(texts)


def coordinate(state: RunState) -> Step | None:
    """Return a coordinator's next step beside its calls: split the task, or get its result."""
    if state.spec.coordinator is None:
        return None
    if not state.children.split:
        return tell("split", SPLIT_TEXT)
    if state.children.split != "whole":
        return None
    if (step := leave(state)) is not None:
        return step
    child = next(child for child in state.children.current if child.index is None)
    if child.result is None:
        return RunSettled(Waiting("children"))
    where = f"the conversation of {child_id(state.run_id, child.number)} has all of it"
    content = truncate_text(child.result.content, MOST_CHARACTERS, where)
    return tell("children", WHOLE_TEXT.format(result=content))


def split_first(state: RunState) -> Step | None:
    """Return the step before the end of a coordinator that has not split its task; else None."""
    if state.children.split == "asked":
        return tell("split", SPLIT_AGAIN_TEXT)
    if state.children.split != "asked_again":
        return None
    if state.is_overdue:
        return stop_at_deadline(state)
    return ChildrenStarted(_parts_of(state, None))


def split_of(spec: JobSpec, messages: Sequence[Message], started: Sequence[bool]) -> Split:
    """Return the progress of a coordinator that continues a copied conversation. ``started`` has,
    for each call to split the task, whether it has started sub-agents."""
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


def refused_split(state: RunState, call: Call) -> ToolResult | None:
    """Return the result of a split that starts nothing: the task is already split, or its first
    split is invalid. None until it is checked against its schema."""
    if state.children.split == "done":
        done = "The task has been split: a task is split once. Go on with what its parts gave."
        return ToolResult(done, "failed")
    problem = _problem(call)
    if not problem:
        return None
    refused = (
        state.spec.splits(other.name) and (other.result or {}).get("is_error")
        for other in state.calls
    )
    if state.children.split == "asked_again" and not any(refused):
        return None  # the second reply with a bad one: the task is not split
    again = f"{problem.rstrip()} Call {SPLIT_TOOL} once more with parts that fit."
    return ToolResult(again, "invalid_input")


def _problem(call: Call) -> str:
    """Return the problem with a split; empty if there is none or it is not checked yet."""
    arguments = call.input_to_run
    if not isinstance(arguments, Mapping) or list(arguments) == [UNREADABLE_INPUT]:
        return "The arguments must be a JSON object."
    if call.tool_context is None or call.tool_context.problem:
        return call.tool_context.problem if call.tool_context is not None else ""
    if all(part[name].strip() for part in arguments["parts"] for name in ("description", "prompt")):
        return ""
    return "The description and the prompt of a part must not be blank."


def children_work_in(state: RunState, *, now: bool = False) -> bool:
    """True if sub-agents of calls without results change files of the run's workspace; with
    ``now``, only while they run, when the workspace cannot be recorded."""
    children = state.children.running if now else state.children.current
    agents = (state.spec.agent(child.agent_type) for child in children)
    return any(agent is not None and agent.workspace == "parent" for agent in agents)


def begins_with_shared(state: RunState, children: Sequence[NewChild]) -> bool:
    """True if a child's own folder begins with the files of a folder that the run only shares, so
    that it is not recorded yet."""
    if state.depth == 0 or state.spec.workspace is None or state.spec.is_recorded:
        return False
    types = (state.spec.agent(child.agent_type) for child in children)
    return state.files.shared_snapshot is None and any(
        agent is not None and agent.workspace == "own" for agent in types
    )


def cannot_start(state: RunState, call: Call) -> ToolResult | None:
    """Return why a call cannot start a sub-agent, whatever the rules say; None if it can."""
    most, arguments = state.limits.max_agents, call.input_to_run
    if state.depth >= state.limits.max_agent_depth:
        return ToolResult(_TOO_DEEP, "failed")
    if state.spec.coordinator is not None and state.children.split != "done":
        return ToolResult(f"Split the task with {SPLIT_TOOL} first.", "failed")
    if state.children.tree_size >= most:
        started = "1 sub-agent" if most == 1 else f"{most} sub-agents"
        return ToolResult(_MOST_STARTED.format(started), "failed")
    if call.tool_context is not None and call.tool_context.problem:
        return ToolResult(call.tool_context.problem, "invalid_input")
    if state.spec.agent(str(arguments.get("agent_type"))) is None:
        names = ", ".join(agent.name for agent in state.spec.agents) or "none"
        unknown = f"Unknown type of sub-agent {arguments.get('agent_type')!r}. Types: {names}."
        return ToolResult(unknown, "invalid_input")
    if not str(arguments.get("prompt", "")).strip():
        return ToolResult("The prompt of a sub-agent must not be blank.", "invalid_input")
    return None


def next_children(state: RunState, pending: Sequence[Call]) -> tuple[NewChild, ...]:
    """Return the sub-agents to start now: of neighbouring calls together, without calls that wait
    for an answer, and never before an earlier call of another kind."""
    block = _next_block(state, pending)
    if block and state.spec.splits(block[0].name):
        return _parts_of(state, block[0])
    limits, children = state.limits, state.children
    at_once = limits.max_agents_at_once - len(children.running)
    free = min(at_once, limits.max_agents - children.tree_size)
    calls = waiting_for_room(state, pending)[: max(0, free)]
    return tuple(
        new_child(state, call.input_to_run, number=number, index=call.index, together=len(calls))
        for number, call in enumerate(calls, children.started + 1)
    )


def waiting_for_room(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """Return the calls whose sub-agents start when fewer are running."""
    block = _next_block(state, pending)
    return [call for call in block if not call.waits and not state.spec.splits(call.name)]


def _next_block(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """Return the calls for sub-agents that have not started, up to a call of another kind."""
    unstarted = [call for call in pending if not children_of(state, call)]
    return list(takewhile(lambda call: state.spec.starts_children(call.name), unstarted))


def _parts_of(state: RunState, call: Call | None) -> tuple[NewChild, ...]:
    """Return the children for a split task: one for each part, or one for the whole."""
    coordinator = state.spec.coordinator
    assert coordinator is not None, "only a coordinator's task is split"
    task = {"description": "the whole task", "prompt": state.messages[0].blocks[0]["text"]}
    parts = [task] if call is None or _problem(call) else call.input_to_run["parts"]
    return tuple(
        new_child(
            state,
            {**part, "agent_type": coordinator.agent},
            number=number,
            index=None if call is None else call.index,
            together=len(parts),
        )
        for number, part in enumerate(parts, state.children.started + 1)
    )


def new_child(
    state: RunState, arguments: Mapping[str, Any], *, number: int, index: int | None, together: int
) -> NewChild:
    """Return one of several children that start together, given the arguments of the Agent tool.
    Its limits are its type's, at most an equal share of the rest (the parent keeps one)."""
    agent = state.spec.agent(str(arguments["agent_type"]))
    assert agent is not None, "a call with an unknown type has its result by now"
    spec, used, shares = spec_of(state.spec, agent.name), state.used, together + 1
    asked, ceiling = arguments.get("snapshot"), state.limits.cost_ceiling
    tokens_left = max(0, state.limits.token_ceiling - used.tokens)
    cost_left = None if ceiling is None else max(0, ceiling - used.cost) // shares
    costs = (spec.limits.cost_ceiling, cost_left)
    deadlines = (agent.deadline, None if state.ends_at is None else state.ends_at - state.now)
    return NewChild(
        number,
        index,
        agent.name,
        str(arguments.get("description", "")),
        str(arguments["prompt"]),
        # The API refuses calls and results in a request that defines no tools.
        snapshot=bool(spec.tools) and (agent.snapshot if asked is None else asked),
        tokens=min(spec.limits.token_ceiling, tokens_left // shares),
        cost=min((cost for cost in costs if cost is not None), default=None),
        deadline=min((seconds for seconds in deadlines if seconds is not None), default=None),
    )
