"""Worktrees of a repository: one for each run, on a branch of its own, beside the user's checkout.

What writes a work tree runs below the tool host (``runner.workspace.child``), so that it ends with
its worker. The repository's and the user's own settings hold here (filters, say); hooks do not run.
See https://git-scm.com/docs/git-worktree and https://git-scm.com/docs/gitrepository-layout.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.workspace.copy import remove as remove_folder
from runner.workspace.git import Git, GitError
from runner.workspace.trees.stores import store_git

RUNNER = "Runner"
RUNNERS_ADDRESS = "runner@localhost"

NOWHERE = ""  # where a ref is that is not there (git-update-ref(1))

_BRANCHES = "refs/heads/"
_LOCKS = ("index.lock", "HEAD.lock")
_SECONDS = 3_600.0
_SETTINGS = ("submodule.recurse=false", "advice.addEmbeddedRepo=false")


@dataclass(frozen=True, slots=True)
class Head:
    """Where a worktree stands: on a branch (None: on none) at a commit. ``index`` is the tree of what
    is staged, None when that is the commit's or not known."""

    commit: str
    branch: str | None = None
    index: str | None = None


@dataclass(slots=True)
class Repository:
    """A repository that worktrees are made of: the user's, or a bare clone of Runner's own.

    Args:
        folder: where it is.
        environment: the variables that git gets.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    _common: Path | None = field(default=None, init=False, repr=False)

    def git(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        given: bytes = b"",
    ) -> str:
        """Run git in it; what it printed. ``variables`` are git's own. Raises ``GitError``."""
        place = {"GIT_DIR": str(self.folder)} if self._is_bare() else {}
        git = _users_git(self.folder, self.environment, {**place, **(variables or {})})
        return os.fsdecode(git.run(*arguments, given=given, seconds=_SECONDS)).strip()

    def _is_bare(self) -> bool:
        """Then it may have to be named (``safe.bareRepository``)."""
        inner = (self.folder / name for name in ("HEAD", "objects"))
        return not (self.folder / ".git").exists() and all(each.exists() for each in inner)

    def common_folder(self) -> Path:
        """The folder that all worktrees of it share. Raises ``GitError``."""
        if self._common is None:
            found = self.git("rev-parse", "--git-common-dir")
            self._common = Path(os.path.realpath(self.folder / found))
        return self._common

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the block runs, no other Runner on this host makes or removes a worktree of it: git fails
        when it looks at all of them and one is half there. The lock is on the folder itself, so that
        nothing is left in it; a file system that has no such locks goes without."""
        descriptor = os.open(self.common_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def has(self, commit: str) -> bool:
        """Whether it is there, and has a commit."""
        try:
            self.git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitError:
            return False
        return True

    def have(self, commit: str, known: str, store: Path) -> bool:
        """Whether it has a commit, now that one that it had not was looked for in the run's snapshots.

        Args:
            known: a commit that it has, below the wanted one.
            store: the folder of the snapshots.
        """
        if self.has(commit):
            return True
        wanted = f"{commit}\n^{known}\n".encode()
        try:
            packed = store_git(store, self.environment).run(
                "pack-objects", "--revs", "--stdout", "--quiet", given=wanted
            )
            self.git("index-pack", "--stdin", given=packed)
        except GitError:
            return False
        return self.has(commit)

    def tip(self, branch: str) -> str | None:
        """The commit that a branch is at, None when there is no such branch."""
        try:
            name = f"{_BRANCHES}{branch}^{{commit}}"
            return self.git("rev-parse", "--verify", "--quiet", name)
        except GitError:
            return None

    def tip_at(self, remote: str, branch: str) -> str | None:
        """The commit that a branch of a remote is at, None when it has no such branch. Raises
        ``GitError``."""
        listed = self.git("ls-remote", "--heads", "--", remote, f"{_BRANCHES}{branch}")
        return listed.split("\t")[0] or None

    def new_branch(self, names: Sequence[str], commit: str, run_id: str) -> str:
        """Make a run's branch: the first of ``names`` that nobody else has. One that an attempt at the
        same run made before is taken over.

        Raises:
            GitError: none of them can be had.
        """
        note = f"runner: {run_id} begins"
        failure: GitError | None = None
        for name in names:
            try:
                self.move(name, commit, NOWHERE, note)
            except GitError as error:
                failure = error
                if self._first_note(name) != note:
                    continue
                self.move(name, commit, None, note)
            return name
        raise GitError(f"no branch can be made for {run_id}: {failure}") from failure

    def move(self, branch: str, commit: str, before: str | None, note: str) -> None:
        """Have a branch be at a commit; ``before`` is where it has to be until then (None: anywhere).
        Raises ``GitError``."""
        people = {"GIT_COMMITTER_NAME": RUNNER, "GIT_COMMITTER_EMAIL": RUNNERS_ADDRESS}
        change = [f"{_BRANCHES}{branch}", commit, *([] if before is None else [before])]
        self.git("update-ref", "--create-reflog", "-m", note, *change, variables=people)

    def _first_note(self, branch: str) -> str:
        """What the oldest change of a branch that is remembered says of itself."""
        try:
            notes = self.git("log", "-g", "--format=%gs", f"{_BRANCHES}{branch}", "--")
        except GitError:  # there is no such branch: the name is in the way of another
            return ""
        return notes.splitlines()[-1] if notes else ""

    def author(self) -> tuple[str, str]:
        """Name and address of whom its or the user's settings name, else of Runner."""
        return (
            self._setting("user.name") or RUNNER,
            self._setting("user.email") or RUNNERS_ADDRESS,
        )

    def _setting(self, name: str) -> str:
        try:
            return self.git("config", "--get", name)
        except GitError:
            return ""


