"""Makes a run's own workspace: the worktree or copy, what the job sets up in it, its branch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
from runner.tools.host import Ended, Start, boot
from runner.tools.toolbox import LocalTools
from runner.workspace import child
from runner.workspace.child import open_snapshots
from runner.workspace.folders import copy_folder, write_whole
from runner.workspace.repository import Repository, branch_name, clone_of, setup_message, tip_at
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
    now: Callable[[], float] = time.time  # seconds since the epoch
    remote_seconds: float = REMOTE_SECONDS  # how long a remote that does not answer is asked again

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of git."""
        return self.tools.environment

    def run_child(
        self, action: str, run_id: str, interrupt: Interrupt, **request: Any
    ) -> dict[str, Any]:
        """Work on a run's workspace below the tool host (``runner.workspace.child``).

        Raises:
            WorkspaceError: it cannot be done.
            Interrupted: it was cut; no process of it is left.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        given = json.dumps({"do": action, **request}).encode()
        start = Start(boot(child.__name__), self.home, run_id, _CHILD_SECONDS, stdin=given)
        ended = self.tools.host.call(start, interrupt)
        if (
            ended.end == "lost"
        ):  # killed from outside, or out of memory; every action can be repeated
            ended = self.tools.host.call(start, interrupt)
        if ended.end != "exited" or ended.exit_code:
            raise WorkspaceError(
                f"the workspace of {run_id} is of no use: {_failure(action, ended)}"
            )
        answer: dict[str, Any] = json.loads(ended.output)
        if "error" in answer:
            raise WorkspaceError(answer["error"])
        return answer

    def retry(self, work: Callable[[], T], interrupt: Interrupt) -> T:
        """Do what needs a remote, again and again for ``remote_seconds``.

        Raises:
            WorkspaceError: it could not be done in that time.
            Interrupted: ``interrupt`` was set meanwhile.
        """
        until = time.monotonic() + self.remote_seconds
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


def _failure(action: str, ended: Ended) -> str:
    said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).split("\n")
    how = {
        "timed_out": f"took more than {_CHILD_SECONDS:.0f} s",
        "not_started": f"could not be started ({ended.output.decode('utf-8', 'replace')})",
        "lost": "was killed twice",
        "exited": f"ended with exit code {ended.exit_code}",
    }[ended.end]
    return " ".join([f"`{action}` {how}", *said]).strip()


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
        if (content := self._content(self.attempt)) is None:
            earlier = [each for each in self._attempts() if each < self.attempt]
            content = self._content(max(earlier)) if earlier else None
        try:
            return None if content is None else Made(**json.loads(content))
        except (ValueError, TypeError):  # none, or another Runner's: the workspace is made again
            return None

    def write(self, made: Made | None) -> None:
        """Write this attempt's note, and remove earlier ones. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = json.dumps(made and asdict(made)).encode()
        write_whole(self.folder / str(self.attempt), content)
        for earlier in self._attempts():
            if earlier < self.attempt:
                (self.folder / str(earlier)).unlink(missing_ok=True)

    def _content(self, attempt: int) -> bytes | None:
        try:
            return (self.folder / str(attempt)).read_bytes()
        except FileNotFoundError:
            return None

    def _attempts(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]


# --- the parts of a workspace -----------------------------------------------------------------------


@dataclass(slots=True)
class Layout:
    """Where the parts of a run's own workspace are."""

    site: Site
    asked: Workspace
    lease: Lease
    repository: Repository | None  # what the worktree is of; None for copies
    _store: Path | None = field(default=None, init=False)
    _snapshots: Snapshots | None = field(default=None, init=False)

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
            self._store = make_store(
                self.site.home,
                self.asked.source,
                self.repository.common_folder() if self.repository else None,
                environment=self.site.environment,
            )
        return self._store

    def snapshots(self) -> Snapshots:
        """Return this attempt's snapshots."""
        if self._snapshots is None:
            self._snapshots = open_snapshots(**self.request(), environment=self.site.environment)
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

    def fetch(self, snapshot: str, interrupt: Interrupt) -> None:
        """Fetch a snapshot of the run, or of one that it was forked from, unless it is here.

        Raises:
            WorkspaceError: it is neither here nor at the remote.
        """
        site, remote, run_id = self.site, self.asked.remote, self.lease.run_id
        if self.snapshots().has(snapshot):
            return
        if remote is not None:
            for each in (run_id, *workspaces.origins(site.database, run_id)):
                self._fetch_run(each, remote, interrupt)
                if self.snapshots().has(snapshot):
                    return
        where = f"neither in {self.store()} nor at {remote}" if remote else f"not in {self.store()}"
        raise WorkspaceError(f"the recorded files of {run_id} (tree {snapshot}) are {where}")

    def _fetch_run(self, run_id: str, remote: str, interrupt: Interrupt) -> None:
        theirs = StoredSnapshots(self.store(), self.site.environment, run_id, self.lease.attempt)
        self.site.retry(lambda: theirs.fetch(remote, interrupt.check), interrupt)


