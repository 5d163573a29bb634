"""The repository that a job names, read without running anything of its own."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.errors import RunnerError
from runner.workspace.git import Git, GitError, one_line
from runner.workspace.repository import BASES

# Of the user's settings, those that say how their files are to be read; none names a program.
_READING_SETTINGS = (
    "autocrlf",
    "checkstat",
    "eol",
    "excludesfile",
    "filemode",
    "ignorecase",
    "precomposeunicode",
    "symlinks",
    "trustctime",
)


# A repository without all of its objects would fetch them by programs that it names.
_NOTHING_FETCHED = {"GIT_ALLOW_PROTOCOL": "none"}


def discovering(environment: Mapping[str, str], folder: Path) -> Git:
    """git that looks for the repository that a folder is in.

    Args:
        environment: this process's, without secrets.
    """
    return Git(folder, environment, _NOTHING_FETCHED, user_settings=True)


def reader(environment: Mapping[str, str], git_dir: Path) -> Git:
    """git that looks into a repository's own folder. Its settings are the repository's, so only for
    commands that read refs, settings and attributes.

    Args:
        environment: this process's, without secrets.
    """
    variables = {**_NOTHING_FETCHED, "GIT_DIR": str(git_dir)}
    return Git(git_dir, environment, variables, user_settings=True)


def private(environment: Mapping[str, str], folder: Path, objects: Path, names: str) -> Git:
    """git with a folder of its own, made empty, that borrows the objects of a repository: no setting
    of the repository counts.

    Args:
        environment: this process's, without secrets.
        folder: where the folder is made.
        objects: the repository's folder of objects, which is written to as well.
        names: how the repository names objects (``sha1``).
    """
    made = ("init", "-q", "--bare", "--template=", f"--object-format={names}", str(folder))
    Git(folder.parent, environment).run(*made)
    (folder / "info").mkdir()
    variables = {"GIT_DIR": str(folder), "GIT_OBJECT_DIRECTORY": str(objects)}
    return Git(folder, environment, {**_NOTHING_FETCHED, **variables})


def reaching(own: Git) -> Git:
    """git that talks to other repositories, with the user's settings (credentials, proxies), and asks
    nobody anything.

    Args:
        own: made by ``private``.
    """
    variables = {
        name: own.variables[name] for name in own.variables if name not in _NOTHING_FETCHED
    }
    if "GIT_ASKPASS" not in own.environment:
        variables["GIT_ASKPASS"] = "true"
    return replace(own, variables=variables, user_settings=True)


def with_variables(git: Git, **variables: str) -> Git:
    """The same git with more variables in its environment."""
    return replace(git, variables={**git.variables, **variables})


def line(git: Git, *arguments: str) -> str:
    """What a command prints, without the line's end. Raises ``GitError``."""
    return os.fsdecode(git.run(*arguments)).removesuffix("\n")


def answer(git: Git, *arguments: str) -> str | None:
    """The same, None when the command fails."""
    try:
        return line(git, *arguments)
    except GitError:
        return None


def records(git: Git, *arguments: str, given: bytes = b"") -> list[bytes]:
    """What a command prints with ``-z``. Raises ``GitError``."""
    return git.run(*arguments, given=given).split(b"\0")[:-1]


def reading_settings(git: Git) -> tuple[str, ...]:
    """Settings that have git read files as the repository's and the user's say; see ``reader``."""
    names = "|".join(_READING_SETTINGS)
    pattern = f"^core\\.({names})$"
    output = git.run("config", "-z", "--get-regexp", pattern, accept=(0, 1))
    settings: list[str] = []
    for record in output.split(b"\0")[:-1]:
        name, _, value = os.fsdecode(record).partition("\n")
        if name == "core.excludesfile":
            value = answer(git, "config", "--path", "--get", name) or value
        settings.append(f"{name}={value}")
    return tuple(settings)


