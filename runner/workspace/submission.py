"""Checks a job's repository before it is submitted, so that nothing is spent on a bad one."""

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
from runner.workspace.git import Git, GitError, split
from runner.workspace.repository import BASES, ref_part
from runner.workspace.source import (
    Checkout,
    Unfit,
    blobs,
    check_push,
    expect_whole,
    fetch_commit,
    find_checkout,
    find_remote_base,
    git_reading,
    private_git,
    push_base,
    reading_settings,
    remote_git,
    resolve_base,
    shown_path,
    some,
)

_LINK, _SUBMODULE = "120000", "160000"
_LONGEST_LINK = 4_096
_LONGEST_ATTRIBUTES = 1_000_000
_LONGEST_POINTER = 1_024  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md#the-pointer
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_EXCLUDE = 1 << 20  # bytes
_SPECIAL = re.compile(rb"[*?\[\]\\!# ]")  # in a list of ignored files
_AUTHOR = {"NAME": "Runner", "EMAIL": "runner@localhost"}
_MESSAGE = "Uncommitted changes, as a job began with them"


@dataclass(slots=True)
class _Inspection:
    """An inspection of a repository, and what it has found."""

    asked: Asked
    home: Path
    environment: Mapping[str, str]
    scratch: Path  # a folder for it alone
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect what is unfit as a problem, and go on after it."""
        try:
            yield
        except Unfit as error:
            self.problems.append((error.key, str(error)))


def inspect_repository(asked: Asked, *, home: Path, environment: Mapping[str, str]) -> Found:
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
        inspection = _Inspection(asked, home, environment, Path(scratch))
        found = Found()
        with inspection.collecting():
            try:
                inspect = _inspect_remote if asked.is_url else _inspect_checkout
                found = inspect(inspection)
            except (GitError, OSError) as error:
                raise Unfit("repo", f"{asked.source} cannot be read: {error}") from error
        problems, notes = tuple(inspection.problems), tuple(inspection.notes)
        return Found(found.path, found.commit, found.files, problems, notes)


def keep_base(workspace: Workspace, environment: Mapping[str, str]) -> None:
    """Keep the commit that runs begin at: in its repository, by a ref where none holds it, and in the
    remote, where other hosts find it.

    Args:
        workspace: of a repository at a path.
        environment: this process's, without secrets.

    Raises:
        UsageError: it cannot be kept.
    """
    commit = workspace.commit
    try:
        checkout = find_checkout(Path(workspace.source), environment)
        git = git_reading(environment, checkout.git_dir)
        if not git.text("for-each-ref", "--count=1", f"--contains={commit}"):
            git.run("update-ref", f"{BASES}{commit}", commit)
        if workspace.remote is None:
            return
        with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
            own = _private(environment, Path(scratch, "own"), checkout)
            push_base(remote_git(own), workspace.remote, commit)
    except RunnerError as error:
        raise UsageError(
            f"nothing is submitted: the base {commit} cannot be kept: {error}"
        ) from error


def _inspect_checkout(inspection: _Inspection) -> Found:
    asked, environment = inspection.asked, inspection.environment
    checkout = find_checkout(Path(asked.source), environment)
    git = git_reading(environment, checkout.git_dir)
    with inspection.collecting():
        _expect_free_branches(git, asked.job)
    head = git.answer("rev-parse", "--verify", "-q", "HEAD^{commit}")
    commit = ""
    with inspection.collecting():
        commit = resolve_base(git, asked.base, uncommitted=asked.uncommitted)
    if asked.remote is not None:
        with inspection.collecting():
            expect_whole(git)
    if commit and commit == head:
        with inspection.collecting():
            commit = _with_changes(inspection, checkout, git, head)
    own = _private(environment, inspection.scratch / "own", checkout)
    files = _inspect_files(inspection, own, commit, git) if commit else ()
    return Found(str(checkout.top), commit, files)


def _inspect_remote(inspection: _Inspection) -> Found:
    url, environment = inspection.asked.source, inspection.environment
    fetched = inspection.scratch / "fetched"
    git = remote_git(private_git(environment, fetched, fetched / "objects", "sha1"))
    commit = find_remote_base(git, url, inspection.asked.base)
    fetch_commit(git, url, commit)
    # git would ask the URL for blobs that were not fetched: this folder knows of no such promise.
    own = private_git(environment, inspection.scratch / "own", fetched / "objects", "sha1")
    files = _inspect_files(inspection, own, commit, git_reading(environment, fetched))
    return Found(None, commit, files)


def _private(environment: Mapping[str, str], folder: Path, checkout: Checkout) -> Git:
    objects = checkout.common / "objects"
    return private_git(environment, folder, objects, checkout.object_format)


def _inspect_files(inspection: _Inspection, own: Git, commit: str, git: Git) -> tuple[str, ...]:
    """Return the names of a commit's files; collect what runs would not see of them, and a remote
    that doesn't take the commit."""
    asked = inspection.asked
    files = _files_of(own, commit)
    found = _unseen(
        own,
        commit,
        files,
        ignores_case=ignores_case(inspection.home),
        has_lfs=lambda: _has_lfs(git, inspection.environment),
    )
    inspection.problems += [("repo", words) for what, words in found if what not in asked.accepted]
    if asked.remote is not None:
        with inspection.collecting():
            check_push(remote_git(own), asked.remote, commit)
    return tuple(file.path for file in files)


