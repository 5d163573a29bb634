"""Repositories that runs work on: the user's, Runner's clones of others, and each run's own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.workspace.folders import remove_folder
from runner.workspace.git import REMOTE_SECONDS, Check, Git, GitError, no_check
from runner.workspace.snapshot_store import store_git

RUNNER = "Runner"
RUNNERS_ADDRESS = "runner@localhost"
BRANCHES = "refs/heads/"
BASES = "refs/runner/bases/"
NOWHERE = ""  # the value of a ref that does not exist (git-update-ref(1))

_SECONDS = 3_600.0
_SETTINGS = ("submodule.recurse=false", "advice.addEmbeddedRepo=false")
_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_LONGEST_NAME = 100  # bytes; a ref is a file, with `.lock` after its name while it is written
RUN_TRAILER = "Runner-Run"  # the trailer with a run's id
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Repository:
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    @property
    def git(self) -> Git:
        """git in it, as its user set it up."""
        # A bare one may have to be named (``safe.bareRepository``).
        is_bare = not (self.folder / ".git").exists() and all(
            (self.folder / name).exists() for name in ("HEAD", "objects")
        )
        variables = {"GIT_DIR": str(self.folder)} if is_bare else {}
        return users_git(self.folder, self.environment, variables)

    def common_folder(self) -> Path:
        """Return the folder that all worktrees of it share. Raises ``GitError``."""
        return (self.folder / self.git.text("rev-parse", "--git-common-dir")).resolve()

    def has(self, commit: str) -> bool:
        """Return True if it exists, and has a commit."""
        return self.git.answer("cat-file", "-e", f"{commit}^{{commit}}") is not None

    def fetch_from_store(self, commit: str, known: str, store: Path) -> bool:
        """Take a commit from a store, down to ``known``; return True if it is here now."""
        if not self.has(commit):
            try:
                transfer([commit], known, store_git(store, self.environment), self.git)
            except GitError:
                return False
        return self.has(commit)

    def tip(self, branch: str) -> str | None:
        """Return the commit that a branch is at, None if there is no such branch."""
        return self.git.answer("rev-parse", "--verify", "--quiet", f"{BRANCHES}{branch}^{{commit}}")

    def new_branch(self, names: Sequence[str], commit: str, run_id: str) -> str:
        """Make a run's branch, with the first of ``names`` that is free or that an earlier attempt
        made, and return its name. Raises ``GitError`` if none is free."""
        note = f"runner: {run_id} begins"
        failure: GitError | None = None
        for name in names:
            try:
                self.move(name, commit, NOWHERE, note)
            except GitError as error:
                failure = error
                # The branch's oldest log entry; it fails where the name is in the way of another.
                log = self.git.answer("log", "-g", "--format=%gs", f"{BRANCHES}{name}", "--") or ""
                if log.rpartition("\n")[2] != note:
                    continue
            return name
        raise GitError(f"no branch can be made for {run_id}: {failure}") from failure

    def move(self, branch: str, commit: str, before: str | None, note: str) -> None:
        """Point a branch at a commit, with a note for the branch's log. Raises ``GitError`` if it
        cannot be moved, or is at another commit than ``before`` (None: any)."""
        git = self.git.signed(RUNNER, RUNNERS_ADDRESS)
        change = [f"{BRANCHES}{branch}", commit, *([] if before is None else [before])]
        git.run("update-ref", "--create-reflog", "-m", note, *change)

    def author(self) -> tuple[str, str]:
        """Return name and address from its or the user's settings, else Runner's."""
        name, email = (self.git.answer("config", f"user.{each}") for each in ("name", "email"))
        return name or RUNNER, email or RUNNERS_ADDRESS


def users_git(folder: Path, environment: Mapping[str, str], variables: Mapping[str, str]) -> Git:
    """Return git as its user set it up: filters, credentials and proxies count; hooks don't run."""
    return Git(folder, environment, variables, _SETTINGS, user_settings=True, seconds=_SECONDS)


def transfer(commits: Sequence[str], known: str, source: Git, target: Git) -> None:
    """Copy commits with all below them, down to ``known``, which both have. Raises ``GitError``."""
    wanted = "".join(f"{commit}\n" for commit in commits) + f"^{known}\n"
    packed = source.run("pack-objects", "--revs", "--stdout", "--quiet", given=wanted.encode())
    target.run("index-pack", "--stdin", given=packed)