def blobs(git: Git, ids: Sequence[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The contents of blobs, each with its id; those that are not there or have more than ``most``
    bytes are left out."""
    known = git.run("cat-file", "--batch-check", given="\n".join(ids).encode() + b"\n")
    small = [
        words[0]
        for words in (line.split() for line in known.decode().splitlines())
        if len(words) == 3 and int(words[2]) <= most
    ]
    if not small:
        return
    found = git.run("cat-file", "--batch", given="\n".join(small).encode() + b"\n")
    at = 0
    for _ in small:
        end = found.index(b"\n", at)
        id_, _, size = found[at:end].decode().split()
        at = end + 1 + int(size) + 1
        yield id_, found[end + 1 : at - 1]


def shown_path(path: bytes | str) -> str:
    """A path of a repository as a message quotes it: one line, nothing that a terminal would obey."""
    text = os.fsdecode(path) if isinstance(path, bytes) else path
    plain = one_line(text)
    return f"'{plain if len(plain) <= 120 else f'{plain[:120]}…'}'"


def some(paths: Sequence[bytes | str]) -> str:
    """The first of some paths, and how many more there are."""
    more = len(paths) - 1
    return f"{shown_path(paths[0])}{f' and {more:,} more' if more else ''}"


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


def find_repository(path: Path, environment: Mapping[str, str]) -> Place:
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


def resolve_base(git: Git, base: str | None, *, uncommitted: bool) -> str:
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


_ANSWER_SECONDS = 60.0


_FETCH_SECONDS = 600.0


# Links, attributes and LFS pointers are smaller; what is larger need not come.
_LARGEST_BLOB = "100k"


_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


_PUSH = ("push", "-q", "--no-verify", "--recurse-submodules=no")


_NOTHING_MORE = ("push.followTags=false", "push.gpgSign=false")


def list_remote_refs(git: Git, url: str) -> dict[str, str]:
    """The refs of a repository: their ids by their names.

    Args:
        git: made by ``reading.reaching``.

    Raises:
        Unfit: it does not answer.
    """
    try:
        listed = git.run("ls-remote", "--", url, seconds=_ANSWER_SECONDS)
    except GitError as error:
        raise Unfit(
            "repo", f"{url} does not answer ({error}): try `git ls-remote {url}` as the same user"
        ) from error
    lines = (line.partition("\t") for line in os.fsdecode(listed).splitlines())
    return {name: id_ for id_, _, name in lines}


def resolve_remote_base(refs: Mapping[str, str], base: str | None) -> str:
    """The id of the commit that runs begin at.

    Args:
        refs: from ``list_remote_refs``.
        base: as the job has it, None when it says nothing.

    Raises:
        Unfit: there is no such branch or tag.
    """
    name = base or "HEAD"
    if name == "HEAD" and name not in refs:
        if refs:
            raise Unfit("repo", 'its HEAD is a branch that is not there: name one with base = "…"')
        raise Unfit("repo", "the repository has no commit yet: push a first one")
    for ref in (name, f"refs/heads/{name}", f"refs/tags/{name}"):
        if id_ := refs.get(f"{ref}^{{}}") or refs.get(ref):
            return id_
    if _COMMIT.fullmatch(name):
        return name
    short = [
        ref.split("/", 2)[2]
        for ref in refs
        if ref.startswith(("refs/heads/", "refs/tags/")) and not ref.endswith("^{}")
    ]
    advice = "; of a URL, base is a branch, a tag or the whole id of a commit"
    raise Unfit("base", no_such_base(name, short) + advice)


def fetch_commit(git: Git, url: str, commit: str) -> None:
    """Have a commit's files here, but not large ones, and not its history.

    Raises:
        Unfit: it cannot be had.
    """
    try:
        git.run(
            *("fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules"),
            *(
                "--no-write-fetch-head",
                f"--filter=blob:limit={_LARGEST_BLOB}",
                "--",
                url,
                commit,
            ),
            seconds=_FETCH_SECONDS,
        )
    except GitError as error:
        raise Unfit("base", f"the commit {commit} cannot be had from {url}: {error}") from error


def check_push(git: Git, remote: str, commit: str) -> None:
    """Find out whether a repository takes what is pushed, without pushing.

    Args:
        git: made by ``reading.reaching``, with a folder that sees the commit's objects.

    Raises:
        Unfit: it doesn't.
    """
    try:
        if remote.startswith("/") and not os.access(remote, os.W_OK):
            what = "does not exist" if _is_missing(remote) else "may not be written to"
            raise GitError(f"it {what}")
        _push(git, "--dry-run", "--", remote, _refspec(commit), seconds=_ANSWER_SECONDS)
    except GitError as error:
        make = f"; make it with `git init --bare {remote}`" if _is_missing(remote) else ""
        raise Unfit("remote", f"{remote} cannot be pushed to: {error}{make}") from error


def push_base(git: Git, remote: str, commit: str) -> None:
    """Push the commit that runs begin at.

    Raises:
        GitError: it is not taken.
    """
    _push(git, "--", remote, _refspec(commit), seconds=_FETCH_SECONDS)


def _push(git: Git, *arguments: str, seconds: float) -> None:
    replace(git, settings=_NOTHING_MORE).run(*_PUSH, *arguments, seconds=seconds)


def _refspec(commit: str) -> str:
    return f"{commit}:{BASES}{commit}"


def _is_missing(remote: str) -> bool:
    return remote.startswith("/") and not Path(remote).exists()
