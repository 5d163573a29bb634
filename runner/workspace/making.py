"""Makes a run's own workspace: the worktree or copy, what the job sets up in it, its branch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runner.core.run import Lease
from runner.core.text import plain
from runner.core.workspace import Workspace
from runner.errors import WorkspaceError
from runner.ports import Command, Interrupt, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.workspaces import StoredWorkspace
from runner.tools.host import Start, boot
from runner.tools.toolbox import LocalTools
from runner.workspace import child
from runner.workspace.child import open_snapshots
from runner.workspace.folders import copy_folder, write_whole
from runner.workspace.repository import (
    Repository,
    branch_name,
    clone_of,
    setup_message,
    tip_at,
    transfer,
)
from runner.workspace.snapshot_store import StoredSnapshots, make_store, store_git
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import NO_CHANGES, GitState, Worktree

T = TypeVar("T")

COPIES = "workspaces"  # the folder of RUNNER_HOME with worktrees and copies, named after their runs
REMOTE_SECONDS = 1_800.0

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_CHILD_SECONDS = 7_200.0
_LAST_WORDS = 1_000  # characters of a child's standard error
_LONGEST_TAIL = 500  # characters of a setup command's output


@dataclass(frozen=True, slots=True)
class Site:
    """What workspaces on this host are made with."""

    database: Database
    home: Path  # RUNNER_HOME
    tools: LocalTools  # its host starts whatever writes in a workspace
    remote_seconds: float = REMOTE_SECONDS  # how long a remote that does not answer is asked again


# --- notes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """What this host notes of a workspace that it has made whole, setup and all."""

    branch: str = ""  # this and the next two: of a worktree only
    start_commit: str = ""
    delivered: str = ""  # the last commit that the run was delivered in
    delivered_from: str = ""  # the note of the git state before that delivery
    delivering: str | None = None  # while it is delivered: the note of the git state before
    put_back: bool = True  # False while its files are put back

    def state(self, note: str) -> GitState:
        """Return the git state that a snapshot's note tells."""
        if note:
            return GitState.from_note(note, self.branch)
        return GitState(self.start_commit, self.branch)

    def note(self, state: GitState | None) -> tuple[str, tuple[str, ...]]:
        """Return a snapshot's note of the git state, and the commits that the snapshot keeps.

        The run's own beginning needs no note, and its delivery moves nothing.

        Args:
            state: None on a branch without a commit.
        """
        if state is None:
            return "", ()
        before = state
        if replace(state, refs=NO_CHANGES) == GitState(self.delivered, self.branch):
            before = replace(self.state(self.delivered_from), refs=state.refs)
        is_start = before == GitState(self.start_commit, self.branch)
        note = "" if is_start else before.to_note(self.branch)
        return note, tuple(dict.fromkeys((state.commit, *state.refs.commits)))


