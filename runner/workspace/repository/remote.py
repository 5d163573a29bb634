"""Repositories that are elsewhere: one that runs are cloned from, one that snapshots are pushed to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner.workspace.git import Git, GitError
from runner.workspace.repository.place import Unfit, no_such_base
from runner.workspace.worktrees.clones import BASES

_ANSWER_SECONDS = 60.0
_FETCH_SECONDS = 600.0
# Links, attributes and LFS pointers are smaller; what is larger need not come.
_LARGEST_BLOB = "100k"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_PUSH = ("push", "-q", "--no-verify", "--recurse-submodules=no")
_NOTHING_MORE = ("push.followTags=false", "push.gpgSign=false")


def ask(git: Git, url: str) -> dict[str, str]:
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


def resolve(refs: Mapping[str, str], base: str | None) -> str:
    """The id of the commit that runs begin at.

    Args:
        refs: from ``ask``.
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


def fetch(git: Git, url: str, commit: str) -> None:
    """Have a commit's files here, but not large ones, and not its history.

    Raises:
        Unfit: it cannot be had.
    """
    try:
        git.run(
            *("fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules"),
            *("--no-write-fetch-head", f"--filter=blob:limit={_LARGEST_BLOB}", "--", url, commit),
            seconds=_FETCH_SECONDS,
        )
    except GitError as error:
        raise Unfit("base", f"the commit {commit} cannot be had from {url}: {error}") from error


def try_to_push(git: Git, remote: str, commit: str) -> None:
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
