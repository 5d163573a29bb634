"""Snapshots of one attempt's workspace: taken, put back, sent to a remote and fetched from it.

A snapshot is a git tree of all files that git does not ignore, byte for byte as they are; what a tree
cannot hold is in its manifest. A file that was recorded stays recorded when it becomes ignored, as
with git's own index, until it is removed. Which ignore rules count: the ``.gitignore`` files in the
work tree and the list of the source's repository, as it was at the run's first snapshot.

Not recorded: what is ignored, permissions other than the right to run a file, times, owners, pipes
and sockets, and what is in nested repositories and submodules.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.workspace.folders import EXCLUDED
from runner.workspace.git import Check, Git, GitError, GitTimeoutError, shown
from runner.workspace.restore import Restorer, changes_between, submodules_in
from runner.workspace.snapshot_store import (
    MANIFEST,
    SOURCE_EXCLUDE,
    Line,
    Manifest,
    Recorded,
    Refs,
    ancestors,
    store_git,
)
from runner.workspace.survey import Surveyor, is_reserved, literal, settle, unless_waiting

_INDEX = re.compile(r"index-(\d+)")


_OUR_OWN = f"/{EXCLUDED}\n/{MANIFEST.decode()}\n".encode()


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """Where the index of an attempt lies, among those of the run's other attempts.

    ``exclude`` is the run's ignore list: that of the source's repository as it was at the run's first
    snapshot, so that what is ignored changes only with files that are recorded themselves.
    """

    folder: Path
    attempt: int

    @property
    def index(self) -> Path:
        return self.folder / f"index-{self.attempt}"

    @property
    def exclude(self) -> Path:
        return self.folder / "exclude"

    @property
    def draft(self) -> Path:
        return self.folder / f"new-{self.attempt}"

    def stamp(self) -> tuple[int, int, int] | None:
        """What tells whether the index is still the same; None when there is none."""
        try:
            status = self.index.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def earlier(self) -> Path | None:
        """The index of the newest attempt before this one. Raises ``OSError``."""
        found = (_INDEX.fullmatch(path.name) for path in self.folder.iterdir())
        numbers = [int(match[1]) for match in found if match and int(match[1]) < self.attempt]
        return self.folder / f"index-{max(numbers)}" if numbers else None


def index_folder(store: Path, run_id: str) -> Path:
    """Where the indexes of a run's attempts lie."""
    return store / "runs" / run_id


