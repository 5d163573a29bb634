"""What a run's journal amounts to: a view of the run. ``core.fold`` says how entries change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.core.agents import Child, Split
from runner.core.budget import (
    Ceiling,
    Charged,
    JobBudget,
    Limits,
    Reservation,
)
from runner.core.context import DEFAULT_WINDOW, Compacted, sent_messages
from runner.core.conversation import Block, Message, Purpose, ToolOutcome, Usage
from runner.core.hooks import Hooked, HookRun
from runner.core.prices import Tariff
from runner.core.run import Outcome
from runner.core.spec import JobSpec
from runner.core.workspace import Verification
from runner.permissions import Answer, Decision, Policy, ToolContext


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the last reply. ``answer`` is a person's to a decision to ask; ``started_by`` is
    the attempt that started it; ``interrupted`` says that a cancel cut it off; ``asked_again`` that a
    person is asked, or was, what becomes of it as its outcome is unknown; ``result`` is its
    ``tool_result`` block, of that ``outcome``. ``updated_input`` is what a hook made of its input.
    ``tool_context``, where the call would run, is not stored: it is set until the call is decided on."""

    index: int
    id: str
    name: str
    input: Any
    tool_context: ToolContext | None = field(default=None, compare=False)
    decision: Decision | None = None
    answer: Answer | None = None
    started_by: int | None = None
    interrupted: bool = False
    asked_again: bool = False
    result: Block | None = None
    outcome: ToolOutcome | None = None
    updated_input: Mapping[str, Any] | None = None

    @property
    def input_to_run(self) -> Any:
        """The input as the model gave it, or as a hook, or last the person who approved the call, changed
        it."""
        changed = self.answer.input if self.answer is not None else None
        if changed is None:
            changed = self.updated_input
        return self.input if changed is None else dict(changed)

    @property
    def waits(self) -> bool:
        """Whether a person has been asked about it and has not answered."""
        return self.decision is not None and self.decision.effect == "ask" and self.answer is None

    @property
    def is_edited(self) -> bool:
        return self.answer is not None and self.answer.input is not None


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A model call that has started and not ended."""

    number: int
    attempt: int
    reservation: Reservation
    purpose: Purpose = "turn"


@dataclass(frozen=True, slots=True)
class Stop:
    """How the last reply ended, until it is answered."""

    reason: str
    lowered: bool
    empty: bool
    lowered_by: Ceiling = "token_ceiling"


@dataclass(frozen=True, slots=True)
class Failure:
    """The model failures in a row since the last reply."""

    count: int
    first_at: float
    retry_at: float | None
    kind: str
    message: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Fullness:
    """How full the context is, in sums that grow with what is appended. All but ``measured`` are
    estimates that are not corrected.

    ``sent`` is everything that the next request holds, ``measured`` the real tokens of the last one
    (None when none was sent; less what a compaction has taken out since), and ``since`` what was
    appended after that. ``correction`` is the moving average of real over estimated tokens.
    ``refused`` counts the times in a row that the API found the prompt too long, and ``must_shrink``
    says that the last of them has not been answered by a compaction; ``summary_failed`` that a
    summary was of no use. ``window`` are the tokens of the window that it was last held against.
    """

    sent: int = 0
    since: int = 0
    measured: int | None = None
    correction: float = 1.0
    refused: int = 0
    must_shrink: bool = False
    summary_failed: bool = False
    window: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens the next prompt has, as well as can be told."""
        if self.measured is None:
            return round(self.sent * self.correction)
        return self.measured + round(self.since * self.correction)


