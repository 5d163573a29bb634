"""Store sub-agents in the transaction that starts them, with the conversation that they start with.

Some models refuse thinking if the system prompt, tools or messages before it have changed
(https://platform.claude.com/docs/en/build-with-claude/preserved-thinking), so a child that has
others than its parent gets none. The exception: if ``model_options`` give thinking a budget, the
API wants thinking in the newest reply and checks nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, select

from runner.core.agents import NewChild, child_id, lineage, place_columns
from runner.core.budget import BILLIONTHS
from runner.core.children import children_work_in
from runner.core.context import sent_messages
from runner.core.conversation import (
    Message,
    ToolResult,
    content_bytes,
    content_text,
    result_block,
    text_block,
    text_bytes,
)
from runner.core.entries import ChildrenStarted
from runner.core.fold import Applied, context_of, opening
from runner.core.hook_decisions import awaits_hook
from runner.core.run import BEGUN, RUNNER
from runner.core.spec import JobSpec, NewRun
from runner.core.state import ContextState, Files, Progress, RunState
from runner.core.text import SNAPSHOT_TEXT
from runner.store import tables
from runner.store.jobs import OpenedRun, block_rows, insert_runs, open_run
from runner.store.run_state import copy_rows, progress_to_json, with_instructions_of
from runner.store.specs import JobReader
from runner.store.workspaces import SNAPSHOTS

_THINKING = ("thinking", "redacted_thinking")

_THIS_ONE = (
    "This call has started a sub-agent: you. All that was said before is the conversation of the agent "
    "that asks for it. What you are to do follows."
)
_UNDER_WAY = "This call is under way, and not for you to wait for: its result is not known here."


def lock_tree(connection: Connection, run_id: str) -> None:
    """Keep others from starting sub-agents in the run's tree until the transaction ends: the tree's size
    is limited. It is the last lock of a transaction."""
    root = tables.run_items.c.run_id == lineage(run_id)[0]
    connection.execute(select(tables.run_items.c.run_id).where(root).with_for_update())


def start_children(
    connection: Connection, jobs_read: JobReader, applied: Sequence[Applied], now: float
) -> None:
    """Store the children that entries start. The entries' rows are stored, the run is locked."""
    for one in applied:
        if isinstance(one.entry, ChildrenStarted):
            query = select(tables.runs).where(tables.runs.c.id == one.before.run_id)
            parent = connection.execute(query).one()
            for child in one.entry.children:
                _start(connection, jobs_read, one.before, parent, child, now)


def place_with_children(
    connection: Connection, before: RunState, after: RunState
) -> dict[str, str | None]:
    """The changed columns that say where a run can be worked on. With a remote that is any host, except
    while sub-agents change files in the run's folder, because no snapshot has those changes."""
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
    run_id = child_id(state.run_id, child.number)
    spec, model = _spec_of(jobs_read, state, parent, child)
    # A child that goes on with its parent's conversation in its folder has the instructions that
    # its parent has read, so that the prompt is the same and stays cached.
    is_there = state.files.instructed and not spec.is_recorded
    goes_on = child.snapshot and spec.instructions and is_there
    sees = spec
    if goes_on:
        sees = replace(with_instructions_of(connection, state.run_id, spec), instructions=False)
    number, message, progress = _opening(state, sees, child)
    tree = _newest_tree(connection, state) if spec.is_recorded else None
    told = {"parent": state.run_id, "agent_type": child.agent_type, "snapshot": child.snapshot}
    new = NewRun(f"{parent.item_key}+{child.number}", None, child.prompt)
    opened = open_run(parent.job_id, new, spec, None, now, RUNNER, run_id=run_id, told=told)
    row = {
        **opened.run,
        **_place(connection, state, parent, spec),
        **place_columns(run_id),
        "parent_message": len(state.messages) - 1,
        "parent_position": child.index,
        "rank": BEGUN,  # as its parent has
        "agent_type": child.agent_type,
        "model": model,
        "token_ceiling": child.tokens,
        "cost_ceiling_usd": None if child.cost is None else child.cost / BILLIONTHS,
        "deadline": child.deadline,
        "start_tree": tree,
        "progress": progress_to_json(replace(progress, files=Files(tree=tree, instructed=goes_on))),
        "message_count": number + 1,
        "compaction_count": state.context.compacted.count if child.snapshot else 0,
    }
    own = block_rows(run_id, number, message, now)
    insert_runs(connection, [OpenedRun(row, opened.items, own, opened.events)])
    if child.snapshot:
        _copy_conversation(connection, state, run_id, sees)
    if goes_on:
        copy_rows(connection, tables.run_instructions, state.run_id, run_id)


def _spec_of(
    jobs_read: JobReader, state: RunState, parent: Row[Any], child: NewChild
) -> tuple[JobSpec, str | None]:
    """A child's spec, and the model that it calls instead of its job's or its type's: a parent hands a
    model of its own on."""
    types = (*jobs_read.types(state.run_id), child.agent_type)
    spec = jobs_read.spec(parent.job_id, *types)
    agent = spec.agent(child.agent_type)
    assert agent is not None, child.agent_type
    if parent.model is None or agent.model is not None:
        return spec, None
    return replace(spec, model=parent.model), parent.model


