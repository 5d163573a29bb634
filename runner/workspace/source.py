"""The repository that a job names, read without running anything of its own: no hook, filter,
fsmonitor or transport."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.errors import RunnerError
from runner.workspace.git import Git, GitError, one_line, split
from runner.workspace.repository import BASES

# User settings that say how files are read; none names a program.
_READING_SETTINGS = (
    r"^core\.(autocrlf|checkstat|eol|excludesfile|filemode|ignorecase|precomposeunicode|symlinks"
    r"|trustctime)$"
)
# A repository without all of its objects would fetch them by programs that it names.
_NOTHING_FETCHED = {"GIT_ALLOW_PROTOCOL": "none"}
_MOST_NAMED = 5
_LONGEST_PATH = 120  # characters of a path in a message
_ANSWER_SECONDS = 60.0
_FETCH_SECONDS = 600.0
# Links, attributes and LFS pointers are smaller; what is larger need not come.
_LARGEST_BLOB = "100k"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class Unfit(RunnerError):  # noqa: N818 - not an error of Runner's: the word for such a repository
    """A repository that runs cannot work in."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key  # the key of [workspace] that names it
        super().__init__(message)


def git_reading(environment: Mapping[str, str], git_dir: Path) -> Git:
    """Return git with a repository's own settings, for reading refs, settings and attributes alone."""
    variables = {**_NOTHING_FETCHED, "GIT_DIR": str(git_dir)}
    return Git(git_dir, environment, variables, user_settings=True)


def private_git(
    environment: Mapping[str, str], folder: Path, objects: Path, object_format: str
) -> Git:
    """Make a git folder that borrows the ``objects`` of a repository, where it also writes, and
    none of its settings. ``object_format``: how it names them, like ``sha1``."""
    made = ("init", "-q", "--bare", "--template=", f"--object-format={object_format}", str(folder))
    Git(folder.parent, environment).run(*made)
    (folder / "info").mkdir()
    variables = {"GIT_DIR": str(folder), "GIT_OBJECT_DIRECTORY": str(objects)}
    return Git(folder, environment, {**_NOTHING_FETCHED, **variables})


def remote_git(private: Git) -> Git:
    """Return a private git with the user's settings for remotes, which asks nobody anything."""
    variables = {
        name: value for name, value in private.variables.items() if name not in _NOTHING_FETCHED
    }
    if "GIT_ASKPASS" not in private.environment:
        variables["GIT_ASKPASS"] = "true"
    return replace(private, variables=variables, user_settings=True)


def reading_settings(git: Git) -> tuple[str, ...]:
    """Return settings that have git read files as the repository's and the user's say."""
    output = git.run("config", "-z", "--get-regexp", _READING_SETTINGS, accept=(0, 1))
    settings: list[str] = []
    for record in split(output):
        name, _, value = os.fsdecode(record).partition("\n")
        if name == "core.excludesfile":
            value = git.answer("config", "--path", "--get", name) or value
        settings.append(f"{name}={value}")
    return tuple(settings)


def blobs(git: Git, ids: Sequence[str], most: int) -> Iterator[tuple[str, bytes]]:
    """Yield the ids and contents of the blobs that are here and have at most ``most`` bytes."""
    known = git.text("cat-file", "--batch-check", given="".join(f"{i}\n" for i in ids).encode())
    told = (line.split() for line in known.splitlines())
    small = [words[0] for words in told if len(words) == 3 and int(words[2]) <= most]
    found = git.run("cat-file", "--batch", given="".join(f"{i}\n" for i in small).encode())
    at = 0
    while at < len(found):
        end = found.index(b"\n", at)
        blob, _, size = found[at:end].decode().split()
        at = end + 1 + int(size) + 1
        yield blob, found[end + 1 : at - 1]


@dataclass(frozen=True, slots=True)
class Checkout:
    top: Path  # its folder, links resolved
    git_dir: Path  # git's own folder for it
    common: Path  # the one with the objects; another where ``top`` is a worktree
    object_format: str  # how it names objects, like "sha1"

    @property
    def objects(self) -> Path:
        return self.common / "objects"


def find_checkout(path: Path, environment: Mapping[str, str]) -> Checkout:
    """Return the repository at a path. Raises ``Unfit`` if there is none, or one without a
    checkout, or the path is a folder inside of one."""
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise Unfit("repo", f"{path} {what}: name the folder of a git repository, or a URL")
    git = Git(path, environment, _NOTHING_FETCHED, user_settings=True)
    try:
        kind = git.text("rev-parse", "--is-bare-repository", "--is-inside-git-dir")
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
    top, git_dir, common = (
        Path(git.text("rev-parse", "--path-format=absolute", asked)).resolve()
        for asked in ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    )
    if top != path.resolve():
        raise Unfit("repo", f"{path} is a folder inside the repository {top}: name that")
    return Checkout(top, git_dir, common, git.text("rev-parse", "--show-object-format"))


