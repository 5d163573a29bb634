"""A run's own worktree, on a branch of its own, beside the user's checkout.

What writes a work tree runs below the tool host (``runner.workspace.child``), so that it ends with
its worker. See https://git-scm.com/docs/git-worktree and
https://git-scm.com/docs/gitrepository-layout.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.workspace.copy import remove as remove_folder
from runner.workspace.git import GitError
from runner.workspace.worktrees.repository import BRANCHES, SECONDS, Repository, users_git

_LOCKS = ("index.lock", "HEAD.lock")


@dataclass(frozen=True, slots=True)
class Head:
    """Where a worktree stands: on a branch (None: on none) at a commit. ``index`` is the tree of what
    is staged, None when that is the commit's or not known."""

    commit: str
    branch: str | None = None
    index: str | None = None


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
        for lock in (*locks, common / f"{BRANCHES}{branch}.lock"):
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
        self._git("symbolic-ref", "-m", "runner: on its branch", "HEAD", f"{BRANCHES}{branch}")

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
            return self._git("symbolic-ref", "--quiet", "HEAD").removeprefix(BRANCHES)
        except GitError:  # on none
            return None

    def _is_anothers(self, branch: str) -> bool:
        with self.repository.alone():
            where = self._git("for-each-ref", "--format=%(worktreepath)", f"{BRANCHES}{branch}")
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
        git = users_git(self.path, self.repository.environment, {**place, **(variables or {})})
        return git.run(*arguments, given=given, seconds=SECONDS)


def _folder_of(admin: Path) -> Path | None:
    """The worktree that git keeps a folder for."""
    try:
        link = os.fsdecode((admin / "gitdir").read_bytes()).strip()
    except OSError:  # it is being made or removed
        return None
    return Path(os.path.normpath(admin / link)).parent
