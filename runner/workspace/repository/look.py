"""Looking at the repository of a job before it is submitted, so that nothing is spent on a bad one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.core.files.repository import Asked, Found
from runner.core.files.workspace import Workspace
from runner.errors import RunnerError, UsageError
from runner.workspace.git import Git, GitError
from runner.workspace.repository import place, remote
from runner.workspace.repository.changes import Changes, changes, commit_changes, prepare_index
from runner.workspace.repository.contents import entries, ignores_case, unseen
from runner.workspace.repository.place import Place, Unfit
from runner.workspace.repository.reading import (
    answer,
    line,
    private,
    reaching,
    reader,
    reading_settings,
    some,
    with_variables,
)
from runner.workspace.worktrees.branches import ref_part
from runner.workspace.worktrees.clones import BASES


@dataclass(slots=True)
class _Look:
    """A look at a repository, and what has been found. ``scratch`` is a folder for it alone."""

    asked: Asked
    home: Path
    environment: Mapping[str, str]
    scratch: Path
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is unfit, and go on after it."""
        try:
            yield
        except Unfit as error:
            self.problems.append((error.key, str(error)))


def look_at(asked: Asked, *, home: Path, environment: Mapping[str, str]) -> Found:
    """Find what runs would begin at, and everything that is wrong with it.

    Nothing of the repository's own is run: no hook, no filter, no fsmonitor. Nothing in it changes,
    but for objects that no ref names when ``uncommitted`` asks for a commit of them.

    Args:
        home: RUNNER_HOME, which is no part of a repository that it lies in.
        environment: this process's, without secrets.
    """
    if shutil.which("git", path=environment.get("PATH")) is None:
        wrong = 'git is not installed, or not on PATH: install it, or use mode = "copy"'
        return Found(problems=(("repo", wrong),))
    with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
        look = _Look(asked, home, environment, Path(scratch))
        found = Found()
        with look.noting():
            try:
                found = _look_elsewhere(look) if asked.is_url else _look_here(look)
            except (GitError, OSError) as error:
                raise Unfit("repo", f"{asked.source} cannot be read: {error}") from error
        return Found(found.path, found.commit, found.files, tuple(look.problems), tuple(look.notes))


def _look_here(look: _Look) -> Found:
    asked = look.asked
    where = place.find(Path(asked.source), look.environment)
    at_home = reader(look.environment, where.git_dir)
    with look.noting():
        _expect_free_branches(at_home, asked.job)
    head = answer(at_home, "rev-parse", "--verify", "-q", "HEAD^{commit}")
    commit = ""
    with look.noting():
        commit = place.resolve(at_home, asked.base, uncommitted=asked.uncommitted)
    if asked.remote is not None:
        with look.noting():
            place.expect_whole(at_home)
    if commit and commit == head:
        with look.noting():
            commit = _with_changes(look, where, at_home, head)
    own = private(look.environment, look.scratch / "own", where.common / "objects", where.names)
    files = _look_inside(look, own, commit, at_home) if commit else ()
    return Found(str(where.top), commit, files)


def _look_elsewhere(look: _Look) -> Found:
    asked = look.asked
    fetched = look.scratch / "fetched"
    git = reaching(private(look.environment, fetched, fetched / "objects", "sha1"))
    commit = remote.resolve(remote.ask(git, asked.source), asked.base)
    remote.fetch(git, asked.source, commit)
    # What is left out of the objects is missed in vain: this folder knows of no promise of them.
    own = private(look.environment, look.scratch / "own", fetched / "objects", "sha1")
    return Found(None, commit, _look_inside(look, own, commit, reader(look.environment, fetched)))


def _look_inside(look: _Look, own: Git, commit: str, at_home: Git) -> tuple[str, ...]:
    """The names of a commit's files; what runs would not see of them is a problem, and so is a
    remote that doesn't take the commit."""
    asked = look.asked
    files = entries(own, commit)
    found = unseen(
        own,
        commit,
        files,
        ignores_case=ignores_case(look.home),
        has_lfs=lambda: _has_lfs(at_home, look.environment),
    )
    look.problems += [("repo", words) for what, words in found if what not in asked.accepted]
    if asked.remote is not None:
        with look.noting():
            remote.try_to_push(reaching(own), asked.remote, commit)
    return tuple(entry.path for entry in files)


def _with_changes(look: _Look, where: Place, at_home: Git, head: str) -> str:
    """The commit that runs begin at: HEAD, with what is not committed where that was asked for."""
    folder = look.scratch / "changes"
    own = private(look.environment, folder, where.common / "objects", where.names)
    prepare_index(where, folder, [look.home])
    settings = (*reading_settings(at_home), "core.bare=false")
    git = with_variables(
        replace(own, folder=where.top, settings=settings), GIT_WORK_TREE=str(where.top)
    )
    found = changes(git, head)
    if look.asked.uncommitted:
        if found.nested:
            look.notes.append(f"left out: repositories in the repository ({some(found.nested)})")
        return commit_changes(git, at_home, found, head)
    if found.all:
        look.notes.append(_unseen_changes(found))
    return head


def _unseen_changes(found: Changes) -> str:
    count = len(found.all)
    files = "file is" if count == 1 else "files are"
    return (
        f"{count:,} {files} changed in the repository and not committed ({some(found.all)}): runs will "
        "not see that; commit it, or set uncommitted = true"
    )


def _expect_free_branches(at_home: Git, job: str) -> None:
    """A ref's name cannot be another's folder: https://git-scm.com/docs/git-check-ref-format."""
    for name in ("runner", f"runner/{ref_part(job)}"):
        if answer(at_home, "rev-parse", "--verify", "-q", f"refs/heads/{name}"):
            raise Unfit(
                "repo",
                f"the branch {name!r} is in the way of runs' branches ({name}/…): rename it with "
                f"`git branch -m {name} NAME`",
            )


def _has_lfs(at_home: Git, environment: Mapping[str, str]) -> bool:
    """Whether checking a file out brings it from Git LFS: https://git-lfs.com."""
    if shutil.which("git-lfs", path=environment.get("PATH")) is None:
        return False
    return answer(at_home, "config", "--get-regexp", r"^filter\.lfs\.(smudge|process)$") is not None


def keep_base(workspace: Workspace, environment: Mapping[str, str]) -> None:
    """Have the commit that runs begin at stay: in its repository, by a ref where none holds it, and
    in the remote, where other hosts find it.

    Args:
        workspace: of a repository at a path.
        environment: this process's, without secrets.

    Raises:
        UsageError: it cannot be kept.
    """
    commit = workspace.commit
    try:
        where = place.find(Path(workspace.source), environment)
        at_home = reader(environment, where.git_dir)
        if not line(at_home, "for-each-ref", "--count=1", f"--contains={commit}"):
            at_home.run("update-ref", f"{BASES}{commit}", commit)
        if workspace.remote is None:
            return
        with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
            own = private(environment, Path(scratch, "own"), where.common / "objects", where.names)
            remote.push_base(reaching(own), workspace.remote, commit)
    except RunnerError as error:
        raise UsageError(
            f"nothing is submitted: the base {commit} cannot be kept: {error}"
        ) from error
