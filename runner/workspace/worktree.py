"""A run's own worktree, on a branch of its own, in a repository of its own that borrows the user's
objects: whatever an agent's git does to branches, tags, stash and settings, it does to these.

What writes a work tree runs below the tool host (``runner.workspace.child``), so that it ends with
its worker. See https://git-scm.com/docs/gitrepository-layout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.workspace.folders import EXCLUDED, read_beginning, remove_folder
from runner.workspace.git import GitError
from runner.workspace.repository import BRANCHES, SECONDS, Repository, users_git
from runner.workspace.snapshot_store import quoted

BEGINNING = (
    "runner-refs"  # the file with what they were when it was made, as `packed-refs` has them
)


_STASH = "refs/stash"


_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Refs:
    """What differs from the beginning: ``changed`` has names with ids (empty: it is gone), ``commits``
    those of the ids that are of commits, and ``stash`` is the stash's log."""

    changed: tuple[tuple[str, str], ...] = ()
    commits: tuple[str, ...] = ()
    stash: str = ""


NO_REFS = Refs()


def read_refs(own: Repository, standing: str | None) -> Refs:
    """The refs of a worktree's repository, save the branch that it stands on.

    Raises:
        GitError, OSError: they cannot be read.
    """
    at_first, now, commits = _at_first(own), dict[str, str](), list[str]()
    for line in own.git(
        "for-each-ref", "--format=%(objectname) %(objecttype) %(refname)"
    ).splitlines():
        object_id, kind, name = line.split(" ", 2)
        if name == f"{BRANCHES}{standing}":
            continue
        now[name] = object_id
        if kind == "commit" and at_first.get(name) != object_id:
            commits.append(object_id)
    at_first.pop(f"{BRANCHES}{standing}", None)
    stash = ""
    if _STASH in now:
        with suppress(OSError):  # a stash without its log: git shows none, either
            logged = read_beginning(own.folder / "logs" / _STASH, _MOST_BYTES) or b""
            stash = logged.decode("utf-8", "surrogateescape")
    changed = _differences(at_first, now)
    return Refs(tuple(sorted(changed.items())), tuple(dict.fromkeys(commits)), stash)


def restore_refs(own: Repository, refs: Refs, standing: str | None) -> None:
    """Have the refs be as they were, save the branch ``standing``. What is not here (on another host
    only commits are) is left out.

    Raises:
        GitError, OSError: they cannot be changed.
    """
    now = _named(own.git("for-each-ref", "--format=%(objectname) %(refname)"))
    changes = _differences(now, {**_at_first(own), **dict(refs.changed)})
    changes.pop(f"{BRANCHES}{standing}", None)
    there = _there(own, {object_id for object_id in changes.values() if object_id})
    gone = [f"delete {name}\n" for name, object_id in changes.items() if not object_id]
    made = [
        f"update {name} {object_id}\n" for name, object_id in changes.items() if object_id in there
    ]
    for lines in (gone, made):  # a folder of refs may become a ref
        if lines:
            own.git("update-ref", "--no-deref", "--stdin", given=os.fsencode("".join(lines)))
    if refs.stash and dict(refs.changed).get(_STASH) in {*there, now.get(_STASH)}:
        log = own.folder / "logs" / _STASH
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(refs.stash.encode("utf-8", "surrogateescape"))


def _at_first(own: Repository) -> dict[str, str]:
    return _named(os.fsdecode((own.folder / BEGINNING).read_bytes()))


def _named(listed: str) -> dict[str, str]:
    lines = (line.split(" ", 1) for line in listed.splitlines())
    return {name: object_id for object_id, name in lines}


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What is to be changed of refs to have others; what is to go is empty."""
    names = {**before, **after}
    wanted = {name: after.get(name, "") for name in names}
    return {name: found for name, found in wanted.items() if before.get(name, "") != found}


def _there(own: Repository, objects: set[str]) -> set[str]:
    given = "".join(f"{object_id}\n" for object_id in sorted(objects)).encode()
    answers = own.git("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given)
    return {line.split(" ")[0] for line in answers.splitlines() if not line.endswith(" missing")}


_NOT_BORROWED = ("refs/runner/", "refs/heads/runner/", "refs/stash")


_COPIED = ("shallow", "info/exclude", "info/attributes")


_LARGEST_COPIED = 1 << 20


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
    alternates = quoted(common / "objects")
    (folder / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternates) + b"\n")
    with (folder / "config").open("ab") as config:
        config.write(os.fsencode(_settings(common)))
    return Repository(folder, source.environment)


def _refs(source: Repository) -> bytes:
    listed = source.raw("for-each-ref", "--format=%(objectname) %(refname)")
    lines = listed.splitlines(keepends=True)
    left_out = tuple(map(os.fsencode, _NOT_BORROWED))
    return b"".join(line for line in lines if not line.partition(b" ")[2].startswith(left_out))


def _settings(common: Path) -> str:
    """The source's own are read where they stand: an agent's changes are made to this file alone. Its
    hooks are for the agent's git, as in any checkout."""
    return (
        f"[core]\n\thooksPath = {quoted(common / 'hooks')}\n"
        f"[include]\n\tpath = {quoted(common / 'config')}\n"
        "[core]\n\tbare = false\n"
    )


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        try:
            content = read_beginning(file, _LARGEST_COPIED)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise GitError(f"{file} cannot be read: {error.strerror}") from error
        if content is not None:
            target.write_bytes(content)


