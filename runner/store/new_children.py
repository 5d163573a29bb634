"""Store sub-agents in the transaction that starts them, with the conversation that they start with.

Some models refuse thinking if the system prompt, tools or messages before it have changed
(https://platform.claude.com/docs/en/build-with-claude/preserved-thinking), so a child that has
others than its parent gets none. The exception: if ``model_options`` give thinking a budget, the
API wants thinking in the newest reply and checks nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from runner.core.agents import NewChild, child_id, lineage
from runner.core.budget import BILLIONTHS
from runner.core.children import children_work_in
from runner.core.context import sent_messages, tokens_of
from runner.core.conversation import (
    Block,
    Message,
    ToolResult,
    content_bytes,
    content_text,
    result_block,
    text_block,
    text_bytes,
)
from runner.core.entries import ChildrenStarted
from runner.core.fold import Applied, opening
from runner.core.run import RUNNER
from runner.core.spec import JobSpec, NewRun
from runner.core.state import ContextState, Files, Progress, RunState
from runner.core.text import SNAPSHOT_TEXT
from runner.store import jobs as job_rows
from runner.store.jobs import JobReader
from runner.store.run_state import copy_rows, progress_to_json, with_instructions_of
from runner.store.tables import (
    blocks,
    compactions,
    events,
    run_instructions,
    run_items,
    run_workspaces,
    runs,
)
from runner.store.workspaces import SNAPSHOTS

_THINKING = ("thinking", "redacted_thinking")

_THIS_ONE = (
    "This call has started a sub-agent: you. All that was said before is the conversation of the agent "
    "that asks for it. What you are to do follows."
)
_UNDER_WAY = "This call is under way, and not for you to wait for: its result is not known here."


@dataclass(frozen=True, slots=True)
class Opening:
    """``message`` is the child's own, number ``number`` of its conversation: before it are copies of
    all that its parent's had, if it is a snapshot."""

    number: int
    message: Message
    progress: Progress


def opening_of(state: RunState, spec: JobSpec, child: NewChild) -> Opening:
    """How a child begins.

    Args:
        state: of its parent, with the reply that asks for it.
        spec: that the child works by, with the model that it calls.
    """
    if not child.snapshot:
        (message,), progress = opening(spec, child.prompt)
        return Opening(0, message, progress)
    told = [text_block(text) for text in (*_where_outputs_are(state, child), child.prompt)]
    own = Message("user", (*_results(state, child), *told))
    return Opening(len(state.messages), own, _progress(state, spec, own))


def copy_conversation(
    connection: Connection, state: RunState, child_run: str, spec: JobSpec
) -> None:
    """Copy the parent's messages, and what is sent in place of some; ``spec`` as in ``opening_of``."""
    kept = [blocks.c.message < len(state.messages)]
    if not _keeps_thinking(state, spec):
        kept.append(blocks.c.type.not_in(_THINKING))
    copy_rows(connection, blocks, state.run_id, child_run, *kept, turn=0)
    if state.context.compacted.count:
        own = {"made_by_call": None, "first_sent_in": 1, "turn": 1}
        copy_rows(connection, compactions, state.run_id, child_run, **own)


def _results(state: RunState, child: NewChild) -> Iterator[Block]:
    """A result for each call of the reply that asks for the child: the API takes no call without."""
    for call in state.calls:
        if call.result is not None:
            yield call.result
        else:
            text = _THIS_ONE if call.index == child.index else _UNDER_WAY
            yield result_block(call.id, ToolResult(text))


def _where_outputs_are(state: RunState, child: NewChild) -> Iterator[str]:
    """What a child is told of the outputs that its parent's conversation names as it is sent: clips and
    summaries name some, too."""
    theirs, ours = state.run_id, child_id(state.run_id, child.number)
    results = (call.result for call in state.calls if call.result is not None)
    said = chain((block for message in state.sent for block in message.blocks), results)
    if any(_names_outputs(content_text(block), theirs) for block in said):
        yield SNAPSHOT_TEXT.format(theirs=theirs, ours=ours)


