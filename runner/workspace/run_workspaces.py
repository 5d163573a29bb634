"""Where a run works: nowhere, in the job's folder, or in a workspace of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

from runner.core.agents import lineage
from runner.core.run import Ended, Lease
from runner.core.workspace import Workspace
from runner.errors import UsageError, WorkspaceElsewhere, WorkspaceError
from runner.ports import Interrupt, Prepared, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.jobs import JobCache
from runner.store.workspaces import SNAPSHOTS, StoredWorkspace, WorkspaceRecord
from runner.tools.toolbox import LocalTools
from runner.workspace.child import open_snapshots
from runner.workspace.folders import has_id, restore_id
from runner.workspace.git import shown
from runner.workspace.making import (
    COPIES,
    REMOTE_SECONDS,
    Layout,
    Made,
    MadeNotes,
    Site,
    layout_of,
    make_workspace,
)
from runner.workspace.repository import Repository, commit_message, is_delivery
from runner.workspace.snapshot_store import store_id
from runner.workspace.worktree import GitState, GitStateReader

REPOSITORY = "git_"  # begins the id of a workspace that is still to be made of a repository

_LITTLE_ROOM = 50_000_000  # bytes
_MOST_OPEN = 256  # an older one is opened again when it is needed
_LAST_ATTEMPT = 1 << 62  # reads the notes of every attempt


class RunWorkspaces:
    """``runner.ports.Workspaces``, which says what its methods do and raise."""

    def __init__(
        self,
        database: Database,
        home: Path,
        tools: LocalTools,
        *,
        remote_seconds: float = REMOTE_SECONDS,
        most_open: int = _MOST_OPEN,
        little_room: int = _LITTLE_ROOM,
    ) -> None:
        """
        Args:
            home: RUNNER_HOME, for runs' own workspaces, their snapshots and long outputs.
            tools: its host starts what writes in a workspace, and it runs the job's setup.
            remote_seconds: how long a remote that does not answer is asked again.
            most_open: how many workspaces are kept open.
            little_room: bytes; an error says if fewer are free on the disk of ``home``.
        """
        self._site = Site(database, home, tools, remote_seconds=remote_seconds)
        self._most_open = most_open
        self._little_room = little_room
        self._jobs = JobCache()
        self._seen: set[tuple[Path, str]] = set()
        self._open: dict[Lease, _OwnWorkspace] = {}
        self._opening = Lock()  # attempts work side by side

    def visible(self, path: Path, workspace_id: str) -> bool:
        """Return True if this host can have a workspace: its snapshots, its repository or the folder
        itself is here.

        An agent may have removed the id's file of a folder (``git clean``): one that was seen here
        with this id gets it back.
        """
        if workspace_id.startswith(SNAPSHOTS):
            return workspace_id == f"{SNAPSHOTS}{store_id(self._site.home)}"
        if path.parent == self._site.home / COPIES:
            return path.is_dir()
        seen = (path, workspace_id) in self._seen
        if workspace_id.startswith(REPOSITORY):
            commit = workspace_id.removeprefix(REPOSITORY)
            repository = Repository(path, self._site.tools.environment)
            found = (seen and path.is_dir()) or repository.has(commit)
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
        assignment = self._assignment(lease.run_id)
        asked = assignment.asked
        if asked is None or not asked.is_recorded:
            shared = asked is not None and asked.mode == "shared" and assignment.path
            outputs = self._site.home / "outputs" / lease.run_id
            return Prepared(Surroundings(Path(shared) if shared else None, outputs))
        with self._explained():
            own = self._open_own(assignment, asked, lease, interrupt)
            return own.prepare(tree, interrupt, undo=undo, busy=busy)

    def record(self, lease: Lease, interrupt: Interrupt) -> str | None:
        with self._explained():
            own = self._own(lease, interrupt)
            return None if own is None else own.record(interrupt)

    def record_shared(self, lease: Lease, interrupt: Interrupt) -> str | None:
        owners = ((run_id, self._assignment(run_id)) for run_id in reversed(lineage(lease.run_id)))
        for owner, assignment in owners:
            asked, record = assignment.asked, assignment.record
            if asked is not None and record is not None and asked.is_recorded:
                if owner == lease.run_id:
                    return None
                with self._explained():
                    return _record_from_below(self._site, lease, owner, asked, record, interrupt)
        return None

    def holds(self, lease: Lease, path: str) -> bool:
        with self._explained():
            own = self._own(lease, Interrupt())
            return own is not None and own.layout.snapshots().holds(path)

    def unrecorded(self, lease: Lease, tree: str, interrupt: Interrupt) -> Sequence[str]:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                return ()
            own.layout.fetch(tree, interrupt)
            return [*map(shown, own.layout.snapshots().unrecorded(tree, interrupt.check))]

    def restore(self, lease: Lease, tree: str, interrupt: Interrupt) -> None:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                raise WorkspaceError(f"no tree is recorded of the workspace of {lease.run_id}")
            own.restore(tree, interrupt)

    def deliver(self, lease: Lease, outcome: Ended, interrupt: Interrupt) -> str:
        with self._explained():
            own = self._own(lease, interrupt)
            if own is None:
                raise WorkspaceError(f"{lease.run_id} has no branch to be delivered on")
            return own.deliver(outcome, interrupt)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what is wrong with files into a ``WorkspaceError``.

        git does not always say that a disk is full when it cannot write, so the error does.
        """
        try:
            yield
        except (WorkspaceError, OSError, UsageError) as error:
            home = self._site.home
            free = shutil.disk_usage(home).free if home.is_dir() else self._little_room
            if free < self._little_room:
                raise WorkspaceError(
                    f"{error}; there is no room on the disk of {home} ({free:,} bytes are free): "
                    "make some, `runner workspace prune` removes what is done with"
                ) from error
            if isinstance(error, WorkspaceError):
                raise
            raise WorkspaceError(str(error)) from error

    def _own(self, lease: Lease, interrupt: Interrupt) -> _OwnWorkspace | None:
        """Return the run's own workspace, as ``prepare`` left it, or None if it has none."""
        with self._opening:
            own = self._open.get(lease)
        if own is not None:
            return own
        assignment = self._assignment(lease.run_id)
        if assignment.asked is None or not assignment.asked.is_recorded:
            return None
        return self._open_own(assignment, assignment.asked, lease, interrupt)

    def _assignment(self, run_id: str) -> StoredWorkspace:
        return workspaces.workspace_of(self._site.database, run_id, self._jobs)

    def _open_own(
        self, assignment: StoredWorkspace, asked: Workspace, lease: Lease, interrupt: Interrupt
    ) -> _OwnWorkspace:
        here, record = store_id(self._site.home), assignment.record
        if record is not None and record.store_id != here and asked.remote is None:
            raise WorkspaceElsewhere(f"the recorded files of {lease.run_id} are on another host")
        own = _OwnWorkspace(layout_of(self._site, asked, lease, interrupt), assignment, here)
        with self._opening:
            while len(self._open) >= self._most_open:
                del self._open[next(iter(self._open))]
            self._open[lease] = own
        return own


