"""Notes that this host keeps beside the workspaces that it made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.workspace.folders import write_whole
from runner.workspace.worktree import NO_CHANGES, GitState


@dataclass(frozen=True, slots=True)
class Made:
    """The note about a workspace that was made completely, setup included."""

    branch: str = ""  # this and the next two: of a worktree only
    start_commit: str = ""
    delivered: str = ""  # the last commit that the run was delivered in
    delivered_from: str = ""  # the note of the git state before that delivery
    delivering: str | None = None  # while it is delivered: the note of the git state before
    put_back: bool = True  # False while its files are put back

    def state(self, note: str) -> GitState:
        if note:
            return GitState.from_note(note, self.branch)
        return GitState(self.start_commit, self.branch)

    def note(self, state: GitState | None) -> tuple[str, tuple[str, ...]]:
        """Return a snapshot's note of the git state (None: on a branch without a commit), and the
        commits that the snapshot keeps. The run's own beginning needs no note, and its delivery
        moves nothing."""
        if state is None:
            return "", ()
        before = state
        if replace(state, refs=NO_CHANGES) == GitState(self.delivered, self.branch):
            before = replace(self.state(self.delivered_from), refs=state.refs)
        is_start = before == GitState(self.start_commit, self.branch)
        note = "" if is_start else before.to_note(self.branch)
        return note, tuple(dict.fromkeys((state.commit, *state.refs.commits)))


@dataclass(frozen=True, slots=True)
class MadeNotes:
    """The notes on a workspace. They are beside it, because an agent may change its content. Each attempt
    has a file and reads the newest one of its own and earlier attempts, so an attempt that has lost the
    run cannot mislead later ones. While the workspace is made, its note says that there is none."""

    folder: Path
    attempt: int

    @classmethod
    def beside(cls, workspace: Path, attempt: int) -> MadeNotes:
        return cls(workspace.with_name(f".{workspace.name}.made"), attempt)

    def read(self) -> Made | None:
        """Return the note, or None if no workspace is whole. Raises ``OSError``."""
        try:
            newest = max(each for each in self._attempts() if each <= self.attempt)
            content = json.loads((self.folder / str(newest)).read_bytes())
            return None if content is None else Made(**content)
        except (FileNotFoundError, ValueError, TypeError):
            return None  # there is none, or another Runner's: the workspace is made again

    def write(self, made: Made | None) -> None:
        """Write this attempt's note, and remove earlier ones. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = json.dumps(made and asdict(made)).encode()
        write_whole(self.folder / str(self.attempt), content)
        for earlier in self._attempts():
            if earlier < self.attempt:
                (self.folder / str(earlier)).unlink(missing_ok=True)

    def _attempts(self) -> list[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []  # noqa: PTH208 - names alone
        return [int(name) for name in names if name.isdecimal()]
