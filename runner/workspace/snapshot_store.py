"""Where snapshots are kept: a bare repository of Runner's own for each source of workspaces.

What a snapshot needs beyond the source's own history is in the store, so that nothing that happens
to the source later (``git gc``, a branch removed) takes a recorded file away; what the source's
commits hold is read from there, as alternate objects
(https://git-scm.com/docs/git#Documentation/git.txt-codeGITALTERNATEOBJECTDIRECTORIEScode).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.workspace.folders import beginning
from runner.workspace.git import REMOTE_SECONDS, Check, Git, GitError, one_line

# Where it lies in a snapshot's tree; never in a work tree.
MANIFEST = b".runner-snapshot"


_VERSION = 1


_FORBIDDEN = frozenset({b"", b".", b"..", b".git"})


@dataclass(frozen=True, slots=True)
class Large:
    """A file that is too large to be kept: its size in bytes and its SHA-256."""

    path: bytes
    size: int
    sha256: str
    executable: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """Paths are relative to the work tree's root.

    ``directories`` are those without a recorded file in or below them; ``large`` are files over the
    limit; ``unrecorded`` are only known to be there: nested repositories, what cannot be read, and
    names that git refuses. ``note`` is what the caller had recorded with the tree.
    """

    directories: frozenset[bytes] = frozenset()
    large: frozenset[Large] = frozenset()
    unrecorded: frozenset[bytes] = frozenset()
    note: str = ""

    def to_bytes(self) -> bytes:
        """The content of the snapshot's file; empty when there is nothing to say. The same manifest
        gives the same bytes."""
        if self == Manifest():
            return b""
        data = {
            "version": _VERSION,
            "directories": _names(self.directories),
            "large": [
                {
                    "path": _name(large.path),
                    "size": large.size,
                    "sha256": large.sha256,
                    "executable": large.executable,
                }
                for large in sorted(self.large, key=lambda large: large.path)
            ],
            "unrecorded": _names(self.unrecorded),
            "note": self.note,
        }
        return json.dumps(data, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """The manifest that ``to_bytes`` gave.

        Raises:
            GitError: it is none, or names a path outside the work tree.
        """
        if not content:
            return cls()
        try:
            data = json.loads(content)
            if data["version"] != _VERSION:
                raise GitError(
                    f"a snapshot was made by a newer Runner (its manifest is version "
                    f"{data['version']!r}): use that one"
                )
            return cls(
                frozenset(map(_path, data["directories"])),
                frozenset(map(_large, data["large"])),
                frozenset(map(_path, data["unrecorded"])),
                str(data["note"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GitError(
                f"the {MANIFEST.decode()} of a tree is no snapshot's manifest ({error}): "
                "the tree was not recorded by Runner"
            ) from error

    def paths(self) -> Iterator[bytes]:
        """All that it names."""
        yield from self.directories
        yield from (large.path for large in self.large)
        yield from self.unrecorded


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """The folders that the paths lie in, up to the root, which is not among them."""
    found: set[bytes] = set()
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return found


def _names(paths: Iterable[bytes]) -> list[str]:
    return [_name(path) for path in sorted(paths)]


def _name(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _path(name: str) -> bytes:
    """A path from a manifest; the remote that it may come from is not trusted."""
    path = name.encode("utf-8", "surrogateescape")
    if b"\0" in path or not _FORBIDDEN.isdisjoint(path.split(b"/")):
        raise ValueError(f"the path {name!r}")
    return path


def _large(data: dict[str, Any]) -> Large:
    return Large(
        _path(data["path"]), int(data["size"]), str(data["sha256"]), bool(data["executable"])
    )


STORES = "snapshots"


SOURCE_EXCLUDE = "source-exclude"


_SOURCE = "source"  # the file that names the source's git folder


_IDENTITY = "id"


_MOST_BYTES = 1 << 20


# A snapshot holds files as they are, whatever the repository in them says of its attributes
# (https://git-scm.com/docs/gitattributes).
_ATTRIBUTES = b"* -text -filter -ident -working-tree-encoding\n"


# Nothing of the platform's habits or of the user's; what is in the store is on the disk when git
# returns.
_SETTINGS = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.attributesFile=/dev/null",
    "core.protectHFS=false",
    "core.protectNTFS=false",
    "core.quotePath=false",
    # Of 10,000 entries only those that changed are written anew, beside one file with the first ones.
    "core.splitIndex=true",
    "splitIndex.maxPercentChange=100",
    "splitIndex.sharedIndexExpire=2.weeks.ago",
    "core.untrackedCache=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.fsync=loose-object,reference",
    "core.fsyncMethod=batch",
    "core.alternateRefsCommand=:",
    "index.version=4",
    "index.skipHash=true",
    "gc.auto=0",
    "maintenance.auto=false",
)


def make_store(
    home: Path,
    source: str,
    source_git_dir: Path | None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Have the store for snapshots of workspaces that are made from ``source``.

    It may be called again, and by several processes at once: what is there is used, and learns what
    the source's own ignore list says now.

    Args:
        home: RUNNER_HOME.
        source: the folder or URL that workspaces are made from.
        source_git_dir: a git folder of the source's repository; None when it is no repository.
        environment: what git runs in; by default this process's.

    Returns:
        The store's git folder.

    Raises:
        GitError: it cannot be made, or is for repositories with another kind of object ids.
    """
    store = store_of(home, source)
    variables = os.environ if environment is None else environment
    folder, kind = None, "sha1"
    if source_git_dir is not None:
        folder, kind = _look_at(source_git_dir, variables)
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        if not store.is_dir():
            _create(store, kind, variables)
        _expect_kind(store, kind, source)
        if folder is not None:
            _write(store / _SOURCE, os.fsencode(folder))
            _write(store / SOURCE_EXCLUDE, _exclude_list(folder / "info" / "exclude"))
    except OSError as error:
        raise GitError(
            f"cannot make the store for snapshots {store}: {error.strerror or error}"
        ) from error
    return store


