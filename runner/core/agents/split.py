"""A coordinator: a run that first splits its task into parts for sub-agents, and joins what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.core.agents.agent import SPLIT_TOOL, Child, NewChild, Split, child_id
from runner.core.agents.allot import allot
from runner.core.agents.outcome import MOST_CHARACTERS, fitted
from runner.core.agents.spec import takes_snapshot
from runner.core.context.clips import place_of_output, shortened
from runner.core.conversation import UNREADABLE_INPUT, Message, ToolResult
from runner.core.journal.entries import ChildrenStarted, UserMessageAdded
from runner.core.journal.view import Call, RunView
from runner.core.run import Waiting
from runner.core.spec import JobSpec
from runner.core.steps import Record, Step, leave, settle, stop_at_deadline
from runner.core.text.prompts import SPLIT_AGAIN_TEXT, SPLIT_TEXT, WHOLE_TEXT

_BEFORE = "The task has been split: a task is split once. Go on with what its parts gave."
_NO_OBJECT = "The arguments must be a JSON object."
_BLANK = "The description and the prompt of a part must not be blank."
_AGAIN = f" Call {SPLIT_TOOL} once more with parts that fit."


def refused_split(view: RunView, call: Call) -> ToolResult | None:
    """The result of a call to split the task that starts nothing: the task is split already, or its
    first split is no good. None while it has not been looked whether it fits its schema."""
    if view.progress.split == "done":
        return ToolResult(_BEFORE, "failed")
    problem = _problem(call)
    if not problem:
        return None
    again = view.progress.split == "asked_again"
    if again and not any(_is_bad_split(view, other) for other in view.calls):
        return None  # the second reply with a bad one: the task is not split
    return ToolResult(problem.rstrip() + _AGAIN, "invalid_input")


def parts_of(view: RunView, call: Call) -> tuple[NewChild, ...]:
    """The children for a task that is split: one for each part, or one for all of it, where the split
    is no good."""
    if _problem(call):
        return (_whole(view, call.index),)
    parts = call.input_to_run["parts"]
    return tuple(
        _child(view, offset, call.index, part["description"], part["prompt"], len(parts))
        for offset, part in enumerate(parts)
    )


def joined(view: RunView, call: Call, children: Sequence[Child]) -> ToolResult | None:
    """The result of a call that has started children; None while one of them has not ended. Those of
    several parts stand under headings, in the order of the parts."""
    results = [child.result for child in children if child.result is not None]
    if len(results) < len(children):
        return None
    if len(results) == 1:
        return fitted(view, call, results[0])
    whole, output = _under_headings(call, results), None
    if len(whole) > MOST_CHARACTERS:
        output = whole.encode("utf-8", "replace")
        most = MOST_CHARACTERS // len(results)
        whole = _under_headings(call, [_cut(view, call, result, most) for result in results])
    nothing = all(result.is_error for result in results)
    return ToolResult(whole, "failed" if nothing else "succeeded", output)


def coordinate(view: RunView) -> Step | None:
    """The next step of a coordinator beside its calls: it is told to split its task, or what came of
    the whole of it."""
    if view.spec.coordinator is None:
        return None
    if not view.progress.split:
        return Record(UserMessageAdded((SPLIT_TEXT,), "split"))
    if view.progress.split != "whole":
        return None
    if (step := leave(view)) is not None:
        return step
    child = next(child for child in view.children if child.index is None)
    if child.result is None:
        return settle(Waiting("children"))
    content = child.result.content
    if len(content) > MOST_CHARACTERS:
        where = f"the conversation of {child_id(view.run_id, child.number)} has all of it"
        content = shortened(content, MOST_CHARACTERS, where)
    return Record(UserMessageAdded((WHOLE_TEXT.format(result=content),), "children"))


def split_first(view: RunView) -> Step | None:
    """What comes before the end of a coordinator that has not split its task; None if it has."""
    match view.progress.split:
        case "asked":
            return Record(UserMessageAdded((SPLIT_AGAIN_TEXT,), "split"))
        case "asked_again":
            if view.ends_at is not None and view.ends_at <= view.now:
                return stop_at_deadline(view)
            return Record(ChildrenStarted((_whole(view, None),)))
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


def _is_bad_split(view: RunView, call: Call) -> bool:
    return view.spec.splits(call.name) and (call.result or {}).get("is_error") is True


def _whole(view: RunView, index: int | None) -> NewChild:
    task: str = view.messages[0].blocks[0]["text"]
    return _child(view, 0, index, "the whole task", task, 1)


def _child(
    view: RunView,
    offset: int,
    index: int | None,
    description: str,
    prompt: str,
    together: int,
) -> NewChild:
    coordinator = view.spec.coordinator
    agent = view.spec.agent(coordinator.agent) if coordinator is not None else None
    assert agent is not None, "a job with a coordinator has the type of its children"
    share = allot(view, agent, together)
    return NewChild(
        view.progress.children + 1 + offset,
        index,
        agent.name,
        description,
        prompt,
        takes_snapshot(view.spec, agent, None),
        share.tokens,
        share.cost,
        share.deadline,
    )


def _cut(view: RunView, call: Call, result: ToolResult, most: int) -> ToolResult:
    """Each part's is cut by itself, so that none is left out."""
    if len(result.content) <= most:
        return result
    where = place_of_output(view, call.id, call.name)
    content = shortened(result.content, most, where)
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
