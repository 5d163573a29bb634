"""The run state: a run's stored state as one value, with the attempt's transient fields.

``core.fold`` says how each entry changes it. The store writes an entry as rows and reads the
rows back as a run state; a test holds that both ways give equal states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.core.agents import Child, Split
from runner.core.budget import Ceiling, Charged, DayCap, JobBudget, Limits, Reservation
from runner.core.context import DEFAULT_WINDOW, Compacted, Pace, sent_messages
from runner.core.conversation import Block, Message, Purpose, ToolOutcome, Usage
from runner.core.hooks import HookRun
from runner.core.prices import Tariff
from runner.core.rate_limits import Caller
from runner.core.run import Outcome
from runner.core.spec import JobSpec, Lane
from runner.core.workspace import Digests, Verification
from runner.permissions import Answer, Decision, ToolContext

if TYPE_CHECKING:  # reads of stored states need no parser of commands
    from runner.permissions.decisions import Policy

# Not every field of the parts of ``Progress`` is stored as JSON in ``runs.progress``: one with this
# metadata has a column or rows of its own. A field with ``compare=False`` is transient: only the
# attempt in hand knows it, and it is not stored at all.
IN_ROWS = {"in_rows": True}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the last reply."""

    index: int  # among the calls of the reply
    id: str  # the API's
    name: str  # of the tool
    input: Any  # as the model gave it
    # The resolved paths of the call, from when it is located until it is decided.
    tool_context: ToolContext | None = field(default=None, compare=False)
    decision: Decision | None = None
    answer: Answer | None = None  # a person's, to the decision to ask
    started_by: int | None = None  # the attempt that started it
    interrupted: bool = False  # the run ended before it had a result
    asked_again: bool = False  # its outcome is unknown, and a person is or was asked what to do
    result: Block | None = None  # its ``tool_result`` block
    outcome: ToolOutcome | None = None  # of the result
    details: Mapping[str, Any] | None = None  # of the result, in a job with hooks
    updated_input: Mapping[str, Any] | None = None  # what a hook changed the input to
    original: str | None = None  # the result's text before a hook replaced it

    @property
    def input_to_run(self) -> Any:
        """The input after the last change: by the person who approved it, else by a hook."""
        changed = self.answer.input if self.answer is not None else None
        if changed is None:
            changed = self.updated_input
        return self.input if changed is None else dict(changed)

    @property
    def waits(self) -> bool:
        """True if a person has been asked about it and has not answered."""
        return self.decision is not None and self.decision.effect == "ask" and self.answer is None

    @property
    def is_approved(self) -> bool:
        """True if a person, or a rule of theirs, has approved it."""
        return self.answer is not None and self.answer.effect == "approved"

    @property
    def is_edited(self) -> bool:
        """True if the person who approved it changed its input."""
        return self.answer is not None and self.answer.input is not None


@dataclass(frozen=True, slots=True)
class OpenCall:
    number: int  # of the run's model calls, from 1
    attempt: int  # that started it
    reservation: Reservation
    purpose: Purpose = "turn"
    last: int | None = None  # number of the last message that a summary is of


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str  # the API's stop reason
    lowered: bool  # a ceiling left room for fewer tokens of output than the job asks for
    empty: bool  # the reply has no block to keep
    lowered_by: Ceiling = "token_ceiling"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failures of model calls in a row since the last reply."""

    count: int
    first_at: float  # seconds since the epoch
    retry_at: float | None  # seconds since the epoch; None: not again
    kind: str  # of the last one
    message: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelState:
    calls: int = 0  # model calls started, including summaries
    tries: int = 0  # of the next turn: calls since the last reply
    open_call: OpenCall | None = None
    stop: Stop | None = None  # how the last reply ended, until that is answered
    failure: Failure | None = None
    continuations: int = 0  # times in a row that a reply was cut off and the model told to go on
    nudges: int = 0  # times in a row that a reply was empty and the model told to go on
    pace: Pace = field(default=Pace())
    warms_cache: bool = False  # its siblings wait for its first reply, to find their prefix cached
    tool_lists: int = 0  # how often MCP servers have changed the tools that the run has


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """The API's token count of the next prompt."""

    tokens: int | None  # None: it did not say
    estimate: int  # of the same prompt
    turns: int  # that the run had made