def store_of(home: Path, source: str) -> Path:
    """Where the store of a source is, whether it is there or not."""
    name = os.path.realpath(source) if os.path.isabs(source) else source  # noqa: PTH117 - or a URL
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return home / STORES / f"{key}.git"


def store_id(home: Path) -> str:
    """What tells this host's stores from those of others, made at the first call: 26 characters.

    Raises:
        GitError: it cannot be read or written.
    """
    file = home / STORES / _IDENTITY
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            made = base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
            draft = file.with_name(f"{_IDENTITY}.{secrets.token_hex(8)}")
            draft.write_text(made, encoding="ascii")
            with suppress(FileExistsError):
                os.link(draft, file)  # unlike a rename, it never replaces what another wrote
            draft.unlink()
        identity = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise GitError(f"cannot keep the id of the snapshots in {file}: {error}") from error
    if len(identity) != 26 or not identity.isalnum():
        raise GitError(f"{file} does not hold an id: delete that file and try again")
    return identity


def store_git(
    store: Path,
    environment: Mapping[str, str],
    *,
    variables: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
    folder: Path | None = None,
    with_source: bool = True,
    objects: Path | None = None,
    remote: bool = False,
) -> Git:
    """git on a store.

    Args:
        folder: where it runs; the store by default.
        with_source: whether it sees the source's objects. What writes does not, so that the store
            gets what the source's commits may lose.
        objects: the folder that new objects go to instead of the store; git flushes none of them.
        remote: whether it talks to a remote, as the user would.
    """
    found: dict[str, str] = {"GIT_DIR": str(store), **_AUTHOR, **(variables or {})}
    source = _source_of(store) if with_source else None
    others = [store] if objects is not None else []
    others += [source] if source is not None else []
    if objects is not None:
        found["GIT_OBJECT_DIRECTORY"] = str(objects)
        settings = (*settings, "core.fsync=none")
    if others:
        alternates = (quoted_alternate(str(each / "objects")) for each in others)
        found["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(alternates)
    return Git(folder or store, environment, found, (*_SETTINGS, *settings), remote)


def is_shallow(store: Path) -> bool:
    """Whether the source's history is cut off (``git clone --depth``)."""
    source = _source_of(store)
    return source is not None and (source / "shallow").exists()


_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Runner"), ("EMAIL", "runner@localhost"))
}


def _source_of(store: Path) -> Path | None:
    try:
        return Path(os.fsdecode((store / _SOURCE).read_bytes()))
    except FileNotFoundError:  # its source is no repository
        return None


def _look_at(git_dir: Path, environment: Mapping[str, str]) -> tuple[Path, str]:
    """The folder that all worktrees of a repository share, and its kind of object ids."""
    git = Git(git_dir, environment, {"GIT_DIR": str(git_dir)})
    kind = git.run("rev-parse", "--show-object-format").decode().strip()
    common = git.run("rev-parse", "--git-common-dir").removesuffix(b"\n")
    return Path(os.path.realpath(git_dir / os.fsdecode(common))), kind


def _create(store: Path, kind: str, environment: Mapping[str, str]) -> None:
    draft = store.with_name(f".{store.name}.partial-{secrets.token_hex(4)}")
    try:
        # Stale locks of refs are removed as files.
        git = Git(store.parent, environment, {"GIT_DEFAULT_REF_FORMAT": "files"})
        git.run(
            "init",
            "--quiet",
            "--bare",
            "--template=",
            f"--object-format={kind}",
            os.fsencode(draft),
        )
        (draft / "info").mkdir()
        (draft / "info" / "attributes").write_bytes(_ATTRIBUTES)
        try:
            draft.rename(store)
        except OSError:
            if not store.is_dir():  # or another process was first
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _expect_kind(store: Path, kind: str, source: str) -> None:
    config = (store / "config").read_text(encoding="utf-8", errors="replace")
    if ("objectformat = sha256" in config.lower()) != (kind == "sha256"):
        raise GitError(
            f"{one_line(source)} has {kind} object ids now, and its earlier snapshots in {store} have "
            "others: move that folder away to begin anew (earlier snapshots are lost to Runner)"
        )


def _exclude_list(file: Path) -> bytes:
    try:
        return beginning(file, _MOST_BYTES) or b""
    except OSError:  # none, or the repository has put something else in its place: it is left alone
        return b""


