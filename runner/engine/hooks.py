"""Running a hook where its run works, and recording what it leaves there."""

from __future__ import annotations

from runner.core.hooks.answer import Said, read_answer
from runner.core.hooks.verdict import kept_as_edited
from runner.core.journal.entries import Entry, HookFinished
from runner.core.journal.view import RunView
from runner.core.steps import RunHook
from runner.engine.workplace import Workplace
from runner.errors import Interrupted
from runner.ports import HookCall

_SHUT_DOWN = Said("shut_down")


def run_hook(place: Workplace, view: RunView, step: RunHook) -> list[Entry]:
    """Run a hook once. What it changes in a workspace whose trees are recorded is recorded with its end,
    but what a RunEnd hook changes is put back: the run ends as it was verified and delivered.

    Raises:
        WorkspaceError: the workspace is of no use any more.
        Interrupted: the hook was cut, and is run again from the start.
    """
    hook = view.spec.hooks[step.run.hook]
    call = HookCall(view.run_id, hook, step.told, place.surroundings)
    try:
        said = place.tools.hook(call, place.interrupt)
    except Interrupted as cut:
        if cut.reason == "dropped" or hook.repeatable:
            raise
        said = _SHUT_DOWN
    result = kept_as_edited(view, step.run, read_answer(hook.event, said, hook.timeout))
    return [HookFinished(step.run.number, result, _tree_left(place, view, hook.event))]


def _tree_left(place: Workplace, view: RunView, event: str) -> str | None:
    """The workspace's tree after a hook; None when it is as it was, or none is recorded. What sub-agents
    have half done is no tree to go back to: with theirs, the next attempt records what a hook did."""
    before = view.progress.tree
    if not view.spec.is_recorded or before is None:
        return None
    if view.awaits_children:
        return None
    with place.interrupt.past_shutdown() as interrupt:
        if event == "RunEnd":
            place.insist(lambda: place.workspaces.restore(place.lease, before, interrupt))
            return None
        tree = place.insist(lambda: place.workspaces.record(place.lease, interrupt))
    return None if tree == before else tree
