"""A job's workspace, its verification and its structured result, as the spec holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.conversation import Tool
from runner.permissions import Rule

WorkspaceMode = Literal["shared", "copy", "git", "none"]
OnUnknown = Literal["tell", "ask"]

LARGEST_FILE = 20_000_000
SETUP_SECONDS = 1_800.0
TOOL_CACHES = (
    *("__pycache__/", "*.pyc", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/"),
    *("**/node_modules/.cache/", ".parcel-cache/", ".eslintcache", ".gradle/"),
)


@dataclass(frozen=True, slots=True)
class Workspace:
    path: str | None = None  # absolute folder or repository; None: cloned from ``url``
    mode: WorkspaceMode = "shared"  # the folder itself, a copy, or a worktree for each run
    url: str | None = None
    base: str = "HEAD"  # the ref that the job names
    commit: str = ""  # of ``base`` at the submission
    setup: tuple[str, ...] = ()  # shell commands that prepare each new workspace
    setup_timeout: float = SETUP_SECONDS  # of each
    remote: str | None = None  # URL or path of the repository that snapshots are pushed to
    snapshot_ignored: tuple[str, ...] = ()  # globs of ignored files that are recorded all the same
    ignore: tuple[str, ...] = ()  # lines of .gitignore for a copy, below the lists of its source
    largest_file: int = LARGEST_FILE  # bytes; of a larger file only the digest is recorded
    external: tuple[Rule, ...] = ()  # calls with effects elsewhere: never run again by themselves
    on_unknown: OnUnknown = "tell"  # who decides on an unknown outcome: the model, or a person
    max_concurrency: int | None = None  # runs that are worked on at once in a shared folder
    other_name: str | None = None  # ``path`` as written in the job file, maybe a symlink

    @property
    def is_recorded(self) -> bool:
        """True if each run has its own workspace and Runner records snapshots of it."""
        return self.mode in ("git", "copy")

    @property
    def copied(self) -> tuple[str, ...]:
        """The paths of the folder that is copied for each run, the real one first."""
        is_here = self.is_recorded and self.path is not None
        return tuple(filter(None, (self.path, self.other_name))) if is_here else ()

    @property
    def source(self) -> str:
        """The repository or folder that runs' own workspaces are made from."""
        return self.url or self.path or ""


# Features of a repository that a job can accept although runs see them differently.
Accepted = Literal["submodules", "lfs", "links", "case"]


@dataclass(frozen=True, slots=True)
class Asked:
    """The repository that a job asks for."""

    job: str  # the job's name
    source: str  # a URL or an absolute path
    is_url: bool
    base: str | None = None  # where runs begin; None: at HEAD
    uncommitted: bool = False  # with what is changed there and not committed
    remote: str | None = None  # URL or path of the repository that snapshots are pushed to
    accepted: frozenset[Accepted] = frozenset()
    file: str = ""  # the job file: runs need not see it


@dataclass(frozen=True, slots=True)
class Found:
    """The repository at the submission. With ``problems``, the other fields mean nothing."""

    path: str | None = None  # its folder with links resolved; None for a URL
    commit: str = ""  # where runs begin
    files: tuple[str, ...] = ()  # sorted
    problems: tuple[tuple[str, str], ...] = ()  # key of ``[workspace]`` and what is wrong there
    notes: tuple[str, ...] = ()  # for whoever submits the job, one line each


LookAtRepository = Callable[[Asked], Found]


OnFailure = Literal["feedback", "fail"]

VERIFY_ROUNDS = 3
VERIFY_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class Verify:
    """Shell commands that verify the run's work, in order, up to the first that fails."""

    commands: tuple[str, ...]
    on_failure: OnFailure = "feedback"
    rounds: int = VERIFY_ROUNDS  # how often a failure goes back to the agent
    timeout: float = VERIFY_SECONDS  # of each command


@dataclass(frozen=True, slots=True)
class Verification:
    """The newest verification of a run."""

    number: int
    turn: int  # after which it began
    passed: bool | None = None  # None: it has not ended
    command: str = ""  # that failed
    output: str = ""  # of that command, until the model was told
    tree: str | None = None  # snapshot of the workspace that is verified


RESULT_SOURCE = "result"
RESULT_TOOL = "submit_result"

_DESCRIPTION = (
    "Submit the result of your work. Call this once, when the work is done: it ends your work. "
    "The input is the result, and has to fit the schema."
)


def result_tool(schema: Mapping[str, Any]) -> Tool:
    """The tool that takes a result, by the JSON Schema of an object."""
    return Tool(
        RESULT_TOOL, _DESCRIPTION, schema, read_only=True, repeatable=True, source=RESULT_SOURCE
    )


INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")  # in the workspace's root
MOST_INSTRUCTION_BYTES = 65_536  # of one of them

_PART = "# {path} of the workspace\n\n{text}"
_CHANGED = "This file has changed. The text below replaces its earlier text.\n\n{part}"
_GONE = "{path} of the workspace is gone, or may not be read. Its instructions no longer apply."


@dataclass(frozen=True, slots=True)
class Instructions:
    """A file of instructions that a run has read."""

    path: str
    sha256: str  # hex, of the bytes of the file
    text: str  # without a byte order mark, control characters escaped


# Paths with the digests of their bytes.
Digests = tuple[tuple[str, str], ...]


def digests_of(files: Sequence[Instructions]) -> Digests:
    return tuple((file.path, file.sha256) for file in files)


def change_messages(known: Digests, files: Sequence[Instructions]) -> tuple[str, ...]:
    """Return messages for a run that knows these digests: one per changed, new or gone file."""
    before, now = dict(known), {file.path: file for file in files}
    told = [
        _CHANGED.format(part=_PART.format(path=path, text=file.text.rstrip()))
        for path, file in now.items()
        if before.get(path) != file.sha256
    ]
    told += [_GONE.format(path=path) for path in before if path not in now]
    return tuple(told)


def with_instructions(system: str | None, files: Sequence[Instructions]) -> str | None:
    parts = [_PART.format(path=file.path, text=file.text.rstrip()) for file in files]
    return "\n\n".join(filter(None, (system, *parts))) or None