@dataclass(frozen=True, slots=True)
class Worktree:
    """A run's own worktree."""

    repository: Repository
    path: Path

    def add(self, commit: str) -> None:
        """Make it from scratch, on no branch; what an earlier attempt left in its place goes.

        Args:
            commit: what is checked out.

        Raises:
            GitError, OSError: it cannot be made.
        """
        self.remove()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        add = ("worktree", "add", "--quiet", "--detach", "--no-checkout")
        with self.repository.alone():
            self.repository.git(*add, str(self.path), commit)
        self._git("reset", "--quiet", "--hard", commit)

    def remove(self) -> None:
        """Remove it with all that is in it; its branch stays.

        Raises:
            GitError, OSError: it cannot be removed whole.
        """
        remove_folder(self.path)
        # Not `git worktree prune`: it would forget the user's own worktrees on a disk that is away.
        admin = self.admin()
        if admin is not None:
            with self.repository.alone():
                remove_folder(admin)

    def admin(self) -> Path | None:
        """Where git keeps its HEAD and its index, None when it keeps nothing of it. Whatever is in the
        place of ``.git`` has no say: an agent can write there. Raises ``GitError``."""
        folder = self.repository.common_folder() / "worktrees"
        place = self._place()
        likely = folder / self.path.name
        if _folder_of(likely) == place:
            return likely
        admins = [Path(entry.path) for entry in os.scandir(folder)] if folder.is_dir() else []
        return next((admin for admin in admins if _folder_of(admin) == place), None)

    def is_whole(self) -> bool:
        """Whether it is there, and git knows of it; its ``.git`` is written again where it is missing.
        Raises ``GitError``, ``OSError``."""
        if self.path.is_symlink() or not self.path.is_dir():
            return False
        admin = self.admin()
        if admin is not None and not os.path.lexists(self.path / ".git"):
            (self.path / ".git").write_bytes(b"gitdir: " + os.fsencode(admin) + b"\n")
        return admin is not None

    def unlock(self, branch: str) -> None:
        """Take away the locks that a killed git left; nothing else works in it now."""
        admin = self.admin()
        locks = [admin / name for name in _LOCKS] if admin else []
        common = self.repository.common_folder()
        for lock in (*locks, common / f"{_BRANCHES}{branch}.lock"):
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
        self._bytes(*add, given=b"\0".join(wanted))
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
        self._git("symbolic-ref", "-m", "runner: on its branch", "HEAD", f"{_BRANCHES}{branch}")

    def stand_at(self, head: Head, own_branch: str) -> None:
        """Have it stand where it stood, its files aside: at a commit, with what was staged. The branch
        that it is on is moved for that, others are not; one that stands in another worktree is not
        shared with that.

        Args:
            own_branch: the run's, which is nobody else's.

        Raises:
            GitError: the commit is not in the repository.
        """
        branch = head.branch
        if branch is not None and branch != own_branch and self._is_anothers(branch):
            branch = None
        if branch is None:
            self._git("update-ref", "--no-deref", "-m", "runner: put back", "HEAD", head.commit)
        else:
            if branch in (own_branch, self._branch()) or self.repository.tip(branch) is None:
                self.repository.move(branch, head.commit, None, "runner: put back")
            self.stand_on(branch)
        self._git("read-tree", head.index or head.commit)

    def _branch(self) -> str | None:
        try:
            return self._git("symbolic-ref", "--quiet", "HEAD").removeprefix(_BRANCHES)
        except GitError:  # on none
            return None

    def _is_anothers(self, branch: str) -> bool:
        with self.repository.alone():
            where = self._git("for-each-ref", "--format=%(worktreepath)", f"{_BRANCHES}{branch}")
        return where not in ("", str(self._place()))

    def _place(self) -> Path:
        """Its path as git writes it."""
        return Path(os.path.realpath(self.path.parent), self.path.name)

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
        place = {"GIT_DIR": str(admin), "GIT_WORK_TREE": str(self.path)}
        git = _users_git(self.path, self.repository.environment, {**place, **(variables or {})})
        return git.run(*arguments, given=given, seconds=_SECONDS)


def _users_git(folder: Path, environment: Mapping[str, str], variables: Mapping[str, str]) -> Git:
    return Git(folder, environment, variables, _SETTINGS, user_settings=True)


def _folder_of(admin: Path) -> Path | None:
    """The worktree that git keeps a folder for."""
    try:
        link = os.fsdecode((admin / "gitdir").read_bytes()).strip()
    except OSError:  # it is being made or removed
        return None
    return Path(os.path.normpath(admin / link)).parent
