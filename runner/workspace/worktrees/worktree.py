"""A run's own worktree, on a branch of its own, in a repository of its own that borrows the user's
objects: whatever an agent's git does to branches, tags, stash and settings, it does to these.

What writes a work tree runs below the tool host (``runner.workspace.child``), so that it ends with
its worker. See https://git-scm.com/docs/gitrepository-layout.
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
from runner.workspace.worktrees.borrowing import make_borrowing
from runner.workspace.worktrees.refs import NO_REFS, Refs, put_back
from runner.workspace.worktrees.repository import BRANCHES, SECONDS, Repository, users_git

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
        put_back(self.own, head.refs, head.branch)
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


def _folder_of(admin: Path) -> Path | None:
    """The worktree that git keeps a folder for."""
    try:
        link = os.fsdecode((admin / "gitdir").read_bytes()).strip()
    except OSError:  # it is being made or removed
        return None
    return Path(os.path.normpath(admin / link)).parent