def _names_outputs(text: str, run_id: str) -> bool:
    """Whether a text names outputs of a run: one of them, or all that others had, as what a snapshot or
    a fork is told does."""
    of_fork = f"yours have {run_id.removeprefix('run_')} in"
    return any(each in text for each in (f"outputs/{run_id}/", f"outputs/{run_id},", of_fork))


def _progress(state: RunState, spec: JobSpec, own: Message) -> Progress:
    """Nothing used, and the first prompt measured as well as can be: the real tokens of the parent's last
    one count where the same model counted them, with all that is new in this one."""
    messages = (*_kept(state, spec), own)
    sent = sent_messages(messages, state.context.compacted)
    tokens = spec.shared_tokens + tokens_of(sent, spec.context.chars_per_token)
    context = ContextState(estimate=tokens, appended_bytes=spec.request_bytes(sent))
    before = state.context
    if spec.model != state.spec.model or before.last_prompt_tokens is None:
        return Progress(context=context)
    new = sum(map(content_bytes, own.blocks))
    if not _has_the_same_prefix(state, spec):
        new += sum(map(text_bytes, spec.shared_texts))
    context = replace(
        context,
        correction=before.correction,
        last_prompt_tokens=before.last_prompt_tokens,
        appended_bytes=before.appended_bytes + new,
    )
    return Progress(context=context)


def _kept(state: RunState, spec: JobSpec) -> tuple[Message, ...]:
    if _keeps_thinking(state, spec):
        return state.messages
    return tuple(
        Message(one.role, tuple(block for block in one.blocks if block["type"] not in _THINKING))
        for one in state.messages
    )


def _keeps_thinking(state: RunState, spec: JobSpec) -> bool:
    return spec.thinking_tokens > 0 or _has_the_same_prefix(state, spec)


def _has_the_same_prefix(state: RunState, spec: JobSpec) -> bool:
    """Whether the same comes before the messages. What the workspace says to agents may be another thing
    by the time that the child reads it."""
    if spec.instructions:
        return False
    return (spec.model, spec.shared_texts) == (state.spec.model, state.spec.shared_texts)


def lock_tree(connection: Connection, run_id: str) -> None:
    """Keep others from starting sub-agents in the run's tree until the transaction ends: only so many
    may be in it. Who locks it has locked everything else before."""
    root = run_items.c.run_id == lineage(run_id)[0]
    connection.execute(select(run_items.c.run_id).where(root).with_for_update())


def start_children(
    connection: Connection, jobs_read: JobReader, applied: Sequence[Applied], now: float
) -> None:
    """Store the children that an attempt's entries start. The rows of the entries are stored, and the
    run's own is locked."""
    for one in applied:
        if isinstance(one.entry, ChildrenStarted):
            query = select(runs).where(runs.c.id == one.before.run_id)
            parent = connection.execute(query).one()
            for child in one.entry.children:
                _start(connection, jobs_read, one.before, parent, child, now)


def place_with_children(
    connection: Connection, before: RunState, after: RunState
) -> dict[str, str | None]:
    """What changes in a run's row of where it can be worked on. Where its trees are pushed to a remote
    that is anywhere: but not while sub-agents change files of its folder, which nobody records then."""
    workspace = after.spec.workspace
    if workspace is None or workspace.remote is None or not workspace.is_recorded:
        return {}
    if children_work_in(before) == children_work_in(after):
        return {}
    if not children_work_in(after):
        return {"workspace_path": None, "workspace_id": None}
    return _nearest_folder(connection, (after.run_id,)) or {}