@dataclass(frozen=True, slots=True)
class ContextState:
    """The use of the model's context window. Estimates are uncorrected."""

    estimate: int = 0  # tokens of all that the next request holds
    measured: int | None = None  # real tokens of the last prompt, less what was compacted since
    estimate_since: int = 0  # tokens of what was appended after ``measured``
    correction: float = 1.0  # moving average of real tokens over estimated ones
    last_prompt_tokens: int | None = None  # real input of the last call whose usage is known
    appended_bytes: int = 0  # UTF-8 bytes of what was appended since that call
    refusals: int = 0  # times in a row that the API found the prompt too long
    must_shrink: bool = False  # the last refusal is not answered by a compaction yet
    refused_media: str = ""  # why the API refused media that are still in the prompt
    summary_failed: bool = False  # the last call for a summary gave none
    checked_window: int | None = None  # the window that the last prompt was checked against
    stated_window: int | None = None  # the model's, as the API stated it when a prompt was too long
    compacted: Compacted = field(default=Compacted(), metadata=IN_ROWS)
    window: int = field(default=DEFAULT_WINDOW, compare=False)  # of the run's model, in tokens
    summary_window: int = field(default=DEFAULT_WINDOW, compare=False)  # of the one for summaries
    counted: CountedPrompt | None = field(default=None, compare=False)

    def within(self, window: int) -> int:
        """Return a window that is at most the one that the API stated."""
        return min(window, self.stated_window or window)

    @property
    def tokens(self) -> int:
        """The best estimate of the next prompt's tokens."""
        if self.measured is None:
            return round(self.estimate * self.correction)
        return self.measured + round(self.estimate_since * self.correction)


@dataclass(frozen=True, slots=True)
class Money:
    """The usage and the limits of the run."""

    usage: Usage = field(default=Usage(), metadata=IN_ROWS)  # of all replies
    # Real usage, and the worst case where that is unknown; the cost in billionths of a USD.
    charged_tokens: int = field(default=0, metadata=IN_ROWS)
    charged_cost: int = 0
    budget_waits: int = 0  # times in a row that calls of other runs had reserved what is left
    tariffs: Mapping[str, Tariff] = field(default_factory=dict, compare=False)  # by model
    budget: JobBudget | None = field(default=None, compare=False)  # of the job, if it has one
    # The day's cap, only in a commit that has locked it because a call may begin or end.
    cap: DayCap | None = field(default=None, compare=False)

    @property
    def charged(self) -> Charged:
        return Charged(self.charged_tokens, self.charged_cost)


@dataclass(frozen=True, slots=True)
class Files:
    tree: str | None = None  # the last snapshot of the workspace
    instructed: bool = False  # the workspace's instructions are read, and in the system prompt
    in_prompt: Digests = field(default=(), metadata=IN_ROWS)  # digests of these files
    # Digests of the files last sent in a message; None: there was none, or it was compacted.
    followed: Digests | None = None
    followed_in: int = 0  # the number of that message
    reread_at: int | None = field(default=None, compare=False)  # turns at the last reading
    outputs: str = field(default="", compare=False)  # the folder where tools find whole results
    # Unrecorded paths that calls in doubt may have changed, by call index: they cannot be undone.
    unrecorded: Mapping[int, str] = field(default_factory=dict, compare=False)
    # Snapshot of the folder that the run shares with a parent, for sub-agents about to start;
    # empty: not recorded; None: not checked yet.
    shared_snapshot: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EndingState:
    """The progress of the steps before the run's end."""

    submitted: bool = False  # the last reply submitted a valid result
    result_nudges: int = 0  # times in a row that it was asked for its result
    verification: Verification | None = None  # the newest one
    verify_failures: int = 0  # failed verifications that went back to the model
    delivered: str | None = None  # the commit that it ends with; None once it goes on


@dataclass(frozen=True, slots=True)
class Children:
    started: int = 0  # all that it ever started
    split: Split = ""  # how far a coordinator is
    # Started by calls of the last reply, or with a coordinator's whole task until the model was told.
    current: tuple[Child, ...] = field(default=(), metadata=IN_ROWS)
    # Charges and open limits of all sub-agents that it ever started.
    reserved: Charged = field(default=Charged(0), metadata=IN_ROWS)
    tree_size: int = field(default=0, metadata=IN_ROWS)  # runs below the item's, all together
    cancelled: bool = field(default=False, compare=False)  # by this attempt, as the run is to end

    @property
    def running(self) -> tuple[Child, ...]:
        return tuple(child for child in self.current if child.result is None)


@dataclass(frozen=True, slots=True)
class HookState:
    """The progress of the run's hooks. Started hooks are numbered from 1."""

    started: int = 0  # the number of the last one
    past: int = 0  # those up to this one are of earlier turns
    told: int = 0  # what those up to this one said was told to the model
    ended: int = 0  # those up to this one ran before the run last ended
    closed: int = 0  # the last turn whose hooks are through
    # For each call of the last reply, ``started`` at its decision; empty before the first. Later
    # hooks check a person's edit of the call.
    decided: tuple[int, ...] = ()
    runs: tuple[HookRun, ...] = field(default=(), metadata=IN_ROWS)  # of this turn


