"""Compactions where a test wants them, not where the context is full."""

from __future__ import annotations

from runner.core.budget import Reservation
from runner.core.context import Compaction, TruncatedResult
from runner.core.conversation import Block, ModelReply, ToolResult, Usage
from runner.core.entries import (
    ContextCompacted,
    Entry,
    ModelCallStarted,
    SummaryReplied,
    ToolFinished,
)
from runner.core.steps import CallModel, RunTools
from tests.store.attempts import USAGE, Attempt, text, tool_use

# Neither can be in a column of text on Postgres.
HOSTILE = "é\u0000\ud800\x1b[31m"


def truncation(number: int, position: int = 0, said: str = "shorter") -> Compaction:
    """The result at ``position`` of message ``number`` is sent with other words."""
    return Compaction(
        "clip", number, number, "", (TruncatedResult(number, position, said),), 900, 400
    )


def stand_in(last: int, said: str = "summed up", kind: str = "summary") -> Compaction:
    """Other words are sent for messages 1 to ``last``."""
    assert kind in ("summary", "prune")
    return Compaction(kind, 1, last, said, (), 900, 300)  # type: ignore[arg-type]


def use_tool(attempt: Attempt, content: str, *more: Entry) -> Attempt:
    """A turn with one tool call, and what is to happen before the next turn begins."""
    attempt.reply(tool_use(attempt.state.turns), stop="tool_use")
    assert isinstance(attempt.effect, RunTools), attempt.effect
    (call,) = attempt.effect.calls
    return attempt.append(ToolFinished(call.index, ToolResult(content)), *more)


def compact(attempt: Attempt, compaction: Compaction) -> Attempt:
    """A turn with a tool call, and a compaction after it."""
    return use_tool(attempt, "ok", ContextCompacted(compaction))


def ask_for_summary(attempt: Attempt) -> Attempt:
    """A turn with a tool call, and a call for a summary after it that is under way."""
    number = attempt.state.model.calls + 1
    reservation = Reservation(1_000, 5_000, False, worst_cost=7)
    use_tool(attempt, "ok", ModelCallStarted(number, reservation, attempt.now, "summary"))
    assert isinstance(attempt.effect, CallModel)
    assert attempt.effect.call.purpose == "summary"
    return attempt


def summarise(
    attempt: Attempt,
    compaction: Compaction | None,
    *blocks: Block,
    usage: Usage = USAGE,
    model: str = "claude-test",
    why: str = "",
) -> Attempt:
    """The reply to the call for a summary that is under way."""
    reply = ModelReply(blocks or (text("Sum."),), "end_turn", usage, model, "req_s")
    return attempt.append(SummaryReplied(reply, compaction, why))