class Index:
    """Reads and writes the index of one attempt.

    Args:
        reader, writer: git with the work tree and this index; the first sees the source's objects.
    """

    def __init__(
        self,
        files: IndexFiles,
        store: Path,
        reader: Git,
        writer: Git,
        root: bytes,
    ) -> None:
        self._files = files
        self._store = store
        self._reader = reader
        self._writer = writer
        self._root = root

    def make(self, refs: Refs, check: Check) -> None:
        """Have the index: made of an earlier attempt's, of the last snapshot, or of what the
        workspace began as, so that only what changed since is read. What a killed git left of its
        work on it goes.

        Raises:
            GitError: it cannot be made.
        """
        files = self._files
        try:
            refs.unlock()
            Path(f"{files.index}.lock").unlink(missing_ok=True)
            files.folder.mkdir(parents=True, exist_ok=True)
            if files.index.exists():
                return
            if not files.exclude.exists():
                files.draft.write_bytes(self._exclude_list())
                files.draft.replace(files.exclude)
            if not self._copy(check):
                self._read(refs.read(), check)
        except OSError as error:
            raise GitError(f"cannot write {files.folder}: {error.strerror or error}") from error

    def manifest(self, check: Check) -> bytes:
        """The manifest that it holds; empty when it holds none."""
        return self._content(self._reader.run("ls-files", "-s", "-z", "--", MANIFEST), check)

    def manifest_of(self, tree: str, check: Check) -> bytes:
        """The manifest of a recorded tree."""
        return self._content(self._beside().run("ls-tree", "-z", tree, "--", MANIFEST), check)

    def update(
        self, changed: Collection[bytes], before: bytes, manifest: bytes, check: Check
    ) -> None:
        """Have it learn the content of files, and the manifest when it is another."""
        options: list[str | bytes] = ["update-index", "-z", "--add", "--replace"]
        if manifest and manifest != before:
            made = self._writer.run("hash-object", "-w", "--stdin", given=manifest, check=check)
            options += ["--cacheinfo", b"100644," + made.strip() + b"," + MANIFEST]
        elif before and not manifest:
            self._writer.run("update-index", "--force-remove", MANIFEST, check=check)
        if changed or manifest != before:
            settle(self._root, changed, check)
            given = b"\0".join(sorted(changed))
            self._writer.run(*options, "--remove", "--stdin", given=given, check=check)

    def write_tree(self, check: Check) -> str:
        """The id of the tree that it holds, which is in the store then."""
        # The source's objects, which this git does not see, are missing to it.
        return self._writer.run("write-tree", "--missing-ok", check=check).decode().strip()

    def _copy(self, check: Check) -> bool:
        """Copy the index of the attempt before; False when there is none that can be read."""
        earlier, draft = self._files.earlier(), self._files.draft
        if earlier is None:
            return False
        # With its time: a newer one would pass off as settled what git must look at again.
        shutil.copy2(earlier, draft)
        try:
            self._git_on(draft).run("ls-files", "--", MANIFEST, check=check)
        except (
            GitError
        ):  # it was not used for so long that git removed the part it shares with others
            return False
        draft.replace(self._files.index)
        return True

    def _read(self, line: Line, check: Check) -> None:
        begun = line.last or line.start
        if begun is None:
            return
        self._files.draft.unlink(missing_ok=True)
        git = self._git_on(self._files.draft, in_work_tree=True)
        whole = replace(git, settings=(*git.settings, "core.splitIndex=false"))
        whole.run("read-tree", begun.commit, check=check)
        git.run("update-index", "-q", "--refresh", check=check, accept=(0, 1))
        self._files.draft.replace(self._files.index)

    def _git_on(self, index: Path, *, in_work_tree: bool = False) -> Git:
        variables = {**self._reader.variables, "GIT_INDEX_FILE": str(index)}
        folder = self._reader.folder if in_work_tree else self._store
        return replace(self._reader, variables=variables, folder=folder)

    def _exclude_list(self) -> bytes:
        try:
            listed = (self._store / SOURCE_EXCLUDE).read_bytes()
        except FileNotFoundError:  # the source is no repository
            listed = b""
        return listed + b"\n" + _OUR_OWN

    def _content(self, listed: bytes, check: Check) -> bytes:
        """The content of the one file in a listing of an index or a tree."""
        if not listed:
            return b""
        about = listed.partition(b"\t")[0].split(b" ")
        blob = about[2] if about[1] == b"blob" else about[1]
        return self._beside().run("cat-file", "blob", blob, check=check)

    def _beside(self) -> Git:
        """git that reads objects, also where there is no work tree."""
        variables = {**self._reader.variables}
        for name in ("GIT_WORK_TREE", "GIT_INDEX_FILE"):
            variables.pop(name, None)
        return replace(self._reader, folder=self._store, variables=variables)


LARGEST_FILE = 20_000_000


_ROUNDS = 4


_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Known:
    """What the index was left with; ``stamp`` tells whether it is still that one, and ``recorded``
    is None when it may hold another tree than the one recorded last."""

    stamp: tuple[int, int, int] | None
    manifest: bytes
    recorded: Recorded | None


