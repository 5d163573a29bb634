"""Storing sub-agents, in the transaction of the step that starts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from runner.core.agents.agent import NewChild, child_id, lineage
from runner.core.agents.starting import children_work_in
from runner.core.author import RUNNER
from runner.core.journal.entries import ChildrenStarted
from runner.core.journal.fold import Applied
from runner.core.journal.view import RunView
from runner.core.money.budget import BILLIONTHS
from runner.core.spec import JobSpec, NewRun
from runner.store.children.snapshot import copy_conversation, opening_of
from runner.store.job.cache import JobReader
from runner.store.rows.copying import copy_rows
from runner.store.rows.hooks import with_instructions_of
from runner.store.rows.progress import progress_to_json
from runner.store.steer import jobs as job_rows
from runner.store.tables import (
    blocks,
    events,
    run_instructions,
    run_items,
    run_workspaces,
    runs,
)
from runner.store.workspaces import SNAPSHOTS


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
    connection: Connection, before: RunView, after: RunView
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
    view: RunView,
    parent: Row[Any],
    child: NewChild,
    now: float,
) -> None:
    """Store a child with its conversation, queued and due."""
    run_id = child_id(view.run_id, child.number)
    spec, model = _spec_of(jobs_read, view, parent, child)
    goes_on = _goes_on_with_instructions(view, spec, child)
    sees = spec
    if goes_on:
        sees = replace(with_instructions_of(connection, view.run_id, spec), instructions=False)
    begins = opening_of(view, sees, child)
    told = {
        "parent": view.run_id,
        "agent_type": child.agent_type,
        "snapshot": child.snapshot,
    }
    key = f"{parent.item_key}+{child.number}"
    new = NewRun(key, None, child.prompt)
    opened = job_rows.open_run(
        parent.job_id, new, spec, None, now, RUNNER, run_id=run_id, told=told
    )
    tree = _newest_tree(connection, view) if spec.is_recorded else None
    opened.run.update(
        _lineage(view, child),
        **_place(connection, view, parent, spec),
        model=model,
        token_ceiling=child.tokens,
        cost_ceiling_usd=None if child.cost is None else child.cost / BILLIONTHS,
        deadline=child.deadline,
        start_tree=tree,
        progress=progress_to_json(replace(begins.progress, tree=tree, instructed=goes_on)),
        message_count=begins.number + 1,
        compaction_count=view.compacted.count if child.snapshot else 0,
    )
    connection.execute(insert(runs).values(opened.run))
    connection.execute(insert(run_items).values(opened.item))
    if child.snapshot:
        copy_conversation(connection, view, run_id, sees)
    if goes_on:
        copy_rows(connection, run_instructions, view.run_id, run_id)
    connection.execute(
        insert(blocks), job_rows.block_rows(run_id, begins.number, begins.message, now)
    )
    connection.execute(insert(events).values(opened.event))


def _spec_of(
    jobs_read: JobReader, view: RunView, parent: Row[Any], child: NewChild
) -> tuple[JobSpec, str | None]:
    """What a child works by, and the model that it calls in place of the one that is the job's or its
    type's: a parent that has one of its own hands it on."""
    types = (*jobs_read.types(view.run_id), child.agent_type)
    spec = jobs_read.spec(parent.job_id, *types)
    agent = spec.agent(child.agent_type)
    assert agent is not None, child.agent_type
    if parent.model is None or agent.model is not None:
        return spec, None
    return replace(spec, model=parent.model), parent.model


def _goes_on_with_instructions(view: RunView, spec: JobSpec, child: NewChild) -> bool:
    """Whether a child has the instructions that its parent has read: one that goes on with its
    conversation in its folder, so that all of the prompt is as it was and stays cached."""
    is_there = view.progress.instructed and not spec.is_recorded
    return child.snapshot and spec.instructions and is_there


def _lineage(view: RunView, child: NewChild) -> dict[str, Any]:
    """The columns that say whose a child is."""
    return {
        "parent_run": view.run_id,
        "parent_message": len(view.messages) - 1,
        "parent_position": child.index,
        "root_run": lineage(view.run_id)[0],
        "depth": view.depth + 1,
        "child_number": child.number,
        "agent_type": child.agent_type,
    }


def _place(
    connection: Connection, view: RunView, parent: Row[Any], spec: JobSpec
) -> dict[str, str | None]:
    """Which worker can have a child: one that sees the folder that it works in, or the trees that its
    own begins with, and these are where its parent works."""
    here = {"workspace_path": parent.workspace_path, "workspace_id": parent.workspace_id}
    if spec.workspace is None or spec.workspace.remote is None:
        return here
    if spec.is_recorded:
        return {"workspace_path": None, "workspace_id": None}
    return _nearest_folder(connection, lineage(view.run_id)) or here


def _nearest_folder(connection: Connection, line: Sequence[str]) -> dict[str, str | None] | None:
    """The folder of the last of these runs that has one of its own; None when none has."""
    query = select(run_workspaces).where(run_workspaces.c.run_id.in_(line))
    kept = {row.run_id: row for row in connection.execute(query)}
    nearest = next((kept[each] for each in reversed(line) if each in kept), None)
    if nearest is None:
        return None
    store = f"{SNAPSHOTS}{nearest.store_id}"
    return {"workspace_path": nearest.path, "workspace_id": store}


def _newest_tree(connection: Connection, view: RunView) -> str | None:
    """The tree that was recorded last of the folder that the parent works in."""
    if view.shared_tree:
        return view.shared_tree
    if view.progress.tree is not None:
        return view.progress.tree
    line = lineage(view.run_id)[:-1]
    query = select(runs.c.id, runs.c.progress).where(runs.c.id.in_(line))
    trees = {row.id: row.progress.get("tree") for row in connection.execute(query)}
    return next((trees[each] for each in reversed(line) if trees.get(each) is not None), None)
