"""What runs have changed, between snapshots and commits that are here or fetched from the job's remote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.errors import RunnerError, WorkspaceError
from runner.workspace.git import shown
from runner.workspace.restore import submodules_in
from runner.workspace.snapshot_store import (
    MANIFEST,
    Manifest,
    make_store,
    store_git,
    store_id,
    store_of,
)
from runner.workspace.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class DiffStat:
    """How much lies between two trees: files changed, lines added and removed (of binary files none)."""

    files: int = 0
    added: int = 0
    removed: int = 0


def diff(
    store: Path,
    before: str,
    after: str,
    *,
    stat: bool = False,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """What changed between two recorded trees, as ``git apply`` takes it.

    Args:
        before, after: trees or commits, in the store or in its source.
        stat: how much changed in each file instead, for people.

    Raises:
        GitError: one of them is not there.
    """
    form = ["--stat=100", "--summary"] if stat else ["--patch", "--binary", "--full-index"]
    return _compare(store, before, after, form, environment)


def diff_stat(
    store: Path, before: str, after: str, *, environment: Mapping[str, str] | None = None
) -> DiffStat:
    """How much changed between two recorded trees; see ``diff``."""
    listed = _compare(store, before, after, ["--numstat", "-z"], environment)
    counts = [line.split(b"\t")[:2] for line in listed.split(b"\0")[:-1]]
    return DiffStat(
        len(counts),
        sum(int(added) for added, _ in counts if added != b"-"),
        sum(int(removed) for _, removed in counts if removed != b"-"),
    )


def _compare(
    store: Path,
    before: str,
    after: str,
    form: Sequence[str],
    environment: Mapping[str, str] | None,
) -> bytes:
    git = store_git(store, os.environ if environment is None else environment)
    return git.run(
        "diff-tree",
        "-r",
        "--no-renames",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-relative",
        *form,
        before,
        after,
        "--",
        b":(exclude,top,literal)" + MANIFEST,
    )


Touch = Literal["created", "changed", "deleted"]


_TOUCHES: Mapping[bytes, Touch] = {b"A": "created", b"D": "deleted"}


_SOME_MISSING = 128


def touched(
    store: Path, pairs: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> dict[tuple[str, str], list[tuple[Touch, str]]]:
    """The files that were created, changed or deleted from one tree to another, by the pair of trees;
    those of which a tree is not in the store are left out.

    Raises:
        GitError: git cannot be run.
    """
    given = "".join(f"{before} {after}\n" for before, after in dict.fromkeys(pairs)).encode()
    told = store_git(store, environment).run(
        *("diff-tree", "-r", "--no-renames", "-z", "--name-status", "--stdin"),
        *("--", b":(exclude,top,literal)" + MANIFEST),
        given=given,
        accept=(0, _SOME_MISSING),
    )
    return {pair: list(files) for pair, files in _pairs(told)}


def _pairs(told: bytes) -> Iterator[tuple[tuple[str, str], list[tuple[Touch, str]]]]:
    """A line with the two trees, then a letter and a path for each file, each ended by a NUL
    (https://git-scm.com/docs/git-diff-tree#_raw_output_format)."""
    at = 0
    while at < len(told):
        end = told.index(b"\n", at)
        before, _, after = told[at:end].decode("ascii").partition(" ")
        at = end + 1
        files: list[tuple[Touch, str]] = []
        while told[at + 1 : at + 2] == b"\0":
            end = told.index(b"\0", at + 2)
            files.append(
                (_TOUCHES.get(told[at : at + 1], "changed"), os.fsdecode(told[at + 2 : end]))
            )
            at = end + 1
        yield (before, after), files


Change = tuple[str, str]  # from one tree or commit to another


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where what is recorded of a run lies.

    ``run_ids`` are the run's own and those of the runs that it was forked from; ``source`` is the
    repository or folder that its workspace was made from. ``store_id`` names the folder of snapshots
    that holds its trees, ``hostname`` the host that it was worked on last; ``remote`` is None for
    a job whose snapshots are not pushed.
    """

    run_ids: tuple[str, ...]
    source: str
    store_id: str | None
    hostname: str | None
    remote: str | None


@dataclass(frozen=True, slots=True)
class CommitText:
    """Who made a commit, when (seconds since the epoch), and its message."""

    name: str
    email: str
    at: float
    message: str


class Recorded:
    """The snapshots of a home.

    Args:
        home: RUNNER_HOME. environment: the variables that git gets.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        self._environment = environment
        self._failures: dict[str, RunnerError] = {}

    def diff(self, where: Whereabouts, changes: Sequence[Change], *, stat: bool = False) -> bytes:
        """What was changed, as git's diff with binary files in it; with ``stat`` only how much of it.

        Args:
            changes: the first of them is taken of which everything can be had.

        Raises:
            WorkspaceError: none of them can be had here; where they can.
        """
        git_dir, (before, after) = self._found(where, changes)
        return diff(git_dir, before, after, stat=stat, environment=self._environment)

    def stat(self, where: Whereabouts, changes: Sequence[Change]) -> DiffStat:
        """How much was changed; see ``diff``."""
        git_dir, (before, after) = self._found(where, changes)
        return diff_stat(git_dir, before, after, environment=self._environment)

    def touched(
        self, where: Whereabouts, changes: Sequence[Change]
    ) -> dict[Change, list[tuple[Touch, str]]]:
        """Which files each of these changed, as far as that can be told here; nothing is fetched for
        it."""
        folder = store_of(self._home, where.source)
        return touched(folder, changes, self._environment) if folder.is_dir() else {}

    def too_large(self, where: Whereabouts, change: Change) -> tuple[str, ...]:
        """The files that are in no diff, being larger than what is recorded whole, and that differ
        between two trees; safe to print."""
        folder, trees = self._found(where, [change])
        before, after = (self._manifest(folder, tree).large for tree in trees)
        return tuple(shown(path) for path in sorted({large.path for large in before ^ after}))

    def unrecorded(self, where: Whereabouts, tree: str) -> tuple[str, ...]:
        """What is in no diff, ignored files aside: repositories of their own and what could not be read,
        as they were when a tree was recorded, and submodules; safe to print."""
        folder, _ = self._found(where, [(tree, tree)])
        git = store_git(folder, self._environment)
        found = {*self._manifest(folder, tree).unrecorded, *submodules_in(git, tree)}
        return tuple(shown(path) for path in sorted(found))

    def commit(self, where: Whereabouts, commit: str) -> CommitText | None:
        """What a commit says beside its changes; None when it is not here."""
        folder = store_of(self._home, where.source)
        if not self._has(folder, [commit]):
            return None
        git = store_git(folder, self._environment)
        told = git.run("show", "-s", "--encoding=UTF-8", "--format=%an%x00%ae%x00%at%x00%B", commit)
        name, email, at, message = told.decode("utf-8", "replace").split("\0", 3)
        return CommitText(name, email, float(at), message)

    def _manifest(self, folder: Path, tree: str) -> Manifest:
        git = store_git(folder, self._environment)
        if not git.run("ls-tree", "-z", tree, "--", MANIFEST):
            return Manifest()
        return Manifest.from_bytes(git.run("cat-file", "blob", tree.encode() + b":" + MANIFEST))

    def _found(self, where: Whereabouts, changes: Sequence[Change]) -> tuple[Path, Change]:
        """The store, and the first change that can be had whole: what is not here is fetched for it."""
        folder = store_of(self._home, where.source)
        failure: RunnerError | None = None
        if not self._has(folder, changes[0]) and where.remote is not None:
            failure = self._fetch(where, where.remote)
        for change in changes:
            if self._has(folder, change):
                return folder, change
        raise failure or WorkspaceError(self._elsewhere(folder, where))

    def _has(self, folder: Path, objects: Sequence[str]) -> bool:
        if not folder.is_dir():
            return False
        git = store_git(folder, self._environment)
        given = "".join(f"{each}^{{tree}}\n" for each in objects).encode()
        found = git.run("cat-file", "--batch-check=%(objecttype)", given=given)
        return found == b"tree\n" * len(objects)

    def _fetch(self, where: Whereabouts, remote: str) -> RunnerError | None:
        """Fetch what a remote has of a run; why that cannot be done, if it cannot. One that has failed
        is not asked again for each of a job's runs."""
        if remote not in self._failures:
            try:
                folder = make_store(self._home, where.source, None, environment=self._environment)
                for store in self._stores(folder, where):
                    store.fetch(remote)
            except RunnerError as error:
                self._failures[remote] = error
        return self._failures.get(remote)

    def _stores(self, folder: Path, where: Whereabouts) -> Iterator[Snapshots]:
        for run_id in where.run_ids:
            yield Snapshots(folder, self._home, run_id, 0, environment=self._environment)

    def _elsewhere(self, folder: Path, where: Whereabouts) -> str:
        run_id = where.run_ids[0]
        if where.remote is not None:
            return f"the files of {run_id} are neither here nor at its job's remote"
        if where.store_id == store_id(self._home):
            return f"the files of {run_id} are no longer in {folder}: they were removed"
        host = f"the host {where.hostname}" if where.hostname else "another host"
        return f"the files of {run_id} are recorded on {host}: do this there, with its RUNNER_HOME"
