"""The snapshot stores: a bare repository of Runner's own for each source of workspaces.

A snapshot is a git tree. What it needs beyond the source's own history is in the store, so that
nothing that happens to the source later (``git gc``, a removed branch) takes a recorded file away;
what the source's commits hold is read from there, as alternate objects
(https://git-scm.com/docs/git#Documentation/git.txt-codeGITALTERNATEOBJECTDIRECTORIEScode).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

from runner.workspace.folders import new_id, read_beginning, write_once, write_whole
from runner.workspace.git import REMOTE_SECONDS, Check, Git, GitError, no_check, one_line

MANIFEST = b".runner-snapshot"  # the manifest's name in a snapshot; never in a work tree
SOURCE_EXCLUDE = "source-exclude"  # the file of a store with the source's own ignore list

_STORES = "snapshots"  # the folder of RUNNER_HOME with the stores
_SOURCE = "source"  # the file of a store that names the source's git folder
_LARGEST_EXCLUDE = 1 << 20
_MANIFEST_VERSION = 1
_LARGE_FIELDS = itemgetter("path", "size", "sha256", "executable")
_FORBIDDEN = frozenset({b"", b".", b"..", b".git"})
_RUNS = "refs/runner/runs"
_FETCHED = "refs/runner/fetched"  # what other hosts recorded is kept apart
_UNNEEDED_SINCE = "1.day.ago"  # a snapshot that is being taken has newer objects
_START = "start"  # the ref of what a run's workspace began as
# A snapshot holds files as they are, whatever the repository in them says of its attributes
# (https://git-scm.com/docs/gitattributes).
_ATTRIBUTES = b"* -text -filter -ident -working-tree-encoding\n"
# Nothing of the platform's habits or the user's; each command flushes what it wrote before the next
# one names it.
_SETTINGS = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.attributesFile=/dev/null",
    "core.protectHFS=false",
    "core.protectNTFS=false",
    "core.quotePath=false",
    # Of 10,000 entries only changed ones are written again, beside one file with the first ones.
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


# --- the manifest -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Large:
    """A file that is too large to be recorded whole."""

    path: bytes
    size: int  # bytes
    sha256: str
    executable: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts of a snapshot that a git tree cannot hold. Paths are relative to the workspace."""

    directories: frozenset[bytes] = frozenset()  # without a recorded file in or below them
    large: frozenset[Large] = frozenset()  # files over the limit
    # Only known to exist: nested repositories, what cannot be read, and names that git refuses.
    unrecorded: frozenset[bytes] = frozenset()
    note: str = ""  # what the caller recorded with the snapshot

    def to_bytes(self) -> bytes:
        """Return the manifest as a file, empty for an empty one. Equal manifests give equal bytes."""
        if self == Manifest():
            return b""
        data = {
            "version": _MANIFEST_VERSION,
            "directories": list(map(_name, sorted(self.directories))),
            "large": [
                {**asdict(large), "path": _name(large.path)}
                for large in sorted(self.large, key=lambda large: large.path)
            ],
            "unrecorded": list(map(_name, sorted(self.unrecorded))),
            "note": self.note,
        }
        return json.dumps(data, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Return a manifest of bytes. Raises ``GitError`` if it is none or leads outside."""
        if not content:
            return cls()
        try:
            data = json.loads(content)
            if data["version"] != _MANIFEST_VERSION:
                raise GitError(
                    f"a snapshot was made by a newer Runner (its manifest is version "
                    f"{data['version']!r}): use that one"
                )
            large = (
                Large(_path(path), int(size), str(sha256), bool(executable))
                for path, size, sha256, executable in map(_LARGE_FIELDS, data["large"])
            )
            return cls(
                frozenset(map(_path, data["directories"])),
                frozenset(large),
                frozenset(map(_path, data["unrecorded"])),
                str(data["note"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GitError(
                f"the {MANIFEST.decode()} of a tree is not the manifest of a snapshot ({error}): "
                "the tree was not recorded by Runner"
            ) from error


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """Return the folders above the paths, without the root."""
    found: set[bytes] = set()
    for path in paths:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return found


def _name(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _path(name: str) -> bytes:
    """Return a path from a manifest, which may come from a remote and is not trusted."""
    path = name.encode("utf-8", "surrogateescape")
    if b"\0" in path or not _FORBIDDEN.isdisjoint(path.split(b"/")):
        raise ValueError(f"the path {name!r}")
    return path


# --- the stores -------------------------------------------------------------------------------------


def make_store(
    home: Path,
    source: str,
    source_git_dir: Path | None,
    *,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Make or update the store for workspaces that are made from ``source``; return its git folder.

    Several processes may call it at once. A store that exists is used again, and learns what the
    source's own ignore list says now.

    Args:
        source: the folder or URL that workspaces are made from.
        source_git_dir: a git folder of the source's repository; None when it is no repository.

    Raises:
        GitError: it cannot be made, or is for repositories with another kind of object ids.
    """
    store = store_of(home, source)
    folder, kind = None, "sha1"
    if source_git_dir is not None:
        git = Git(source_git_dir, environment, {"GIT_DIR": str(source_git_dir)})
        told = git.text("rev-parse", "--show-object-format", "--git-common-dir")
        kind, _, common = told.partition("\n")
        folder = Path(os.path.realpath(source_git_dir / common))
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        if not store.is_dir():
            _create(store, kind, environment)
        config = (store / "config").read_text(encoding="utf-8", errors="replace")
        if ("objectformat = sha256" in config.lower()) != (kind == "sha256"):
            raise GitError(
                f"{one_line(source)} has {kind} object ids now, and its earlier snapshots in {store} "
                "have others: move that folder away to start again (Runner then loses the earlier "
                "snapshots)"
            )
        if folder is not None:
            exclude = b""
            with suppress(OSError):  # it is missing, or no file of the repository's own
                exclude = read_beginning(folder / "info" / "exclude", _LARGEST_EXCLUDE) or b""
            for name, content in ((_SOURCE, os.fsencode(folder)), (SOURCE_EXCLUDE, exclude)):
                if not (store / name).exists() or (store / name).read_bytes() != content:
                    write_whole(store / name, content)
    except OSError as error:
        raise GitError(
            f"cannot make the store for snapshots {store}: {error.strerror or error}"
        ) from error
    return store


def _create(store: Path, kind: str, environment: Mapping[str, str]) -> None:
    draft = store.with_name(f".{store.name}.partial-{secrets.token_hex(4)}")
    try:
        # Locks that a killed git left are removed as files, whatever a later git would choose.
        git = Git(store.parent, environment, {"GIT_DEFAULT_REF_FORMAT": "files"})
        made = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
        git.run(*made, os.fsencode(draft))
        (draft / "info").mkdir()
        (draft / "info" / "attributes").write_bytes(_ATTRIBUTES)
        try:
            draft.rename(store)
        except OSError:
            if not store.is_dir():  # or another process was first
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def store_of(home: Path, source: str) -> Path:
    """Return the path of the store of a source, which may not exist yet."""
    name = os.path.realpath(source) if os.path.isabs(source) else source  # noqa: PTH117 - or a URL
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return home / _STORES / f"{key}.git"


def store_id(home: Path) -> str:
    """Return the 26 characters that name this host's stores, made at first. Raises ``GitError``."""
    file = home / _STORES / "id"
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_once(file, new_id())
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
    """Return git on a store.

    Args:
        folder: the working directory, by default the store.
        with_source: see the source's objects. What writes does not, so that the store gets what the
            source may lose.
        objects: a folder for new objects instead of the store; git flushes none of them.
        remote: use the user's settings, to talk to a remote as the user would.
    """
    found: dict[str, str] = {"GIT_DIR": str(store), **(variables or {})}
    source = _source_of(store) if with_source else None
    others = [store] if objects is not None else []
    others += [source] if source is not None else []
    if objects is not None:
        found["GIT_OBJECT_DIRECTORY"] = str(objects)
        # The parts of a split index would lie in the store.
        settings = (*settings, "core.fsync=none", "core.splitIndex=false")
    if others:
        alternates = (quoted(each / "objects") for each in others)
        found["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(alternates)
    git = Git(folder or store, environment, found, (*_SETTINGS, *settings), remote)
    return git.signed("Runner", "runner@localhost")


def manifest_in(git: Git, snapshot: str, check: Check = no_check) -> Manifest:
    """Return the manifest of a snapshot. Raises ``GitError`` if the snapshot cannot be read."""
    listed = git.run("ls-tree", "-z", snapshot, "--", MANIFEST, check=check)
    return Manifest.from_bytes(blob_of(git, listed, check))


def blob_of(git: Git, listed: bytes, check: Check) -> bytes:
    """Return the content of the one file that ``ls-tree`` or ``ls-files -s`` listed, or b""."""
    if not listed:
        return b""
    about = listed.partition(b"\t")[0].split(b" ")
    blob = about[2] if about[1] == b"blob" else about[1]
    return git.run("cat-file", "blob", blob, check=check)


def has_trees(git: Git, objects: Sequence[str]) -> bool:
    """Return True if git finds all of these trees, or the trees of these commits."""
    given = "".join(f"{each}^{{tree}}\n" for each in objects).encode()
    found = git.run("cat-file", "--batch-check=%(objecttype)", given=given)
    return found == b"tree\n" * len(objects)


def quoted(path: Path) -> str:
    """Return a path as git reads it in a list of alternates and in a configuration file."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _source_of(store: Path) -> Path | None:
    try:
        return Path(os.fsdecode((store / _SOURCE).read_bytes()))
    except FileNotFoundError:  # its source is no repository
        return None


def forget(store: Path, environment: Mapping[str, str], run_ids: Collection[str]) -> None:
    """Remove the snapshots of runs from a store; ``collect`` frees their space. Raises ``GitError``."""
    git, ids = store_git(store, environment), set(run_ids)
    listed = git.text("for-each-ref", "--format=%(refname)", _RUNS, _FETCHED).splitlines()
    refs = [ref for ref in listed if ref.split("/")[3] in ids]
    if refs:
        git.run("update-ref", "--stdin", given="".join(f"delete {ref}\n" for ref in refs).encode())
    for run_id in ids:
        shutil.rmtree(index_folder(store, run_id), ignore_errors=True)


def stores_in(home: Path) -> list[Path]:
    return sorted((home / _STORES).glob("*.git"))


def collect(store: Path, environment: Mapping[str, str]) -> None:
    """Remove objects that no snapshot of a store needs any more. Raises ``GitError``."""
    store_git(store, environment).run("prune", f"--expire={_UNNEEDED_SINCE}")


def index_folder(store: Path, run_id: str) -> Path:
    return store / "runs" / run_id


# --- the refs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recorded:
    commit: str
    tree: str


@dataclass(frozen=True, slots=True)
class History:
    own: Recorded | None  # by this attempt, last
    last: Recorded | None  # by the newest attempt, last
    start: Recorded | None  # what the workspace began as
    trees: Set[str]  # the trees of all attempts


class StoredSnapshots:
    """The snapshots of a run in a store, without a work tree, recorded for one attempt: each a
    commit on top of the one before, with a ref for each attempt."""

    def __init__(
        self, store: Path, environment: Mapping[str, str], run_id: str, attempt: int
    ) -> None:
        self._store = store
        self._store_git = store_git(store, environment)
        self._remote = store_git(store, environment, remote=True)
        self._run_id = run_id
        self._attempt = str(attempt)
        self._refs = f"{_RUNS}/{run_id}"
        self._own = f"{self._refs}/{attempt}"
        self._pushed: tuple[str, bytes] | None = None

    def last(self) -> str | None:
        """Return the snapshot that this host took last of the run, in any attempt."""
        last = self.history().last
        return None if last is None else last.tree

    def history(self) -> History:
        form = "--format=%(refname) %(objectname) %(tree)"
        listed = self._store_git.text("for-each-ref", form, self._refs).splitlines()
        refs = (line.split(" ") for line in listed)
        found = {ref.removeprefix(f"{self._refs}/"): Recorded(*known) for ref, *known in refs}
        attempts = [int(name) for name in found if name.isdecimal()]
        last = found[str(max(attempts))] if attempts else None
        trees = {recorded.tree for recorded in found.values()}
        return History(found.get(self._attempt), last, found.get(_START), trees)

    def start(self, commit: str) -> None:
        """Record the commit that the workspace began as: the first snapshot's parent, so that
        little is sent to a remote that has it. Raises ``GitError``."""
        tree = self._store_git.text("rev-parse", "--verify", f"{commit}^{{tree}}")
        if self._starts_at(tree):
            return
        if self._is_shallow():
            # Its history is cut off and could not be pushed: a commit without any stands in for it.
            commit = self._commit(tree, ())
        arguments = ("update-ref", f"{self._refs}/{_START}", commit)
        try:
            self._store_git.run(*arguments)
        except GitError:
            if self._starts_at(tree):  # another attempt was faster
                return
            self._unlock(_START)
            self._store_git.run(*arguments)

    def add(
        self, tree: str, before: Recorded | None, keep: Sequence[str], check: Check
    ) -> Recorded:
        """Record a tree as this attempt's last, after ``before``, and ``keep`` (and push) further
        commits with it."""
        parents = [before.commit] if before else []
        if not self._is_shallow():
            parents += keep
        commit = self._commit(tree, parents, check)
        self._store_git.run("update-ref", self._own, commit, check=check)
        return Recorded(commit, tree)

    def push(self, remote: str, check: Check = no_check) -> None:
        """Send this attempt's snapshots to a remote, as ``refs/runner/runs/<run>/<attempt>``. Refs
        of other attempts, which may be others here, are left alone. Raises ``GitError``."""
        recorded = self._store_git.run("for-each-ref", self._own)
        if not recorded or self._pushed == (remote, recorded):
            return
        self._remote.run(
            *("push", "--quiet", "--no-verify", "--no-signed", "--no-follow-tags"),
            *("--recurse-submodules=no", "--", remote, f"+{self._own}:{self._own}"),
            check=check,
            seconds=REMOTE_SECONDS,
        )
        self._pushed = remote, recorded

    def fetch(self, remote: str, check: Check = no_check) -> None:
        """Fetch the run's snapshots, which do not count as taken here. Raises ``GitError``."""
        self._remote.run(
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"),
            *("--no-recurse-submodules", "--", remote),
            f"+{self._refs}/*:{_FETCHED}/{self._run_id}/*",
            check=check,
            seconds=REMOTE_SECONDS,
        )

    def _starts_at(self, tree: str) -> bool:
        start = self.history().start
        return start is not None and start.tree == tree

    def _is_shallow(self) -> bool:
        """Return True if the source's history is cut off (``git clone --depth``)."""
        source = _source_of(self._store)
        return source is not None and (source / "shallow").exists()

    def _commit(self, tree: str, parents: Sequence[str], check: Check = no_check) -> str:
        named = [part for parent in dict.fromkeys(parents) for part in ("-p", parent)]
        message = f"{self._run_id} attempt {self._attempt}"
        return self._store_git.text("commit-tree", tree, *named, "-m", message, check=check)

    def _unlock(self, name: str) -> None:
        """Remove the lock that a killed git left on a ref of the run."""
        lock = self._store / f"{self._refs}/{name}.lock"
        try:
            lock.unlink(missing_ok=True)
        except NotADirectoryError as error:
            raise GitError(f"{lock.parent} is not a folder: the store is damaged") from error
