"""What is changed in a repository and not committed; and a commit made of it, beside all branches."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.workspace.git import Git, GitError
from runner.workspace.identity import EXCLUDED
from runner.workspace.repository.place import Place, Unfit
from runner.workspace.repository.reading import line, records, some, with_variables

_LONGEST_EXCLUDES = 1 << 20  # bytes
_SPECIAL = re.compile(rb"[*?\[\]\\!# ]")
_AUTHOR = {"NAME": "Runner", "EMAIL": "runner@localhost"}
_MESSAGE = "Uncommitted changes, as a job began with them"


@dataclass(frozen=True, slots=True)
class Changes:
    """Paths that differ from HEAD, those of them that are new, and nested repositories. ``conflicts``
    are files of an unfinished merge."""

    paths: tuple[bytes, ...]
    new: tuple[bytes, ...]
    nested: tuple[bytes, ...]
    conflicts: tuple[bytes, ...]

    @property
    def all(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys((*self.paths, *self.new)))


def prepare_index(place: Place, own: Path, leave_out: Sequence[Path]) -> None:
    """Have a copy of a repository's index in a folder of ours, and its ignore list.

    Args:
        own: made by ``reading.private``.
        leave_out: folders that are no part of the repository (Runner's own).
    """
    for shared in place.git_dir.glob("sharedindex.*"):
        shutil.copyfile(shared, own / shared.name)
    if (place.git_dir / "index").is_file():
        # With its time: of files changed in that very moment git looks at the contents.
        shutil.copy2(place.git_dir / "index", own / "index")
    listing = place.common / "info" / "exclude"
    known = _beginning(listing) if listing.is_file() else b""
    inside = [os.path.relpath(path.resolve(), place.top) for path in leave_out]
    ours = [b"/" + _literal(os.fsencode(path)) for path in inside if path.split("/")[0] != ".."]
    lines = [known.rstrip(b"\n"), EXCLUDED.encode(), *ours, b""]
    (own / "info" / "exclude").write_bytes(b"\n".join(lines))


def changes(git: Git, head: str) -> Changes:
    """What differs from a commit in a checkout, by what git ignores there.

    Args:
        git: with a folder of its own, prepared by ``prepare_index``, and the checkout as its work tree.
        head: the commit of the checkout.
    """
    staged = records(git, "diff-index", "--cached", "-z", "--name-only", head)
    changed = records(git, "ls-files", "-z", "-m", "-d")
    new = records(git, "ls-files", "-z", "-o", "--exclude-standard")
    conflicts = [record.partition(b"\t")[2] for record in records(git, "ls-files", "-z", "-u")]
    return Changes(
        paths=tuple(dict.fromkeys((*staged, *changed))),
        new=tuple(path for path in new if not path.endswith(b"/")),
        nested=tuple(path for path in new if path.endswith(b"/")),
        conflicts=tuple(dict.fromkeys(conflicts)),
    )


def commit_changes(git: Git, at_home: Git, found: Changes, head: str) -> str:
    """A commit of what differs from HEAD, in the repository's objects; no ref names it yet. The same
    changes make the same commit.

    Args:
        git: as for ``changes``.
        at_home: git that looks into the repository's own folder.
        found: from ``changes``.

    Raises:
        Unfit: it cannot be made as git would make it.
    """
    if found.conflicts:
        raise Unfit(
            "uncommitted", f"a merge is not finished ({some(found.conflicts)}): finish or abort it"
        )
    filtered = _filtered(at_home, git, found.all)
    if filtered:
        raise Unfit(
            "uncommitted",
            f"changed files go through a filter, and none is run here ({some(filtered)}): commit them",
        )
    stdin = b"".join(path + b"\0" for path in found.all)
    try:
        git.run("update-index", "--add", "--remove", "-z", "--stdin", given=stdin)
        tree = line(git, "write-tree")
        if tree == line(git, "rev-parse", f"{head}^{{tree}}"):
            return head
        date = line(git, "log", "-1", "--format=%cd", "--date=raw", head)
        dated = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in {**_AUTHOR, "DATE": date}.items()
        }
        dated_git = with_variables(git, **dated)
        return line(dated_git, "commit-tree", tree, "-p", head, "-m", _MESSAGE)
    except GitError as error:
        raise Unfit("uncommitted", f"what is not committed cannot be taken: {error}") from error


def _filtered(at_home: Git, git: Git, paths: Sequence[bytes]) -> list[bytes]:
    """The paths that the repository's attributes give a filter."""
    if not paths:
        return []
    folder = Path(str(git.variables["GIT_DIR"]))
    looking = with_variables(
        replace(at_home, folder=git.folder),
        GIT_WORK_TREE=str(git.folder),
        GIT_INDEX_FILE=str(folder / "index"),
    )
    stdin = b"".join(path + b"\0" for path in paths)
    answers = iter(records(looking, "check-attr", "-z", "--stdin", "filter", given=stdin))
    return [
        path
        for path, _, value in zip(answers, answers, answers, strict=True)
        if value not in (b"unspecified", b"unset")
    ]


def _beginning(listing: Path) -> bytes:
    with listing.open("rb") as file:
        return file.read(_LONGEST_EXCLUDES)


def _literal(path: bytes) -> bytes:
    return _SPECIAL.sub(rb"\\\g<0>", path)