def tip_at(git: Git, remote: str, branch: str, check: Check = no_check) -> str | None:
    """Return the commit of a remote's branch, None if there is none. Raises ``GitError``."""
    named = ("ls-remote", "--heads", "--", remote, f"{BRANCHES}{branch}")
    listed = git.run(*named, check=check, seconds=REMOTE_SECONDS)
    return os.fsdecode(listed).split("\t")[0] or None


def branch_name(job: str, key: str, run_id: str = "") -> str:
    """Return ``runner/<job>/<item>``, or with a run's id a name that no other run has."""
    ending = f"-{run_id[-6:]}" if run_id else ""
    return f"runner/{ref_part(job)}/{ref_part(key)}{ending}"


def ref_part(text: str) -> str:
    """Return any text as one part of a ref's name (https://git-scm.com/docs/git-check-ref-format):
    all but letters and digits that could be taken amiss becomes a dash."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
    kept = kept.encode("utf-8", "replace")[:_LONGEST_NAME].decode("utf-8", "ignore")
    kept = re.sub(r"([-.])\1+", r"\1", kept).strip(".-")
    if kept.endswith(".lock"):
        kept = f"{kept.removesuffix('.lock')}-lock"
    return kept or "item"


def commit_message(
    *,
    job_name: str,
    job_id: str,
    run_id: str,
    item_key: str,
    model: str,
    outcome: str = "",
    message: str | None = None,
) -> str:
    """Return the message of a run's commit, by default the job's name and the key, with its
    trailers (https://git-scm.com/docs/git-interpret-trailers); ``outcome``: how it ended, if it
    has."""
    text = (message or "").strip() or f"{_line(job_name)}: {_line(item_key)}"
    trailers = {
        "Runner-Job": f"{job_name} {job_id}",
        RUN_TRAILER: run_id,
        "Runner-Model": model,
        "Runner-Outcome": outcome,
    }
    lines = [f"{name}: {_line(value)}" for name, value in trailers.items() if value]
    return "\n".join([text, "", *lines, ""])


def setup_message(job_name: str) -> str:
    """Return the message of the commit of setup's changes, which are not the agent's work."""
    return f"Set up by job {_line(job_name)}\n"


def is_delivery(git: Git, commit: str, run_id: str) -> bool:
    """Return True if a commit's message has the trailer of a run. Raises ``GitError``."""
    message = git.text("log", "-1", "--format=%B", commit)
    return f"{RUN_TRAILER}: {run_id}" in message.strip().rpartition("\n\n")[2].splitlines()


def _line(text: str) -> str:
    return _BREAKS.sub(" ", text).strip()


def clone_of(home: Path, url: str) -> Path:
    """Return the path of Runner's bare clone of a URL, which may not exist yet."""
    key = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return home / "repositories" / f"{key}.git"


def update_clone(clone: Path, url: str, commit: str) -> None:
    """Make a clone, or fetch into it, until it has a commit. Processes do it one after the other.
    Raises ``GitError`` if the URL does not answer, or has no such commit; ``OSError`` if the clone
    cannot be written."""
    clone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(f"{clone}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for draft in clone.parent.glob(f"{clone.name}.partial-*"):  # a clone that was cut off
            remove_folder(draft)
        if not clone.is_dir():
            draft = clone.with_name(f"{clone.name}.partial-{secrets.token_hex(4)}")
            draft.mkdir(mode=0o700)
            Repository(draft).git.run("init", "--quiet", "--bare", "--template=")
            _fetch(Repository(draft), url, commit)
            draft.rename(clone)
        elif not Repository(clone).has(commit):
            _fetch(Repository(clone), url, commit)
    finally:
        os.close(lock)


def _fetch(clone: Repository, url: str, commit: str) -> None:
    """Fetch branches and tags, and the commit if it is in none of them."""
    fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--", url)
    clone.git.run(*fetch, *_ALL)
    base = f"{BASES}{commit}"
    for wanted in (f"+{base}:{base}", f"+{commit}:{base}"):
        if clone.has(commit):
            return
        try:
            clone.git.run(*fetch, wanted)
        except GitError as error:
            failure = error
    if not clone.has(commit):
        raise GitError(f"{url} has no commit {commit}: {failure}") from failure
