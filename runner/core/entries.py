"""What doing a step appends to a run's journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.core.budget import Reservation
from runner.core.conversation import ModelReply, ToolResult
from runner.core.permissions import Decision, Setting
from runner.core.run import Outcome

OUR_OWN_FAILURES = frozenset({"worker_lost", "shutdown"})

MessageCause = Literal["queued", "nudge", "continue", "resume"]


@dataclass(frozen=True, slots=True)
class ModelCallStarted:
    number: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """``settings`` says for each call of the reply where it would run: it is looked up before the
    reply is stored, so that the call is decided on in the same transaction."""

    reply: ModelReply
    settings: tuple[Setting, ...] = ()


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
class ToolFinished:
    index: int
    result: ToolResult


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
    | CallsDecided
    | ToolsStarted
    | ToolFinished
    | UserMessageAdded
    | RunSettled
)
