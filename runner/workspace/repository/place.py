"""Where a repository is, and the commit that runs begin at."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunnerError
from runner.workspace.git import Git, GitError
from runner.workspace.repository.reading import answer, discovering, line, shown_path

_MOST_NAMED = 5


class Unfit(RunnerError):  # noqa: N818 - not an error of Runner's: the word for such a repository
    """A repository that runs cannot work in; ``key`` of ``[workspace]`` is what says so."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Place:
    """``top`` is the repository's folder with links resolved, ``git_dir`` git's own for it, ``common``
    the one with the objects (another where ``top`` is a worktree), ``names`` how objects are named."""

    top: Path
    git_dir: Path
    common: Path
    names: str


def find(path: Path, environment: Mapping[str, str]) -> Place:
    """The repository at a path.

    Raises:
        Unfit: there is none, or one without a checkout, or the path is a folder inside of one.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise Unfit("repo", f"{path} {what}: name the folder of a git repository, or a URL")
    git = discovering(environment, path)
    try:
        kind = line(git, "rev-parse", "--is-bare-repository", "--is-inside-git-dir")
    except GitError as error:
        if "not a git repository" in str(error):
            advice = 'make it one with `git init` and a first commit, or use mode = "copy"'
            raise Unfit("repo", f"{path} is not a git repository: {advice}") from error
        if "dubious ownership" in str(error):
            advice = f"if you trust it, run `git config --global --add safe.directory {path}`"
            raise Unfit("repo", f"{path} belongs to another user: {advice}") from error
        raise
    is_bare, is_inside = (word == "true" for word in kind.split())
    if is_bare:
        advice = f'name a checkout of it, or clone it for each job with repo = "file://{path}"'
        raise Unfit("repo", f"{path} is a bare repository, which has no files: {advice}")
    if is_inside:
        raise Unfit("repo", f"{path} is git's own folder: name the folder of the checkout")
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    found = [
        Path(line(git, "rev-parse", "--path-format=absolute", word)).resolve() for word in asked
    ]
    top, git_dir, common = found
    if top != path.resolve():
        raise Unfit("repo", f"{path} is a folder inside the repository {top}: name that")
    return Place(top, git_dir, common, line(git, "rev-parse", "--show-object-format"))


def resolve(git: Git, base: str | None, *, uncommitted: bool) -> str:
    """The id of the commit that runs begin at.

    Args:
        git: that looks into the repository's own folder.
        base: as the job has it, None when it says nothing.
        uncommitted: what is not committed is added, so it is HEAD, wherever that is.

    Raises:
        Unfit: there is no such commit, or HEAD is no branch and was not asked for.
    """
    commit = answer(
        git, "rev-parse", "--verify", "-q", "--end-of-options", f"{base or 'HEAD'}^{{commit}}"
    )
    if base not in (None, "HEAD"):
        return commit or _missing(git, base or "")
    branch = answer(git, "symbolic-ref", "-q", "HEAD")
    if commit is None:
        name = shown_path((branch or "HEAD").removeprefix("refs/heads/"))
        raise Unfit("repo", f"the repository has no commit yet on {name}: make a first one")
    if branch is None and base is None and not uncommitted:
        raise Unfit(
            "repo",
            f"HEAD is detached, on no branch, at {commit[:10]}: say where runs begin, with "
            'base = "HEAD" for this commit or base = "…" for a branch',
        )
    return commit


def expect_whole(git: Git) -> None:
    """Raises ``Unfit`` for a repository without its whole history, which cannot be pushed."""
    if line(git, "rev-parse", "--is-shallow-repository") == "true":
        raise Unfit(
            "remote",
            "the repository is a shallow clone, which cannot be pushed: run `git fetch --unshallow`",
        )


def _missing(git: Git, base: str) -> str:
    """Raises."""
    if answer(git, "rev-parse", "--verify", "-q", "--end-of-options", base):
        raise Unfit("base", f"{shown_path(base)} is no commit: name a branch, a tag or a commit")
    listed = line(
        git, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"
    )
    raise Unfit("base", no_such_base(base, listed.splitlines()))


def no_such_base(base: str, names: Sequence[str]) -> str:
    """What is said of a base that is not there.

    Args:
        names: of the branches and tags that are.
    """
    by_last = {name.partition("/")[2] or name: name for name in names}
    near = difflib.get_close_matches(base, names, n=1)
    near = near or [by_last[name] for name in difflib.get_close_matches(base, by_last, n=1)]
    if near:
        return f"there is no branch, tag or commit {shown_path(base)}; did you mean {shown_path(near[0])}?"
    listed = ", ".join(shown_path(name) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    there = f"{listed}{f' and {more:,} more' if more > 0 else ''}" if names else "none at all"
    return f"there is no branch, tag or commit {shown_path(base)}; branches and tags are: {there}"