def quoted_alternate(path: str) -> str:
    """A path as an entry of a list of alternates, which has its own separators."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _write(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all, unless it holds that already."""
    with suppress(FileNotFoundError):
        if file.read_bytes() == content:
            return
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


_RUNS = "refs/runner/runs"


# What others recorded is kept apart from what was recorded here.
_FETCHED = "refs/runner/fetched"


_START = "start"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A commit in a store and its tree."""

    commit: str
    tree: str


@dataclass(frozen=True, slots=True)
class Line:
    """What was recorded of a run: by this attempt last, by any attempt last, and what its workspace
    began as."""

    own: Recorded | None
    last: Recorded | None
    start: Recorded | None


class Refs:
    """The commits of one attempt at a run, and of the attempts before it. No work tree is needed."""

    def __init__(
        self, store: Path, environment: Mapping[str, str], run_id: str, attempt: int
    ) -> None:
        self._store = store
        self._git = store_git(store, environment)
        self._remote = store_git(store, environment, remote=True)
        self._run_id = run_id
        self._attempt = str(attempt)
        self._own = f"{_RUNS}/{run_id}/{attempt}"
        self._pushed: tuple[str, bytes] | None = None

    def read(self) -> Line:
        """What was recorded here."""
        found = self._found()
        attempts = [int(name) for name in found if name.isdecimal()]
        last = found[str(max(attempts))] if attempts else None
        return Line(found.get(self._attempt), last, found.get(_START))

    def trees(self) -> set[str]:
        """What each of the run's attempts here recorded last."""
        return {recorded.tree for recorded in self._found().values()}

    def _found(self) -> dict[str, Recorded]:
        folder = f"{_RUNS}/{self._run_id}"
        listed = self._git.run(
            "for-each-ref", "--format=%(refname) %(objectname) %(tree)", folder
        ).decode()
        found = {}
        for line in listed.splitlines():
            ref, commit, tree = line.split(" ")
            found[ref.removeprefix(f"{folder}/")] = Recorded(commit, tree)
        return found

    def start(self, commit: str) -> None:
        """Say what the workspace began as: the parent of the run's first snapshot."""
        tree = self._git.run("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
        known = self.read().start
        if known is not None and known.tree == tree:
            return
        if is_shallow(self._store):
            # Its history is cut off and could not be pushed: a commit without any stands in for it.
            commit = self._commit(tree, ())
        arguments = ("update-ref", f"{_RUNS}/{self._run_id}/{_START}", commit)
        try:
            self._git.run(*arguments)
        except GitError:
            known = self.read().start
            if known is not None and known.tree == tree:  # another attempt was faster
                return
            self._unlock(_START)  # left by a git that was killed
            self._git.run(*arguments)

    def add(
        self, tree: str, before: Recorded | None, keep: Sequence[str], check: Check
    ) -> Recorded:
        """Record a tree as this attempt's last.

        Args:
            before: what was recorded before it.
            keep: further commits that are kept, and pushed, with it.
        """
        parents = [before.commit] if before else []
        if not is_shallow(self._store):
            parents += keep
        commit = self._commit(tree, parents, check)
        self._git.run("update-ref", self._own, commit, check=check)
        return Recorded(commit, tree)

    def unlock(self) -> None:
        """Remove the lock on this attempt's ref that a killed git left: nobody else has this ref."""
        self._unlock(self._attempt)

    def push(self, remote: str, check: Check) -> None:
        """Send what this attempt recorded to a remote, with all that it goes back to, under the same
        name. Others' names are theirs: what is here under one may not be what its host recorded.

        Raises:
            GitError: it does not take it.
        """
        recorded = self._git.run("for-each-ref", self._own)
        if not recorded or self._pushed == (remote, recorded):
            return
        self._remote.run(
            "push",
            "--quiet",
            "--no-verify",
            "--no-signed",
            "--no-follow-tags",
            "--recurse-submodules=no",
            "--",
            remote,
            f"+{self._own}:{self._own}",
            check=check,
            seconds=REMOTE_SECONDS,
        )
        self._pushed = remote, recorded

    def fetch(self, remote: str, check: Check) -> None:
        """Get all that any host sent to a remote.

        Raises:
            GitError: it does not give them.
        """
        self._remote.run(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--no-recurse-submodules",
            "--",
            remote,
            f"+{_RUNS}/{self._run_id}/*:{_FETCHED}/{self._run_id}/*",
            check=check,
            seconds=REMOTE_SECONDS,
        )

    def _commit(self, tree: str, parents: Sequence[str], check: Check = lambda: None) -> str:
        named = [part for parent in dict.fromkeys(parents) for part in ("-p", parent)]
        message = f"{self._run_id} attempt {self._attempt}"
        made = self._git.run("commit-tree", tree, *named, "-m", message, check=check)
        return made.decode().strip()

    def _unlock(self, name: str) -> None:
        lock = self._store / f"{_RUNS}/{self._run_id}/{name}.lock"
        try:
            lock.unlink(missing_ok=True)
        except NotADirectoryError as error:
            raise GitError(f"{lock.parent} is no folder: the store is damaged") from error