@dataclass(frozen=True, slots=True)
class MadeNotes:
    """A workspace's notes: beside it, as its content can be an agent's.

    Each attempt has a file, and reads that of the newest attempt up to itself: an attempt that has
    lost its run, and does not know it yet, writes nothing that counts for later ones. While an attempt
    makes the workspace, its note says that there is none.
    """

    folder: Path
    attempt: int

    @classmethod
    def beside(cls, workspace: Path, attempt: int) -> MadeNotes:
        """Return the notes of a workspace."""
        return cls(workspace.with_name(f".{workspace.name}.made"), attempt)

    def read(self) -> Made | None:
        """Return the note, or None if no workspace is whole. Raises ``OSError``."""
        try:
            newest = max(each for each in self._attempts() if each <= self.attempt)
            content = json.loads((self.folder / str(newest)).read_bytes())
            return None if content is None else Made(**content)
        except (FileNotFoundError, ValueError, TypeError):
            return None  # there is none, or another Runner's: the workspace is made again

    def write(self, made: Made | None) -> None:
        """Write this attempt's note, and remove earlier ones. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = json.dumps(made and asdict(made)).encode()
        write_whole(self.folder / str(self.attempt), content)
        for earlier in self._attempts():
            if earlier < self.attempt:
                (self.folder / str(earlier)).unlink(missing_ok=True)

    def _attempts(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []  # noqa: PTH208 - names alone
        return [int(name) for name in names if name.isdecimal()]


# --- the parts of a workspace -----------------------------------------------------------------------


@dataclass(slots=True)
class Layout:
    """Where the parts of a run's own workspace are, and the processes that work on them."""

    site: Site
    asked: Workspace
    lease: Lease
    repository: Repository | None  # what the worktree is of; None for copies
    _store: Path | None = field(default=None, init=False)
    _snapshots: Snapshots | None = field(default=None, init=False)
    _in_store: set[str] = field(default_factory=set, init=False)  # commits of the worktree

    @property
    def path(self) -> Path:
        """The folder of the workspace."""
        return self.site.home / COPIES / self.lease.run_id

    @property
    def worktree(self) -> Worktree | None:
        """The worktree, None for copies."""
        return None if self.repository is None else Worktree(self.repository, self.path)

    def store(self) -> Path:
        """Return the store of snapshots of everything that is made from the same source."""
        if self._store is None:
            common = self.repository.common_folder() if self.repository else None
            environment = self.site.tools.environment
            source = self.asked.source
            self._store = make_store(self.site.home, source, common, environment=environment)
        return self._store

    def snapshots(self) -> Snapshots:
        """Return this attempt's snapshots."""
        if self._snapshots is None:
            environment = self.site.tools.environment
            self._snapshots = open_snapshots(**self.request(), environment=environment)
        return self._snapshots

    def request(self) -> dict[str, Any]:
        """Return the snapshots as a child is told of them."""
        return {
            "git_dir": str(self.store()),
            "work_tree": str(self.path),
            "run_id": self.lease.run_id,
            "attempt": self.lease.attempt,
            "ignored": list(self.asked.snapshot_ignored),
            "largest_file": self.asked.largest_file,
        }

    def send_to_store(self, commits: Iterable[str]) -> None:
        """Copy commits of the worktree's own repository to the store; of a copy there are none."""
        wanted = [each for each in commits if each not in self._in_store]
        if self.worktree is not None and wanted:
            own = self.worktree.own
            transfer(wanted, self.asked.commit, own.git, store_git(self.store(), own.environment))
            self._in_store.update(wanted)

    def push(self, snapshots: Snapshots, interrupt: Interrupt) -> None:
        """Push snapshots to the job's remote, if it has one."""
        if (remote := self.asked.remote) is not None:
            self.retry(lambda: snapshots.push(remote, interrupt.check), interrupt)

    def fetch(self, snapshot: str, interrupt: Interrupt) -> None:
        """Fetch a snapshot of the run, or of one that it was forked from, unless it is here. Raises
        ``WorkspaceError`` if it is neither here nor at the remote."""
        site, remote, run_id = self.site, self.asked.remote, self.lease.run_id
        if self.snapshots().has(snapshot):
            return
        if remote is not None:
            for each in (run_id, *workspaces.origins(site.database, run_id)):
                theirs = StoredSnapshots(self.store(), site.tools.environment, each, 0)
                self.retry(partial(theirs.fetch, remote, interrupt.check), interrupt)
                if self.snapshots().has(snapshot):
                    return
        where = f"neither in {self.store()} nor at {remote}" if remote else f"not in {self.store()}"
        raise WorkspaceError(f"the recorded files of {run_id} (tree {snapshot}) are {where}")

    def run_child(self, action: str, interrupt: Interrupt, **request: Any) -> dict[str, Any]:
        """Work on the workspace below the tool host, with a method of ``child.OwnFolder``. Raises
        ``WorkspaceError`` if it cannot be done; ``Interrupted`` if it was cut; no process of it is
        left."""
        site, run_id = self.site, self.lease.run_id
        site.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = {
            "path": str(self.path),
            "repository": str(self.repository.folder) if self.repository else "",
            "base": self.asked.commit,
            "owner": run_id,
        }
        given = json.dumps({"do": action, "on": folder, "with": request}).encode()
        start = Start(boot(child.__name__), site.home, run_id, _CHILD_SECONDS, stdin=given)
        ended = site.tools.host.call(start, interrupt)
        if (
            ended.end == "lost"
        ):  # killed from outside, or out of memory; every action can be repeated
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
            raise WorkspaceError(f"the workspace of {run_id} is of no use: {why}")
        answer: dict[str, Any] = json.loads(ended.output)
        if "error" in answer:
            raise WorkspaceError(answer["error"])
        return answer

    def retry(self, work: Callable[[], T], interrupt: Interrupt) -> T:
        """Do what needs a remote, again and again for ``remote_seconds``. Raises ``WorkspaceError``
        if it could not be done in that time; ``Interrupted`` if ``interrupt`` was set meanwhile."""
        until = time.monotonic() + self.site.remote_seconds
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


