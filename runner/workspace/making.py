"""Makes a run's own workspace: the worktree or copy, what the job sets up in it, its branch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runner.core.run import Lease
from runner.core.text import plain
from runner.core.workspace import Workspace
from runner.errors import UsageError, WorkspaceError
from runner.ports import Command, Interrupt, Surroundings
from runner.store import workspaces
from runner.store.database import Database
from runner.store.workspaces import Assignment
from runner.tools.host import Ended, Start, boot
from runner.tools.toolbox import LocalTools
from runner.workspace import child
from runner.workspace.child import opened
from runner.workspace.delivery import setup_message, tip_at
from runner.workspace.folders import copy_folder
from runner.workspace.repository import Repository, branch_name, clone_of
from runner.workspace.snapshot_store import make_store, store_git
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import NO_REFS, Head, Worktree, from_note, to_note

T = TypeVar("T")


# Worktrees and copies lie here, in RUNNER_HOME, named after their runs.
COPIES = "workspaces"


REMOTE_SECONDS = 1_800.0


_FIRST_PAUSE = 0.5


_LONGEST_PAUSE = 10.0


_CHILD_SECONDS = 7_200.0


_LAST_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class Around:
    """``home`` is RUNNER_HOME. Whatever writes in a workspace is started by the host of ``tools``.
    For ``remote_seconds`` a remote that does not answer is asked again."""

    database: Database
    home: Path
    tools: LocalTools
    now: Callable[[], float] = time.time
    remote_seconds: float = REMOTE_SECONDS

    @property
    def environment(self) -> Mapping[str, str]:
        return self.tools.environment

    def below(self, what: str, run_id: str, interrupt: Interrupt, **request: Any) -> dict[str, Any]:
        """Have something done to a run's workspace below the tool host (``runner.workspace.child``).

        Raises:
            WorkspaceError: it cannot be done. Interrupted: it was cut; no process of it is left.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        start = Start(
            boot(child.__name__),
            self.home,
            run_id,
            _CHILD_SECONDS,
            stdin=json.dumps({"do": what, **request}).encode(),
        )
        ended = self.tools.host.call(start, interrupt)
        if (
            ended.end == "lost"
        ):  # someone killed it, or memory ran out; what it does can be done twice
            ended = self.tools.host.call(start, interrupt)
        if ended.end != "exited" or ended.exit_code:
            raise WorkspaceError(f"the workspace of {run_id} is of no use: {_ending(what, ended)}")
        answer: dict[str, Any] = json.loads(ended.output)
        if "error" in answer:
            raise WorkspaceError(answer["error"])
        return answer

    def insist(self, work: Callable[[], T], interrupt: Interrupt) -> T:
        """Do what needs a remote, again and again for a while when it cannot be done.

        Raises:
            WorkspaceError: it could not be done in all that time. Interrupted.
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


def explained(work: Callable[[], T]) -> T:
    """What ``work`` gives; what is wrong with files is wrong with the workspace.

    Raises:
        WorkspaceError: it cannot be done.
    """
    try:
        return work()
    except (OSError, UsageError) as error:
        raise WorkspaceError(str(error)) from error


def _ending(what: str, ended: Ended) -> str:
    said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).split("\n")
    how = {
        "timed_out": f"took more than {_CHILD_SECONDS:.0f} s",
        "not_started": f"could not be started ({ended.output.decode('utf-8', 'replace')})",
        "lost": "was killed twice",
        "exited": f"ended with exit code {ended.exit_code}",
    }[ended.end]
    return " ".join([f"`{what}` {how}", *said]).strip()


@dataclass(frozen=True, slots=True)
class Made:
    """A workspace that was made whole, setup and all. ``branch`` and ``start_commit`` are of a
    worktree, and so is ``delivered``: the last commit that the run was delivered in, with the note of
    where the worktree stood until then. While it is delivered, ``delivering`` is that note; and while
    its files are put back to a tree, ``put_back`` is false."""

    branch: str = ""
    start_commit: str = ""
    delivered: str = ""
    delivered_from: str = ""
    delivering: str | None = None
    put_back: bool = True


def note_for(head: Head | None, made: Made) -> tuple[str, tuple[str, ...]]:
    """What a snapshot says of where a worktree stands, and the commits that it keeps. The run's own
    beginning needs no note, and its delivery moves nothing.

    Args:
        head: where it stands, None on a branch without a commit.
    """
    if head is None:
        return "", ()
    stands = stands_undelivered(head, made)
    note = "" if stands == Head(made.start_commit, made.branch) else to_note(stands, made.branch)
    return note, tuple(dict.fromkeys((head.commit, *head.refs.commits)))


def stands_undelivered(head: Head, made: Made) -> Head:
    """Where a worktree stands, or stood before what it stands at was delivered."""
    if replace(head, refs=NO_REFS) != Head(made.delivered, made.branch):
        return head
    return replace(standing_of(made.delivered_from, made), refs=head.refs)


def standing_of(note: str, made: Made) -> Head:
    """Where a worktree stood, by a snapshot's note."""
    return from_note(note, made.branch) if note else Head(made.start_commit, made.branch)


