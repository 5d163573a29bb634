"""A run's own worktree, in a repository of its own that borrows the objects of the user's.

Whatever an agent's git does to branches, tags, stash and settings, it does to the run's repository:
it is neither the user's nor another run's. See https://git-scm.com/docs/gitrepository-layout
(``alternates``, ``packed-refs``) and https://git-scm.com/docs/git-config (``include.path``).

What writes a work tree runs below the tool host (``runner.workspace.child``), so that it ends with
its worker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.workspace.folders import EXCLUDED, read_beginning, remove_folder
from runner.workspace.git import Git, GitError
from runner.workspace.repository import BRANCHES, Repository, users_git
from runner.workspace.snapshot_store import quoted

_FIRST_REFS = "runner-refs"  # the file with the refs as they were at first, like `packed-refs`
_STASH = "refs/stash"
_NOT_BORROWED = ("refs/runner/", "refs/heads/runner/", _STASH)
_COPIED = ("shallow", "info/exclude", "info/attributes")
_LARGEST_FILE = 1 << 20
_LARGEST_HEAD = 4_096
_ON_BRANCH = re.compile(rb"ref: refs/heads/(.+)\n?")
_OWN = "."  # the run's own branch in a note; no branch has that name
_PUT_BACK = "runner: put back"


@dataclass(frozen=True, slots=True)
class RefChanges:
    """The changes to the refs of a run's repository, except its branch."""

    changed: tuple[tuple[str, str], ...] = ()  # names with ids; "" for a ref that is gone
    commits: tuple[str, ...] = ()  # the ids of commits among them
    stash: str = ""  # the stash's log


NO_CHANGES = RefChanges()


@dataclass(frozen=True, slots=True)
class GitState:
    """The git state of a worktree: an agent expects to find its commits, and to make none twice."""

    commit: str
    branch: str | None = None  # None: HEAD is detached
    index: str | None = None  # the tree of what is staged; None: the commit's, or not known
    refs: RefChanges = NO_CHANGES

    def to_note(self, own_branch: str) -> str:
        """Return the state as a snapshot's note, without the name of the run's own branch, as a run
        that goes on from there has another."""
        own = f"{BRANCHES}{own_branch}"
        refs = {_OWN if name == own else name: commit for name, commit in self.refs.changed}
        branch = _OWN if self.branch == own_branch else self.branch
        return json.dumps([self.commit, branch, self.index, refs, self.refs.stash])

    @classmethod
    def from_note(cls, note: str, own_branch: str) -> GitState:
        """Return the state that ``to_note`` wrote, without ``refs.commits``. Raises ``ValueError``."""
        commit, branch, index, refs, stash = json.loads(note)
        own = f"{BRANCHES}{own_branch}"
        changed = sorted((own if name == _OWN else name, each) for name, each in refs.items())
        named = own_branch if branch == _OWN else branch
        return cls(commit, named, index, RefChanges(tuple(changed), stash=stash))


