"""A run's own workspace at one attempt: made ready, recorded, put back, delivered."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from runner.core.run import Ended
from runner.engine.ports import Interrupt, Prepared, Surroundings
from runner.engine.workspaces.around import explained
from runner.engine.workspaces.made import Made, MadeFile, note_for
from runner.engine.workspaces.making import make
from runner.engine.workspaces.material import Material
from runner.errors import WorkspaceError
from runner.store import workspaces
from runner.store.workspaces import Assignment, Kept
from runner.workspace.worktrees import Head
from runner.workspace.worktrees.delivery import commit_message, is_delivery, publish
from runner.workspace.worktrees.standing import Standing, from_note

SNAPSHOTS = "snap_"  # what ids of workspaces begin with whose trees are on one host


class OwnWorkspace:
    """See ``engine.ports.Workspaces`` for what its methods do and raise.

    Args:
        store_id: of this host's snapshots.
    """

    def __init__(self, material: Material, assignment: Assignment, store_id: str) -> None:
        self._material = material
        self._assignment = assignment
        self._run_id = assignment.run_id
        self._store_id = store_id
        self._file = MadeFile.beside(material.path)
        worktree = material.worktree
        self._standing = None if worktree is None else Standing(worktree)

    @property
    def surroundings(self) -> Surroundings:
        outputs = self._material.around.home / "outputs" / self._run_id
        return Surroundings(self._material.path, outputs)

    def prepare(self, tree: str | None, interrupt: Interrupt, *, undo: bool) -> Prepared:
        made = self._whole()
        if made is None:
            prepared = self._prepare_new(tree, interrupt)
        elif tree is None:
            prepared = Prepared(self.surroundings, self.record(interrupt), "created")
        else:
            prepared = self._prepare_found(made, tree, interrupt, undo=undo)
        self._keep()
        return prepared

    def record(self, interrupt: Interrupt) -> str:
        note, keep = self._note(self._required())
        snapshots = self._material.snapshots()
        tree = explained(lambda: snapshots.take(interrupt.check, note=note, keep=keep))
        self._push(interrupt)
        return tree

    def holds(self, path: str) -> bool:
        return explained(lambda: self._material.snapshots().holds(path))

    def restore(self, tree: str, interrupt: Interrupt) -> None:
        material, made = self._material, self._required()
        material.have_tree(tree, interrupt)
        explained(lambda: self._file.write(replace(made, put_back=False)))
        material.around.below(
            "restore",
            self._run_id,
            interrupt,
            snapshots=material.request(),
            tree=tree,
            standing=self._standing_of(tree, made),
        )
        explained(lambda: self._file.write(replace(made, put_back=True)))
        self._push(interrupt)

    def deliver(self, outcome: Ended, interrupt: Interrupt) -> str:
        material, assignment, made = self._material, self._assignment, self._required()
        note, _ = self._note(made)
        explained(lambda: self._file.write(replace(made, delivering=note)))
        answer = material.around.below(
            "deliver",
            self._run_id,
            interrupt,
            repository=material.repository_path,
            path=str(material.path),
            branch=made.branch,
            start_commit=made.start_commit,
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
        explained(lambda: self._file.write(delivered))
        self._publish(made, commit, interrupt)
        workspaces.delivered(material.around.database, material.lease, commit)
        return commit

    # --- preparing --------------------------------------------------------------------------------

    def _prepare_new(self, tree: str | None, interrupt: Interrupt) -> Prepared:
        """Nothing whole is here. What is in its place is recorded before it goes, if it was whole
        once."""
        material, earlier = self._material, self._noted()
        found = None
        if tree is not None:
            material.have_tree(tree, interrupt)
            if earlier is not None and material.path.is_dir():
                found = explained(lambda: material.snapshots().take(interrupt.check))
        explained(self._file.remove)
        made = make(material, self._assignment, self.surroundings, interrupt)
        if made.start_commit:
            explained(lambda: material.snapshots().start(made.start_commit))
        if earlier is not None and earlier.branch == made.branch:
            made = replace(made, delivered=earlier.delivered, delivered_from=earlier.delivered_from)
        explained(lambda: self._file.write(made))
        if tree is None:
            return Prepared(self.surroundings, self.record(interrupt), "created")
        self.restore(tree, interrupt)
        if found in (None, tree):
            return Prepared(self.surroundings, tree)
        return Prepared(self.surroundings, tree, "restored", found)

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
        self.restore(tree, interrupt)
        if found == tree or not made.put_back or (elsewhere and found == last):
            return Prepared(self.surroundings, tree)
        return Prepared(self.surroundings, tree, "restored", found)

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
        repository = self._material.repository
        assert repository is not None, "only worktrees are delivered"
        tip = repository.tip(made.branch)
        left = replace(made, delivering=None, put_back=False)
        if tip not in (None, made.delivered) and is_delivery(repository, tip, self._run_id):
            left = replace(left, delivered=tip, delivered_from=delivering)
        explained(lambda: self._file.write(left))
        return left

    def _noted(self) -> Made | None:
        noted = explained(self._file.read)
        if noted is None and self._is_from_before():
            explained(lambda: self._file.write(Made()))
            return Made()
        return noted

    def _is_from_before(self) -> bool:
        """Whether a Runner that recorded no trees has made the copy: it holds the run's work."""
        assignment = self._assignment
        return assignment.kept is None and assignment.path == str(self._material.path)

    def _required(self) -> Made:
        made = explained(self._file.read)
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
        note = material.snapshots().note_of(tree)
        if made.delivered and note == made.delivered_from:
            head = Head(made.delivered, made.branch)
        elif note:
            head = from_note(note, made.branch)
        else:
            head = Head(made.start_commit, made.branch)
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
        material, kept = self._material, self._assignment.kept
        remote, repository = material.asked.remote, material.repository
        if remote is None or repository is None:
            return
        before = kept.commit if kept else None
        material.around.insist(
            lambda: publish(repository, remote, self._run_id, made.branch, commit, before),
            interrupt,
        )