@dataclass(frozen=True, slots=True)
class Pace:
    """How far apart a run's model calls begin: ``last_at`` in seconds since the epoch, and the moving
    average of how many of them came too late for a cache of five minutes and not for one of an hour."""

    last_at: float | None = None
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The tokens of the next prompt by the API, None when it did not say; ``sent`` is the estimate of
    the same prompt, and ``turns`` how many turns the run had made."""

    tokens: int | None
    sent: int
    turns: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The loop's own state beside the conversation: small, and stored with the run's row. ``tries``
    counts the model calls since the last reply. ``charged_cost`` is in billionths of a USD, and
    ``worked`` the seconds that model calls and tools took. ``budget_waits`` counts the times in a row
    that others had reserved all that was left for it. ``warms`` says that its siblings wait for
    its first reply, so that they find their common prefix cached.

    ``tree`` is the workspace's as it was recorded last: after one call is before the next.
    ``verification`` is the newest and ``verify_failures`` counts those that went back to the model;
    ``submitted`` says that the last reply submitted a valid result, ``result_nudges`` how often in a
    row it had to be asked for. ``delivered`` is the commit that the run ends with, None once it goes
    on. ``children`` counts those that it has started; ``split`` is how far a coordinator is.
    ``instructed``: the workspace's instructions have been read."""

    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    charged_tokens: int = 0
    charged_cost: int = 0
    model_calls: int = 0
    tries: int = 0
    last_prompt_tokens: int | None = None
    appended_bytes: int = 0
    continuations: int = 0
    nudges: int = 0
    worked: float = 0.0
    warms: bool = False
    budget_waits: int = 0
    tree: str | None = None
    verification: Verification | None = None
    verify_failures: int = 0
    submitted: bool = False
    result_nudges: int = 0
    delivered: str | None = None
    children: int = 0
    split: Split = ""
    hooked: Hooked = field(default_factory=Hooked)
    instructed: bool = False
    fullness: Fullness = field(default_factory=Fullness)
    pace: Pace = field(default_factory=Pace)
    stop: Stop | None = None
    failure: Failure | None = None
    open_call: OpenCall | None = None

    @property
    def charged(self) -> Charged:
        return Charged(self.charged_tokens, self.charged_cost)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its journal tells it. ``messages`` is the conversation so far; ``calls`` are the last
    reply's until each has its result and hooks are through with them, then they join ``messages`` as one
    user message. ``hook_runs`` are those of the last turn. ``spec`` has the workspace's instructions in
    its system prompt.
    ``policy`` are the rules of the newest snapshot. ``submitted_at`` is in seconds since the epoch;
    ``answer_count`` counts the answers to its questions, and ``revision`` the transactions that the
    run's attempts have stored.

    ``depth`` is 0 for the run of an item, and ``agent_type`` empty. ``children`` are those that calls of
    the last reply have started, and the one that has a coordinator's whole task until the model is told
    what came of it; ``held_by_children`` is what all children of the run, these and
    earlier ones, were charged or may still use, and ``tree_size`` how many its whole tree has.

    What is not compared is not the run's own: ``window`` is the model's, in tokens, and
    ``summary_window`` that of the one that writes summaries; ``tariffs`` are prices by model (those
    that have one), ``purse`` is the job's as it stands (None without a budget), ``counted`` what the
    API said of the next prompt, and ``outputs`` the folder where tools find whole results;
    ``unrecorded`` are the calls in doubt that cannot be undone, with what they may have changed of which
    no tree is recorded. ``shared_tree`` is what was recorded of the folder that the run shares with one
    above it, for sub-agents that are about to start: empty when there is none, None when it has not been
    recorded. ``children_told``: this attempt has cancelled the sub-agents, as the run is about to end.
    ``now`` (seconds since the epoch) and ``draining`` (the worker is shutting down) are as of the decision
    at hand."""

    run_id: str
    item_key: str
    attempt: int
    spec: JobSpec
    policy: Policy
    limits: Limits
    submitted_at: float
    messages: tuple[Message, ...]
    progress: Progress = field(default_factory=Progress)
    compacted: Compacted = field(default_factory=Compacted)
    calls: tuple[Call, ...] = ()
    queued: tuple[QueuedMessage, ...] = ()
    pause_requested: bool = False
    outcome: Outcome | None = None
    answer_count: int = 0
    revision: int = 0
    depth: int = 0
    agent_type: str = ""
    children: tuple[Child, ...] = ()
    held_by_children: Charged = field(default_factory=lambda: Charged(0))
    tree_size: int = 0
    hook_runs: tuple[HookRun, ...] = ()
    window: int = field(default=DEFAULT_WINDOW, compare=False)
    summary_window: int = field(default=DEFAULT_WINDOW, compare=False)
    tariffs: Mapping[str, Tariff] = field(default_factory=dict, compare=False)
    purse: JobBudget | None = field(default=None, compare=False)
    counted: Counted | None = field(default=None, compare=False)
    outputs: str = field(default="", compare=False)
    unrecorded: Mapping[int, str] = field(default_factory=dict, compare=False)
    shared_tree: str | None = field(default=None, compare=False)
    children_told: bool = field(default=False, compare=False)
    now: float = field(default=0.0, compare=False)
    draining: bool = field(default=False, compare=False)

    @property
    def used(self) -> Charged:
        """What the run was charged, with all that its children were or may still be."""
        return self.progress.charged + self.held_by_children

    @property
    def awaits_children(self) -> bool:
        """Whether what one of ``children`` gives is not recorded: it is under way, or has changed files
        since the workspace was recorded."""
        given = {call.index for call in self.calls if call.result is not None}
        return any(child.index not in given for child in self.children)

    @property
    def sent(self) -> tuple[Message, ...]:
        """The messages as the model is sent them."""
        return sent_messages(self.messages, self.compacted)

    @property
    def ends_at(self) -> float | None:
        """The run's deadline in seconds since the epoch; None without one."""
        limit = self.limits.deadline
        return None if limit is None else self.submitted_at + limit
