"""A repository that runs work on, or one of a run's own: its branches, and clones of it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runner.workspace.folders import remove_folder
from runner.workspace.git import Git, GitError
from runner.workspace.snapshot_store import store_git

RUNNER = "Runner"


RUNNERS_ADDRESS = "runner@localhost"


BRANCHES = "refs/heads/"


NOWHERE = ""  # where a ref is that is not there (git-update-ref(1))


SECONDS = 3_600.0


_SETTINGS = ("submodule.recurse=false", "advice.addEmbeddedRepo=false")


@dataclass(slots=True)
class Repository:
    """A repository: the user's, a bare clone of Runner's own, or the one of a run's worktree.

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
        return os.fsdecode(self.raw(*arguments, variables=variables, given=given)).strip()

    def raw(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        given: bytes = b"",
    ) -> bytes:
        """Run git in it; what it printed, as it is. Raises ``GitError``."""
        place = {"GIT_DIR": str(self.folder)} if self._is_bare() else {}
        git = users_git(self.folder, self.environment, {**place, **(variables or {})})
        return git.run(*arguments, given=given, seconds=SECONDS)

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

    def has(self, commit: str) -> bool:
        """Whether it is there, and has a commit."""
        try:
            self.git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitError:
            return False
        return True

    def parent(self, commit: str) -> str | None:
        """The commit below one; None when it is the first, or not there."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{commit}^")
        except GitError:
            return None

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
            name = f"{BRANCHES}{branch}^{{commit}}"
            return self.git("rev-parse", "--verify", "--quiet", name)
        except GitError:
            return None

    def new_branch(self, names: Sequence[str], commit: str, run_id: str) -> str:
        """Make a run's branch: the first of ``names`` that nobody else has. One that an attempt at the
        same run made before is taken over as it is.

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
            return name
        raise GitError(f"no branch can be made for {run_id}: {failure}") from failure

    def checked_out(self, branch: str) -> str:
        """Where a branch is checked out; empty when it is nowhere. Raises ``GitError``."""
        return self.git("for-each-ref", "--format=%(worktreepath)", f"{BRANCHES}{branch}")

    def move(self, branch: str, commit: str, before: str | None, note: str) -> None:
        """Have a branch be at a commit; ``before`` is where it has to be until then (None: anywhere).
        Raises ``GitError``."""
        people = {"GIT_COMMITTER_NAME": RUNNER, "GIT_COMMITTER_EMAIL": RUNNERS_ADDRESS}
        change = [f"{BRANCHES}{branch}", commit, *([] if before is None else [before])]
        self.git("update-ref", "--create-reflog", "-m", note, *change, variables=people)

    def _first_note(self, branch: str) -> str:
        """What the oldest change of a branch that is remembered says of itself."""
        try:
            notes = self.git("log", "-g", "--format=%gs", f"{BRANCHES}{branch}", "--")
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


def users_git(folder: Path, environment: Mapping[str, str], variables: Mapping[str, str]) -> Git:
    """Git as its user set it up: filters, credentials and proxies count; hooks don't run."""
    return Git(folder, environment, variables, _SETTINGS, user_settings=True)


_LONGEST = 100  # bytes; a ref is a file, with `.lock` after its name while it is written


_SUFFIX = 6


def branch_name(job: str, key: str, run_id: str = "") -> str:
    """``runner/<job>/<item>``; with a run's id, a name that no other run has.

    Args:
        job: the job's name.
        key: the item's key.
    """
    ending = f"-{run_id[-_SUFFIX:]}" if run_id else ""
    return f"runner/{ref_part(job)}/{ref_part(key)}{ending}"


def ref_part(text: str) -> str:
    """Any text as one part of a ref's name (https://git-scm.com/docs/git-check-ref-format): letters and
    digits stay, everything that git, a shell or a file system could take amiss becomes a dash."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
    kept = kept.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    for doubled in ("--", ".."):
        while doubled in kept:
            kept = kept.replace(doubled, doubled[0])
    kept = kept.strip(".-")
    if kept.endswith(".lock"):
        kept = f"{kept.removesuffix('.lock')}-lock"
    return kept or "item"


BASES = "refs/runner/bases/"


_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")


_KEY_LENGTH = 32


def clone_of(home: Path, url: str) -> Path:
    """Where the clone of a URL is, or would be.

    Args:
        home: RUNNER_HOME.
    """
    key = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_LENGTH]
    return home / "repositories" / f"{key}.git"


def have_clone(clone: Path, url: str, commit: str) -> None:
    """Have a clone that holds a commit: made at first, fetched into when the commit is newer. One at a
    time does it; others wait, and find it done.

    Raises:
        GitError: the URL does not answer, or has no such commit. OSError.
    """
    clone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(clone):
        _remove_drafts(clone)
        if not clone.is_dir():
            draft = clone.with_name(f"{clone.name}.partial-{secrets.token_hex(4)}")
            draft.mkdir(mode=0o700)
            Repository(draft).git("init", "--quiet", "--bare", "--template=")
            _fetch(Repository(draft), url, commit)
            draft.rename(clone)
        elif not Repository(clone).has(commit):
            _fetch(Repository(clone), url, commit)


def _fetch(clone: Repository, url: str, commit: str) -> None:
    """Branches and tags, and when the commit is in none of them, the commit."""
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--", url)
    clone.git(*fetch, *_ALL)
    base = f"{BASES}{commit}"
    for wanted in (f"+{base}:{base}", f"+{commit}:{base}"):
        if clone.has(commit):
            return
        try:
            clone.git(*fetch, wanted)
        except GitError as error:
            failure = error
    if not clone.has(commit):
        raise GitError(f"{url} has no commit {commit}: {failure}") from failure


@contextmanager
def _alone(clone: Path) -> Iterator[None]:
    descriptor = os.open(f"{clone}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_drafts(clone: Path) -> None:
    """What a clone that was cut off left."""
    for path in clone.parent.glob(f"{clone.name}.partial-*"):
        remove_folder(path)


def bring(commits: Sequence[str], known: str, of: Repository, to: Repository | Path) -> None:
    """Have commits of one repository in another, or in a store of snapshots, with all below them.

    Args:
        known: a commit that both have.

    Raises:
        GitError: they cannot be had.
    """
    wanted = "".join(f"{commit}\n" for commit in commits) + f"^{known}\n"
    packed = of.raw("pack-objects", "--revs", "--stdout", "--quiet", given=wanted.encode())
    if isinstance(to, Repository):
        to.raw("index-pack", "--stdin", given=packed)
    else:
        store_git(to, of.environment).run("index-pack", "--stdin", given=packed)