def _expect_free_branches(git: Git, job: str) -> None:
    """Raise ``Unfit`` for a branch where runs' branches need a folder
    (https://git-scm.com/docs/git-check-ref-format)."""
    for name in ("runner", f"runner/{ref_part(job)}"):
        if git.answer("rev-parse", "--verify", "-q", f"refs/heads/{name}"):
            raise Unfit(
                "repo",
                f"the branch {name!r} is in the way of runs' branches ({name}/…): rename it with "
                f"`git branch -m {name} NAME`",
            )


# --- uncommitted changes ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Changes:
    """How a checkout differs from HEAD."""

    paths: tuple[bytes, ...]  # changed or new
    nested: tuple[bytes, ...]  # repositories in it
    conflicts: tuple[bytes, ...]  # files of an unfinished merge


def _with_changes(inspection: _Inspection, checkout: Checkout, git: Git, head: str) -> str:
    """Return the commit that runs begin at: HEAD, with what is not committed where that was asked for.

    Args:
        git: with the repository's own settings.
    """
    folder = inspection.scratch / "changes"
    own = _private(inspection.environment, folder, checkout)
    _copy_index(checkout, folder, inspection.home)
    settings = (*reading_settings(git), "core.bare=false")
    own = replace(own, folder=checkout.top, settings=settings)
    own = own.having(GIT_WORK_TREE=str(checkout.top))
    found = _changes(own, head)
    if inspection.asked.uncommitted:
        if found.nested:
            inspection.notes.append(
                f"left out: repositories in the repository ({some(found.nested)})"
            )
        return _commit_changes(own, git, found, head)
    if found.paths:
        count = len(found.paths)
        files = "file is" if count == 1 else "files are"
        inspection.notes.append(
            f"{count:,} {files} changed in the repository and not committed ({some(found.paths)}): "
            "runs will not see that; commit it, or set uncommitted = true"
        )
    return head


def _copy_index(checkout: Checkout, own: Path, home: Path) -> None:
    """Copy a repository's index and its ignore list to a private git folder; ignore RUNNER_HOME."""
    for shared in checkout.git_dir.glob("sharedindex.*"):
        shutil.copyfile(shared, own / shared.name)
    if (checkout.git_dir / "index").is_file():
        # With its time: of files changed in that very moment git looks at the contents.
        shutil.copy2(checkout.git_dir / "index", own / "index")
    listing, known = checkout.common / "info" / "exclude", b""
    if listing.is_file():
        with listing.open("rb") as file:
            known = file.read(_LARGEST_EXCLUDE)
    lines = [known.rstrip(b"\n"), EXCLUDED.encode()]
    inside = os.path.relpath(home.resolve(), checkout.top)
    if inside.split("/")[0] != "..":
        lines.append(b"/" + _SPECIAL.sub(rb"\\\g<0>", os.fsencode(inside)))
    (own / "info" / "exclude").write_bytes(b"\n".join([*lines, b""]))