def _start(
    connection: Connection,
    jobs_read: JobReader,
    state: RunState,
    parent: Row[Any],
    child: NewChild,
    now: float,
) -> None:
    """Store a child with its conversation, queued and due."""
    run_id = child_id(state.run_id, child.number)
    spec, model = _spec_of(jobs_read, state, parent, child)
    goes_on = _goes_on_with_instructions(state, spec, child)
    sees = spec
    if goes_on:
        sees = replace(with_instructions_of(connection, state.run_id, spec), instructions=False)
    begins = opening_of(state, sees, child)
    told = {"parent": state.run_id, "agent_type": child.agent_type, "snapshot": child.snapshot}
    key = f"{parent.item_key}+{child.number}"
    new = NewRun(key, None, child.prompt)
    opened = job_rows.open_run(
        parent.job_id, new, spec, None, now, RUNNER, run_id=run_id, told=told
    )
    tree = _newest_tree(connection, state) if spec.is_recorded else None
    opened.run.update(
        _lineage(state, child),
        **_place(connection, state, parent, spec),
        model=model,
        token_ceiling=child.tokens,
        cost_ceiling_usd=None if child.cost is None else child.cost / BILLIONTHS,
        deadline=child.deadline,
        start_tree=tree,
        progress=progress_to_json(
            replace(begins.progress, files=Files(tree=tree, instructed=goes_on))
        ),
        message_count=begins.number + 1,
        compaction_count=state.context.compacted.count if child.snapshot else 0,
    )
    connection.execute(insert(runs).values(opened.run))
    connection.execute(insert(run_items).values(opened.item))
    if child.snapshot:
        copy_conversation(connection, state, run_id, sees)
    if goes_on:
        copy_rows(connection, run_instructions, state.run_id, run_id)
    connection.execute(
        insert(blocks), job_rows.block_rows(run_id, begins.number, begins.message, now)
    )
    connection.execute(insert(events).values(opened.event))


def _spec_of(
    jobs_read: JobReader, state: RunState, parent: Row[Any], child: NewChild
) -> tuple[JobSpec, str | None]:
    """What a child works by, and the model that it calls in place of the one that is the job's or its
    type's: a parent that has one of its own hands it on."""
    types = (*jobs_read.types(state.run_id), child.agent_type)
    spec = jobs_read.spec(parent.job_id, *types)
    agent = spec.agent(child.agent_type)
    assert agent is not None, child.agent_type
    if parent.model is None or agent.model is not None:
        return spec, None
    return replace(spec, model=parent.model), parent.model


def _goes_on_with_instructions(state: RunState, spec: JobSpec, child: NewChild) -> bool:
    """Whether a child has the instructions that its parent has read: one that goes on with its
    conversation in its folder, so that all of the prompt is as it was and stays cached."""
    is_there = state.files.instructed and not spec.is_recorded
    return child.snapshot and spec.instructions and is_there


def _lineage(state: RunState, child: NewChild) -> dict[str, Any]:
    """The columns that say whose a child is."""
    return {
        "parent_run": state.run_id,
        "parent_message": len(state.messages) - 1,
        "parent_position": child.index,
        "root_run": lineage(state.run_id)[0],
        "depth": state.depth + 1,
        "child_number": child.number,
        "agent_type": child.agent_type,
    }


def _place(
    connection: Connection, state: RunState, parent: Row[Any], spec: JobSpec
) -> dict[str, str | None]:
    """Which worker can have a child: one that sees the folder that it works in, or the trees that its
    own begins with, and these are where its parent works."""
    here = {"workspace_path": parent.workspace_path, "workspace_id": parent.workspace_id}
    if spec.workspace is None or spec.workspace.remote is None:
        return here
    if spec.is_recorded:
        return {"workspace_path": None, "workspace_id": None}
    return _nearest_folder(connection, lineage(state.run_id)) or here


def _nearest_folder(connection: Connection, line: Sequence[str]) -> dict[str, str | None] | None:
    """The folder of the last of these runs that has one of its own; None when none has."""
    query = select(run_workspaces).where(run_workspaces.c.run_id.in_(line))
    kept = {row.run_id: row for row in connection.execute(query)}
    nearest = next((kept[each] for each in reversed(line) if each in kept), None)
    if nearest is None:
        return None
    store = f"{SNAPSHOTS}{nearest.store_id}"
    return {"workspace_path": nearest.path, "workspace_id": store}


def _newest_tree(connection: Connection, state: RunState) -> str | None:
    """The tree that was recorded last of the folder that the parent works in."""
    if state.files.shared_tree:
        return state.files.shared_tree
    if state.files.tree is not None:
        return state.files.tree
    line = lineage(state.run_id)[:-1]
    query = select(runs.c.id, runs.c.progress).where(runs.c.id.in_(line))
    trees = {row.id: row.progress["files"]["tree"] for row in connection.execute(query)}
    return next((trees[each] for each in reversed(line) if trees.get(each) is not None), None)