class _OwnWorkspace:
    """A run's own workspace at one attempt: prepared, recorded, put back, delivered.

    See ``runner.ports.Workspaces`` for what its methods do and raise.
    """

    def __init__(self, layout: Layout, assignment: StoredWorkspace, store_id: str) -> None:
        self.layout = layout
        self._assignment = assignment
        self._run_id = assignment.run_id
        self._store_id = store_id  # of this host
        self._notes = MadeNotes.beside(layout.path, layout.lease.attempt)
        self._worktree = layout.worktree
        self._state_reader = None if self._worktree is None else GitStateReader(self._worktree)
        self._surroundings = Surroundings(layout.path, layout.site.home / "outputs" / self._run_id)
        self._prepared = partial(Prepared, self._surroundings)

    def prepare(
        self, snapshot: str | None, interrupt: Interrupt, *, undo: bool, busy: bool
    ) -> Prepared:
        made = self._whole()
        if made is None:
            prepared = self._prepare_new(snapshot, interrupt)
        elif snapshot is None:
            prepared = self._prepared(self.record(interrupt), "created")
        elif busy:
            prepared = self._prepared(snapshot)
        else:
            prepared = self._prepare_found(made, snapshot, interrupt, undo=undo)
        self._save_record()
        return prepared

    def record(self, interrupt: Interrupt) -> str:
        note, keep = self._note(self._made())
        self.layout.send_to_store(keep)
        snapshots = self.layout.snapshots()
        snapshot = snapshots.take(interrupt.check, note=note, keep=keep)
        self.layout.push(snapshots, interrupt)
        return snapshot

    def restore(self, snapshot: str, interrupt: Interrupt, *, leave_out: bool = False) -> str:
        """Put the workspace back; see ``Snapshots.restore`` for ``leave_out`` and the result."""
        layout, made = self.layout, self._made()
        layout.fetch(snapshot, interrupt)
        self._notes.write(replace(made, put_back=False))
        answer = layout.run_child(
            "restore",
            interrupt,
            snapshots=layout.request(),
            snapshot=snapshot,
            branch=made.branch,
            note=self._state_at(snapshot, made).to_note(made.branch),
            leave_out=leave_out,
        )
        self._notes.write(replace(made, put_back=True))
        layout.push(layout.snapshots(), interrupt)
        return str(answer["snapshot"])

    def deliver(self, outcome: Ended, interrupt: Interrupt) -> str:
        layout, assignment, made = self.layout, self._assignment, self._made()
        note, _ = self._note(made)
        self._notes.write(replace(made, delivering=note))
        message = commit_message(
            job_name=assignment.job_name,
            job_id=assignment.job_id,
            run_id=self._run_id,
            item_key=assignment.item_key,
            model=assignment.model,
            outcome=f"{outcome.state} {outcome.reason}",
            message=assignment.commit_message,
        )
        start, branch = made.start_commit, made.branch
        answer = layout.run_child(
            "deliver", interrupt, branch=branch, start_commit=start, message=message
        )
        commit = str(answer["commit"])
        self._notes.write(replace(made, delivered=commit, delivered_from=note))
        if (remote := layout.asked.remote) is not None:
            request = {"store": str(layout.store()), "remote": remote, "branch": branch}
            publish = partial(layout.run_child, "publish", interrupt, **request, commit=commit)
            layout.retry(publish, interrupt)
        workspaces.save_delivery(layout.site.database, layout.lease, commit)
        if assignment.record is not None:
            record = replace(assignment.record, commit=commit)
            self._assignment = replace(assignment, record=record)
        return commit

    # --- preparing --------------------------------------------------------------------------------

    def _prepare_new(self, snapshot: str | None, interrupt: Interrupt) -> Prepared:
        """Make the workspace: nothing whole is here.

        What is in its place is recorded before it is removed, if it was whole once.
        """
        layout, earlier = self.layout, self._noted()
        found = None
        if snapshot is not None:
            layout.fetch(snapshot, interrupt)
            if earlier is not None and layout.path.is_dir() and not layout.path.is_symlink():
                found = layout.snapshots().take(interrupt.check)
        self._notes.write(None)
        made = make_workspace(layout, self._assignment, self._surroundings, interrupt)
        if made.start_commit:
            layout.send_to_store([made.start_commit])
            layout.snapshots().start(made.start_commit)
        if earlier is not None and earlier.branch == made.branch:
            made = replace(made, delivered=earlier.delivered, delivered_from=earlier.delivered_from)
        elif snapshot is not None:
            made = self._with_delivery(made, snapshot)
        self._notes.write(made)
        if snapshot is None:
            return self._prepared(self.record(interrupt), "created")
        return self._restored(snapshot, found, interrupt)

    def _restored(self, snapshot: str, found: str | None, interrupt: Interrupt) -> Prepared:
        """Put the workspace back; ``found`` was put aside for it."""
        reached = self.restore(snapshot, interrupt, leave_out=True)
        if reached != snapshot:
            return self._prepared(reached, "incomplete", found or snapshot)
        if found in (None, snapshot):
            return self._prepared(snapshot)
        return self._prepared(snapshot, "restored", found)

    def _with_delivery(self, made: Made, snapshot: str) -> Made:
        """Return the note with the run's delivery, which was noted on another host or is gone.

        If it was delivered on top of the git state of the snapshot, the run goes on from there.
        """
        record, worktree = self._assignment.record, self._worktree
        if worktree is None or record is None or record.commit is None:
            return made
        note = self.layout.snapshots().note_of(snapshot)
        below = worktree.own.parent(record.commit)
        if record.branch != made.branch or made.state(note).commit != below:
            return made
        return replace(made, delivered=record.commit, delivered_from=note)

    def _prepare_found(
        self, made: Made, snapshot: str, interrupt: Interrupt, *, undo: bool
    ) -> Prepared:
        """Compare a whole workspace with the last snapshot, and put it back or take it as it is."""
        snapshots, record = self.layout.snapshots(), self._assignment.record
        elsewhere = record is not None and record.store_id != self._store_id
        last = snapshots.last()
        found = self.record(interrupt)
        if found == snapshot and made.put_back and not undo:
            return self._prepared(snapshot)
        if not (undo or elsewhere) and made.put_back:
            return self._prepared(found, "changed")
        prepared = self._restored(snapshot, found, interrupt)
        # A delivery that was cut off has changed the git state, and no file.
        ours = not made.put_back and snapshots.same_files(found, snapshot)
        if prepared.snapshot == snapshot and (ours or (elsewhere and found == last)):
            return self._prepared(snapshot)
        return prepared

    def _whole(self) -> Made | None:
        """Return the note if the workspace is whole: it was made, and nothing of it is gone."""
        path, worktree, noted = self.layout.path, self._worktree, self._noted()
        if noted is None or path.is_symlink() or not path.is_dir():
            return None
        if worktree is None:
            return noted
        if not worktree.is_whole():
            return None
        if noted.delivering is None:
            return noted
        # A delivery was cut off: if its commit is there, the run has been delivered in it.
        own, left = worktree.own, replace(noted, delivering=None, put_back=False)
        tip = own.tip(noted.branch)
        if tip not in (None, noted.delivered) and is_delivery(own.git, tip, self._run_id):
            left = replace(left, delivered=tip, delivered_from=noted.delivering)
        self._notes.write(left)
        return left

    def _noted(self) -> Made | None:
        """Return the note, which is this attempt's from here on."""
        noted, assignment = self._notes.read(), self._assignment
        is_older = assignment.record is None and assignment.path == str(self.layout.path)
        if noted is None and is_older:  # a Runner that took no snapshots has made the copy
            noted = Made()
        if noted is not None:
            self._notes.write(noted)
        return noted

    def _made(self) -> Made:
        made = self._notes.read()
        if made is None:
            raise WorkspaceError(f"the workspace {self.layout.path} was removed while in use")
        return made

    def _save_record(self) -> None:
        """Store where the workspace is, unless that is stored."""
        layout, made, before = self.layout, self._made(), self._assignment.record
        now = WorkspaceRecord(
            store_id=self._store_id,
            path=str(layout.path),
            branch=made.branch or None,
            start_commit=made.start_commit or None,
            commit=before.commit if before else None,
        )
        if now == before:
            return
        database, remote = layout.site.database, layout.asked.remote
        workspace_id = None if remote is not None else f"{SNAPSHOTS}{self._store_id}"
        workspaces.save_record(database, layout.lease, now, workspace_id, time.time())
        self._assignment = replace(self._assignment, record=now)

    # --- the git state of a worktree --------------------------------------------------------------

    def _note(self, made: Made) -> tuple[str, tuple[str, ...]]:
        """Return what a snapshot says of the git state, and the commits that it keeps."""
        reader = self._state_reader
        return ("", ()) if reader is None else made.note(reader.read())

    def _state_at(self, snapshot: str, made: Made) -> GitState:
        """Return the git state when a snapshot was taken."""
        state = made.state(self.layout.snapshots().note_of(snapshot))
        before = made.state(made.delivered_from)
        if made.delivered and replace(state, refs=before.refs) == before:
            state = GitState(made.delivered, made.branch, refs=state.refs)
        return state