@dataclass(frozen=True, slots=True)
class Rounds:
    """The time that calls in batches took so far, for the lane ``auto``."""

    seconds: float = 3_600.0  # from a batch's intent to its results; most take less than an hour
    turns: float | None = None  # of the job's items that have succeeded; None: none has


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message to the model that a person has queued."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Inbox:
    """Messages and requests of people that the run has not acted on."""

    messages: tuple[QueuedMessage, ...] = ()
    pause_requested: bool = False
    answer_count: int = 0  # answers to its questions so far, to see that there are new ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The parts of a run state that the row of the run stores: most as JSON in ``runs.progress``."""

    turns: int = field(default=0, metadata=IN_ROWS)  # replies so far
    worked: float = 0.0  # seconds that model calls and tools took
    model: ModelState = ModelState()
    context: ContextState = ContextState()
    money: Money = Money()
    files: Files = Files()
    ending: EndingState = EndingState()
    children: Children = Children()
    hooks: HookState = HookState()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState(Progress):
    """A stored run, with the transient fields of the current attempt."""

    run_id: str
    item_key: str
    attempt: int
    submitted_at: float  # seconds since the epoch
    depth: int = 0  # in its tree; 0 for the run of an item
    agent_type: str = ""  # of a sub-agent
    # With the workspace's instructions in the system prompt, and the tools of the last ``ToolsListed``.
    spec: JobSpec
    policy: Policy  # the rules of the newest snapshot
    limits: Limits

    messages: tuple[Message, ...]  # the conversation, but for ``calls``
    # Calls of the last reply. When all have results and hooks have ended, the results join
    # ``messages`` as one user message.
    calls: tuple[Call, ...] = ()
    inbox: Inbox = Inbox()
    outcome: Outcome | None = None  # of the attempt
    revision: int = 0  # transactions that its attempts have stored
    # Counters of the run's row: if others have changed one, a commit loads the row again under its lock.
    event_count: int = field(default=0, compare=False)
    denials: int = field(default=0, compare=False)

    # When its job's last model call may begin, in seconds since the epoch; None: no limit. People may
    # move it meanwhile.
    finish_by: float | None = field(default=None, compare=False)
    lane: Lane = field(
        default="realtime", compare=False
    )  # the job's; people may change it meanwhile
    # Of the open call in a batch, as the API gave it, and the seconds that the batch took.
    batch_result: Mapping[str, Any] | None = field(default=None, compare=False)
    batch_seconds: float = field(default=0.0, compare=False)
    rounds: Rounds = field(default=Rounds(), compare=False)
    # No run of the job has a reply yet, and one has failed without.
    first_refused: bool = field(default=False, compare=False)
    # For a decision: the time in seconds since the epoch, and True if the worker shuts down.
    now: float = field(default=0.0, compare=False)
    draining: bool = field(default=False, compare=False)
    yields: bool = field(default=False, compare=False)  # its slot, when a turn has ended
    # About when a rate limit lets its next model call begin; None: it may begin.
    permit_at: float | None = field(default=None, compare=False)
    caller: Caller = field(default=Caller(), compare=False)  # in the queue for a permit

    @property
    def used(self) -> Charged:
        """The run's charges, with its sub-agents' charges and open limits."""
        return self.money.charged + self.children.reserved

    @property
    def charged(self) -> Charged:
        """The run's charges, with those of sub-agents whose results are recorded."""
        awaited = sum((child.reserved for child in self._awaited()), Charged(0))
        used = self.used
        return Charged(used.tokens - awaited.tokens, used.cost - awaited.cost)

    @property
    def awaits_children(self) -> bool:
        """True until the result of each current sub-agent is recorded: it runs, or has changed files
        since the workspace was recorded."""
        return bool(self._awaited())

    def _awaited(self) -> list[Child]:
        given = {call.index for call in self.calls if call.result is not None}
        return [child for child in self.children.current if child.index not in given]

    @property
    def current_verification(self) -> Verification | None:
        """The newest verification; None if a turn or a change of the workspace came since."""
        newest = self.ending.verification
        if newest is None or (newest.turn, newest.tree) != (self.turns, self.files.tree):
            return None
        return newest

    @property
    def sent(self) -> tuple[Message, ...]:
        return sent_messages(self.messages, self.context.compacted)

    @property
    def ends_at(self) -> float | None:
        """The run's deadline in seconds since the epoch; None without one."""
        limit = self.limits.deadline
        return None if limit is None else self.submitted_at + limit

    @property
    def is_overdue(self) -> bool:
        return self.ends_at is not None and self.ends_at <= self.now
