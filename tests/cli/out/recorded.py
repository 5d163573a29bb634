"""Runs in worktrees of a real repository, whose trees are recorded as an attempt records them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.core.conversation import Tool, ToolResult
from runner.core.entries import Delivered, SnapshotRecorded, ToolFinished, Verified
from runner.core.run import Ended
from runner.core.spec import JobSpec
from runner.core.steps import Deliver, RunTools, RunVerify
from runner.core.workspace import Verify, Workspace, result_tool
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.database import Database
from runner.store.workspaces import WorkspaceRecord, save_delivery, save_record
from runner.workspace import child
from runner.workspace.repository import Repository, branch_name, commit_message
from runner.workspace.snapshot_store import make_store, store_id
from runner.workspace.snapshots import Snapshots
from runner.workspace.worktree import Worktree
from tests.store.asked import run_ids
from tests.store.attempts import Attempt, claim, run_row, text, tool_use
from tests.store.examples import NOW, SPEC, submission

WRITE = Tool("Write", "Writes a file.", {"type": "object"}, repeatable=True)
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}, "score": {}}}
Files = Mapping[str, bytes | None]


def git(folder: Path, *arguments: str) -> str:
    """Git as the owner of the repository runs it; what it printed."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    people = {
        f"GIT_{who}_{what}": f"ada@{what.lower()}"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        env=environment | people,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace").strip()


def repository_in(folder: Path, files: Files | None = None) -> Path:
    """A repository with one commit on its branch main."""
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    put(repository, files or {"a.txt": b"one\ntwo\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "begin")
    return repository


def put(folder: Path, files: Files) -> None:
    """Write files, and remove those whose content is None."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


def git_spec(repository: Path, **changes: Any) -> JobSpec:
    """A job over a repository whose runs may write."""
    workspace = Workspace(
        path=str(repository), mode="git", base="main", commit=git(repository, "rev-parse", "main")
    )
    spec = replace(
        SPEC, tools=(*SPEC.tools, WRITE), rules=(Rule("allow", "*"),), workspace=workspace
    )
    return replace(spec, **changes)


def with_verify(spec: JobSpec, **options: Any) -> JobSpec:
    return replace(spec, verify=Verify(("pytest -q",), **options))


def with_result(spec: JobSpec, schema: Mapping[str, Any] = SCHEMA) -> JobSpec:
    return replace(spec, tools=(*spec.tools, result_tool(schema)))


def submit(database: Database, spec: JobSpec, *keys: str) -> tuple[str, list[str]]:
    """A job with a run for each key; its id and theirs."""
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW)
    return job_id, run_ids(database, job_id)


@dataclass
class AtWork:
    """A run that a worker has in hand, in a worktree of its own."""

    database: Database
    home: Path
    attempt: Attempt
    worktree: Worktree
    start_commit: str
    branch: str
    snapshots: Snapshots = field(init=False)

    def __post_init__(self) -> None:
        self.snapshots = self.opened()

    @property
    def id(self) -> str:
        return self.attempt.lease.run_id

    @property
    def path(self) -> Path:
        return self.worktree.path

    @property
    def tree(self) -> str:
        """The tree that was recorded last."""
        assert self.attempt.state.files.tree is not None
        return self.attempt.state.files.tree

    def opened(self, **options: Any) -> Snapshots:
        """The run's snapshots, taken with other options."""
        common = self.worktree.repository.common_folder()
        store = make_store(self.home, str(self.worktree.repository.folder), common)
        return Snapshots(store, self.worktree.path, self.id, 1, environment=os.environ, **options)

    def write(self, files: Files) -> AtWork:
        """A turn in which the model has these files written."""
        return self.call(
            "Write", lambda: put(self.worktree.path, files), file_path=next(iter(files))
        )

    def write_each(self, *each: Files) -> AtWork:
        """A turn in which the model has files written, by a call for each of these."""
        blocks = [tool_use(n, "Write", file_path=next(iter(files))) for n, files in enumerate(each)]
        self.attempt.reply(*blocks, stop="tool_use")
        for files in each:
            assert isinstance(self.attempt.effect, RunTools)
            put(self.worktree.path, files)
            (call,) = self.attempt.effect.calls
            self.attempt.append(ToolFinished(call.index, ToolResult("ok"), self.snapshots.take()))
        return self

    def call(
        self, name: str, work: Callable[[], object] = lambda: None, **arguments: Any
    ) -> AtWork:
        """A turn of one call, which does ``work`` where it runs."""
        number = self.attempt.state.turns + 1
        self.attempt.reply(tool_use(number, name, **arguments), stop="tool_use")
        if isinstance(self.attempt.effect, RunTools):
            (call,) = self.attempt.effect.calls
            work()
            self.attempt.append(ToolFinished(call.index, ToolResult("ok"), self.snapshots.take()))
        return self

    def verify(self, outcome: str = "succeeded", output: str = "all is well") -> AtWork:
        """The verification that is due ends so."""
        assert isinstance(self.attempt.effect, RunVerify), self.attempt.effect
        result = ToolResult(output, outcome, duration=1.5)  # type: ignore[arg-type]
        self.attempt.append(Verified(self.attempt.effect.number, "pytest -q", result))
        return self

    def end(self) -> AtWork:
        """The model says that it is done; without a verification the run ends."""
        self.attempt.reply(text("Done."))
        return self.deliver() if isinstance(self.attempt.effect, Deliver) else self

    def deliver(self) -> AtWork:
        """What is left is committed, and the run ends."""
        assert isinstance(self.attempt.effect, Deliver), self.attempt.effect
        row = run_row(self.database, self.id)
        outcome = self.attempt.effect.outcome
        message = commit_message(
            job_name=self.attempt.state.spec.name,
            job_id=row.job_id,
            run_id=self.id,
            item_key=row.item_key,
            model=self.attempt.state.spec.model,
            outcome=f"{outcome.state} {outcome.reason}",
        )
        repository = str(self.worktree.repository.folder)
        own = child.OwnFolder(str(self.path), repository, self.start_commit, self.id)
        commit = own.deliver(self.branch, self.start_commit, message)["commit"]
        save_delivery(self.database, self.attempt.lease, commit)
        self.attempt.append(Delivered(commit))
        assert isinstance(self.attempt.state.outcome, Ended)
        return self


def begin(database: Database, home: Path, run_id: str) -> AtWork:
    """A worker takes a run of a job over a repository and makes its workspace."""
    attempt = claim(database, run_id)
    spec, row = attempt.state.spec, run_row(database, run_id)
    assert spec.workspace is not None
    assert spec.workspace.path is not None
    commit = spec.workspace.commit
    repository = Repository(Path(spec.workspace.path))
    worktree = Worktree(repository, home / "workspaces" / run_id)
    worktree.add(commit)
    branch = branch_name(spec.name, row.item_key)
    repository.new_branch([branch], commit, run_id)
    worktree.own.move(branch, commit, None, "begins")
    worktree.switch_to(branch)
    kept = WorkspaceRecord(store_id(home), str(worktree.path), branch, commit)
    save_record(database, attempt.lease, kept, "snap_1", NOW)
    work = AtWork(database, home, attempt, worktree, commit, branch)
    work.snapshots.start(commit)
    attempt.append(SnapshotRecorded(work.snapshots.take(), "created"))
    return work