class Snapshots:
    """The snapshots of one attempt at a run. One method at a time; those that take, put back or look
    (``holds``) need the work tree, the others don't.

    Args:
        git_dir: the store (``make_store``).
        work_tree: the run's workspace.
        run_id, attempt: the attempt, which has an index and a ref of its own in the store, so that
            others that still run do it no harm.
        environment: what git runs in (``tool_environment``).
        ignored: patterns of ignored files that are recorded all the same.
        largest_file: the most bytes of a file that is recorded whole; of larger ones only the digest.
        aside: a folder for the index and for new objects: the store stays as it is then
            (``runner.workspace.looking``).
    """

    def __init__(
        self,
        git_dir: Path,
        work_tree: Path,
        run_id: str,
        attempt: int,
        *,
        environment: Mapping[str, str],
        ignored: Sequence[str] = (),
        largest_file: int = LARGEST_FILE,
        aside: Path | None = None,
    ) -> None:
        self._store = git_dir
        self._work_tree = work_tree
        self._environment = environment
        self._root = os.fsencode(work_tree)
        self._largest = largest_file
        self._aside = aside
        self._files = IndexFiles(aside or index_folder(git_dir, run_id), attempt)
        self._refs = Refs(git_dir, environment, run_id, attempt)
        self._reader = self._git(self._objects(), with_source=True)
        writer = self._git(self._objects(), with_source=False)
        self._index = Index(self._files, git_dir, self._reader, writer, self._root)
        digests = self._files.folder / "digests"
        self._surveyor = Surveyor(self._reader, writer, self._root, ignored, largest_file, digests)
        self._known: _Known | None = None

    def take(self, check: Check = lambda: None, *, note: str = "", keep: Sequence[str] = ()) -> str:
        """Record the workspace as it is.

        Args:
            check: called several times a second; what it raises ends the taking.
            note: what else is to be recorded with it, and so is part of the tree's id.
            keep: commits that are kept, and pushed, with the snapshot.

        Returns:
            The id of the tree.

        Raises:
            GitError: it cannot be recorded.
        """
        check = unless_waiting(self._root, check)
        for left in reversed(range(_ROUNDS)):
            try:
                recorded, manifest, same = self._learn(note, check)
                break
            except GitError as error:
                # A file that was found may have been removed before it was read: whoever else works in
                # the folder goes on meanwhile.
                if not left or isinstance(error, GitTimeoutError):
                    raise
        if same and recorded is not None:
            return recorded.tree
        tree = self._index.write_tree(check)
        if self._aside is None:
            if recorded is None:
                line = self._refs.read()
                recorded = line.own or self._refs.add(tree, line.last or line.start, keep, check)
            if recorded.tree != tree:
                recorded = self._refs.add(tree, recorded, keep, check)
        self._known = _Known(self._files.stamp(), manifest, recorded)
        return tree

    def restore(self, tree: str, check: Check = lambda: None, *, leave_out: bool = False) -> str:
        """Put the workspace back to a recorded tree; it is this attempt's last one then, and so is
        what was found before it.

        Ignored files are left alone, save in folders that were not there when the tree was recorded:
        those go with all that is in them. The tree's note only stays in what is recorded.

        Args:
            leave_out: what the tree only names (``unrecorded``) and is not there is left out;
                otherwise it cannot be put back.

        Returns:
            The tree that the workspace is at: another where what is only named is missing, or what
            could not be read can be.

        Raises:
            GitError: it is not in the store or cannot be put back: a file over the limit, a nested
                repository or a submodule changed (nothing was changed then), or the work tree cannot
                be written.
        """
        if not self.has(tree):
            raise GitError(f"the tree {tree} is not among the snapshots of this host")
        check = unless_waiting(self._root, check)
        wanted = Manifest.from_bytes(self._index.manifest_of(tree, check))
        found = self.take(check, note=wanted.note)
        for _ in range(_ROUNDS):
            if found == tree:
                return found
            present = Manifest.from_bytes(self._index.manifest(check))
            restorer = Restorer(self._reader, self._surveyor, self._root, check)
            restorer.put_back(found, present, tree, wanted, leave_out=leave_out)
            # Once more when the rules of what is ignored changed: others come to light then.
            found = self.take(check, note=wanted.note)
            if self._lacks_names_alone(found, tree, wanted, check):
                return found
        # An empty folder can be hidden by rules that hide themselves, and are left alone as well.
        if self._lacks_names_alone(
            found, tree, replace(wanted, directories=self._empty(check)), check
        ):
            return found
        raise GitError(self._differs(found, tree, check))

    def _lacks_names_alone(self, found: str, tree: str, wanted: Manifest, check: Check) -> bool:
        present = Manifest.from_bytes(self._index.manifest(check))
        if not present.unrecorded <= wanted.unrecorded:
            return False
        if replace(present, unrecorded=wanted.unrecorded) != wanted:
            return False
        return not changes_between(self._reader, found, tree, check)

    def _empty(self, check: Check) -> frozenset[bytes]:
        return Manifest.from_bytes(self._index.manifest(check)).directories

    def has(self, tree: str) -> bool:
        """Whether a tree is in the store."""
        given = f"{tree}^{{tree}}\n".encode()
        git = self._plain_git()
        return git.run("cat-file", "--batch-check=%(objecttype)", given=given) == b"tree\n"

    def note_of(self, tree: str) -> str:
        """The note that a tree was recorded with.

        Raises:
            GitError: it is not in the store.
        """
        manifest = self._index.manifest_of(tree, lambda: None)
        return Manifest.from_bytes(manifest).note

    def same_files(self, tree: str, other: str, check: Check = lambda: None) -> bool:
        """Whether two recorded trees differ in nothing but their notes.

        Raises:
            GitError: they are not in the store.
        """
        if changes_between(self._reader, tree, other, check):
            return False
        contents = (self._index.manifest_of(each, check) for each in (tree, other))
        one, two = (replace(Manifest.from_bytes(content), note="") for content in contents)
        return one == two

    def unrecorded(self, tree: str, check: Check = lambda: None) -> list[bytes]:
        """What was in the workspace when a tree was recorded and is not in it, ignored files aside:
        repositories of their own, what could not be read, and submodules, if they are filled now.

        Raises:
            GitError: it is not in the store.
        """
        manifest = Manifest.from_bytes(self._index.manifest_of(tree, check))
        filled = (
            path
            for path in submodules_in(self._plain_git(), tree, check)
            if os.path.lexists(self._root + b"/" + path + b"/.git")
        )
        return sorted({*manifest.unrecorded, *filled})

    def holds(self, path: str | Path) -> bool:
        """Whether a snapshot taken now would hold the file at a path, or would if it were there;
        false for what is ignored, too large, in a nested repository or outside the workspace. Of
        ignored files that are recorded all the same only those that are there count."""
        root = os.path.realpath(self._root)
        real = os.path.realpath(os.path.join(root, os.fsencode(path)))  # noqa: PTH118 - bytes
        inner = real.removeprefix(root + b"/")
        if inner == real or is_reserved(inner) or _is_nested(root, inner):
            return False
        with suppress(OSError):
            if os.lstat(real).st_size > self._largest:
                return False
        check = unless_waiting(self._root, lambda: None)
        self._begin(check)
        if self._reader.run("ls-files", "-z", "--", literal(inner), check=check):
            return True
        ignored = self._surveyor.ignored_among([inner], check)
        return not ignored or self._surveyor.would_choose(inner, check)

    def last(self) -> str | None:
        """The tree that this host recorded last for the run, in any attempt."""
        last = self._refs.read().last
        return None if last is None else last.tree

    def all_last(self) -> set[str]:
        """The trees that this host's attempts at the run recorded last, each its own."""
        return self._refs.trees()

    def start(self, commit: str) -> None:
        """Say which commit the workspace began as: the first snapshot's parent, so that a remote that
        has it is sent little.

        Raises:
            GitError: there is no such commit.
        """
        self._refs.start(commit)

    def push(self, remote: str, check: Check = lambda: None) -> None:
        """Send all snapshots of the run to a remote, as ``refs/runner/runs/<run>/<attempt>``.

        Raises:
            GitError: the remote does not take them.
        """
        self._refs.push(remote, check)

    def fetch(self, remote: str, check: Check = lambda: None) -> None:
        """Get all snapshots of the run from a remote. They don't count as recorded here.

        Raises:
            GitError: the remote does not give them.
        """
        self._refs.fetch(remote, check)

    def _learn(self, note: str, check: Check) -> tuple[Recorded | None, bytes, bool]:
        """Have the index learn what the work tree holds.

        Returns:
            What was recorded of the index before, the manifest of what is there now, and whether both
            are the same.
        """
        known = self._begin(check)
        found, left = self._surveyor.survey(check)
        manifest = found.manifest(note).to_bytes()
        same = not (left or found.changed) and manifest == known.manifest
        if not same or known.recorded is None:
            self._index.update(found.changed, known.manifest, manifest, check)
        return known.recorded, manifest, same

    def _plain_git(self) -> Git:
        return store_git(self._store, self._environment, objects=self._objects())

    def _objects(self) -> Path | None:
        return None if self._aside is None else self._aside / "objects"

    def _git(self, objects: Path | None, *, with_source: bool) -> Git:
        settings = [f"core.excludesFile={self._files.exclude}"]
        if self._aside is not None:
            settings.append("core.splitIndex=false")  # its parts lie in the store
        return store_git(
            self._store,
            self._environment,
            variables={
                "GIT_WORK_TREE": str(self._work_tree),
                "GIT_INDEX_FILE": str(self._files.index),
            },
            settings=settings,
            folder=self._work_tree,
            with_source=with_source,
            objects=objects,
        )

    def _begin(self, check: Check) -> _Known:
        """Have an index, and know what it was left with."""
        if self._work_tree.is_symlink():
            raise GitError(
                f"a link is in the place of the workspace {shown(self._root)}, and is not followed: "
                "remove it, and retry the run to have its files put back"
            )
        if not self._work_tree.is_dir():
            raise GitError(f"the workspace {shown(self._root)} is gone: it was removed or moved")
        self._index.make(self._refs, check)
        stamp = self._files.stamp()
        if self._known is None or self._known.stamp != stamp:
            self._known = _Known(stamp, self._index.manifest(check), None)
        return self._known

    def _differs(self, found: str, tree: str, check: Check) -> str:
        paths = [change.path for change in changes_between(self._reader, found, tree, check)]
        named = ", ".join(map(shown, paths[:_MOST_NAMED])) or "an empty folder"
        return (
            f"the workspace {shown(self._root)} was put back to tree {tree} but still differs from it "
            f"({named}): something else changes it, or its file system cannot hold it"
        )