_PUT_BACK = "runner: put back"


@dataclass(frozen=True, slots=True)
class Head:
    """Where a worktree stands: on a branch (None: on none) at a commit. ``index`` is the tree of what
    is staged, None when that is the commit's or not known; ``refs`` are its other branches and tags."""

    commit: str
    branch: str | None = None
    index: str | None = None
    refs: Refs = NO_REFS


@dataclass(frozen=True, slots=True)
class Worktree:
    """A run's own worktree. ``repository`` is the one that it is made of."""

    repository: Repository
    path: Path

    @property
    def git_folder(self) -> Path:
        """Where its own repository is: beside it, as what is in it can be removed by an agent."""
        return self.path.with_name(f".{self.path.name}.git")

    @property
    def own(self) -> Repository:
        """Its own repository."""
        return Repository(self.git_folder, self.repository.environment)

    def add(self, commit: str) -> None:
        """Make it from scratch, on no branch; what an earlier attempt left in its place goes.

        Args:
            commit: what is checked out.

        Raises:
            GitError, OSError: it cannot be made.
        """
        self.remove()
        if not self.repository.has(commit):
            raise GitError(f"{self.repository.folder} has no commit {commit}")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_borrowing(self.git_folder, self.repository)
        (self.git_folder / "HEAD").write_text(f"{commit}\n")
        self.path.mkdir(mode=0o700)
        self._link()
        self._git("reset", "--quiet", "--hard", commit)

    def remove(self) -> None:
        """Remove it with its repository; what was delivered stays in the one that it is from.

        Raises:
            OSError: it cannot be removed whole.
        """
        remove_folder(self.path)
        remove_folder(self.git_folder)

    def admin(self) -> Path | None:
        """Where git keeps its HEAD and its index, None when it is no worktree any more. Whatever is in
        the place of ``.git`` has no say: an agent can write there."""
        folder = self.git_folder
        return folder if (folder / "HEAD").is_file() and not folder.is_symlink() else None

    def is_whole(self) -> bool:
        """Whether it is there, and git knows of it; its ``.git`` is written again where it is missing.
        Raises ``GitError``, ``OSError``."""
        if self.path.is_symlink() or not self.path.is_dir():
            return False
        admin = self.admin()
        if admin is not None and not os.path.lexists(self.path / ".git"):
            self._link()
        return admin is not None

    def _link(self) -> None:
        link = b"gitdir: " + os.fsencode(self.git_folder) + b"\n"
        (self.path / ".git").write_bytes(link)

    def unlock(self) -> None:
        """Take away the locks that a killed git left; nothing else works in it now."""
        admin = self.admin()
        if admin is None:
            return
        for folder in (admin, *(entry for entry in admin.glob("refs/**") if entry.is_dir())):
            for lock in folder.glob("*.lock"):
                lock.unlink(missing_ok=True)

    def commit_all(self, message: str) -> str:
        """Commit what is in it and not ignored, where that is anything new; the commit that it stands
        at then. Raises ``GitError``."""
        tree, head = self.tree(), self.head()
        assert head is not None, "it was made of a commit"
        if tree == self._tree_of(head):
            return head
        made = self.commit(tree, head, message)
        self._git("update-ref", "--no-deref", "-m", "runner: set up", "HEAD", made, head)
        return made

    def tree(self) -> str:
        """The tree of all that is in it and not ignored, by the repository's own rules; its index
        holds that then. Repositories in it that are no submodules are left out: a commit could only
        name them, and nobody else has them.

        Raises:
            GitError: something in it cannot be read, or there is no room.
        """
        others = self._bytes("ls-files", "-z", "--others", "--exclude-standard").split(b"\0")
        nested = [name.rstrip(b"/") for name in others if name.endswith(b"/")]
        wanted = [b":/", *(b":(exclude,top,literal)" + name for name in nested)]
        add = ("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
        try:
            self._bytes(*add, given=b"\0".join(wanted))
        except GitError as error:
            if "Permission denied" not in str(error):
                raise
            raise GitError(
                f"what cannot be read cannot be committed: {error}; let its owner read it "
                f"(chmod -R u+rwX {self.path}), then retry the run"
            ) from error
        return self._git("write-tree")

    def commit(self, tree: str, parent: str, message: str) -> str:
        """A commit of a tree, by whom the user's settings name, or else by Runner; nothing stands at it
        yet. Raises ``GitError``."""
        name, email = self.repository.author()
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", email))
        }
        text = message.replace("\0", "").encode("utf-8", "replace")
        made = self._bytes("commit-tree", tree, "-p", parent, given=text, variables=people)
        return os.fsdecode(made).strip()

    def head(self) -> str | None:
        """The commit that it stands at; None on a branch without one."""
        try:
            return self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except GitError:
            return None

    def staged(self, commit: str) -> str | None:
        """The tree of what is staged; None when that is the commit's, or a merge is half done. Raises
        ``OSError``."""
        admin = self.admin()
        try:
            self._git("diff-index", "--cached", "--quiet", "--ignore-submodules", commit, "--")
        except GitError:
            if admin is None:
                return None
        else:
            return None
        # git locks the index that it writes the tree of: a copy of it is no other's.
        with tempfile.TemporaryDirectory(prefix="runner-index-") as folder:
            copied = shutil.copyfile(admin / "index", Path(folder, "index"))
            try:
                written = self._bytes("write-tree", variables={"GIT_INDEX_FILE": str(copied)})
            except GitError:
                return None
        return os.fsdecode(written).strip()

    def has_tree(self, tree: str) -> bool:
        """Whether its repository has a tree."""
        try:
            self._git("cat-file", "-e", f"{tree}^{{tree}}")
        except GitError:
            return False
        return True

    def stand_on(self, branch: str) -> None:
        """Have its HEAD be a branch; index and files stay. Raises ``GitError``."""
        self._git("symbolic-ref", "-m", "runner: on its branch", "HEAD", f"{BRANCHES}{branch}")

    def stand_at(self, head: Head) -> None:
        """Have it stand where it stood, its files aside: at a commit, with what was staged, and with
        the branches, tags and stash of then.

        Raises:
            GitError: the commit is not in the repository.
        """
        restore_refs(self.own, head.refs, head.branch)
        if head.branch is None:
            self._git("update-ref", "--no-deref", "-m", _PUT_BACK, "HEAD", head.commit)
        else:
            self.own.move(head.branch, head.commit, None, _PUT_BACK)
            self.stand_on(head.branch)
        self._git("read-tree", head.index or head.commit)

    def _tree_of(self, commit: str) -> str:
        return self._git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")

    def _git(self, *arguments: str) -> str:
        return os.fsdecode(self._bytes(*arguments)).strip()

    def _bytes(
        self, *arguments: str, given: bytes = b"", variables: Mapping[str, str] | None = None
    ) -> bytes:
        admin = self.admin()
        if admin is None:
            raise GitError(f"{self.path} is no worktree of {self.repository.folder} any more")
        if self.path.is_symlink():
            raise GitError(
                f"a link is in the place of the workspace {self.path}: it is not followed"
            )
        place = {"GIT_DIR": str(admin), "GIT_WORK_TREE": str(self.path)}
        git = users_git(self.path, self.repository.environment, {**place, **(variables or {})})
        return git.run(*arguments, given=given, seconds=SECONDS)


