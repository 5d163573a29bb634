"""A repository, a worktree of it and a store for its snapshots, all real."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.workspace.diffs import Change, DiffStat, RecordedChanges, Whereabouts
from runner.workspace.snapshot_store import make_store
from runner.workspace.snapshots import Snapshots

RUN = "run_1"
FILES = {"a.py": "one\n", "folder/b.py": "two\n", ".gitignore": "*.log\nbuilt/\n"}
Content = dict[bytes, tuple[str, bytes]]


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """What git says in a folder, as text without the last line's end."""
    return os.fsdecode(git_bytes(folder, *arguments, **variables)).strip()


def git_bytes(folder: Path, *arguments: str, **variables: str) -> bytes:
    """What git says in a folder, as its user."""
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *named, *arguments],
        cwd=folder,
        capture_output=True,
        check=True,
        env={**os.environ, **variables},
    )
    return done.stdout


def git_that(folder: Path, script: str) -> dict[str, str]:
    """An environment whose git first runs a shell script."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(f'#!/bin/sh\n{script}\nexec "{shutil.which("git")}" "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files, with the folders that they lie in."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder: Path) -> Content:
    """Every file, link and folder under a folder, byte for byte; git's own and pipes are left out."""
    found: Content = {}
    waiting = [os.fsencode(folder)]
    while waiting:
        here = waiting.pop()
        for entry in os.scandir(here):
            name = entry.path.removeprefix(os.fsencode(folder) + b"/")
            if entry.name == b".git":
                continue
            if entry.is_symlink():
                found[name] = "link", os.readlink(entry.path)  # noqa: PTH115 - bytes
            elif entry.is_dir(follow_symlinks=False):
                found[name] = "folder", b""
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                runs = entry.stat().st_mode & stat.S_IXUSR
                with open(entry.path, "rb") as file:
                    found[name] = "program" if runs else "file", file.read()
    return found


@dataclass
class Place:
    """``source`` is the user's repository, ``work`` the run's worktree of its commit ``base``."""

    home: Path
    source: Path
    work: Path
    base: str

    @property
    def store(self) -> Path:
        return make_store(self.home, str(self.source), self.source / ".git")

    def snapshots(self, attempt: int = 1, run_id: str = RUN, **options: Any) -> Snapshots:
        """The snapshots of an attempt, which know the base."""
        environment = options.pop("environment", os.environ)
        made = Snapshots(self.store, self.work, run_id, attempt, environment=environment, **options)
        made.start(self.base)
        return made

    def changes(self, before: str, after: str) -> tuple[RecordedChanges, Whereabouts, list[Change]]:
        """What lies between two snapshots, for the methods of ``RecordedChanges``."""
        where = Whereabouts((RUN,), str(self.source), None, None, None)
        assert self.store.is_dir()  # it is made if need be
        return RecordedChanges(self.home, os.environ), where, [(before, after)]

    def diff(self, before: str, after: str, *, stat: bool = False) -> bytes:
        recorded, where, changes = self.changes(before, after)
        return recorded.diff(where, changes, "summary" if stat else "patch")

    def diff_stat(self, before: str, after: str) -> DiffStat:
        recorded, where, changes = self.changes(before, after)
        return recorded.stat(where, changes)

    def listed(self, tree: str) -> list[str]:
        """The paths of a recorded tree."""
        store_git = {"GIT_DIR": str(self.store)}
        listed = git(self.work, "ls-tree", "-r", "-z", "--name-only", tree, **store_git)
        return listed.split("\0")[:-1]


def make_repository(folder: Path, files: Mapping[str, str | bytes], *options: str) -> str:
    """A repository with one commit of those files; the commit's id."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", *options)
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "base")
    return git(folder, "rev-parse", "HEAD")


def make_place(
    folder: Path, files: Mapping[str, str | bytes], options: Sequence[str] = ()
) -> Place:
    """A repository of those files with a worktree for a run."""
    source, work = folder / "source", folder / "home" / "workspaces" / RUN
    base = make_repository(source, files, *options)
    git(source, "worktree", "add", "-q", "--detach", str(work), base)
    return Place(folder / "home", source, work, base)