@dataclass(frozen=True, slots=True)
class MadeNote:
    """What attempts have said so, each in a file of its own, until a later one did: an attempt that has
    lost its run, and does not know it yet, says nothing that counts for those after it. While a
    workspace is being made, its attempt says that there is none.

    Args:
        folder: of the files. attempt: the one that reads and writes.
    """

    folder: Path
    attempt: int

    @classmethod
    def beside(cls, workspace: Path, attempt: int) -> MadeNote:
        return cls(workspace.with_name(f".{workspace.name}.made"), attempt)

    def read(self) -> Made | None:
        """What was said last, up to this attempt; None when nothing whole is there. Raises
        ``OSError``."""
        if (content := self._content(self.attempt)) is None:
            earlier = [each for each in self._attempts() if each < self.attempt]
            content = self._content(max(earlier)) if earlier else None
        try:
            return None if content is None else Made(**json.loads(content))
        except (ValueError, TypeError):  # that there is none, or another Runner's: made again
            return None

    def write(self, made: Made | None) -> None:
        """Say it, whole or not at all; None: nothing whole is there. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.folder / f"{self.attempt}.draft"
        draft.write_text(json.dumps(made and asdict(made)), encoding="utf-8")
        draft.replace(self.folder / str(self.attempt))
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


@dataclass(slots=True)
class Material:
    """``repository`` is None for copies."""

    around: Around
    asked: Workspace
    lease: Lease
    repository: Repository | None
    _store: Path | None = field(default=None, init=False)
    _snapshots: Snapshots | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        """The folder of the workspace."""
        return self.around.home / COPIES / self.lease.run_id

    @property
    def repository_path(self) -> str | None:
        return None if self.repository is None else str(self.repository.folder)

    @property
    def worktree(self) -> Worktree | None:
        return None if self.repository is None else Worktree(self.repository, self.path)

    def store(self) -> Path:
        """The folder of the snapshots of everything that is made from the same source."""
        if self._store is None:
            repository, around = self.repository, self.around
            self._store = explained(
                lambda: make_store(
                    around.home,
                    self.asked.source,
                    repository.common_folder() if repository else None,
                    environment=around.environment,
                )
            )
        return self._store

    def snapshots(self) -> Snapshots:
        """Those of this attempt."""
        if self._snapshots is None:
            self._snapshots = opened(**self.request(), environment=self.around.environment)
        return self._snapshots

    def request(self) -> dict[str, Any]:
        """The snapshots, as a child is told of them."""
        return {
            "git_dir": str(self.store()),
            "work_tree": str(self.path),
            "run_id": self.lease.run_id,
            "attempt": self.lease.attempt,
            "ignored": list(self.asked.snapshot_ignored),
            "largest_file": self.asked.largest_file,
        }

    def have_tree(self, tree: str, interrupt: Interrupt) -> None:
        """Have a recorded tree here, from the remote if need be: one of the run's own, or of a run that
        it was forked from.

        Raises:
            WorkspaceError: it is neither here nor there.
        """
        remote, run_id = self.asked.remote, self.lease.run_id
        if self.snapshots().has(tree):
            return
        if remote is not None:
            for each in (run_id, *workspaces.origins(self.around.database, run_id)):
                request = {**self.request(), "run_id": each}
                theirs = opened(**request, environment=self.around.environment)
                self.around.insist(partial(theirs.fetch, remote, interrupt.check), interrupt)
                if theirs.has(tree):
                    return
        where = f"neither in {self.store()} nor at {remote}" if remote else f"not in {self.store()}"
        raise WorkspaceError(f"the recorded files of {run_id} (tree {tree}) are {where}")


def material_of(around: Around, asked: Workspace, lease: Lease, interrupt: Interrupt) -> Material:
    """What the workspace of a run is made from: for mode "git", the user's repository where it is on
    this host and has the base, else a clone.

    Raises:
        WorkspaceError: it cannot be cloned. Interrupted.
    """
    if asked.mode != "git":
        return Material(around, asked, lease, None)
    url = asked.url or asked.remote
    if asked.path is not None:
        here = Repository(Path(asked.path), around.environment)
        if url is None or here.has(asked.commit):
            return Material(around, asked, lease, here)
    assert url is not None, "a job in mode git has a path or a URL"
    clone = Repository(clone_of(around.home, url), around.environment)
    if not clone.has(asked.commit):
        request = {"clone": str(clone.folder), "url": url, "commit": asked.commit}
        around.insist(lambda: around.below("clone", lease.run_id, interrupt, **request), interrupt)
    return Material(around, asked, lease, clone)


_LONGEST_TAIL = 500


def make_workspace(
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
        explained(lambda: copy_folder(source, path, [around.home], interrupt.check))
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