_REF = re.compile(rb"ref: refs/heads/(.+)\n?")


_LONGEST_HEAD = 4_096


_OWN = "."  # is no branch's name


_Stamp = tuple[int, int, int]


class Standing:
    """Reads it, at little cost where nothing has changed since it was read last."""

    def __init__(self, worktree: Worktree) -> None:
        self._worktree = worktree
        self._staged: tuple[_Stamp, str, str | None] | None = None

    def read(self) -> Head | None:
        """Where the worktree stands; None on a branch that has no commit.

        Raises:
            GitError: it is no worktree any more. OSError.
        """
        admin = self._worktree.admin()
        if admin is None:
            raise GitError(f"{self._worktree.path} is no worktree of its repository any more")
        on = _REF.fullmatch(read_beginning(admin / "HEAD", _LONGEST_HEAD) or b"")
        branch = os.fsdecode(on[1]) if on else None
        commit = self._worktree.head()
        if commit is None:
            return None
        refs = read_refs(self._worktree.own, branch)
        return Head(commit, branch, self._index(admin / "index", commit), refs)

    def _index(self, index: Path, commit: str) -> str | None:
        """The tree of what is staged, unless that is the commit's, or a merge is half done."""
        try:
            status = index.stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._staged is None or self._staged[:2] != (stamp, commit):
            self._staged = (stamp, commit, self._worktree.staged(commit))
        return self._staged[2]


def to_note(head: Head, own_branch: str) -> str:
    """The text that a snapshot carries of it. The run's own branch is not named in it: a run that goes
    on from there has another."""
    refs = {_unnamed(name, own_branch): commit for name, commit in head.refs.changed}
    branch = _OWN if head.branch == own_branch else head.branch
    return json.dumps([head.commit, branch, head.index, refs, head.refs.stash])


def from_note(note: str, own_branch: str) -> Head:
    """What ``to_note`` gave, without saying which refs are commits. Raises ``ValueError``."""
    commit, branch, index, refs, stash = json.loads(note)
    own = f"{BRANCHES}{own_branch}"
    changed = tuple(sorted((own if name == _OWN else name, each) for name, each in refs.items()))
    named = own_branch if branch == _OWN else branch
    return Head(commit, named, index, Refs(changed, stash=stash))


def _unnamed(ref: str, own_branch: str) -> str:
    return _OWN if ref == f"{BRANCHES}{own_branch}" else ref