def _opening(state: RunState, spec: JobSpec, child: NewChild) -> tuple[int, Message, Progress]:
    """The number of a child's first own message, the message, and the child's progress. In a
    snapshot, copies of the messages of its parent (of ``state``) precede it."""
    if not child.snapshot:
        (message,), progress = opening(spec, child.prompt)
        return 0, message, progress
    # The API takes no call without a result.
    known = {
        call.index: call.result
        for call in state.calls
        if call.result is not None and not awaits_hook(state, call)
    }
    results = [
        known.get(call.index)
        or result_block(call.id, ToolResult(_THIS_ONE if call.index == child.index else _UNDER_WAY))
        for call in state.calls
    ]
    told = [text_block(child.prompt)]
    # Truncated results and summaries name outputs, too.
    said = chain((block for message in state.sent for block in message.blocks), known.values())
    if any(_names_outputs(content_text(block), state.run_id) for block in said):
        ours = child_id(state.run_id, child.number)
        told.insert(0, text_block(SNAPSHOT_TEXT.format(theirs=state.run_id, ours=ours)))
    own = Message("user", (*results, *told))
    return len(state.messages), own, Progress(context=_context(state, spec, own))


def _names_outputs(text: str, run_id: str) -> bool:
    """True if a text names an output file of a run, or the folder of its outputs, as the first text of a
    snapshot or fork does."""
    of_fork = f"yours have {run_id.removeprefix('run_')} in"
    return any(each in text for each in (f"outputs/{run_id}/", f"outputs/{run_id},", of_fork))


def _context(state: RunState, spec: JobSpec, own: Message) -> ContextState:
    """The context with the size of the first prompt: the real tokens of the parent's last one, if the same
    model counted them, plus an estimate of what is new."""
    kept = state.messages
    if not _keeps_thinking(state, spec):
        kept = tuple(
            replace(one, blocks=tuple(each for each in one.blocks if each["type"] not in _THINKING))
            for one in kept
        )
    context = context_of(spec, sent_messages((*kept, own), state.context.compacted))
    before = state.context
    if spec.model != state.spec.model or before.last_prompt_tokens is None:
        return context
    new = sum(map(content_bytes, own.blocks))
    if not _has_the_same_prefix(state, spec):
        new += sum(map(text_bytes, spec.shared_texts))
    return replace(
        context,
        correction=before.correction,
        last_prompt_tokens=before.last_prompt_tokens,
        appended_bytes=before.appended_bytes + new,
    )


def _copy_conversation(
    connection: Connection, state: RunState, child_run: str, spec: JobSpec
) -> None:
    """Copy the parent's messages, and what is sent in place of some; ``spec`` as in ``_opening``."""
    kept = [tables.blocks.c.message < len(state.messages)]
    if not _keeps_thinking(state, spec):
        kept.append(tables.blocks.c.type.not_in(_THINKING))
    copy_rows(connection, tables.blocks, state.run_id, child_run, *kept, turn=0)
    if state.context.compacted.count:
        own = {"made_by_call": None, "first_sent_in": 1, "turn": 1}
        copy_rows(connection, tables.compactions, state.run_id, child_run, **own)


def _keeps_thinking(state: RunState, spec: JobSpec) -> bool:
    return spec.thinking_tokens > 0 or _has_the_same_prefix(state, spec)


def _has_the_same_prefix(state: RunState, spec: JobSpec) -> bool:
    """True if the child's requests begin as its parent's do. Never with instructions of a workspace: they
    may differ by the time that the child reads them."""
    if spec.instructions:
        return False
    return (spec.model, spec.shared_texts) == (state.spec.model, state.spec.shared_texts)


def _place(
    connection: Connection, state: RunState, parent: Row[Any], spec: JobSpec
) -> dict[str, str | None]:
    """The columns of where a child can be worked on: where its folder is, or the snapshots that its own
    workspace begins with, which are where its parent works."""
    here = {"workspace_path": parent.workspace_path, "workspace_id": parent.workspace_id}
    if spec.workspace is None or spec.workspace.remote is None:
        return here
    if spec.is_recorded:
        return {"workspace_path": None, "workspace_id": None}
    return _nearest_folder(connection, lineage(state.run_id)) or here


def _nearest_folder(connection: Connection, line: Sequence[str]) -> dict[str, str | None] | None:
    """The columns of the folder of the last of these runs that has its own; None if none has."""
    query = select(tables.run_workspaces).where(tables.run_workspaces.c.run_id.in_(line))
    nearest = max(connection.execute(query), key=lambda row: line.index(row.run_id), default=None)
    if nearest is None:
        return None
    return {"workspace_path": nearest.path, "workspace_id": f"{SNAPSHOTS}{nearest.store_id}"}


def _newest_tree(connection: Connection, state: RunState) -> str | None:
    """The tree that was recorded last of the folder that the parent works in."""
    if state.files.shared_snapshot:
        return state.files.shared_snapshot
    if state.files.tree is not None:
        return state.files.tree
    line = lineage(state.run_id)[:-1]
    query = select(tables.runs.c.id, tables.runs.c.progress).where(tables.runs.c.id.in_(line))
    trees = {row.id: row.progress["files"]["tree"] for row in connection.execute(query)}
    return next((trees[each] for each in reversed(line) if trees.get(each) is not None), None)
