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
from runner.workspace import source
from runner.workspace.folders import EXCLUDED
from runner.workspace.git import Git, GitError, split
from runner.workspace.repository import BASES, RUNNER, RUNNERS_ADDRESS, ref_part
from runner.workspace.source import Unfit, shown_path, some

_LINK, _SUBMODULE = "120000", "160000"
_LONGEST_LINK = 4_096
_LONGEST_ATTRIBUTES = 1_000_000
_LONGEST_POINTER = 1_024  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md#the-pointer
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_EXCLUDE = 1 << 20  # bytes
_SPECIAL = re.compile(rb"[*?\[\]\\!# ]")  # in a list of ignored files
_MESSAGE = "Uncommitted changes, as a job began with them"


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
                found = inspection.of_url() if asked.is_url else inspection.of_checkout()
            except (GitError, OSError) as error:
                raise Unfit("repo", f"{asked.source} cannot be read: {error}") from error
        problems, notes = tuple(inspection.problems), tuple(inspection.notes)
        return replace(found, problems=problems, notes=notes)


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
        checkout = source.find_checkout(Path(workspace.source), environment)
        git = source.git_reading(environment, checkout.git_dir)
        if not git.text("for-each-ref", "--count=1", f"--contains={commit}"):
            git.run("update-ref", f"{BASES}{commit}", commit)
        if workspace.remote is None:
            return
        with tempfile.TemporaryDirectory(prefix="runner-") as scratch:
            own = source.private_git(
                environment, Path(scratch, "own"), checkout.objects, checkout.object_format
            )
            source.push_base(source.remote_git(own), workspace.remote, commit)
    except RunnerError as error:
        raise UsageError(
            f"nothing is submitted: the base {commit} cannot be kept: {error}"
        ) from error


@dataclass(slots=True)
class _Inspection:
    asked: Asked
    home: Path
    environment: Mapping[str, str]
    scratch: Path  # a folder for it alone
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect an ``Unfit`` error as a problem instead of raising it."""
        try:
            yield
        except Unfit as error:
            self.problems.append((error.key, str(error)))

    def of_checkout(self) -> Found:
        asked = self.asked
        checkout = source.find_checkout(Path(asked.source), self.environment)
        git = source.git_reading(self.environment, checkout.git_dir)
        with self.collecting():
            # A ref cannot be a folder of refs (https://git-scm.com/docs/git-check-ref-format).
            for name in ("runner", f"runner/{ref_part(asked.job)}"):
                if git.answer("rev-parse", "--verify", "-q", f"refs/heads/{name}"):
                    raise Unfit(
                        "repo",
                        f"the branch {name!r} is in the way of runs' branches ({name}/…): rename it "
                        f"with `git branch -m {name} NAME`",
                    )
        head = git.answer("rev-parse", "--verify", "-q", "HEAD^{commit}")
        commit = ""
        with self.collecting():
            commit = source.resolve_base(git, asked.base, uncommitted=asked.uncommitted)
        with self.collecting():
            if asked.remote and git.text("rev-parse", "--is-shallow-repository") == "true":
                raise Unfit(
                    "remote",
                    "the repository is a shallow clone, which cannot be pushed: run "
                    "`git fetch --unshallow`",
                )
        if commit and commit == head:
            with self.collecting():
                commit = self._with_changes(checkout, git, head)
        own = self._private("own", checkout.objects, checkout.object_format)
        return Found(str(checkout.top), commit, self._files(own, commit, git) if commit else ())

    def of_url(self) -> Found:
        url, fetched = self.asked.source, self.scratch / "fetched"
        git = source.remote_git(self._private("fetched", fetched / "objects"))
        commit = source.find_remote_base(git, url, self.asked.base)
        source.fetch_commit(git, url, commit)
        # git would ask the URL for blobs that were not fetched: this folder knows of no such promise.
        own = self._private("own", fetched / "objects")
        return Found(
            None, commit, self._files(own, commit, source.git_reading(self.environment, fetched))
        )

    def _private(self, name: str, objects: Path, object_format: str = "sha1") -> Git:
        return source.private_git(self.environment, self.scratch / name, objects, object_format)

    def _files(self, own: Git, commit: str, git: Git) -> tuple[str, ...]:
        """Return the names of a commit's files; collect what runs would not see, and a remote that
        refuses it. ``own`` has a private folder, ``git`` the repository's own settings."""
        files = []
        for record in own.records("ls-tree", "-r", "-z", "--full-tree", commit):
            about, _, path = record.partition(b"\t")
            mode, _, blob = about.decode().split()
            files.append(_File(mode, blob, os.fsdecode(path)))
        files.sort(key=lambda file: file.path)

        def has_lfs() -> bool:
            """Return True if checking a file out takes it from Git LFS (https://git-lfs.com)."""
            if shutil.which("git-lfs", path=self.environment.get("PATH")) is None:
                return False
            filters = r"^filter\.lfs\.(smudge|process)$"
            return git.answer("config", "--get-regexp", filters) is not None

        found = _unseen(own, commit, files, ignores_case(self.home), has_lfs)
        accepted, remote = self.asked.accepted, self.asked.remote
        self.problems += [("repo", words) for what, words in found if what not in accepted]
        if remote is not None:
            with self.collecting():
                source.check_push(source.remote_git(own), remote, commit)
        return tuple(file.path for file in files)

    def _with_changes(self, checkout: source.Checkout, git: Git, head: str) -> str:
        """Return the commit that runs begin at: HEAD, with uncommitted changes if requested."""
        own = self._private("changes", checkout.objects, checkout.object_format)
        _copy_index(checkout, own.folder, self.home)
        settings = (*source.reading_settings(git), "core.bare=false")
        own = replace(own, folder=checkout.top, settings=settings)
        own = own.having(GIT_WORK_TREE=str(checkout.top))
        staged = own.records("diff-index", "--cached", "-z", "--name-only", head)
        changed = own.records("ls-files", "-z", "-m", "-d")
        others = own.records("ls-files", "-z", "-o", "--exclude-standard")
        nested = [path for path in others if path.endswith(b"/")]
        new = [path for path in others if not path.endswith(b"/")]
        paths = list(dict.fromkeys([*staged, *changed, *new]))
        if self.asked.uncommitted:
            if nested:
                words = f"left out: repositories in the repository ({some(nested)})"
                self.notes.append(words)
            return _commit_changes(own, git, paths, head)
        job_file = os.fsencode(self.asked.file)
        unseen = [
            path for path in paths if os.fsencode(checkout.top / os.fsdecode(path)) != job_file
        ]
        if unseen:
            files = "1 file is" if len(unseen) == 1 else f"{len(unseen):,} files are"
            self.notes.append(
                f"{files} changed in the repository and not committed ({some(unseen)}): "
                "runs will not see that; commit it, or set uncommitted = true"
            )
        return head