def layout_of(site: Site, asked: Workspace, lease: Lease, interrupt: Interrupt) -> Layout:
    """Return the layout of a run's workspace.

    A worktree is of the user's repository if that is on this host and has the base, else of a clone,
    which is made if need be.

    Raises:
        WorkspaceError: it cannot be cloned.
        Interrupted: ``interrupt`` was set meanwhile.
    """
    if asked.mode != "git":
        return Layout(site, asked, lease, None)
    url = asked.url or asked.remote
    if asked.path is not None:
        here = Repository(Path(asked.path), site.environment)
        if url is None or here.has(asked.commit):
            return Layout(site, asked, lease, here)
    assert url is not None, "a job in mode git has a path or a URL"
    clone = Repository(clone_of(site.home, url), site.environment)
    if not clone.has(asked.commit):
        request = {"clone": str(clone.folder), "url": url, "commit": asked.commit}
        site.retry(lambda: site.run_child("clone", lease.run_id, interrupt, **request), interrupt)
    return Layout(site, asked, lease, clone)


# --- making it --------------------------------------------------------------------------------------


def make_workspace(
    layout: Layout, assignment: StoredWorkspace, surroundings: Surroundings, interrupt: Interrupt
) -> Made:
    """Make a run's workspace from scratch, as it was before the run's first turn.

    Whatever is in its place is removed. The branch that the run had goes on where it is.

    Raises:
        WorkspaceError: it cannot be made, or the job's setup fails.
        Interrupted: ``interrupt`` was set meanwhile.
    """
    if layout.repository is not None:
        return _make_worktree(layout, layout.repository, assignment, surroundings, interrupt)
    site, path = layout.site, layout.path
    source = Path(layout.asked.source)
    site.run_child("discard", assignment.run_id, interrupt, path=str(path))
    if source.is_dir() or assignment.record is None:
        copy_folder(source, path, [site.home], interrupt.check)
    else:  # the source is gone by now, and what the run has recorded will fill the folder
        path.mkdir(mode=0o700, parents=True)
    _set_up(layout, surroundings, interrupt)
    return Made()


def _make_worktree(
    layout: Layout,
    repository: Repository,
    assignment: StoredWorkspace,
    surroundings: Surroundings,
    interrupt: Interrupt,
) -> Made:
    site, run_id, base = layout.site, assignment.run_id, layout.asked.commit
    place = {"repository": str(repository.folder), "path": str(layout.path)}
    names, record = _branches(layout, assignment, interrupt), assignment.record
    branch = {"branches": names, "owner": run_id}
    is_new = record is None or record.branch is None or record.start_commit is None
    at_once = {**branch, "message": None} if is_new and not layout.asked.setup else None
    begun = site.run_child("add", run_id, interrupt, **place, commit=base, begin=at_once)
    _set_up(layout, surroundings, interrupt)
    if record is None or record.branch is None or record.start_commit is None:
        if not begun:
            message = setup_message(assignment.job_name)
            request = {**place, **branch, "base": base, "message": message}
            begun = site.run_child("begin", run_id, interrupt, **request)
        return Made(begun["branch"], begun["start_commit"])
    branch["branches"] = [record.branch, *(name for name in names if name != record.branch)]
    commits = [each for each in (record.commit, record.start_commit, base) if each]
    request = {**place, **branch, "store": str(layout.store()), "base": base, "commits": commits}
    begun = site.run_child("go_on", run_id, interrupt, **request)
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
        git = store_git(layout.store(), site.environment, remote=True)
        theirs = site.retry(lambda: tip_at(git, remote, name, interrupt.check), interrupt)
        record = assignment.record
        if theirs is not None and theirs != (record.commit if record else None):
            return [own]
    return [name, own]


def _set_up(layout: Layout, surroundings: Surroundings, interrupt: Interrupt) -> None:
    """Run the job's setup commands. Raises ``WorkspaceError`` if one fails."""
    tools, asked = layout.site.tools, layout.asked
    for number, text in enumerate(asked.setup, 1):
        command = Command(
            name=f"setup_{number}",
            run_id=layout.lease.run_id,
            command=text,
            surroundings=surroundings,
            timeout=asked.setup_timeout,
        )
        result = tools.command(command, interrupt)
        if result.outcome == "interrupted":  # it was killed from outside
            result = tools.command(command, interrupt)
        if result.is_error:
            tail = " / ".join(result.content[-_LONGEST_TAIL:].strip().splitlines())
            raise WorkspaceError(f"the setup command {text!r} {result.outcome}: {tail}")
