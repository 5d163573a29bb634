"""Where a job's runs work, as its spec holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.permissions import Rule

WorkspaceMode = Literal["shared", "copy", "git", "none"]
OnUnknown = Literal["tell", "ask"]

LARGEST_FILE = 20_000_000
SETUP_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where the job's runs work.

    ``path`` is an absolute folder: used as it is ("shared"), copied for each run ("copy"), or the
    repository of which each run gets a worktree ("git"; None when it is cloned from ``url``).
    ``base`` is the ref as the job has it, and ``commit`` what it was at the submission.

    ``setup`` are shell commands that each new workspace is made ready with, ``setup_timeout`` in
    seconds each. ``remote`` is the URL or path of a git repository that snapshots are pushed to.
    ``snapshot_ignored`` are glob patterns of ignored files that are recorded all the same;
    of files over ``largest_file`` bytes only the digest is.

    ``external`` are rules of the tool calls whose effects leave the workspace: they are never run
    again by themselves. ``on_unknown`` says who decides when the outcome of a call is unknown: the
    model, which is told so, or a person.
    """

    path: str | None = None
    mode: WorkspaceMode = "shared"
    url: str | None = None
    base: str = "HEAD"
    commit: str = ""
    setup: tuple[str, ...] = ()
    setup_timeout: float = SETUP_SECONDS
    remote: str | None = None
    snapshot_ignored: tuple[str, ...] = ()
    largest_file: int = LARGEST_FILE
    external: tuple[Rule, ...] = ()
    on_unknown: OnUnknown = "tell"

    @property
    def is_recorded(self) -> bool:
        """Whether trees are recorded of it: each run has one of its own."""
        return self.mode in ("git", "copy")

    @property
    def source(self) -> str:
        """The repository or folder that runs' own workspaces are made from."""
        return self.url or self.path or ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workspace:
        """The value that ``dataclasses.asdict`` made a mapping of."""
        return cls(
            **{
                **data,
                "setup": tuple(data.get("setup", ())),
                "snapshot_ignored": tuple(data.get("snapshot_ignored", ())),
                "external": tuple(Rule(**rule) for rule in data.get("external", ())),
            }
        )
