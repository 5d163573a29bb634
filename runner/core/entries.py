"""The entries of a run's journal: what each step appends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from runner.core.agents import NewChild
from runner.core.budget import Reservation
from runner.core.context import Compaction
from runner.core.conversation import ModelReply, Purpose, Tool, ToolResult, Usage
from runner.core.hooks import HookEvent, HookResult
from runner.core.run import Outcome
from runner.core.workspace import Instructions
from runner.permissions import Decision, ToolContext, digest_of

# This call goes alone before its job's other calls share a batch, so that they find the prefix cached.
WARMS_CACHE = "warms_cache"
OUR_OWN_FAILURES = frozenset({"worker_lost", "shutdown", "withdrawn", WARMS_CACHE})

# The API refuses the key, or what is asked with it.
OF_KEY = frozenset({"authentication_error", "permission_error"})

# The API found the request too long: it is compacted and sent again.
PROMPT_TOO_LONG = "prompt_too_long"

# The API refused an image or document: a line replaces each of the newest ones.
MEDIA_REFUSED = "media_refused"

# The API refuses all calls until somebody raises a spend limit, or a month is over.
SPEND_LIMIT = "spend_limit"

MessageCause = Literal[
    "queued",
    "nudge",
    "continue",
    "resume",
    "verify",
    "result",
    "hook",
    "split",
    "children",
    "instructions",
]

# Why the workspace has a snapshot that no tool made: it is new, someone else changed it, or it was
# restored.
SnapshotCause = Literal["created", "changed", "restored", "incomplete", "children"]


@dataclass(frozen=True, slots=True)
class ModelCallStarted:
    number: int  # of the run's model calls, from 1
    reservation: Reservation
    at: float = 0.0  # seconds since the epoch
    purpose: Purpose = "turn"
    last: int | None = None  # number of the last message that a summary is of


@dataclass(frozen=True, slots=True)
class ModelReplied:
    reply: ModelReply
    # The resolved paths of each call: looked up before the reply is committed, so that the calls
    # are decided in the same transaction.
    tool_contexts: tuple[ToolContext, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryReplied:
    reply: ModelReply
    compaction: Compaction | None  # None: the summary is useless
    why: str = ""  # … for this reason


@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """A compaction that needed no model."""

    compaction: Compaction


@dataclass(frozen=True, slots=True)
class TimeWorked:
    seconds: float  # that a model or tools worked in the step before


@dataclass(frozen=True, slots=True)
class ModelCallFailed:
    # One of ``OUR_OWN_FAILURES``, or of ``OF_KEY`` with a time to retry, wears out no patience.
    kind: str
    message: str
    status: int | None
    request_id: str | None
    charged: int  # tokens
    at: float  # seconds since the epoch
    retry_at: float | None  # seconds since the epoch; None: not again
    cost: int | None = None  # charged; None: the reservation's, if any tokens are
    counted: Usage = field(default_factory=Usage)  # of ``charged``, by the API


@dataclass(frozen=True, slots=True)
class CallsDecided:
    decisions: Mapping[int, Decision]


@dataclass(frozen=True, slots=True)
class ToolsStarted:
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChildrenStarted:
    """Sub-agents start. The store writes their rows with this entry, and nothing else starts them."""

    children: tuple[NewChild, ...]


@dataclass(frozen=True, slots=True)
class OutcomeAsked:
    """A person is asked about a call with an unknown outcome."""

    index: int
    unrecorded: str = ""  # what it may have changed outside of snapshots, which was not restored


@dataclass(frozen=True, slots=True)
class ToolFinished:
    index: int
    result: ToolResult
    snapshot: str | None = None  # of the workspace after the call; None: unchanged


@dataclass(frozen=True, slots=True)
class HookStarted:
    number: int  # of the run's hooks, from 1; an earlier one if it runs again
    hook: int  # its place in the job's ``hooks``
    event: HookEvent
    index: int | None = None  # of the call that it is about


@dataclass(frozen=True, slots=True)
class HookFinished:
    number: int
    result: HookResult
    snapshot: str | None = None  # of the workspace after the hook; None: unchanged


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The hooks of a turn have ended, and the results of its calls join the conversation. Without
    such hooks they join with the last result."""


@dataclass(frozen=True, slots=True)
class InstructionsRead:
    files: tuple[Instructions, ...]  # for the system prompt, or later for a message
    left_out: tuple[str, ...] = ()  # why other files are not among them, a line each


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """MCP servers have changed their tools. From the next model call on, the run has these tools."""

    tools: tuple[Tool, ...]  # all of the run's, those of no server too
    left_out: tuple[str, ...] = ()  # chosen tools that the API does not take, and why

    @property
    def sha256(self) -> str:
        return digest_of([asdict(tool) for tool in self.tools])


@dataclass(frozen=True, slots=True)
class SnapshotRecorded:
    """The snapshot of the workspace at the start of an attempt."""

    snapshot: str
    cause: SnapshotCause
    found: str | None = None  # a snapshot that was replaced, or could not be restored whole


@dataclass(frozen=True, slots=True)
class VerificationStarted:
    number: int


@dataclass(frozen=True, slots=True)
class Verified:
    number: int
    command: str  # the last one that ran
    result: ToolResult  # of that command


@dataclass(frozen=True, slots=True)
class Delivered:
    commit: str  # that the run ends with, on its branch


@dataclass(frozen=True, slots=True)
class UserMessageAdded:
    """Texts for the model that are not tool results."""

    texts: tuple[str, ...]
    cause: MessageCause
    queued_ids: tuple[int, ...] = ()  # the queued messages among them


@dataclass(frozen=True, slots=True)
class RunSettled:
    outcome: Outcome


ModelEntry = ModelCallStarted | ModelReplied | ModelCallFailed | SummaryReplied | ContextCompacted
CallEntry = CallsDecided | OutcomeAsked | ToolsStarted | ChildrenStarted | ToolFinished
HookEntry = HookStarted | HookFinished
WorkspaceEntry = InstructionsRead | SnapshotRecorded | VerificationStarted | Verified | Delivered
RunEntry = TimeWorked | TurnEnded | UserMessageAdded | ToolsListed | RunSettled
Entry = ModelEntry | CallEntry | HookEntry | WorkspaceEntry | RunEntry