@dataclass(frozen=True, slots=True)
class Worktree:
    """A run's own worktree. An agent can write whatever it wants into ``path``."""

    repository: Repository  # the one that it is made of
    path: Path

    @property
    def git_folder(self) -> Path:
        """The folder of the worktree's own repository: beside it, so that an agent does not work in it."""
        return self.path.with_name(f".{self.path.name}.git")

    @property
    def own(self) -> Repository:
        """Its own repository."""
        return Repository(self.git_folder, self.repository.environment)

    @property
    def git(self) -> Git:
        """git for the files and the own repository of the worktree, without reading its ``.git``. Raises
        ``GitError`` if one of them is gone, or a link has replaced the files."""
        if not self.has_repository():
            raise GitError(f"{self.path} is not a worktree of {self.repository.folder} any more")
        if self.path.is_symlink():
            raise GitError(
                f"a link has replaced the workspace {self.path}, and Runner does not follow it"
            )
        variables = {"GIT_DIR": str(self.git_folder), "GIT_WORK_TREE": str(self.path)}
        return users_git(self.path, self.repository.environment, variables)

    def add(self, commit: str) -> None:
        """Make it from scratch at a commit, on no branch; remove what an earlier attempt left. Raises
        ``GitError``, ``OSError``."""
        self.remove()
        if not self.repository.has(commit):
            raise GitError(f"{self.repository.folder} has no commit {commit}")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_borrowing(self.git_folder, self.repository)
        (self.git_folder / "HEAD").write_text(f"{commit}\n")
        self.path.mkdir(mode=0o700)
        self._link()
        self.git.run("reset", "--quiet", "--hard", commit)

    def remove(self) -> None:
        """Remove it with its own repository. Raises ``OSError`` if it cannot be removed whole."""
        remove_folder(self.path)
        remove_folder(self.git_folder)

    def is_whole(self) -> bool:
        """Return True if it is there; write a missing ``.git`` again. Raises ``OSError``."""
        if self.path.is_symlink() or not self.path.is_dir() or not self.has_repository():
            return False
        if not os.path.lexists(self.path / ".git"):
            self._link()
        return True

    def unlock(self) -> None:
        """Remove the locks that a killed git left; nothing else may work in it now."""
        if self.has_repository():
            for pattern in ("*.lock", "refs/**/*.lock"):
                for lock in self.git_folder.glob(pattern):
                    lock.unlink(missing_ok=True)

    def commit_all(self, message: str) -> str:
        """Commit what is new and not ignored; return HEAD's commit. Raises ``GitError``."""
        tree, head = self.write_tree(), self.head()
        assert head is not None, "it was made of a commit"
        if tree == self.git.text("rev-parse", "--verify", "--quiet", f"{head}^{{tree}}"):
            return head
        made = self.commit(tree, head, message)
        self.git.run("update-ref", "--no-deref", "-m", "runner: set up", "HEAD", made, head)
        return made

    def write_tree(self) -> str:
        """Stage all that is in it and not ignored; return its tree. Repositories in it that are no
        submodules are left out, because nobody else has them. Raises ``GitError``."""
        git = self.git
        others = git.records("ls-files", "-z", "--others", "--exclude-standard")
        nested = [name.rstrip(b"/") for name in others if name.endswith(b"/")]
        wanted = [b":/", *(b":(exclude,top,literal)" + name for name in nested)]
        add = ("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
        try:
            git.run(*add, given=b"\0".join(wanted))
        except GitError as error:
            if "Permission denied" not in str(error):
                raise
            raise GitError(
                f"cannot commit files that cannot be read: {error}; make them readable "
                f"(chmod -R u+rwX {self.path}), then retry the run"
            ) from error
        return git.text("write-tree")

    def commit(self, tree: str, parent: str, message: str) -> str:
        """Commit, without a ref, as the user of git's settings or Runner. Raises ``GitError``."""
        git, text = self.git, message.replace("\0", "").encode("utf-8", "replace")
        git = git.signed(*self.repository.author())
        return git.text("commit-tree", tree, "-p", parent, given=text)

    def head(self) -> str | None:
        """Return the commit that HEAD is at, None on a branch without one."""
        with suppress(GitError):
            return self.git.answer("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return None

    def switch_to(self, branch: str) -> None:
        """Put HEAD on a branch; index and files stay. Raises ``GitError``."""
        note = "runner: on its branch"
        self.git.run("symbolic-ref", "-m", note, "HEAD", f"{BRANCHES}{branch}")

    def restore(self, state: GitState) -> None:
        """Put the git state back, without an absent staged tree. Raises ``GitError``."""
        git, index = self.git, state.index
        if index is not None and git.answer("cat-file", "-e", f"{index}^{{tree}}") is None:
            index = None
        _restore_refs(self.own, state.refs, state.branch)
        if state.branch is None:
            git.run("update-ref", "--no-deref", "-m", _PUT_BACK, "HEAD", state.commit)
        else:
            self.own.move(state.branch, state.commit, None, _PUT_BACK)
            self.switch_to(state.branch)
        git.run("read-tree", index or state.commit)

    def has_repository(self) -> bool:
        return (self.git_folder / "HEAD").is_file() and not self.git_folder.is_symlink()

    def _link(self) -> None:
        link = b"gitdir: " + os.fsencode(self.git_folder) + b"\n"
        (self.path / ".git").write_bytes(link)


@dataclass(slots=True)
class GitStateReader:
    """Reads the git state of a worktree, at little cost where its index has not changed since."""

    worktree: Worktree
    # Of the index: its stamp, the commit that it was compared with, and the tree of what is staged.
    _staged: tuple[tuple[int, int, int], str, str | None] | None = field(default=None, init=False)

    def read(self) -> GitState | None:
        """Return the state, or None on a branch that has no commit. Raises ``GitError`` if it is no
        worktree any more; ``OSError`` if a file of its repository cannot be read."""
        worktree = self.worktree
        if not worktree.has_repository():
            raise GitError(f"{worktree.path} is not a worktree of its repository any more")
        commit = worktree.head()
        head = read_beginning(worktree.git_folder / "HEAD", _LARGEST_HEAD) or b""
        branch = os.fsdecode(on[1]) if (on := _ON_BRANCH.fullmatch(head)) else None
        if commit is None:
            return None
        refs = _read_refs(worktree.own, branch)
        return GitState(commit, branch, self._staged_tree(commit), refs)

    def _staged_tree(self, commit: str) -> str | None:
        """Return the tree of what is staged; None if it is the commit's, or a merge is unfinished."""
        index = self.worktree.git_folder / "index"
        if not index.is_file():
            return None
        status = index.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._staged is None or self._staged[:2] != (stamp, commit):
            git, tree = self.worktree.git, None
            quiet = ("diff-index", "--cached", "--quiet", "--ignore-submodules", commit, "--")
            if git.answer(*quiet) is None:
                # git locks the index that it writes the tree of: a copy of it is no other's.
                with tempfile.TemporaryDirectory(prefix="runner-index-") as folder:
                    copied = shutil.copyfile(index, Path(folder, "index"))
                    tree = git.having(GIT_INDEX_FILE=str(copied)).answer("write-tree")
            self._staged = (stamp, commit, tree)
        return self._staged[2]


def _read_refs(own: Repository, branch: str | None) -> RefChanges:
    """Return how the refs have changed, except the branch that the worktree is on."""
    first, now, commits = _first_refs(own), dict[str, str](), list[str]()
    form = "--format=%(objectname) %(objecttype) %(refname)"
    for line in own.git.text("for-each-ref", form).splitlines():
        object_id, kind, name = line.split(" ", 2)
        if name != f"{BRANCHES}{branch}":
            now[name] = object_id
            if kind == "commit" and first.get(name) != object_id:
                commits.append(object_id)
    first.pop(f"{BRANCHES}{branch}", None)
    stash = ""
    if _STASH in now:
        with suppress(OSError):  # a stash without its log: git shows none, either
            logged = read_beginning(own.folder / "logs" / _STASH, _LARGEST_FILE) or b""
            stash = logged.decode("utf-8", "surrogateescape")
    changed = sorted(_ref_updates(first, now).items())
    return RefChanges(tuple(changed), tuple(dict.fromkeys(commits)), stash)


def _restore_refs(own: Repository, refs: RefChanges, branch: str | None) -> None:
    """Put the refs back, except ``branch`` and those whose objects are not here, as on another
    host."""
    now = _by_name(own.git.text("for-each-ref", "--format=%(objectname) %(refname)"))
    updates = _ref_updates(now, {**_first_refs(own), **dict(refs.changed)})
    updates.pop(f"{BRANCHES}{branch}", None)
    wanted = "".join(f"{each}\n" for each in sorted({*updates.values()} - {""})).encode()
    form = "--batch-check=%(objectname) %(objecttype)"
    found = own.git.text("cat-file", form, given=wanted).splitlines()
    here = {line.split(" ")[0] for line in found if not line.endswith(" missing")}
    gone = [f"delete {name}\n" for name, object_id in updates.items() if not object_id]
    made = [f"update {name} {each}\n" for name, each in updates.items() if each in here]
    for lines in (gone, made):  # a folder of refs may become a ref
        if lines:
            own.git.run("update-ref", "--no-deref", "--stdin", given=os.fsencode("".join(lines)))
    if refs.stash and dict(refs.changed).get(_STASH) in {*here, now.get(_STASH)}:
        log = own.folder / "logs" / _STASH
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(refs.stash.encode("utf-8", "surrogateescape"))


def _first_refs(own: Repository) -> dict[str, str]:
    return _by_name(os.fsdecode((own.folder / _FIRST_REFS).read_bytes()))


def _by_name(listed: str) -> dict[str, str]:
    lines = (line.split(" ", 1) for line in listed.splitlines())
    return {name: object_id for object_id, name in lines}


def _ref_updates(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the ref updates from before to after; "" deletes."""
    names = {**before, **after}
    return {
        name: after.get(name, "") for name in names if before.get(name, "") != after.get(name, "")
    }


def _make_borrowing(folder: Path, source: Repository) -> None:
    """Make a repository with the objects, branches, tags and settings of another."""
    common, git = source.common_folder(), source.git
    kind = git.text("rev-parse", "--show-object-format")
    git.run("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(folder))
    for name in _COPIED:
        (folder / name).parent.mkdir(exist_ok=True)
        try:
            content = read_beginning(common / name, _LARGEST_FILE)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise GitError(f"{common / name} cannot be read: {error.strerror}") from error
        if content is not None:
            (folder / name).write_bytes(content)
    with (folder / "info" / "exclude").open("ab") as excluded:
        excluded.write(f"\n{EXCLUDED}\n".encode())
    listed = git.run("for-each-ref", "--format=%(objectname) %(refname)")
    left_out = tuple(map(os.fsencode, _NOT_BORROWED))
    lines = listed.splitlines(keepends=True)
    refs = b"".join(each for each in lines if not each.partition(b" ")[2].startswith(left_out))
    (folder / _FIRST_REFS).write_bytes(refs)
    (folder / "packed-refs").write_bytes(refs)
    alternates = os.fsencode(quoted(common / "objects"))
    (folder / "objects" / "info" / "alternates").write_bytes(alternates + b"\n")
    # The source's settings are read where they stand: an agent's changes are made to this file alone.
    # Its hooks are for the agent's git, as in any checkout.
    settings = (
        f"[core]\n\thooksPath = {quoted(common / 'hooks')}\n"
        f"[include]\n\tpath = {quoted(common / 'config')}\n"
        "[core]\n\tbare = false\n"
    )
    with (folder / "config").open("ab") as config:
        config.write(os.fsencode(settings))