def _changes(git: Git, head: str) -> _Changes:
    """Return what differs from a commit in a checkout, by what git ignores there.

    Args:
        git: with a private folder that has the index, and the checkout as its work tree.
    """
    staged = git.records("diff-index", "--cached", "-z", "--name-only", head)
    changed = git.records("ls-files", "-z", "-m", "-d")
    others = git.records("ls-files", "-z", "-o", "--exclude-standard")
    new = [path for path in others if not path.endswith(b"/")]
    conflicts = [record.partition(b"\t")[2] for record in git.records("ls-files", "-z", "-u")]
    return _Changes(
        paths=tuple(dict.fromkeys((*staged, *changed, *new))),
        nested=tuple(path for path in others if path.endswith(b"/")),
        conflicts=tuple(dict.fromkeys(conflicts)),
    )


def _commit_changes(git: Git, reading: Git, found: _Changes, head: str) -> str:
    """Commit what differs from HEAD, with no ref that names it. Equal changes make equal commits.

    Args:
        git: as for ``_changes``.
        reading: git with the repository's own settings.

    Raises:
        Unfit: it cannot be made as git would make it.
    """
    if found.conflicts:
        raise Unfit(
            "uncommitted", f"a merge is not finished ({some(found.conflicts)}): finish or abort it"
        )
    index = {name: git.variables[name] for name in ("GIT_DIR", "GIT_WORK_TREE")}
    attributes = replace(reading, folder=git.folder).having(
        GIT_WORK_TREE=index["GIT_WORK_TREE"], GIT_INDEX_FILE=f"{index['GIT_DIR']}/index"
    )
    stdin = b"".join(path + b"\0" for path in found.paths)
    filters = _filters(attributes, stdin) if stdin else {}
    filtered = [path for path, name in filters.items() if name not in (b"unspecified", b"unset")]
    if filtered:
        raise Unfit(
            "uncommitted",
            f"changed files go through a filter, and none is run here ({some(filtered)}): commit them",
        )
    try:
        git.run("update-index", "--add", "--remove", "-z", "--stdin", given=stdin)
        tree = git.text("write-tree")
        if tree == git.text("rev-parse", f"{head}^{{tree}}"):
            return head
        date = git.text("log", "-1", "--format=%cd", "--date=raw", head)
        people = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in {**_AUTHOR, "DATE": date}.items()
        }
        return git.having(**people).text("commit-tree", tree, "-p", head, "-m", _MESSAGE)
    except GitError as error:
        raise Unfit("uncommitted", f"what is not committed cannot be taken: {error}") from error


def _filters(git: Git, paths: bytes, *options: str) -> dict[bytes, bytes]:
    """Return the filter that attributes give to each path."""
    told = git.run("check-attr", "-z", "--stdin", *options, "filter", given=paths)
    answers = iter(split(told))
    return {path: value for path, _, value in zip(answers, answers, answers, strict=True)}


# --- what runs would not see ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a commit, a link or a submodule."""

    mode: str
    id: str
    path: str


def _files_of(git: Git, commit: str) -> list[_File]:
    """Return the files of a commit by path."""
    found = []
    for record in git.records("ls-tree", "-r", "-z", "--full-tree", commit):
        head, _, path = record.partition(b"\t")
        mode, _, blob = head.decode().split()
        found.append(_File(mode, blob, os.fsdecode(path)))
    return sorted(found, key=lambda file: file.path)