def _copy_index(checkout: source.Checkout, own: Path, home: Path) -> None:
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


def _commit_changes(git: Git, reading: Git, paths: Sequence[bytes], head: str) -> str:
    """Commit what differs from HEAD, with no ref that names it. Equal changes make equal commits.

    Args:
        git: with a private folder that has the index, and the checkout as its work tree.
        reading: git with the repository's own settings.

    Raises:
        Unfit: it cannot be made as git would make it.
    """
    unmerged = [record.partition(b"\t")[2] for record in git.records("ls-files", "-z", "-u")]
    if conflicts := list(dict.fromkeys(unmerged)):
        raise Unfit(
            "uncommitted", f"a merge is not finished ({some(conflicts)}): finish or abort it"
        )
    attributes = replace(reading, folder=git.folder).having(
        GIT_WORK_TREE=git.variables["GIT_WORK_TREE"],
        GIT_INDEX_FILE=f"{git.variables['GIT_DIR']}/index",
    )
    stdin = b"".join(path + b"\0" for path in paths)
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
        signed = git.signed(RUNNER, RUNNERS_ADDRESS, DATE=date)
        return signed.text("commit-tree", tree, "-p", head, "-m", _MESSAGE)
    except GitError as error:
        raise Unfit("uncommitted", f"what is not committed cannot be taken: {error}") from error


def _filters(git: Git, paths: bytes, *options: str) -> dict[bytes, bytes]:
    told = git.run("check-attr", "-z", "--stdin", *options, "filter", given=paths)
    answers = iter(split(told))
    return {path: value for path, _, value in zip(answers, answers, answers, strict=True)}


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a commit, a link or a submodule."""

    mode: str
    id: str
    path: str


def _unseen(
    git: Git, commit: str, files: Sequence[_File], ignores_case: bool, has_lfs: Callable[[], bool]
) -> Iterator[tuple[Accepted, str]]:
    """Yield files that runs would see differently, with advice: ``ignores_case`` if ``README`` is
    ``readme``, ``has_lfs`` if Git LFS is set up here."""
    if submodules := [file.path for file in files if file.mode == _SUBMODULE]:
        do = 'set setup = ["git submodule update --init"] and accept = ["submodules"]'
        yield "submodules", f"has submodules ({some(submodules)}), which runs see empty: {do}"
    if links := _links_out(git, files):
        led = f"{shown_path(links[0][0])} to {shown_path(links[0][1])}{_more(links)}"
        yield (
            "links",
            f"has links that lead out of it ({led}), and what runs do there is neither theirs alone "
            'nor undone: set accept = ["links"] to bear it',
        )
    if ignores_case and (pairs := clashes(file.path for file in files)):
        both = f"{shown_path(pairs[0][0])} and {shown_path(pairs[0][1])}{_more(pairs)}"
        yield (
            "case",
            f"has names that are one here, where case doesn't count ({both}): set accept = "
            '["case"] if runs can do with one of each',
        )
    if (pointers := _lfs_pointers(git, commit, files)) and not has_lfs():
        yield (
            "lfs",
            f"has files in Git LFS ({some(pointers)}), which is not set up here: install git-lfs "
            'and run `git lfs install`, or set accept = ["lfs"] to have pointers in their place',
        )


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - 1:,} more" if len(found) > 1 else ""


def clashes(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of paths, two files or a file and a folder, that differ only in case."""
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
    path = folder.absolute()
    for here in (path, *path.parents):
        other = here.parent / here.name.swapcase()
        if other != here and here.exists():
            return other.exists() and here.samefile(other)
    return False


def _links_out(git: Git, files: Sequence[_File]) -> list[tuple[str, str]]:
    """Return the links that lead out of the tree or by an absolute path, with where they lead."""
    links = [file for file in files if file.mode == _LINK]
    targets = dict(source.blobs(git, [file.id for file in links], _LONGEST_LINK))
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
    texts = source.blobs(git, rules, _LONGEST_ATTRIBUTES)
    if not any(b"lfs" in text for _, text in texts):
        return []
    git.run("read-tree", commit)
    paths = b"".join(os.fsencode(file.path) + b"\0" for file in files)
    filters = _filters(git, paths, "--cached")
    stored = {file.path: file.id for file in files if filters[os.fsencode(file.path)] == b"lfs"}
    small = source.blobs(git, list(stored.values()), _LONGEST_POINTER)
    pointers = {blob for blob, text in small if text.startswith(_POINTER)}
    return [path for path, blob in stored.items() if blob in pointers]
