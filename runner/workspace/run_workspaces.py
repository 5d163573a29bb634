"""Where a run works: nowhere, in the job's folder, or in a workspace of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from runner.core.agents import lineage
from runner.core.run import Ended, Lease
from runner.core.workspace import Workspace
from runner.errors import WorkspaceElsewhere, WorkspaceError
from runner.ports import Interrupt, Prepared, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.workspaces import SNAPSHOTS, Assignment, Kept
from runner.tools.toolbox import LocalTools
from runner.workspace.child import opened
from runner.workspace.delivery import commit_message, is_delivery
from runner.workspace.folders import has_id, restore_id
from runner.workspace.git import shown
from runner.workspace.making import (
    COPIES,
    Around,
    Made,
    MadeNote,
    Material,
    explained,
    make_workspace,
    material_of,
    note_for,
    standing_of,
)
from runner.workspace.repository import Repository, bring
from runner.workspace.snapshot_store import store_id
from runner.workspace.worktree import Head, Standing


class OwnWorkspace:
    """See ``runner.ports.Workspaces`` for what its methods do and raise.

    Args:
        store_id: of this host's snapshots.
    """

    def __init__(self, material: Material, assignment: Assignment, store_id: str) -> None:
        self._material = material
        self._assignment = assignment
        self._run_id = assignment.run_id
        self._store_id = store_id
        self._made = MadeNote.beside(material.path, material.lease.attempt)
        worktree = material.worktree
        self._brought: set[str] = set()
        self._standing = None if worktree is None else Standing(worktree)

    @property
    def surroundings(self) -> Surroundings:
        outputs = self._material.around.home / "outputs" / self._run_id
        return Surroundings(self._material.path, outputs)

    def prepare(
        self, tree: str | None, interrupt: Interrupt, *, undo: bool, busy: bool
    ) -> Prepared:
        made = self._whole()
        if made is None:
            prepared = self._prepare_new(tree, interrupt)
        elif tree is None:
            prepared = Prepared(self.surroundings, self.record(interrupt), "created")
        elif busy:
            prepared = Prepared(self.surroundings, tree)
        else:
            prepared = self._prepare_found(made, tree, interrupt, undo=undo)
        self._keep()
        return prepared

    def record(self, interrupt: Interrupt) -> str:
        note, keep = self._note(self._required())
        snapshots = self._material.snapshots()
        self._bring(keep)
        tree = explained(lambda: snapshots.take(interrupt.check, note=note, keep=keep))
        self._push(interrupt)
        return tree

    def holds(self, path: str) -> bool:
        return explained(lambda: self._material.snapshots().holds(path))

    def unrecorded(self, tree: str, interrupt: Interrupt) -> list[str]:
        self._material.have_tree(tree, interrupt)
        found = self._material.snapshots().unrecorded(tree, interrupt.check)
        return [shown(path) for path in found]

    def restore(self, tree: str, interrupt: Interrupt, *, leave_out: bool = False) -> str:
        """See ``Snapshots.restore`` for the argument and the result."""
        material, made = self._material, self._required()
        material.have_tree(tree, interrupt)
        explained(lambda: self._made.write(replace(made, put_back=False)))
        answer = material.around.below(
            "restore",
            self._run_id,
            interrupt,
            snapshots=material.request(),
            tree=tree,
            standing=self._standing_of(tree, made),
            leave_out=leave_out,
        )
        explained(lambda: self._made.write(replace(made, put_back=True)))
        self._push(interrupt)
        return str(answer["tree"])

    def deliver(self, outcome: Ended, interrupt: Interrupt) -> str:
        material, assignment, made = self._material, self._assignment, self._required()
        note, _ = self._note(made)
        explained(lambda: self._made.write(replace(made, delivering=note)))
        answer = material.around.below(
            "deliver",
            self._run_id,
            interrupt,
            repository=material.repository_path,
            path=str(material.path),
            branch=made.branch,
            start_commit=made.start_commit,
            base=material.asked.commit,
            owner=self._run_id,
            message=commit_message(
                job_name=assignment.job_name,
                job_id=assignment.job_id,
                run_id=self._run_id,
                item_key=assignment.item_key,
                model=assignment.model,
                outcome=f"{outcome.state} {outcome.reason}",
                message=assignment.commit_message,
            ),
        )
        commit = str(answer["commit"])
        delivered = replace(made, delivered=commit, delivered_from=note)
        explained(lambda: self._made.write(delivered))
        self._publish(made, commit, interrupt)
        workspaces.delivered(material.around.database, material.lease, commit)
        if assignment.kept is not None:
            kept = replace(assignment.kept, commit=commit)
            self._assignment = replace(assignment, kept=kept)
        return commit

    # --- preparing --------------------------------------------------------------------------------

    def _prepare_new(self, tree: str | None, interrupt: Interrupt) -> Prepared:
        """Nothing whole is here. What is in its place is recorded before it goes, if it was whole
        once."""
        material, earlier = self._material, self._noted()
        found = None
        if tree is not None:
            material.have_tree(tree, interrupt)
            if earlier is not None and material.path.is_dir() and not material.path.is_symlink():
                found = explained(lambda: material.snapshots().take(interrupt.check))
        explained(lambda: self._made.write(None))
        made = make_workspace(material, self._assignment, self.surroundings, interrupt)
        if made.start_commit:
            self._bring([made.start_commit])
            explained(lambda: material.snapshots().start(made.start_commit))
        if earlier is not None and earlier.branch == made.branch:
            made = replace(made, delivered=earlier.delivered, delivered_from=earlier.delivered_from)
        elif tree is not None:
            made = self._as_delivered(made, tree)
        explained(lambda: self._made.write(made))
        if tree is None:
            return Prepared(self.surroundings, self.record(interrupt), "created")
        return self._restored(tree, found, interrupt)

    def _restored(self, tree: str, found: str | None, interrupt: Interrupt) -> Prepared:
        """Put back to a tree; ``found`` was put aside for it."""
        reached = self.restore(tree, interrupt, leave_out=True)
        if reached != tree:
            return Prepared(self.surroundings, reached, "incomplete", found or tree)
        if found in (None, tree):
            return Prepared(self.surroundings, tree)
        return Prepared(self.surroundings, tree, "restored", found)

    def _as_delivered(self, made: Made, tree: str) -> Made:
        """What was noted beside it is gone with it, or on another host: if it was delivered on top of
        where it stood at a tree, it goes on from the delivery."""
        kept, worktree = self._assignment.kept, self._material.worktree
        if worktree is None or kept is None or kept.commit is None or kept.branch != made.branch:
            return made
        note = self._material.snapshots().note_of(tree)
        if standing_of(note, made).commit != worktree.own.parent(kept.commit):
            return made
        return replace(made, delivered=kept.commit, delivered_from=note)

    def _prepare_found(
        self, made: Made, tree: str, interrupt: Interrupt, *, undo: bool
    ) -> Prepared:
        kept = self._assignment.kept
        elsewhere = kept is not None and kept.store_id != self._store_id
        last = explained(self._material.snapshots().last)
        found = self.record(interrupt)
        if found == tree and made.put_back and not undo:
            return Prepared(self.surroundings, tree)
        if not (undo or elsewhere) and made.put_back:
            return Prepared(self.surroundings, found, "changed")
        prepared = self._restored(tree, found, interrupt)
        # A delivery that was cut off has changed where the worktree stands, and no file.
        ours = not made.put_back and self._material.snapshots().same_files(found, tree)
        if prepared.tree == tree and (ours or (elsewhere and found == last)):
            return Prepared(self.surroundings, tree)
        return prepared

    def _whole(self) -> Made | None:
        """What is here; None when it was never made, was half made, or is not whole any more."""
        path, worktree = self._material.path, self._material.worktree
        noted = self._noted()
        if noted is None or path.is_symlink() or not path.is_dir():
            return None
        if worktree is not None and not explained(worktree.is_whole):
            return None
        return noted if noted.delivering is None else self._cut_off(noted, noted.delivering)

    def _cut_off(self, made: Made, delivering: str) -> Made:
        """A delivery was cut off: if its commit is there, the run has been delivered in it."""
        worktree = self._material.worktree
        assert worktree is not None, "only worktrees are delivered"
        tip = worktree.own.tip(made.branch)
        left = replace(made, delivering=None, put_back=False)
        if tip not in (None, made.delivered) and is_delivery(worktree.own, tip, self._run_id):
            left = replace(left, delivered=tip, delivered_from=delivering)
        explained(lambda: self._made.write(left))
        return left

    def _noted(self) -> Made | None:
        """What was said of it, and is said by this attempt from here on."""
        noted = explained(self._made.read)
        if noted is None and self._is_from_before():
            noted = Made()
        if noted is not None:
            explained(lambda: self._made.write(noted))
        return noted

    def _is_from_before(self) -> bool:
        """Whether a Runner that recorded no trees has made the copy: it holds the run's work."""
        assignment = self._assignment
        return assignment.kept is None and assignment.path == str(self._material.path)

    def _required(self) -> Made:
        made = explained(self._made.read)
        if made is None:
            raise WorkspaceError(f"the workspace {self._material.path} was removed while in use")
        return made

    def _keep(self) -> None:
        """Have the database say where the workspace is."""
        material, made, kept = self._material, self._required(), self._assignment.kept
        around = material.around
        now = Kept(
            store_id=self._store_id,
            path=str(material.path),
            branch=made.branch or None,
            start_commit=made.start_commit or None,
            commit=kept.commit if kept else None,
        )
        if now == kept:
            return
        place = None if material.asked.remote is not None else f"{SNAPSHOTS}{self._store_id}"
        workspaces.keep(around.database, material.lease, now, place, around.now())
        self._assignment = replace(self._assignment, kept=now)

    # --- where a worktree stands ------------------------------------------------------------------

    def _note(self, made: Made) -> tuple[str, tuple[str, ...]]:
        """What a snapshot says of where the worktree stands, and the commits that it keeps."""
        standing = self._standing
        return ("", ()) if standing is None else note_for(explained(standing.read), made)

    def _standing_of(self, tree: str, made: Made) -> dict[str, Any] | None:
        """Where the worktree stood when a tree was recorded, for a child."""
        material = self._material
        if material.repository is None:
            return None
        head = standing_of(material.snapshots().note_of(tree), made)
        before = standing_of(made.delivered_from, made)
        if made.delivered and replace(head, refs=before.refs) == before:
            head = Head(made.delivered, made.branch, refs=head.refs)
        return {
            "repository": material.repository_path,
            "branch": made.branch,
            "base": material.asked.commit,
            "head": asdict(head),
        }

    # --- the remote -------------------------------------------------------------------------------

    def _push(self, interrupt: Interrupt) -> None:
        material = self._material
        remote = material.asked.remote
        if remote is not None:
            snapshots = material.snapshots()
            material.around.insist(lambda: snapshots.push(remote, interrupt.check), interrupt)

    def _publish(self, made: Made, commit: str, interrupt: Interrupt) -> None:
        material = self._material
        remote = material.asked.remote
        if remote is None:
            return
        place = {"store": str(material.store()), "remote": remote, "owner": self._run_id}
        what = {**place, "branch": made.branch, "commit": commit}
        material.around.insist(
            lambda: material.around.below("publish", self._run_id, interrupt, **what), interrupt
        )

    def _bring(self, commits: Sequence[str]) -> None:
        """Have commits of the worktree's own repository in the store."""
        material = self._material
        worktree, wanted = (
            material.worktree,
            [each for each in commits if each not in self._brought],
        )
        if worktree is None or not wanted:
            return
        base = material.asked.commit
        explained(lambda: bring(wanted, base, worktree.own, material.store()))
        self._brought.update(wanted)


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