def _record_from_below(
    site: Site,
    lease: Lease,
    owner: str,
    asked: Workspace,
    record: WorkspaceRecord,
    interrupt: Interrupt,
) -> str:
    """Take a snapshot of the folder of a run above: a sub-agent that works in it is about to start one
    in a folder of its own, which begins with what is there now.

    It is a snapshot of the sub-agent's attempt: another attempt may be taking one of the owner's.

    Args:
        lease: of the sub-agent.
        owner: the run whose folder it is; ``asked`` and ``record`` are of that.
    """
    layout = layout_of(site, asked, replace(lease, run_id=owner), interrupt)
    made = MadeNotes.beside(Path(record.path), _LAST_ATTEMPT).read()
    if made is None:
        raise WorkspaceError(f"the workspace {record.path} was removed while in use")
    note, commits = "", tuple[str, ...]()
    if layout.worktree is not None:
        note, commits = made.note(GitStateReader(layout.worktree).read())
        layout.send_to_store([each for each in (made.start_commit, *commits) if each])
    request = {**layout.request(), "run_id": lease.run_id, "attempt": lease.attempt}
    snapshots = open_snapshots(**request, environment=site.tools.environment)
    if made.start_commit:
        snapshots.start(made.start_commit)
    snapshot = snapshots.take(interrupt.check, note=note, keep=commits)
    layout.push(snapshots, interrupt)
    return snapshot