def layout_of(site: Site, asked: Workspace, lease: Lease, interrupt: Interrupt) -> Layout:
    """Return the layout of a run's workspace.

    A worktree is of the user's repository if that is on this host and has the base, else of a
    clone, which is made if need be. Raises ``WorkspaceError`` if it cannot be cloned;
    ``Interrupted`` if ``interrupt`` was set meanwhile.
    """
    if asked.mode != "git":
        return Layout(site, asked, lease, None)
    url = asked.url or asked.remote
    if asked.path is not None:
        here = Repository(Path(asked.path), site.tools.environment)
        if url is None or here.has(asked.commit):
            return Layout(site, asked, lease, here)
    assert url is not None, "a job in mode git has a path or a URL"
    clone = Repository(clone_of(site.home, url), site.tools.environment)
    layout = Layout(site, asked, lease, clone)
    if not clone.has(asked.commit):
        layout.retry(lambda: layout.run_child("clone", interrupt, url=url), interrupt)
    return layout


# --- making it --------------------------------------------------------------------------------------


def make_workspace(
    layout: Layout, assignment: StoredWorkspace, surroundings: Surroundings, interrupt: Interrupt
) -> Made:
    """Make a run's workspace from scratch, as it was before the run's first turn.

    Whatever is in its place is removed. The branch that the run had goes on where it is. Raises
    ``WorkspaceError`` if it cannot be made, or the job's setup fails; ``Interrupted`` if
    ``interrupt`` was set meanwhile.
    """
    asked, record = layout.asked, assignment.record

    def run(action: str, **request: Any) -> dict[str, Any]:
        return layout.run_child(action, interrupt, **request)

    if layout.repository is None:
        source = Path(asked.source)
        run("discard")
        if source.is_dir() or record is None:
            copy_folder(source, layout.path, [layout.site.home], interrupt.check)
        else:  # the source is gone by now, and what the run has recorded will fill the folder
            layout.path.mkdir(mode=0o700, parents=True)
        _set_up(layout, surroundings, interrupt)
        return Made()
    names = _branches(layout, assignment, interrupt)
    is_new = record is None or record.branch is None or record.start_commit is None
    at_once = {"branches": names, "message": None} if is_new and not asked.setup else None
    begun = run("add", begin=at_once)
    _set_up(layout, surroundings, interrupt)
    if record is None or record.branch is None or record.start_commit is None:
        message = setup_message(assignment.job_name)
        begun = begun or run("begin", branches=names, message=message)
        return Made(begun["branch"], begun["start_commit"])
    commits = [each for each in (record.commit, record.start_commit, asked.commit) if each]
    names = list(dict.fromkeys([record.branch, *names]))
    begun = run("go_on", branches=names, store=str(layout.store()), commits=commits)
    return Made(begun["branch"], record.start_commit)


def _branches(layout: Layout, assignment: StoredWorkspace, interrupt: Interrupt) -> list[str]:
    """Return the names that the run's branch may have, the best first.

    A name that another run has, or someone else at the remote, is left out.
    """
    site, remote = layout.site, layout.asked.remote
    job, key, run_id = assignment.job_name, assignment.item_key, assignment.run_id
    name, own = branch_name(job, key), branch_name(job, key, run_id)
    if workspaces.is_branch_of_another(site.database, run_id, name):
        return [own]
    if remote is not None:
        git = store_git(layout.store(), site.tools.environment, remote=True)
        theirs = layout.retry(lambda: tip_at(git, remote, name, interrupt.check), interrupt)
        if theirs not in (None, assignment.record and assignment.record.commit):
            return [own]
    return [name, own]


def _set_up(layout: Layout, surroundings: Surroundings, interrupt: Interrupt) -> None:
    """Run the job's setup commands. Raises ``WorkspaceError`` if one fails."""
    tools, run_id, timeout = layout.site.tools, layout.lease.run_id, layout.asked.setup_timeout
    for number, text in enumerate(layout.asked.setup, 1):
        command = Command(f"setup_{number}", run_id, text, surroundings, timeout)
        result = tools.command(command, interrupt)
        if result.outcome == "interrupted":  # it was killed from outside
            result = tools.command(command, interrupt)
        if result.is_error:
            tail = " / ".join(result.content[-_LONGEST_TAIL:].strip().splitlines())
            raise WorkspaceError(f"the setup command {text!r} {result.outcome}: {tail}")
