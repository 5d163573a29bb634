"""What a host notes of a workspace that it has made: beside it, as what is in it can be an agent's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.workspace.worktrees import Head
from runner.workspace.worktrees.refs import NO_REFS
from runner.workspace.worktrees.standing import from_note, to_note


@dataclass(frozen=True, slots=True)
class Made:
    """A workspace that was made whole, setup and all. ``branch`` and ``start_commit`` are of a
    worktree, and so is ``delivered``: the last commit that the run was delivered in, with the note of
    where the worktree stood until then. While it is delivered, ``delivering`` is that note; and while
    its files are put back to a tree, ``put_back`` is false."""

    branch: str = ""
    start_commit: str = ""
    delivered: str = ""
    delivered_from: str = ""
    delivering: str | None = None
    put_back: bool = True


def note_for(head: Head | None, made: Made) -> tuple[str, tuple[str, ...]]:
    """What a snapshot says of where a worktree stands, and the commits that it keeps. The run's own
    beginning needs no note, and its delivery moves nothing.

    Args:
        head: where it stands, None on a branch without a commit.
    """
    if head is None:
        return "", ()
    stands = stands_undelivered(head, made)
    note = "" if stands == Head(made.start_commit, made.branch) else to_note(stands, made.branch)
    return note, tuple(dict.fromkeys((head.commit, *head.refs.commits)))


def stands_undelivered(head: Head, made: Made) -> Head:
    """Where a worktree stands, or stood before what it stands at was delivered."""
    if replace(head, refs=NO_REFS) != Head(made.delivered, made.branch):
        return head
    return replace(standing_of(made.delivered_from, made), refs=head.refs)


def standing_of(note: str, made: Made) -> Head:
    """Where a worktree stood, by a snapshot's note."""
    return from_note(note, made.branch) if note else Head(made.start_commit, made.branch)


@dataclass(frozen=True, slots=True)
class MadeNote:
    """What attempts have said so, each in a file of its own, until a later one did: an attempt that has
    lost its run, and does not know it yet, says nothing that counts for those after it. While a
    workspace is being made, its attempt says that there is none.

    Args:
        folder: of the files. attempt: the one that reads and writes.
    """

    folder: Path
    attempt: int

    @classmethod
    def beside(cls, workspace: Path, attempt: int) -> MadeNote:
        return cls(workspace.with_name(f".{workspace.name}.made"), attempt)

    def read(self) -> Made | None:
        """What was said last, up to this attempt; None when nothing whole is there. Raises
        ``OSError``."""
        if (content := self._content(self.attempt)) is None:
            earlier = [each for each in self._attempts() if each < self.attempt]
            content = self._content(max(earlier)) if earlier else None
        try:
            return None if content is None else Made(**json.loads(content))
        except (ValueError, TypeError):  # that there is none, or another Runner's: made again
            return None

    def write(self, made: Made | None) -> None:
        """Say it, whole or not at all; None: nothing whole is there. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.folder / f"{self.attempt}.draft"
        draft.write_text(json.dumps(made and asdict(made)), encoding="utf-8")
        draft.replace(self.folder / str(self.attempt))
        for earlier in self._attempts():
            if earlier < self.attempt:
                (self.folder / str(earlier)).unlink(missing_ok=True)

    def _content(self, attempt: int) -> bytes | None:
        try:
            return (self.folder / str(attempt)).read_bytes()
        except FileNotFoundError:
            return None

    def _attempts(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]
