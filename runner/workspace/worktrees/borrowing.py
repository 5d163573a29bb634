"""A run's own repository: what is in the source's it borrows, and what it makes stays its own.

Branches, tags, the stash and the configuration that an agent changes are so neither the user's nor
another run's. See https://git-scm.com/docs/gitrepository-layout (``alternates``, ``packed-refs``) and
https://git-scm.com/docs/git-config (``include.path``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.workspace.git import GitError
from runner.workspace.identity import EXCLUDED, beginning
from runner.workspace.trees.stores import quoted_alternate, store_git
from runner.workspace.worktrees.refs import BEGINNING
from runner.workspace.worktrees.repository import Repository

_NOT_BORROWED = ("refs/runner/", "refs/heads/runner/", "refs/stash")
_COPIED = ("shallow", "info/exclude", "info/attributes")
_MOST_BYTES = 1 << 20


def make_borrowing(folder: Path, source: Repository) -> Repository:
    """Make a repository that has the objects, branches, tags and settings of another.

    Args:
        folder: where it will be; nothing is there yet.

    Raises:
        GitError, OSError: it cannot be made.
    """
    common = source.common_folder()
    kind = source.git("rev-parse", "--show-object-format")
    source.git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(folder))
    for name in _COPIED:
        _copy(common / name, folder / name)
    with (folder / "info" / "exclude").open("ab") as excluded:
        excluded.write(f"\n{EXCLUDED}\n".encode())
    refs = _refs(source)
    (folder / BEGINNING).write_bytes(refs)
    (folder / "packed-refs").write_bytes(refs)
    alternates = quoted_alternate(str(common / "objects"))
    (folder / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternates) + b"\n")
    with (folder / "config").open("ab") as config:
        config.write(os.fsencode(_settings(common)))
    return Repository(folder, source.environment)


def bring(commits: Sequence[str], known: str, of: Repository, to: Repository | Path) -> None:
    """Have commits of one repository in another, or in a store of snapshots, with all below them.

    Args:
        known: a commit that both have.

    Raises:
        GitError: they cannot be had.
    """
    wanted = "".join(f"{commit}\n" for commit in commits) + f"^{known}\n"
    packed = of.raw("pack-objects", "--revs", "--stdout", "--quiet", given=wanted.encode())
    if isinstance(to, Repository):
        to.raw("index-pack", "--stdin", given=packed)
    else:
        store_git(to, of.environment).run("index-pack", "--stdin", given=packed)


def _refs(source: Repository) -> bytes:
    listed = source.raw("for-each-ref", "--format=%(objectname) %(refname)")
    lines = listed.splitlines(keepends=True)
    left_out = tuple(map(os.fsencode, _NOT_BORROWED))
    return b"".join(line for line in lines if not line.partition(b" ")[2].startswith(left_out))


def _settings(common: Path) -> str:
    """The source's own are read where they stand: an agent's changes are made to this file alone. Its
    hooks are for the agent's git, as in any checkout."""
    return (
        f"[core]\n\thooksPath = {_quoted(common / 'hooks')}\n"
        f"[include]\n\tpath = {_quoted(common / 'config')}\n"
        "[core]\n\tbare = false\n"
    )


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        try:
            content = beginning(file, _MOST_BYTES)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise GitError(f"{file} cannot be read: {error.strerror}") from error
        if content is not None:
            target.write_bytes(content)
