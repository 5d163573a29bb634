"""Diffs of runs, between snapshots and commits that are here or fetched from a remote."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.errors import RunnerError, WorkspaceError
from runner.workspace.git import Git, shown, split
from runner.workspace.restore import submodules_in
from runner.workspace.snapshot_store import (
    MANIFEST,
    StoredSnapshots,
    has_trees,
    make_store,
    manifest_in,
    store_git,
    store_id,
    store_of,
)

Change = tuple[str, str]  # from one snapshot or commit to another
Touch = Literal["created", "changed", "deleted"]
# A patch for `git apply`, the lines changed per file, or both for people, with binary files only in
# the summary.
Form = Literal["patch", "summary", "shown"]

_TOUCHES: Mapping[bytes, Touch] = {b"A": "created", b"D": "deleted"}
# A line with both trees, then a letter and a path for each file
# (https://git-scm.com/docs/git-diff-tree#_raw_output_format).
_TOUCHED = re.compile(rb"([0-9a-f]+) ([0-9a-f]+)\n|([A-Z])\0([^\0]+)\0")
# In git's own lines: the lines of files have a character in front.
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_BINARY = re.compile(rb"^Binary files .* differ\n\Z", re.MULTILINE)
_SOME_MISSING = 128  # an exit code
_WITHOUT_MANIFEST = ("--", b":(exclude,top,literal)" + MANIFEST)


@dataclass(frozen=True, slots=True)
class DiffStat:
    """The size of the difference between two snapshots."""

    files: int = 0
    added: int = 0  # lines; of binary files none
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Whereabouts:
    run_ids: tuple[str, ...]  # the run, and the runs that it was forked from
    source: str  # the repository or folder that its workspace was made from
    store_id: str | None  # of the host that has its snapshots
    hostname: str | None  # of the host that worked on it last
    remote: str | None  # where its job pushes snapshots to


@dataclass(frozen=True, slots=True)
class CommitText:
    name: str
    email: str
    at: float  # seconds since the epoch
    message: str


@dataclass(frozen=True, slots=True)
class RecordedChanges:
    """The changes of runs, from the snapshots in RUNNER_HOME."""

    home: Path  # RUNNER_HOME
    environment: Mapping[str, str]  # of git
    # Of remotes, which are not asked again.
    _failures: dict[str, RunnerError] = field(default_factory=dict, init=False)

    def diff(
        self, where: Whereabouts, changes: Sequence[Change], form: Form = "patch", width: int = 100
    ) -> bytes:
        """Return the changes in a form.

        Args:
            changes: the first whose snapshots can all be had is taken.
            width: the most columns of the summary.

        Raises:
            WorkspaceError: none can be had here; it says where they can.
        """
        options = {
            "patch": ("--patch", "--binary", "--full-index"),
            "summary": (f"--stat={width}", "--summary"),
            "shown": (f"--stat={width}", "--summary", "--patch"),
        }
        found = self._compare(where, changes, *options[form])
        # Of a binary file, the summary tells all.
        parts = _FILE.split(found) if form == "shown" else [found]
        return b"".join(part for part in parts if not _BINARY.search(part))

    def stat(self, where: Whereabouts, changes: Sequence[Change]) -> DiffStat:
        """Return the size of the changes; see ``diff``."""
        lines = split(self._compare(where, changes, "--numstat", "-z"))
        counts = [
            [int(count) for count in line.split(b"\t")[:2] if count != b"-"] for line in lines
        ]
        text = [count for count in counts if count]
        return DiffStat(len(counts), sum(added for added, _ in text), sum(lost for _, lost in text))

    def touched(
        self, where: Whereabouts, changes: Sequence[Change]
    ) -> dict[Change, list[tuple[Touch, str]]]:
        """Return the files of each change whose snapshots are here. Nothing is fetched."""
        store = store_of(self.home, where.source)
        if not store.is_dir():
            return {}
        given = "".join(f"{before} {after}\n" for before, after in dict.fromkeys(changes)).encode()
        told = store_git(store, self.environment).run(
            *("diff-tree", "-r", "--no-renames", "-z", "--name-status", "--stdin"),
            *_WITHOUT_MANIFEST,
            given=given,
            accept=(0, _SOME_MISSING),
        )
        found: dict[Change, list[tuple[Touch, str]]] = {}
        for before, after, letter, path in _TOUCHED.findall(told):
            if before:
                files = found[before.decode(), after.decode()] = []
            else:
                files.append((_TOUCHES.get(letter, "changed"), os.fsdecode(path)))
        return found

    def too_large(self, where: Whereabouts, change: Change) -> tuple[str, ...]:
        """Return the changed files that are over the limit, and so in no diff; safe to print."""
        git, trees = self._find(where, [change])
        before, after = (manifest_in(git, tree).large for tree in trees)
        return tuple(shown(path) for path in sorted({large.path for large in before ^ after}))

    def unrecorded(self, where: Whereabouts, snapshot: str) -> tuple[str, ...]:
        """Return paths that no diff shows, safe to print: repositories of their own, submodules,
        and what could not be read when the snapshot was taken. Ignored files are not among them."""
        git, _ = self._find(where, [(snapshot, snapshot)])
        found = {*manifest_in(git, snapshot).unrecorded, *submodules_in(git, snapshot)}
        return tuple(shown(path) for path in sorted(found))

    def commit(self, where: Whereabouts, commit: str) -> CommitText | None:
        store = store_of(self.home, where.source)
        if not self._has(store, [commit]):
            return None
        form = ("-s", "--encoding=UTF-8", "--format=%an%x00%ae%x00%at%x00%B")
        told = store_git(store, self.environment).run("show", *form, commit)
        name, email, at, message = told.decode("utf-8", "replace").split("\0", 3)
        return CommitText(name, email, float(at), message)

    def _compare(self, where: Whereabouts, changes: Sequence[Change], *form: str) -> bytes:
        git, change = self._find(where, changes)
        return git.run(
            *(
                "diff-tree",
                "-r",
                "--no-renames",
                "--src-prefix=a/",
                "--dst-prefix=b/",
                "--no-color",
            ),
            *("--no-ext-diff", "--no-textconv", "--no-relative", *form, *change),
            *_WITHOUT_MANIFEST,
        )

    def _find(self, where: Whereabouts, changes: Sequence[Change]) -> tuple[Git, Change]:
        """Return git on the store, and the first change that can be had whole; fetch the run's
        snapshots if the first is not here."""
        store, remote, run_ids = store_of(self.home, where.source), where.remote, where.run_ids
        if remote and remote not in self._failures and not self._has(store, changes[0]):
            try:
                make_store(self.home, where.source, None, environment=self.environment)
                for run_id in run_ids:
                    StoredSnapshots(store, self.environment, run_id, 0).fetch(remote)
            except RunnerError as error:
                self._failures[remote] = error
        for change in changes:
            if self._has(store, change):
                return store_git(store, self.environment), change
        if remote in self._failures:
            raise self._failures[remote]
        if remote is not None:
            raise WorkspaceError(
                f"the files of {run_ids[0]} are neither here nor at its job's remote"
            )
        if where.store_id == store_id(self.home):
            raise WorkspaceError(
                f"the files of {run_ids[0]} are no longer in {store}: they were removed"
            )
        host = f"the host {where.hostname}" if where.hostname else "another host"
        advice = "do this there, with its RUNNER_HOME"
        raise WorkspaceError(f"the files of {run_ids[0]} are recorded on {host}: {advice}")

    def _has(self, store: Path, objects: Sequence[str]) -> bool:
        return store.is_dir() and has_trees(store_git(store, self.environment), objects)
