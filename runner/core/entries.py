"""What doing a step appends to a run's journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.core.agents import NewChild
from runner.core.budget import Reservation
from runner.core.context import Compaction
from runner.core.conversation import ModelReply, Purpose, ToolResult
from runner.core.hooks import HookEvent, HookResult
from runner.core.run import Outcome
from runner.core.workspace import Instructions
from runner.permissions import Decision, ToolContext

OUR_OWN_FAILURES = frozenset({"worker_lost", "shutdown"})

# The API found the request too long: it is compacted and sent again.
PROMPT_TOO_LONG = "prompt_too_long"

MessageCause = Literal[
    "queued", "nudge", "continue", "resume", "verify", "result", "hook", "split", "children"
]

# How a tree came to be the one that is recorded without a tool having made it: the workspace is new,
# someone else changed it, or it was changed back to the recorded one.
TreeCause = Literal["created", "changed", "restored", "incomplete", "children"]


@dataclass(frozen=True, slots=True)
class ModelCallStarted:
    """``at`` is in seconds since the epoch."""

    number: int
    reservation: Reservation
    at: float = 0.0
    purpose: Purpose = "turn"


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """``tool_contexts`` has, for each call of the reply, where it would run. It is looked up before the
    reply is stored, so that the same transaction decides on the calls."""

    reply: ModelReply
    tool_contexts: tuple[ToolContext, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryReplied:
    """The reply to a call for a summary. Without a ``compaction`` it was of no use: ``why``."""

    reply: ModelReply
    compaction: Compaction | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """A compaction that needed no model."""

    compaction: Compaction


@dataclass(frozen=True, slots=True)
class TimeWorked:
    """Seconds that the step before took, of a model's or a tool's work."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ModelCallFailed:
    """``retry_at`` is None when it will not be tried again; ``charged`` is in tokens. A ``kind`` that
    is our own doing (``OUR_OWN_FAILURES``) is tried again at once and wears out no patience."""

    kind: str
    message: str
    status: int | None
    request_id: str | None
    charged: int
    at: float
    retry_at: float | None


@dataclass(frozen=True, slots=True)
class CallsDecided:
    decisions: Mapping[int, Decision]


@dataclass(frozen=True, slots=True)
class ToolsStarted:
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChildrenStarted:
    """Sub-agents that calls of the last reply ask for. Nothing else starts them: their rows are stored
    with this entry."""

    children: tuple[NewChild, ...]


@dataclass(frozen=True, slots=True)
class OutcomeAsked:
    """A person is to say what becomes of a call whose outcome is unknown. ``unrecorded`` is what it may
    have changed that is in no tree: then nothing is put back for it."""

    index: int
    unrecorded: str = ""


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """``tree`` is the workspace's after the call, None when the call changes none."""

    index: int
    result: ToolResult
    tree: str | None = None


@dataclass(frozen=True, slots=True)
class HookStarted:
    """A hook (its place in the job's ``hooks``) begins; ``index`` is of the call that it is about. The
    number is an earlier one's when that was left in the middle and is run again."""

    number: int
    hook: int
    event: HookEvent
    index: int | None = None


@dataclass(frozen=True, slots=True)
class HookFinished:
    """``tree`` is the workspace's after the hook, None when that is as it was."""

    number: int
    result: HookResult
    tree: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The hooks of a turn are through: the results of its calls join the conversation. In jobs without
    such hooks the last result does that."""


@dataclass(frozen=True, slots=True)
class InstructionsRead:
    """What the run's system prompt goes on with. ``left_out`` says of files why they are not among
    them, a line each."""

    files: tuple[Instructions, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeRecorded:
    """The workspace's tree as an attempt found or made it when it began; ``found`` is one that was
    put aside for it, or, where it is ``incomplete``, the one that names what could not be put back."""

    tree: str
    cause: TreeCause
    found: str | None = None


@dataclass(frozen=True, slots=True)
class VerificationStarted:
    number: int


@dataclass(frozen=True, slots=True)
class Verified:
    """How a verification ended: ``result`` is of the last command that ran, which is ``command``."""

    number: int
    command: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Delivered:
    """The commit that the run ends with, on its branch."""

    commit: str


@dataclass(frozen=True, slots=True)
class UserMessageAdded:
    """Texts for the model that are no tool results. ``queued_ids`` names the queued messages among
    them."""

    texts: tuple[str, ...]
    cause: MessageCause
    queued_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSettled:
    outcome: Outcome


Entry = (
    ModelCallStarted
    | ModelReplied
    | ModelCallFailed
    | SummaryReplied
    | ContextCompacted
    | TimeWorked
    | CallsDecided
    | ToolsStarted
    | ChildrenStarted
    | OutcomeAsked
    | ToolFinished
    | HookStarted
    | HookFinished
    | TurnEnded
    | InstructionsRead
    | TreeRecorded
    | VerificationStarted
    | Verified
    | Delivered
    | UserMessageAdded
    | RunSettled
)