def _unseen(
    git: Git,
    commit: str,
    files: Sequence[_File],
    *,
    ignores_case: bool,
    has_lfs: Callable[[], bool],
) -> list[tuple[Accepted, str]]:
    """Return what runs would not see as it is, and what to do about it.

    Args:
        git: with a private folder, whose index is read over.
        ignores_case: where runs' files lie, ``README`` and ``readme`` are one file.
        has_lfs: returns True if Git LFS is set up here.
    """
    found: list[tuple[Accepted, str]] = []
    if submodules := [file.path for file in files if file.mode == _SUBMODULE]:
        do = 'set setup = ["git submodule update --init"] and accept = ["submodules"]'
        words = f"has submodules ({some(submodules)}), which runs see empty: {do}"
        found.append(("submodules", words))
    if links := _links_out(git, files):
        path, target = links[0]
        words = (
            f"has links that lead out of it ({shown_path(path)} to {shown_path(target)}{_more(links)}), "
            'and what runs do there is neither theirs alone nor undone: set accept = ["links"] to '
            "bear it"
        )
        found.append(("links", words))
    if ignores_case and (pairs := clashes(file.path for file in files)):
        one, other = pairs[0]
        words = (
            f"has names that are one here, where case doesn't count ({shown_path(one)} and "
            f'{shown_path(other)}{_more(pairs)}): set accept = ["case"] if runs can do with one of '
            "each"
        )
        found.append(("case", words))
    if (pointers := _lfs_pointers(git, commit, files)) and not has_lfs():
        words = (
            f"has files in Git LFS ({some(pointers)}), which is not set up here: install git-lfs "
            'and run `git lfs install`, or set accept = ["lfs"] to have pointers in their place'
        )
        found.append(("lfs", words))
    return found


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - 1:,} more" if len(found) > 1 else ""


def clashes(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of paths that are one where case doesn't count: two files, or a file and a
    folder."""
    known: dict[str, tuple[str, bool]] = {}
    found = []
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name, is_file = "/".join(parts[:depth]), depth == len(parts)
            folded = unicodedata.normalize("NFC", name).casefold()
            first, was_file = known.setdefault(folded, (name, is_file))
            if first != name and (is_file or was_file):
                found.append((first, name))
    return found


def ignores_case(folder: Path) -> bool:
    """Return True if ``README`` and ``readme`` are one file in a folder, or where it will be made."""
    here = folder.absolute()
    while True:
        other = here.with_name(here.name.swapcase())
        if other != here and here.exists():
            return other.exists() and here.samefile(other)
        if here == here.parent:
            return False
        here = here.parent


def _links_out(git: Git, files: Sequence[_File]) -> list[tuple[str, str]]:
    """Return the links that lead out of the tree or by an absolute path, with where they lead."""
    links = [file for file in files if file.mode == _LINK]
    targets = dict(blobs(git, [file.id for file in links], _LONGEST_LINK)) if links else {}
    found = []
    for file in links:
        target = os.fsdecode(targets.get(file.id, b""))
        led = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), target))
        if led == ".." or led.startswith(("../", "/")):
            found.append((file.path, target))
    return found


def _lfs_pointers(git: Git, commit: str, files: Sequence[_File]) -> list[str]:
    """Return the files that are to go through the filter of Git LFS and are pointers."""
    rules = [file.id for file in files if posixpath.basename(file.path) == ".gitattributes"]
    if not rules or not any(b"lfs" in text for _, text in blobs(git, rules, _LONGEST_ATTRIBUTES)):
        return []
    git.run("read-tree", commit)
    paths = b"".join(os.fsencode(file.path) + b"\0" for file in files)
    filters = _filters(git, paths, "--cached")
    stored = {file.path: file.id for file in files if filters[os.fsencode(file.path)] == b"lfs"}
    if not stored:
        return []
    small = blobs(git, list(stored.values()), _LONGEST_POINTER)
    pointers = {blob for blob, text in small if text.startswith(_POINTER)}
    return [path for path, blob in stored.items() if blob in pointers]


def _has_lfs(git: Git, environment: Mapping[str, str]) -> bool:
    """Return True if checking a file out takes it from Git LFS (https://git-lfs.com)."""
    if shutil.which("git-lfs", path=environment.get("PATH")) is None:
        return False
    return git.answer("config", "--get-regexp", r"^filter\.lfs\.(smudge|process)$") is not None