def resolve_base(git: Git, base: str | None, *, uncommitted: bool) -> str:
    """Return the id of the commit that runs begin at.

    Args:
        git: made by ``git_reading``.
        base: as the job has it, None if it says nothing.
        uncommitted: what is not committed is added, so runs begin at HEAD, wherever that is.

    Raises:
        Unfit: there is no such commit, or HEAD is no branch and was not asked for.
    """
    commit = git.answer(
        "rev-parse", "--verify", "-q", "--end-of-options", f"{base or 'HEAD'}^{{commit}}"
    )
    if base is not None and base != "HEAD":
        if commit is not None:
            return commit
        if git.answer("rev-parse", "--verify", "-q", "--end-of-options", base):
            raise Unfit(
                "base", f"{shown_path(base)} is not a commit: name a branch, a tag or a commit"
            )
        kinds = ("refs/heads", "refs/tags", "refs/remotes")
        listed = git.text("for-each-ref", "--format=%(refname:short)", *kinds)
        raise Unfit("base", _no_such_base(base, listed.splitlines()))
    branch = git.answer("symbolic-ref", "-q", "HEAD")
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


def _no_such_base(base: str, names: Sequence[str]) -> str:
    """Return the message for a base that does not exist, among branches and tags that do."""
    by_last = {name.partition("/")[2] or name: name for name in names}
    near = difflib.get_close_matches(base, names, n=1)
    near = near or [by_last[name] for name in difflib.get_close_matches(base, by_last, n=1)]
    if near:
        return f"there is no branch, tag or commit {shown_path(base)}; did you mean {shown_path(near[0])}?"
    listed = ", ".join(shown_path(name) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    there = f"{listed}{f' and {more:,} more' if more > 0 else ''}" if names else "none at all"
    return f"there is no branch, tag or commit {shown_path(base)}; branches and tags are: {there}"


def find_remote_base(git: Git, url: str, base: str | None) -> str:
    """Return the id of the commit that runs of a URL begin at.

    Args:
        git: made by ``remote_git``.
        base: as the job has it, None if it says nothing.

    Raises:
        Unfit: the URL does not answer, or has no such branch or tag.
    """
    try:
        listed = git.run("ls-remote", "--", url, seconds=_ANSWER_SECONDS)
    except GitError as error:
        raise Unfit(
            "repo", f"{url} does not answer ({error}): try `git ls-remote {url}` as the same user"
        ) from error
    lines = (line.partition("\t") for line in os.fsdecode(listed).splitlines())
    refs = {ref: commit for commit, _, ref in lines}
    name = base or "HEAD"
    if name == "HEAD" and name not in refs:
        if refs:
            raise Unfit("repo", 'its HEAD is a branch that is not there: name one with base = "…"')
        raise Unfit("repo", "the repository has no commit yet: push a first one")
    for ref in (name, f"refs/heads/{name}", f"refs/tags/{name}"):
        if commit := refs.get(f"{ref}^{{}}") or refs.get(ref):
            return commit
    if _COMMIT.fullmatch(name):
        return name
    short = [
        ref.split("/", 2)[2]
        for ref in refs
        if ref.startswith(("refs/heads/", "refs/tags/")) and not ref.endswith("^{}")
    ]
    advice = "; of a URL, base is a branch, a tag or the whole id of a commit"
    raise Unfit("base", _no_such_base(name, short) + advice)


def fetch_commit(git: Git, url: str, commit: str) -> None:
    """Fetch a commit's files, but not large ones, and not its history. Raises ``Unfit``."""
    try:
        git.run(
            *("fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules"),
            *("--no-write-fetch-head", f"--filter=blob:limit={_LARGEST_BLOB}", "--", url, commit),
            seconds=_FETCH_SECONDS,
        )
    except GitError as error:
        raise Unfit("base", f"the commit {commit} cannot be had from {url}: {error}") from error


def check_push(git: Git, remote: str, commit: str) -> None:
    """Raise ``Unfit`` unless a repository takes a push from ``remote_git``, which sees the commit.
    Nothing is pushed."""
    is_missing = remote.startswith("/") and not Path(remote).exists()
    try:
        if remote.startswith("/") and not os.access(remote, os.W_OK):
            raise GitError(f"it {'does not exist' if is_missing else 'may not be written to'}")
        push_base(git, remote, commit, dry_run=True)
    except GitError as error:
        make = f"; make it with `git init --bare {remote}`" if is_missing else ""
        raise Unfit("remote", f"{remote} cannot be pushed to: {error}{make}") from error


def push_base(git: Git, remote: str, commit: str, *, dry_run: bool = False) -> None:
    """Push the commit that runs begin at. Raises ``GitError``."""
    replace(git, settings=("push.followTags=false", "push.gpgSign=false")).run(
        *("push", "-q", "--no-verify", "--recurse-submodules=no"),
        *(("--dry-run",) if dry_run else ()),
        *("--", remote, f"{commit}:{BASES}{commit}"),
        seconds=_ANSWER_SECONDS if dry_run else _FETCH_SECONDS,
    )


def shown_path(path: bytes | str) -> str:
    """Return a path of a repository quoted for a message: one short, printable line."""
    plain = one_line(os.fsdecode(path))
    return f"'{plain if len(plain) <= _LONGEST_PATH else f'{plain[:_LONGEST_PATH]}…'}'"


def some(paths: Sequence[bytes | str]) -> str:
    """Return the first of some paths, and how many more there are."""
    more = len(paths) - 1
    return f"{shown_path(paths[0])}{f' and {more:,} more' if more else ''}"
