"""Snapshots of one attempt's workspace: taken, put back, sent to a remote and fetched from it.

A snapshot is a git tree of all files that git does not ignore, byte for byte as they are, and its id
is that of the tree; what a tree cannot hold is in its manifest. A file that was recorded stays
recorded when it becomes ignored, as with git's own index, until it is removed. The ignore rules that
count are the ``.gitignore`` files in the work tree, then the lists of the source's repository and of
the job, as they were at the run's first snapshot.

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
from functools import partial
from pathlib import Path
from typing import Any

from runner.workspace.folders import EXCLUDED, write_whole
from runner.workspace.git import Check, GitError, GitTimeoutError, no_check, shown
from runner.workspace.restore import Restorer, WorkTreeWriter, differences, submodules_in
from runner.workspace.snapshot_store import (
    MANIFEST,
    SOURCE_EXCLUDE,
    Manifest,
    Recorded,
    StoredSnapshots,
    ancestors,
    blob_of,
    has_trees,
    index_folder,
    manifest_in,
    store_git,
)
from runner.workspace.survey import (
    Digests,
    Surveyor,
    is_reserved,
    literal,
    pathspec,
    settle,
    unless_waiting,
)

_LARGEST_FILE = 20_000_000
_ROUNDS = 4
_MOST_NAMED = 3
_AFTER_ALL = sys.maxsize  # an attempt that nobody makes
_INDEX = re.compile(r"index-(\d+)")
_OUR_OWN = f"\n/{EXCLUDED}\n/{MANIFEST.decode()}\n".encode()


@dataclass(frozen=True, slots=True)
class _Known:
    stamp: tuple[int, int, int] | None  # changes when the index does
    manifest: bytes
    recorded: Recorded | None  # None when the index may hold another snapshot than the last


class Snapshots(StoredSnapshots):
    """The snapshots of one attempt at a run, with its workspace.

    One method at a time may be called; ``take``, ``restore`` and ``holds`` need the work tree.

    The attempt has an index: what git knows of the work tree since the last snapshot. Beside it lie
    the indexes of the run's other attempts, and the run's ignore list: the job's lines and a copy
    of the source repository's list, made at the run's first snapshot, so that only recorded files
    change what is ignored.
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
        ignore: Sequence[str] = (),
        largest_file: int = _LARGEST_FILE,
        aside: Path | None = None,
    ) -> None:
        """
        Args:
            git_dir: the store (``make_store``).
            work_tree: the run's workspace.
            run_id, attempt: the attempt, which has an index and a ref of its own in the store, so
                that others that still run do it no harm.
            environment: the environment of git.
            ignored: patterns of ignored files that are recorded all the same (``pathspec``).
            ignore: lines of the run's ignore list above those of the source's.
            largest_file: the most bytes of a file that is recorded whole; of larger ones the digest
                is.
            aside: a folder for the index and new objects, so that the store does not change.
        """
        super().__init__(git_dir, environment, run_id, attempt)
        self._root = os.fsencode(work_tree)
        self._largest, self._ignore = largest_file, ignore
        self._is_aside = aside is not None
        self._folder = aside or index_folder(git_dir, run_id)
        self._index = self._folder / f"index-{attempt}"
        self._exclude = self._folder / "exclude"
        objects = None if aside is None else aside / "objects"
        variables = {"GIT_WORK_TREE": str(work_tree), "GIT_INDEX_FILE": str(self._index)}
        settings = [f"core.excludesFile={self._exclude}"]
        git = partial(store_git, git_dir, environment, objects=objects)
        on_tree = partial(git, variables=variables, settings=settings, folder=work_tree)
        # The reader sees the source's objects; what the writer writes is whole without them. Plain
        # git needs no work tree.
        self._reader, self._writer, self._plain = on_tree(), on_tree(with_source=False), git()
        chosen, digests = [*map(pathspec, ignored)], Digests(self._root, self._folder / "digests")
        self._surveyor = Surveyor(
            self._reader, self._writer, self._root, chosen, largest_file, digests
        )
        self._known: _Known | None = None

    def take(self, check: Check = no_check, *, note: str = "", keep: Sequence[str] = ()) -> str:
        """Record the workspace and return the snapshot's id.

        Args:
            check: called several times a second.
            note: recorded with the files, and so part of the id.
            keep: commits that are kept, and pushed, with the snapshot.

        Raises:
            GitError: it cannot be recorded.
        """
        check = unless_waiting(self._root, check)
        for left in reversed(range(_ROUNDS)):
            try:
                recorded, manifest, is_same = self._learn(note, check)
                break
            except GitError as error:
                # A file that was found may have been removed before it was read: others may go on
                # working in the folder.
                if not left or isinstance(error, GitTimeoutError):
                    raise
        if is_same and recorded is not None:
            return recorded.tree
        # To the writer, which does not see them, the source's objects are missing.
        tree = self._writer.text("write-tree", "--missing-ok", check=check)
        if not self._is_aside:
            if recorded is None:
                history = self.history()
                before = history.last or history.start
                recorded = history.own or self.add(tree, before, keep, check)
            if recorded.tree != tree:
                recorded = self.add(tree, recorded, keep, check)
        self._known = _Known(self._stamp(), manifest, recorded)
        return tree

    def restore(self, snapshot: str, check: Check = no_check, *, leave_out: bool = False) -> str:
        """Put the workspace back to a snapshot.

        What was found is recorded before it, and the snapshot is this attempt's last one then.
        Ignored files are left alone, save in folders that were not there when it was taken: those are
        removed with everything in them. The snapshot's note is only recorded.

        Args:
            leave_out: leave out what the snapshot only names (``unrecorded``) and the workspace
                lacks; otherwise it cannot be put back.

        Returns:
            The snapshot of the workspace now: another where what is only named is missing, or what
            could not be read can be.

        Raises:
            GitError: it is not in the store or cannot be put back: a file over the limit, a nested
                repository or a submodule changed (nothing was changed then), or the work tree cannot
                be written.
        """
        if not self.has(snapshot):
            raise GitError(f"the tree {snapshot} is not among the snapshots of this host")
        check = unless_waiting(self._root, check)
        wanted = manifest_in(self._plain, snapshot, check)
        found = self.take(check, note=wanted.note)
        present = Manifest.from_bytes(self._indexed_manifest(check))
        restorer = Restorer(self._reader, self._surveyor, WorkTreeWriter(self._root), check)
        for _ in range(_ROUNDS):
            if found == snapshot:
                return found
            restorer.restore(found, present, snapshot, wanted, leave_out=leave_out)
            # Again if the rules of what is ignored changed: other files come to light then.
            found = self.take(check, note=wanted.note)
            present = Manifest.from_bytes(self._indexed_manifest(check))
            differing = differences(self._reader, found, snapshot, check)
            if not differing and _lacks_names_alone(present, wanted):
                return found
        # An empty folder can be hidden by rules that hide themselves, and are left alone as well.
        wanted = replace(wanted, directories=present.directories)
        if not differing and _lacks_names_alone(present, wanted):
            return found
        named = ", ".join(shown(each.path) for each in differing[:_MOST_NAMED])
        raise GitError(
            f"the workspace {shown(self._root)} was restored to tree {snapshot} but still differs "
            f"from it ({named or 'an empty folder'}): another process changes the workspace, or its "
            "file system cannot hold these files"
        )

    def has(self, snapshot: str) -> bool:
        return has_trees(self._plain, [snapshot])

    def note_of(self, snapshot: str) -> str:
        """Return the note that a snapshot was taken with. Raises ``GitError`` if it is not here."""
        return manifest_in(self._plain, snapshot).note

    def same_files(self, snapshot: str, other: str, check: Check = no_check) -> bool:
        """Return True if two snapshots differ in their notes at most. Raises ``GitError``."""
        if differences(self._reader, snapshot, other, check):
            return False
        one, two = (manifest_in(self._plain, each, check) for each in (snapshot, other))
        return replace(one, note="") == replace(two, note="")

    def unrecorded(self, snapshot: str, check: Check = no_check) -> list[bytes]:
        """Return what is not in a snapshot of the workspace, ignored files aside: repositories of
        their own, what could not be read, submodules with files. Raises ``GitError`` if it is not
        here."""
        named = manifest_in(self._plain, snapshot, check).unrecorded
        submodules = submodules_in(self._plain, snapshot, check)
        filled = (
            path for path in submodules if os.path.lexists(self._root + b"/" + path + b"/.git")
        )
        return sorted({*named, *filled})

    def holds(self, path: str | Path) -> bool:
        """Return True if a snapshot would hold the file at a path, existing or not: False for what
        is ignored (unless it is recorded and exists), too large, nested or outside the
        workspace."""
        root = os.path.realpath(self._root)
        real = os.path.realpath(os.path.join(root, os.fsencode(path)))  # noqa: PTH118 - bytes
        inner = real.removeprefix(root + b"/")
        is_gits_own = any(part.lower() == b".git" for part in inner.split(b"/"))
        if inner == real or is_reserved(inner) or is_gits_own:
            return False
        if any(os.path.lexists(root + b"/" + above + b"/.git") for above in ancestors([inner])):
            return False
        with suppress(OSError):
            if os.lstat(real).st_size > self._largest:
                return False
        check = unless_waiting(self._root, no_check)
        self._begin(check)
        if self._reader.run("ls-files", "-z", "--", literal(inner), check=check):
            return True
        ignored = self._surveyor.ignored_among([inner], check)
        return not ignored or inner in self._surveyor.chosen(check)

    # --- the index --------------------------------------------------------------------------------

    def _learn(self, note: str, check: Check) -> tuple[Recorded | None, bytes, bool]:
        """Update the index from the work tree. Returns what was recorded of it, the new manifest,
        and True if nothing has changed."""
        known = self._begin(check)
        found = self._surveyor.survey(check)
        manifest = found.manifest(note).to_bytes()
        is_same = not (found.left or found.changed) and manifest == known.manifest
        if not is_same or known.recorded is None:
            self._update(found.changed, known.manifest, manifest, check)
        return known.recorded, manifest, is_same

    def _begin(self, check: Check) -> _Known:
        """Make the index unless it is there, from an earlier attempt's, the last snapshot or the
        beginning; remove leftovers of a killed git. Return what it holds."""
        work_tree = self._reader.folder
        if work_tree.is_symlink():
            raise GitError(
                f"a link has replaced the workspace {shown(self._root)}, and Runner does not follow it: "
                "remove the link, then retry the run to restore its files"
            )
        if not work_tree.is_dir():
            raise GitError(f"the workspace {shown(self._root)} is gone: it was removed or moved")
        try:
            self._unlock(self._attempt)
            Path(f"{self._index}.lock").unlink(missing_ok=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._exclude.exists():
                listed = b""
                with suppress(FileNotFoundError):  # the source is no repository
                    listed = (self._store / SOURCE_EXCLUDE).read_bytes()
                ours = "".join(f"{line}\n" for line in self._ignore).encode()
                write_whole(self._exclude, ours + listed + _OUR_OWN)
            draft = self._folder / f"new-{self._attempt}"
            if not self._index.exists() and (
                self._copy_earlier(draft, check) or self._read_last(draft, check)
            ):
                draft.replace(self._index)
        except OSError as error:
            raise GitError(f"cannot write {self._folder}: {error.strerror or error}") from error
        stamp = self._stamp()
        if self._known is None or self._known.stamp != stamp:
            self._known = _Known(stamp, self._indexed_manifest(check), None)
        return self._known

    def _copy_earlier(self, draft: Path, check: Check) -> bool:
        """Copy the index of the attempt before; return False if none can be read."""
        earlier = _newest_index(self._folder, int(self._attempt))
        if earlier is None:
            return False
        # With its time: a newer one would pass off as settled what git must look at again.
        shutil.copy2(earlier, draft)
        try:
            git = self._reader.having(GIT_INDEX_FILE=str(draft))
            git.run("ls-files", "--", MANIFEST, check=check)
        except GitError:  # unused for so long that git removed the part it shares with others
            return False
        return True

    def _read_last(self, draft: Path, check: Check) -> bool:
        """Make an index from the last snapshot; return False if there is none."""
        history = self.history()
        begun = history.last or history.start
        if begun is None:
            return False
        draft.unlink(missing_ok=True)
        git = self._reader.having(GIT_INDEX_FILE=str(draft))
        whole = replace(git, settings=(*git.settings, "core.splitIndex=false"))
        whole.run("read-tree", begun.commit, check=check)
        git.run("update-index", "-q", "--refresh", check=check, accept=(0, 1))
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a value that changes when the index does, None if there is no index."""
        try:
            status = self._index.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _indexed_manifest(self, check: Check) -> bytes:
        """Return the manifest that the index holds, as a file; empty if it holds none."""
        return blob_of(self._plain, self._reader.run("ls-files", "-s", "-z", "--", MANIFEST), check)

    def _update(
        self, changed: Collection[bytes], before: bytes, manifest: bytes, check: Check
    ) -> None:
        """Read changed files into the index, and the manifest if it is another than before."""
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


@contextmanager
def looking(git_dir: Path, work_tree: Path, run_id: str, **options: Any) -> Iterator[Snapshots]:
    """Yield ``Snapshots`` that are taken for their ids alone, while others may look, and are gone
    at the end. Raises ``OSError`` if there is no room for them."""
    with tempfile.TemporaryDirectory(prefix="runner-look-") as name:
        aside, folder = Path(name), index_folder(git_dir, run_id)
        (aside / "objects").mkdir()
        with suppress(FileNotFoundError):  # none was taken, or a newer attempt takes its place
            # With its index git knows which files are as they were, without reading them.
            newest = _newest_index(folder, _AFTER_ALL)
            for file in (folder / "exclude", folder / "digests", newest):
                if file is not None and file.exists():
                    shutil.copy2(file, aside / file.name)
        yield Snapshots(git_dir, work_tree, run_id, _AFTER_ALL, aside=aside, **options)


def _newest_index(folder: Path, before: int) -> Path | None:
    """Return the index of the newest attempt before one. Raises ``OSError``."""
    found = (_INDEX.fullmatch(path.name) for path in folder.iterdir())
    attempts = [int(match[1]) for match in found if match and int(match[1]) < before]
    return folder / f"index-{max(attempts)}" if attempts else None


def _lacks_names_alone(present: Manifest, wanted: Manifest) -> bool:
    """Return True if a manifest lacks nothing but paths that the wanted one only names."""
    return (
        present.unrecorded <= wanted.unrecorded
        and replace(present, unrecorded=wanted.unrecorded) == wanted
    )
