"""Where a job's runs work, as its spec holds it.

A repository as a job asks for it, and as it was found when the job was submitted.

What says whether a run has succeeded, beside the model.

The structured result that a job can ask of its runs: a tool that the model calls to submit it.

What a workspace says to agents: files that join the system prompt of the runs in it.
"""

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


# What of a repository runs may be told to do without: they do not see it as its users do.
Accepted = Literal["submodules", "lfs", "links", "case"]


@dataclass(frozen=True, slots=True)
class Asked:
    """``job`` is the job's name. ``source`` is a URL, or an absolute path (``is_url``). ``base`` is
    where runs begin, None when the job doesn't say: at HEAD then. ``uncommitted`` adds what is changed
    there and not committed. ``remote`` is the URL or absolute path of the repository that snapshots
    are pushed to."""

    job: str
    source: str
    is_url: bool
    base: str | None = None
    uncommitted: bool = False
    remote: str | None = None
    accepted: frozenset[Accepted] = frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """``path`` is the repository's folder with links resolved, None for a URL. ``commit`` is what
    runs begin at, and ``files`` the paths of its files, sorted.

    ``problems`` are keys of ``[workspace]`` and what is wrong there; with one, the rest says nothing.
    ``notes`` are for whoever submits the job, one line each.
    """

    path: str | None = None
    commit: str = ""
    files: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


LookAtRepository = Callable[[Asked], Found]


OnFailure = Literal["feedback", "fail"]

VERIFY_ROUNDS = 3
VERIFY_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class Verify:
    """Shell commands that run in the workspace, one after the other, when the agent has ended; the
    first that fails is what failed. ``rounds`` is how often its output goes back to the agent;
    ``timeout`` is in seconds, for each command."""

    commands: tuple[str, ...]
    on_failure: OnFailure = "feedback"
    rounds: int = VERIFY_ROUNDS
    timeout: float = VERIFY_SECONDS

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verify:
        """The value that ``dataclasses.asdict`` made a mapping of."""
        return cls(**{**data, "commands": tuple(data["commands"])})


@dataclass(frozen=True, slots=True)
class Verification:
    """The newest verification of a run: its number, the turn after which it began, and whether it
    passed (None: it has not ended). ``command`` is the one that failed, and ``output`` what the model
    is shown of it until it was told. ``tree`` is the workspace's that is verified."""

    number: int
    turn: int
    passed: bool | None = None
    command: str = ""
    output: str = ""
    tree: str | None = None

    def is_of(self, turns: int, tree: str | None) -> bool:
        """Whether it is of a run as it stands: after so many turns, with this tree of its workspace."""
        return self.turn == turns and self.tree == tree


RESULT_SOURCE = "result"
RESULT_TOOL = "submit_result"

_DESCRIPTION = (
    "Submit the result of your work. Call this once, when the work is done: it ends your work. "
    "The input is the result, and has to fit the schema."
)


def result_tool(schema: Mapping[str, Any]) -> Tool:
    """The tool that takes a result.

    Args:
        schema: a JSON Schema of an object.
    """
    return Tool(
        RESULT_TOOL, _DESCRIPTION, schema, read_only=True, repeatable=True, source=RESULT_SOURCE
    )


INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")  # in the workspace's root
MOST_INSTRUCTION_BYTES = 65_536  # of one of them

_PART = "# {path} of the workspace\n\n{text}"


@dataclass(frozen=True, slots=True)
class Instructions:
    """A file of instructions as a run has read it: ``sha256`` in hex, of the bytes of the file; ``text``
    is without a byte order mark, and its control characters are written as escapes."""

    path: str
    sha256: str
    text: str


def with_instructions(system: str | None, files: Sequence[Instructions]) -> str | None:
    """A system prompt that goes on with what the files say."""
    parts = [_PART.format(path=file.path, text=file.text.rstrip()) for file in files]
    return "\n\n".join(filter(None, (system, *parts))) or None
