"""Recording the folder of a run from below: a sub-agent that works in it is about to start one that
works in a folder of its own, which begins with what is there now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.core.files.workspace import Workspace
from runner.core.run import Lease
from runner.engine.workspaces.around import Around, explained
from runner.engine.workspaces.made import MadeNote, note_for
from runner.engine.workspaces.material import material_of
from runner.errors import WorkspaceError
from runner.ports import Interrupt
from runner.store.workspaces import Kept
from runner.workspace.child import opened
from runner.workspace.worktrees.borrowing import bring
from runner.workspace.worktrees.standing import Standing

_LAST_ATTEMPT = 1 << 62  # reads what any attempt has noted


def record_from_below(
    around: Around, lease: Lease, owner: str, asked: Workspace, kept: Kept, interrupt: Interrupt
) -> str:
    """Record a run's folder among the snapshots of an attempt at a run below it: the owner's own are
    left alone, as another attempt may be taking one.

    Args:
        lease: of the run below.
        owner: the run whose folder it is; ``asked`` and ``kept`` are of that.

    Returns:
        The id of the tree.

    Raises:
        WorkspaceError: it cannot be recorded. Interrupted.
    """
    material = material_of(around, asked, replace(lease, run_id=owner), interrupt)
    made = explained(MadeNote.beside(Path(kept.path), _LAST_ATTEMPT).read)
    if made is None:
        raise WorkspaceError(f"the workspace {kept.path} was removed while in use")
    note, commits = "", tuple[str, ...]()
    worktree = material.worktree
    if worktree is not None:
        note, commits = note_for(explained(Standing(worktree).read), made)
        own, store = worktree.own, material.store()
        wanted = [each for each in (made.start_commit, *commits) if each]
        explained(lambda: bring(wanted, asked.commit, own, store))
    request = {**material.request(), "run_id": lease.run_id, "attempt": lease.attempt}
    snapshots = opened(**request, environment=around.environment)
    if made.start_commit:
        explained(lambda: snapshots.start(made.start_commit))
    tree = explained(lambda: snapshots.take(interrupt.check, note=note, keep=commits))
    if asked.remote is not None:
        remote = asked.remote
        around.insist(lambda: snapshots.push(remote, interrupt.check), interrupt)
    return tree
