"""Making a run's own workspace: the worktree or copy, what the job sets up in it, its branch."""

from __future__ import annotations

from pathlib import Path

from runner.engine.workspaces.around import explained
from runner.engine.workspaces.made import Made
from runner.engine.workspaces.material import Material
from runner.errors import WorkspaceError
from runner.ports import Command, Interrupt, Surroundings
from runner.store import workspaces
from runner.store.workspaces import Assignment
from runner.workspace.copy import copy
from runner.workspace.trees.stores import store_git
from runner.workspace.worktrees.branches import branch_name
from runner.workspace.worktrees.delivery import setup_message, tip_at

_LONGEST_TAIL = 500


def make(
    material: Material,
    assignment: Assignment,
    surroundings: Surroundings,
    interrupt: Interrupt,
) -> Made:
    """Make a run's workspace from scratch, as it was before the run's first turn; whatever is in its
    place goes. The branch that the run had goes on where it is.

    Raises:
        WorkspaceError: it cannot be made, or the job's setup fails. Interrupted.
    """
    if material.repository is None:
        return _make_copy(material, assignment, surroundings, interrupt)
    return _make_worktree(material, assignment, surroundings, interrupt)


def _make_worktree(
    material: Material, assignment: Assignment, surroundings: Surroundings, interrupt: Interrupt
) -> Made:
    around, run_id, base = material.around, assignment.run_id, material.asked.commit
    place = {"repository": material.repository_path, "path": str(material.path)}
    names, kept = _branches(material, assignment, interrupt), assignment.kept
    branch = {"branches": names, "owner": run_id}
    is_new = kept is None or kept.branch is None or kept.start_commit is None
    at_once = {**branch, "message": None} if is_new and not material.asked.setup else None
    begun = around.below("add", run_id, interrupt, **place, commit=base, begin=at_once)
    _set_up(material, surroundings, interrupt)
    if kept is None or kept.branch is None or kept.start_commit is None:
        if not begun:
            message = setup_message(assignment.job_name)
            begun = around.below(
                "begin", run_id, interrupt, **place, **branch, base=base, message=message
            )
        return Made(begun["branch"], begun["start_commit"])
    branch["branches"] = [kept.branch, *(name for name in names if name != kept.branch)]
    begun = around.below(
        "go_on",
        run_id,
        interrupt,
        **place,
        **branch,
        store=str(material.store()),
        base=base,
        commits=[commit for commit in (kept.commit, kept.start_commit, base) if commit],
    )
    return Made(begun["branch"], kept.start_commit)


def _branches(material: Material, assignment: Assignment, interrupt: Interrupt) -> list[str]:
    """The names that the run's branch may have, the best first: one that another run has, or someone
    at the remote, is none."""
    job, key, run_id = assignment.job_name, assignment.item_key, assignment.run_id
    name, own = branch_name(job, key), branch_name(job, key, run_id)
    if workspaces.others_have(material.around.database, run_id, name):
        return [own]
    remote = material.asked.remote
    if remote is not None:
        git = store_git(material.store(), material.around.environment, remote=True)
        theirs = material.around.insist(
            lambda: tip_at(git, remote, name, interrupt.check), interrupt
        )
        kept = assignment.kept
        if theirs is not None and theirs != (kept.commit if kept else None):
            return [own]
    return [name, own]


def _make_copy(
    material: Material, assignment: Assignment, surroundings: Surroundings, interrupt: Interrupt
) -> Made:
    """Of a source that is gone by now, an empty folder is made for a run that has files recorded."""
    source, path, around = Path(material.asked.source), material.path, material.around
    around.below("discard", assignment.run_id, interrupt, repository=None, path=str(path))
    if source.is_dir() or assignment.kept is None:
        explained(lambda: copy(source, path, [around.home], interrupt.check))
    else:
        explained(lambda: path.mkdir(mode=0o700, parents=True))
    _set_up(material, surroundings, interrupt)
    return Made()


def _set_up(material: Material, surroundings: Surroundings, interrupt: Interrupt) -> None:
    asked = material.asked
    for number, text in enumerate(asked.setup, 1):
        command = Command(
            name=f"setup_{number}",
            run_id=material.lease.run_id,
            command=text,
            surroundings=surroundings,
            timeout=asked.setup_timeout,
        )
        result = material.around.tools.command(command, interrupt)
        if result.outcome == "interrupted":  # it was killed from outside
            result = material.around.tools.command(command, interrupt)
        if result.is_error:
            tail = " / ".join(result.content[-_LONGEST_TAIL:].strip().splitlines())
            raise WorkspaceError(f"the setup command {text!r} {result.outcome}: {tail}")
