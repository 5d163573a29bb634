"""How a run changes with what it starts sub-agents for, and with what becomes of them."""

from __future__ import annotations

from dataclasses import replace

from runner.core.agents.agent import Child, Split
from runner.core.journal.entries import ChildrenStarted, ToolFinished, UserMessageAdded
from runner.core.journal.view import Progress, RunView
from runner.core.money.budget import Charged


def started(view: RunView, entry: ChildrenStarted) -> RunView:
    """The view after children were started: each counts all that it may use from here on."""
    indexes = {child.index for child in entry.children}
    children = tuple(
        Child(child.number, child.index, child.agent_type, Charged(child.tokens, child.cost or 0))
        for child in entry.children
    )
    progress = view.progress
    return replace(
        view,
        calls=tuple(
            replace(call, started_by=view.attempt) if call.index in indexes else call
            for call in view.calls
        ),
        children=(*view.children, *children),
        held_by_children=sum((child.held for child in children), view.held_by_children),
        tree_size=view.tree_size + len(children),
        shared_tree=None,
        progress=replace(
            progress,
            children=progress.children + len(children),
            split=_split_by(view, indexes),
        ),
    )


def _split_by(view: RunView, indexes: set[int | None]) -> Split:
    if None in indexes:
        return "whole"
    split = any(view.spec.splits(call.name) for call in view.calls if call.index in indexes)
    return "done" if split else view.progress.split


def answered(view: RunView, entry: ToolFinished) -> Progress:
    """The progress after a call has its result: a split that was no good is asked for again."""
    is_split = view.spec.splits(view.calls[entry.index].name)
    if is_split and entry.result.is_error and view.progress.split == "asked":
        return replace(view.progress, split="asked_again")
    return view.progress


def told(view: RunView, entry: UserMessageAdded) -> RunView:
    """The view after the model was told to split its task, or what came of the whole of it."""
    progress = view.progress
    match entry.cause:
        case "split":
            split: Split = "asked_again" if progress.split else "asked"
            return replace(view, progress=replace(progress, split=split))
        case "children":
            return replace(view, children=(), progress=replace(progress, split="done"))
        case _:
            return view
