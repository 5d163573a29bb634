"""Checks of a job's repository before it is submitted, so that nothing is spent on a bad one."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.core.workspace import Accepted, Asked, Found, Workspace
from runner.errors import RunnerError, UsageError
from runner.workspace.folders import EXCLUDED
from runner.workspace.git import Git, GitError
from runner.workspace.repository import BASES, ref_part
from runner.workspace.source import (
    Place,
    Unfit,
    answer,
    blobs,
    check_push,
    expect_whole,
    fetch_commit,
    find_repository,
    line,
    list_remote_refs,
    private,
    push_base,
    reaching,
    reader,
    reading_settings,
    records,
    resolve_base,
    resolve_remote_base,
    shown_path,
    some,
    with_variables,
)

_LINK, _MODULE = "120000", "160000"


_LONGEST_LINK = 4_096


_LONGEST_ATTRIBUTES = 1_000_000


_LONGEST_POINTER = 1_024  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md#the-pointer


_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit, a link or a submodule."""

    mode: str
    id: str
    path: str


def entries(git: Git, commit: str) -> list[Entry]:
    """The files of a commit, sorted by path.

    Args:
        git: that sees the commit's objects.
    """
    found = []
    for record in records(git, "ls-tree", "-r", "-z", "--full-tree", commit):
        head, _, path = record.partition(b"\t")
        mode, _, id_ = head.decode().split()
        found.append(Entry(mode, id_, os.fsdecode(path)))
    return sorted(found, key=lambda entry: entry.path)


def unseen(
    git: Git,
    commit: str,
    files: Sequence[Entry],
    *,
    ignores_case: bool,
    has_lfs: Callable[[], bool],
) -> list[tuple[Accepted, str]]:
    """What runs would not see as it is, and what to do about it.

    Args:
        git: with a folder of its own, whose index is read over.
        ignores_case: whether runs' files lie where ``README`` and ``readme`` are one file.
        has_lfs: whether Git LFS is set up here.
    """
    found: list[tuple[Accepted, str]] = []
    if modules := [entry.path for entry in files if entry.mode == _MODULE]:
        do = 'set setup = ["git submodule update --init"] and accept = ["submodules"]'
        found.append(
            ("submodules", f"has submodules ({some(modules)}), which runs see empty: {do}")
        )
    if links := _links_out(git, files):
        path, target = links[0]
        more = f" and {len(links) - 1:,} more" if len(links) > 1 else ""
        found.append(
            (
                "links",
                f"has links that lead out of it ({shown_path(path)} to {shown_path(target)}{more}), and "
                'what runs do there is neither theirs alone nor undone: set accept = ["links"] to bear it',
            )
        )
    if ignores_case and (pairs := clashes(entry.path for entry in files)):
        one, other = pairs[0]
        more = f" and {len(pairs) - 1:,} more" if len(pairs) > 1 else ""
        found.append(
            (
                "case",
                f"has names that are one here, where case doesn't count ({shown_path(one)} and "
                f'{shown_path(other)}{more}): set accept = ["case"] if runs can do with one of each',
            )
        )
    if (pointers := _lfs_pointers(git, commit, files)) and not has_lfs():
        found.append(
            (
                "lfs",
                f"has files in Git LFS ({some(pointers)}), which is not set up here: install git-lfs "
                'and run `git lfs install`, or set accept = ["lfs"] to have pointers in their place',
            )
        )
    return found


def clashes(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of paths that are one where case doesn't count: two files, or a file and a folder."""
    known: dict[str, tuple[str, bool]] = {}
    found = []
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name, is_file = "/".join(parts[:depth]), depth == len(parts)
            first, was_file = known.setdefault(_folded(name), (name, is_file))
            if first != name and (is_file or was_file):
                found.append((first, name))
    return found


def ignores_case(folder: Path) -> bool:
    """Whether ``README`` and ``readme`` are one file in a folder, or where it will be made."""
    here = folder.absolute()
    while True:
        other = here.with_name(here.name.swapcase())
        if other != here and here.exists():
            return other.exists() and here.samefile(other)
        if here == here.parent:
            return False
        here = here.parent


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _links_out(git: Git, files: Sequence[Entry]) -> list[tuple[str, str]]:
    """Links with where they lead, of those that lead out of the tree or by an absolute path."""
    links = [entry for entry in files if entry.mode == _LINK]
    targets = dict(blobs(git, [entry.id for entry in links], _LONGEST_LINK)) if links else {}
    found = []
    for entry in links:
        target = os.fsdecode(targets.get(entry.id, b""))
        led = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), target))
        if led == ".." or led.startswith(("../", "/")):
            found.append((entry.path, target))
    return found


def _lfs_pointers(git: Git, commit: str, files: Sequence[Entry]) -> list[str]:
    """The files that are to go through the filter of Git LFS and are pointers."""
    written = [entry.id for entry in files if posixpath.basename(entry.path) == ".gitattributes"]
    if not written:
        return []
    if not any(b"lfs" in text for _, text in blobs(git, written, _LONGEST_ATTRIBUTES)):
        return []
    git.run("read-tree", commit)
    asked = b"".join(os.fsencode(entry.path) + b"\0" for entry in files)
    answers = iter(records(git, "check-attr", "-z", "--stdin", "--cached", "filter", given=asked))
    filtered = {
        os.fsdecode(path)
        for path, _, value in zip(answers, answers, answers, strict=True)
        if value == b"lfs"
    }
    kept = {entry.path: entry.id for entry in files if entry.path in filtered}
    pointers = (
        {
            id_
            for id_, text in blobs(git, list(kept.values()), _LONGEST_POINTER)
            if text.startswith(_POINTER)
        }
        if kept
        else set()
    )
    return [path for path, id_ in kept.items() if id_ in pointers]


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
    where = find_repository(Path(asked.source), look.environment)
    at_home = reader(look.environment, where.git_dir)
    with look.noting():
        _expect_free_branches(at_home, asked.job)
    head = answer(at_home, "rev-parse", "--verify", "-q", "HEAD^{commit}")
    commit = ""
    with look.noting():
        commit = resolve_base(at_home, asked.base, uncommitted=asked.uncommitted)
    if asked.remote is not None:
        with look.noting():
            expect_whole(at_home)
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
    commit = resolve_remote_base(list_remote_refs(git, asked.source), asked.base)
    fetch_commit(git, asked.source, commit)
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
            check_push(reaching(own), asked.remote, commit)
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
        where = find_repository(Path(workspace.source), environment)
        at_home = reader(environment, where.git_dir)
        if not line(at_home, "for-each-ref", "--count=1", f"--contains={commit}"):
            at_home.run("update-ref", f"{BASES}{commit}", commit)
        if workspace.remote is None:
            return
        with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
            own = private(environment, Path(scratch, "own"), where.common / "objects", where.names)
            push_base(reaching(own), workspace.remote, commit)
    except RunnerError as error:
        raise UsageError(
            f"nothing is submitted: the base {commit} cannot be kept: {error}"
        ) from error