def _is_nested(root: bytes, path: bytes) -> bool:
    """Whether a path is in a repository inside the one at ``root``, or is git's own."""
    if any(part.lower() == b".git" for part in path.split(b"/")):
        return True
    return any(os.path.lexists(root + b"/" + folder + b"/.git") for folder in ancestors([path]))


_AFTER_ALL = sys.maxsize  # an attempt that nobody makes


@contextmanager
def looking(
    git_dir: Path,
    work_tree: Path,
    run_id: str,
    *,
    environment: Mapping[str, str],
    ignored: Sequence[str],
    largest_file: int,
) -> Iterator[Snapshots]:
    """Snapshots that are taken for their ids alone, and are gone at the end.

    Args:
        git_dir: the store; for the others see ``Snapshots``.

    Raises:
        OSError: there is no room for them.
    """
    with tempfile.TemporaryDirectory(prefix="runner-look-") as folder:
        aside = Path(folder)
        (aside / "objects").mkdir()
        _copy_newest(IndexFiles(index_folder(git_dir, run_id), _AFTER_ALL), aside)
        yield Snapshots(
            git_dir,
            work_tree,
            run_id,
            _AFTER_ALL,
            environment=environment,
            ignored=ignored,
            largest_file=largest_file,
            aside=aside,
        )


def _copy_newest(files: IndexFiles, aside: Path) -> None:
    """With its index git knows which files are as they were, without reading them."""
    with suppress(FileNotFoundError):  # none was taken, or a newer attempt takes its place
        newest = files.earlier()
        for file in (files.exclude, files.folder / "digests"):
            if file.exists():
                shutil.copy2(file, aside / file.name)
        if newest is not None:
            shutil.copy2(newest, aside / newest.name)
