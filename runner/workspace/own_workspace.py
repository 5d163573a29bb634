"""A run's own workspace: made, recorded, put back, delivered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from runner.core.run import Ended, Lease
from runner.core.text import plain
from runner.core.workspace import Workspace
from runner.errors import HostFaultError, WorkspaceError, tells_host_fault
from runner.ports import Command, Interrupt, Prepared, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.workspaces import SNAPSHOTS, RunWorkspace, WorkspaceRecord
from runner.tools.host import Start, boot
from runner.tools.toolbox import LocalTools
from runner.workspace import child, repository
from runner.workspace.child import open_snapshots
from runner.workspace.folders import COPIES, copy_folder
from runner.workspace.notes import Made, MadeNotes
from runner.workspace.repository import Repository
from runner.workspace.snapshot_store import StoredSnapshots, make_store, store_git, store_id
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import GitState, GitStateReader, Worktree

T = TypeVar("T")

REMOTE_SECONDS = 1_800.0

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_CHILD_SECONDS = 7_200.0
_LAST_WORDS = 1_000  # characters of a child's standard error
_LONGEST_TAIL = 500  # characters of a setup command's output
_LAST_ATTEMPT = 1 << 62  # reads the notes of every attempt


@dataclass(frozen=True, slots=True)
class Site:
    """The settings and services that workspaces on this host need."""

    database: Database
    home: Path  # RUNNER_HOME
    tools: LocalTools  # its host starts whatever writes in a workspace
    remote_seconds: float = REMOTE_SECONDS  # how long a remote that does not answer is asked again

    def surroundings(self, run_id: str, workspace: Path | None) -> Surroundings:
        return Surroundings(workspace, self.home / "outputs" / run_id)


def open_workspace(
    site: Site, stored: RunWorkspace, asked: Workspace, lease: Lease, interrupt: Interrupt
) -> OwnWorkspace:
    """Return a run's own workspace at one attempt, which may have to be made. A worktree is of the
    user's repository if that is here and has the base, else of a clone, made if need be. Raises
    ``WorkspaceError`` if it cannot be cloned, and ``Interrupted``."""
    if asked.mode != "git":
        return OwnWorkspace(site, stored, asked, lease, None)
    url = asked.url or asked.remote
    if asked.path is not None:
        here = Repository(Path(asked.path), site.tools.environment)
        if url is None or here.has(asked.commit):
            return OwnWorkspace(site, stored, asked, lease, here)
    assert url is not None, "a job in mode git has a path or a URL"
    clone = Repository(repository.clone_of(site.home, url), site.tools.environment)
    own = OwnWorkspace(site, stored, asked, lease, clone)
    if not clone.has(asked.commit):
        own.retry(lambda: own.run_child("clone", interrupt, url=url), interrupt)
    return own


class OwnWorkspace:
    """A run's own workspace at one attempt: ``runner.ports.Workspaces`` describes its methods."""

    def __init__(
        self,
        site: Site,
        stored: RunWorkspace,
        asked: Workspace,
        lease: Lease,
        source: Repository | None,
    ) -> None:
        """
        Args:
            stored: the stored workspace; ``asked`` is part of it.
            source: what the worktree is of; None for a copy.
        """
        self._site = site
        self._stored = stored
        self._asked = asked
        self._lease = lease
        self._source = source
        self._path = site.home / COPIES / lease.run_id
        self._notes = MadeNotes.beside(self._path, lease.attempt)
        self._worktree = None if source is None else Worktree(source, self._path)
        self._state_reader = None if self._worktree is None else GitStateReader(self._worktree)
        self._surroundings = site.surroundings(lease.run_id, self._path)
        self._prepared = partial(Prepared, self._surroundings)
        self._in_store: set[str] = set()  # commits of the worktree
        self._store_id = store_id(site.home)

    @cached_property
    def store(self) -> Path:
        """The store of snapshots of everything that is made from the same source."""
        common = self._source.common_folder() if self._source else None
        environment = self._site.tools.environment
        return make_store(self._site.home, self._asked.source, common, environment=environment)

    @cached_property
    def snapshots(self) -> Snapshots:
        return open_snapshots(**self._request(), environment=self._site.tools.environment)

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
        return self._take(self.snapshots, self._made(), interrupt)

    def _take(self, snapshots: Snapshots, made: Made, interrupt: Interrupt) -> str:
        note, keep = self._note(made)
        self._send_to_store(keep)
        snapshot = snapshots.take(interrupt.check, note=note, keep=keep)
        self._push(snapshots, interrupt)
        return snapshot

    def record_for(self, lease: Lease, record: WorkspaceRecord, interrupt: Interrupt) -> str:
        """Take a snapshot for a sub-agent that works in this folder and is about to start one in a
        folder of its own, which begins with the files here.

        It is a snapshot of the sub-agent's attempt: another attempt may be taking one of the owner's.

        Args:
            lease: of the sub-agent.
            record: of this workspace.
        """
        made = MadeNotes.beside(Path(record.path), _LAST_ATTEMPT).read()
        if made is None:
            raise WorkspaceError(f"the workspace {record.path} was removed while in use")
        request = {**self._request(), "run_id": lease.run_id, "attempt": lease.attempt}
        snapshots = open_snapshots(**request, environment=self._site.tools.environment)
        self._begin(snapshots, made)
        return self._take(snapshots, made, interrupt)

    def restore(self, snapshot: str, interrupt: Interrupt, *, leave_out: bool = False) -> str:
        """Put the workspace back; see ``Snapshots.restore`` for ``leave_out`` and the result."""
        made = self._made()
        self.fetch(snapshot, interrupt)
        self._notes.write(replace(made, put_back=False))
        answer = self.run_child(
            "restore",
            interrupt,
            snapshots=self._request(),
            snapshot=snapshot,
            branch=made.branch,
            note=self._state_at(snapshot, made).to_note(made.branch),
            leave_out=leave_out,
        )
        self._notes.write(replace(made, put_back=True))
        self._push(self.snapshots, interrupt)
        return str(answer["snapshot"])

    def deliver(self, outcome: Ended, interrupt: Interrupt) -> str:
        stored, made = self._stored, self._made()
        note, _ = self._note(made)
        self._notes.write(replace(made, delivering=note))
        message = repository.commit_message(
            job_name=stored.job_name,
            job_id=stored.job_id,
            run_id=self._lease.run_id,
            item_key=stored.item_key,
            model=stored.model,
            outcome=f"{outcome.state} {outcome.reason}",
            message=stored.commit_message,
        )
        start, branch = made.start_commit, made.branch
        answer = self.run_child(
            "deliver", interrupt, branch=branch, start_commit=start, message=message
        )
        commit = str(answer["commit"])
        self._notes.write(replace(made, delivered=commit, delivered_from=note))
        if (remote := self._asked.remote) is not None:
            request = {"store": str(self.store), "remote": remote, "branch": branch}
            publish = partial(self.run_child, "publish", interrupt, **request, commit=commit)
            self.retry(publish, interrupt)
        workspaces.save_delivery(self._site.database, self._lease, commit)
        if stored.record is not None:
            self._stored = replace(stored, record=replace(stored.record, commit=commit))
        return commit

    # --- preparing --------------------------------------------------------------------------------

    def _prepare_new(self, snapshot: str | None, interrupt: Interrupt) -> Prepared:
        """Make the workspace, as nothing whole is here; what was whole once is recorded before it
        goes."""
        earlier = self._noted()
        found = None
        if snapshot is not None:
            self.fetch(snapshot, interrupt)
            if earlier is not None and self._path.is_dir() and not self._path.is_symlink():
                found = self.snapshots.take(interrupt.check)
        self._notes.write(None)
        made = self._make(interrupt)
        self._begin(self.snapshots, made)
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
        """Return the note with the run's delivery, noted on another host or gone; delivered on top
        of the snapshot's git state, the run goes on from there."""
        record, worktree = self._stored.record, self._worktree
        if worktree is None or record is None or record.commit is None:
            return made
        note = self.snapshots.note_of(snapshot)
        below = worktree.own.git.answer("rev-parse", "--verify", "--quiet", f"{record.commit}^")
        if record.branch != made.branch or made.state(note).commit != below:
            return made
        return replace(made, delivered=record.commit, delivered_from=note)

    def _prepare_found(
        self, made: Made, snapshot: str, interrupt: Interrupt, *, undo: bool
    ) -> Prepared:
        """Compare a complete workspace with the last snapshot, and restore or keep it."""
        snapshots, record = self.snapshots, self._stored.record
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
        path, worktree, noted = self._path, self._worktree, self._noted()
        if noted is None or path.is_symlink() or not path.is_dir():
            return None
        if worktree is not None and not worktree.is_whole():
            return None
        if worktree is None or noted.delivering is None:
            return noted
        # A delivery was cut off: if its commit is there, the run has been delivered in it.
        own, owner = worktree.own, self._lease.run_id
        tip, left = own.tip(noted.branch), replace(noted, delivering=None, put_back=False)
        if tip and tip != noted.delivered and repository.is_delivery(own.git, tip, owner):
            left = replace(left, delivered=tip, delivered_from=noted.delivering)
        self._notes.write(left)
        return left

    def _noted(self) -> Made | None:
        """Return the note, which is this attempt's from here on."""
        noted, stored = self._notes.read(), self._stored
        is_older = stored.record is None and stored.path == str(self._path)
        if noted is None and is_older:  # a Runner that took no snapshots has made the copy
            noted = Made()
        if noted is not None:
            self._notes.write(noted)
        return noted

    def _made(self) -> Made:
        made = self._notes.read()
        if made is None:
            raise WorkspaceError(f"the workspace {self._path} was removed while in use")
        return made

    def _save_record(self) -> None:
        made, before = self._made(), self._stored.record
        now = WorkspaceRecord(
            store_id=self._store_id,
            path=str(self._path),
            branch=made.branch or None,
            start_commit=made.start_commit or None,
            commit=before.commit if before else None,
        )
        if now == before:
            return
        database, remote = self._site.database, self._asked.remote
        workspace_id = None if remote is not None else f"{SNAPSHOTS}{self._store_id}"
        workspaces.save_record(database, self._lease, now, workspace_id, time.time())
        self._stored = replace(self._stored, record=now)

    # --- the git state of a worktree --------------------------------------------------------------

    def _note(self, made: Made) -> tuple[str, tuple[str, ...]]:
        """Return a snapshot's note of the git state, and the commits that it keeps."""
        reader = self._state_reader
        return ("", ()) if reader is None else made.note(reader.read())

    def _state_at(self, snapshot: str, made: Made) -> GitState:
        state = made.state(self.snapshots.note_of(snapshot))
        before = made.state(made.delivered_from)
        if made.delivered and replace(state, refs=before.refs) == before:
            state = GitState(made.delivered, made.branch, refs=state.refs)
        return state

    # --- making -----------------------------------------------------------------------------------

    def _make(self, interrupt: Interrupt) -> Made:
        """Make the workspace for the run's first turn, in the place of whatever is there; its
        branch goes on. Raises ``WorkspaceError``, also if the job's setup fails."""
        asked, record = self._asked, self._stored.record
        run = partial(self.run_child, interrupt=interrupt)
        if self._source is None:
            source = Path(asked.source)
            run("discard")
            if source.is_dir() or record is None:
                copy_folder(source, self._path, [self._site.home], interrupt.check)
            else:  # the source is gone by now, and what the run has recorded will fill the folder
                self._path.mkdir(mode=0o700, parents=True)
            self._set_up(interrupt)
            return Made()
        names = self._branches(interrupt)
        is_new = record is None or record.branch is None or record.start_commit is None
        at_once = {"branches": names, "message": None} if is_new and not asked.setup else None
        begun = run("add", begin=at_once)
        self._set_up(interrupt)
        if record is None or record.branch is None or record.start_commit is None:
            message = repository.setup_message(self._stored.job_name)
            begun = begun or run("begin", branches=names, message=message)
            return Made(begun["branch"], begun["start_commit"])
        commits = [each for each in (record.commit, record.start_commit, asked.commit) if each]
        names = list(dict.fromkeys([record.branch, *names]))
        begun = run("go_on", branches=names, store=str(self.store), commits=commits)
        return Made(begun["branch"], record.start_commit)

    def _branches(self, interrupt: Interrupt) -> list[str]:
        """Return the names that the run's branch may have, the best first, that nobody else has."""
        stored, remote, run_id = self._stored, self._asked.remote, self._lease.run_id
        name = repository.branch_name(stored.job_name, stored.item_key)
        own = repository.branch_name(stored.job_name, stored.item_key, run_id)
        if workspaces.is_branch_of_another(self._site.database, run_id, name):
            return [own]
        if remote is not None:
            git = store_git(self.store, self._site.tools.environment, remote=True)
            tip_at = partial(repository.tip_at, git, remote, name, interrupt.check)
            theirs = self.retry(tip_at, interrupt)
            if theirs not in (None, stored.record and stored.record.commit):
                return [own]
        return [name, own]

    def _set_up(self, interrupt: Interrupt) -> None:
        """Run the job's setup commands. Raises ``WorkspaceError`` if one fails."""
        tools, run_id, timeout = self._site.tools, self._lease.run_id, self._asked.setup_timeout
        for number, text in enumerate(self._asked.setup, 1):
            command = Command(f"setup_{number}", run_id, text, self._surroundings, timeout)
            result = tools.command(command, interrupt)
            if result.outcome == "interrupted":  # it was killed from outside
                result = tools.command(command, interrupt)
            if result.is_error:
                tail = " / ".join(result.content[-_LONGEST_TAIL:].strip().splitlines())
                raise WorkspaceError(f"the setup command {text!r} {result.outcome}: {tail}")

    # --- children, the store and the remote -------------------------------------------------------

    def _request(self) -> dict[str, Any]:
        return {
            "git_dir": str(self.store),
            "work_tree": str(self._path),
            "run_id": self._lease.run_id,
            "attempt": self._lease.attempt,
            "ignored": list(self._asked.snapshot_ignored),
            "ignore": list(self._asked.ignore),
            "largest_file": self._asked.largest_file,
        }

    def run_child(self, action: str, interrupt: Interrupt, **request: Any) -> dict[str, Any]:
        """Work on the workspace below the tool host, with a method of ``child.OwnFolder``. Raises
        ``WorkspaceError`` if it cannot be done, ``HostFaultError`` if not on this host;
        ``Interrupted`` if it was cut; no process of it is left."""
        site, run_id = self._site, self._lease.run_id
        folder = {
            "path": str(self._path),
            "repository": str(self._source.folder) if self._source else "",
            "base": self._asked.commit,
            "owner": run_id,
        }
        given = json.dumps({"do": action, "on": folder, "with": request}).encode()
        start = Start(boot(child.__name__), site.home, run_id, _CHILD_SECONDS, stdin=given)
        ended = site.tools.host.call(start, interrupt)
        if ended.end == "lost":
            # Killed from outside, or out of memory; every action can be repeated.
            ended = site.tools.host.call(start, interrupt)
        if ended.end != "exited" or ended.exit_code:
            how = {
                "timed_out": f"took more than {_CHILD_SECONDS:.0f} s",
                "not_started": f"could not be started ({ended.output.decode('utf-8', 'replace')})",
                "lost": "was killed twice",
                "exited": f"ended with exit code {ended.exit_code}",
            }[ended.end]
            said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).split("\n")
            why = " ".join([f"`{action}` {how}", *said]).strip()
            if ended.end in ("not_started", "lost") or any(map(tells_host_fault, said)):
                raise HostFaultError(f"Runner's helper processes cannot work on this host: {why}")
            raise WorkspaceError(f"the workspace of {run_id} cannot be used: {why}")
        answer: dict[str, Any] = json.loads(ended.output)
        if "host_fault" in answer:
            raise HostFaultError(answer["host_fault"])
        if "error" in answer:
            raise WorkspaceError(answer["error"])
        return answer

    def retry(self, work: Callable[[], T], interrupt: Interrupt) -> T:
        """Do what needs a remote, again and again for ``remote_seconds``. Raises ``WorkspaceError``
        if it could not be done in that time; ``Interrupted`` if ``interrupt`` was set meanwhile."""
        until = time.monotonic() + self._site.remote_seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                return work()
            except WorkspaceError:
                if time.monotonic() + pause > until:
                    raise
            interrupt.wait(pause)
            interrupt.check()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _send_to_store(self, commits: Iterable[str]) -> None:
        """Copy commits of the worktree's own repository to the store; of a copy there are none."""
        wanted = [each for each in commits if each not in self._in_store]
        if self._worktree is not None and wanted:
            own = self._worktree.own
            store = store_git(self.store, own.environment)
            repository.transfer(wanted, self._asked.commit, own.git, store)
            self._in_store.update(wanted)

    def _begin(self, snapshots: Snapshots, made: Made) -> None:
        if made.start_commit:
            self._send_to_store([made.start_commit])
            snapshots.start(made.start_commit)

    def _push(self, snapshots: Snapshots, interrupt: Interrupt) -> None:
        if (remote := self._asked.remote) is not None:
            self.retry(lambda: snapshots.push(remote, interrupt.check), interrupt)

    def fetch(self, snapshot: str, interrupt: Interrupt) -> None:
        """Fetch a snapshot of the run, or of one that it was forked from, unless it is here. Raises
        ``WorkspaceError`` if it is neither here nor at the remote."""
        site, remote, run_id = self._site, self._asked.remote, self._lease.run_id
        if self.snapshots.has(snapshot):
            return
        if remote is not None:
            for each in (run_id, *workspaces.origins(site.database, run_id)):
                theirs = StoredSnapshots(self.store, site.tools.environment, each, 0)
                self.retry(partial(theirs.fetch, remote, interrupt.check), interrupt)
                if self.snapshots.has(snapshot):
                    return
        where = f"neither in {self.store} nor at {remote}" if remote else f"not in {self.store}"
        raise WorkspaceError(f"the recorded files of {run_id} (tree {snapshot}) are {where}")
