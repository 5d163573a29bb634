"""The index of one attempt: what git knows of the work tree since the last snapshot."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from runner.workspace.git import Check, Git, GitError
from runner.workspace.identity import EXCLUDED
from runner.workspace.trees.manifest import MANIFEST
from runner.workspace.trees.refs import Line, Refs
from runner.workspace.trees.stores import SOURCE_EXCLUDE
from runner.workspace.trees.survey import settle

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
        self, files: IndexFiles, store: Path, reader: Git, writer: Git, root: bytes
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
            if files.index.exists():
                return
            files.folder.mkdir(parents=True, exist_ok=True)
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

    def forget(self) -> None:
        """Remove the indexes of all attempts.

        Raises:
            GitError: they cannot be removed.
        """
        folder = self._files.folder
        try:
            for index in folder.glob("index-*"):
                self._remove_shared_part(index)
            shutil.rmtree(folder)
        except FileNotFoundError:
            return  # no snapshot was taken
        except OSError as error:
            raise GitError(f"cannot remove {folder}: {error.strerror or error}") from error

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

    def _remove_shared_part(self, index: Path) -> None:
        """Remove the file that most of an index is in
        (https://git-scm.com/docs/git-update-index#_split_index)."""
        try:
            named = self._git_on(index).run("rev-parse", "--shared-index-path")
        except GitError:  # it is gone already
            return
        name = os.fsdecode(named.removesuffix(b"\n"))
        if name:
            (self._store / name).unlink(missing_ok=True)

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