REPOSITORY = "git_"  # what ids of workspaces begin with that are still to be made of a repository


LITTLE_ROOM = 50_000_000  # bytes


_MOST_OPEN = 256  # an older one is opened again when it is needed


class RunWorkspaces:
    """``runner.ports.Workspaces``.

    Args:
        home: RUNNER_HOME; runs' own workspaces, their snapshots and long outputs lie in it.
        tools: its host starts what writes in a workspace, and it runs the job's setup.
    """

    def __init__(self, database: Database, home: Path, tools: LocalTools) -> None:
        self._around = Around(database, home, tools)
        self._jobs = JobCache()
        self._seen: set[tuple[Path, str]] = set()
        self._open: dict[Lease, OwnWorkspace] = {}
        self._opening = Lock()  # attempts work side by side

    def visible(self, path: Path, workspace_id: str) -> bool:
        """Whether this host can have a workspace: its trees are here, or the repository that it is to be
        made of, or the folder itself. An agent may have removed the id's file of a folder (``git
        clean``): one that was seen here with this id gets it back."""
        if workspace_id.startswith(SNAPSHOTS):
            return workspace_id == f"{SNAPSHOTS}{self._store_id()}"
        if path.parent == self._around.home / COPIES:
            return path.is_dir()
        seen = (path, workspace_id) in self._seen
        if workspace_id.startswith(REPOSITORY):
            found = (seen and path.is_dir()) or self._has(path, workspace_id)
        else:
            found = has_id(path, workspace_id) or (seen and restore_id(path, workspace_id))
        if found:
            self._seen.add((path, workspace_id))
        return found

    def prepare(
        self,
        lease: Lease,
        tree: str | None,
        interrupt: Interrupt,
        *,
        undo: bool,
        busy: bool = False,
    ) -> Prepared:
        """See ``runner.ports.Workspaces``."""
        assignment = self._assignment(lease)
        asked = assignment.asked
        if asked is None or not asked.is_recorded:
            shared = asked is not None and asked.mode == "shared" and assignment.path
            outputs = self._around.home / "outputs" / lease.run_id
            return Prepared(Surroundings(Path(shared) if shared else None, outputs))
        with self._telling_of_room():
            own = self._open_own(assignment, asked, lease, interrupt)
            return own.prepare(tree, interrupt, undo=undo, busy=busy)

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            return None
        with self._telling_of_room():
            return own.record(interrupt)

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        """See ``runner.ports.Workspaces``."""
        around = self._around
        if self._recorded(lease.run_id) is not None:
            return None
        for above in reversed(lineage(lease.run_id)[:-1]):
            if (found := self._recorded(above)) is not None:
                with self._telling_of_room():
                    return record_from_below(around, lease, above, *found, interrupt)
        return None

    def _recorded(self, run_id: str) -> tuple[Workspace, Kept] | None:
        """The workspace of its own that a run has, if it is recorded."""
        assignment = workspaces.assignment_of(self._around.database, run_id, self._jobs)
        asked, kept = assignment.asked, assignment.kept
        if asked is None or kept is None or not asked.is_recorded:
            return None
        return asked, kept

    def holds(self, lease: Lease, path: str) -> bool:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, Interrupt())
        return own is not None and own.holds(path)

    def unrecorded(self, lease: Lease, tree: str, interrupt: Interrupt) -> Sequence[str]:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        return () if own is None else own.unrecorded(tree, interrupt)

    def restore(self, lease: Lease, tree: str, interrupt: Interrupt) -> None:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            raise WorkspaceError(f"no tree is recorded of the workspace of {lease.run_id}")
        with self._telling_of_room():
            own.restore(tree, interrupt)

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        """See ``runner.ports.Workspaces``."""
        own = self._own(lease, interrupt)
        if own is None:
            raise WorkspaceError(f"{lease.run_id} has no branch to be delivered on")
        with self._telling_of_room():
            return own.deliver(outcome, interrupt)

    @contextmanager
    def _telling_of_room(self) -> Iterator[None]:
        """git does not always say that a disk is full when it cannot write."""
        try:
            yield
        except WorkspaceError as error:
            home = self._around.home
            free = shutil.disk_usage(home).free if home.is_dir() else LITTLE_ROOM
            if free >= LITTLE_ROOM:
                raise
            raise WorkspaceError(
                f"{error}; there is no room on the disk of {home} ({free:,} bytes are free): make some, "
                "`runner workspace prune` removes what is done with"
            ) from error

    def _own(self, lease: Lease, interrupt: Interrupt) -> OwnWorkspace | None:
        """The run's own workspace, as ``prepare`` left it; None when it has none."""
        with self._opening:
            own = self._open.get(lease)
        if own is not None:
            return own
        assignment = self._assignment(lease)
        if assignment.asked is None or not assignment.asked.is_recorded:
            return None
        return self._open_own(assignment, assignment.asked, lease, interrupt)

    def _assignment(self, lease: Lease) -> Assignment:
        return workspaces.assignment_of(self._around.database, lease.run_id, self._jobs)

    def _open_own(
        self, assignment: Assignment, asked: Workspace, lease: Lease, interrupt: Interrupt
    ) -> OwnWorkspace:
        here, kept = self._store_id(), assignment.kept
        if kept is not None and kept.store_id != here and asked.remote is None:
            raise WorkspaceElsewhere(f"the recorded files of {lease.run_id} are on another host")
        material = material_of(self._around, asked, lease, interrupt)
        own = OwnWorkspace(material, assignment, here)
        with self._opening:
            while len(self._open) >= _MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[lease] = own
        return own

    def _store_id(self) -> str:
        return explained(lambda: store_id(self._around.home))

    def _has(self, path: Path, workspace_id: str) -> bool:
        commit = workspace_id.removeprefix(REPOSITORY)
        return Repository(path, self._around.environment).has(commit)
