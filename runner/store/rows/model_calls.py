"""Calls of the model as rows: what is stored when one begins, and what its end adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.core.conversation import Block, ModelReply
from runner.core.journal.entries import ModelCallFailed, ModelCallStarted, SummaryReplied
from runner.core.journal.view import RunView
from runner.core.text.plain import visible


def started_row(view: RunView, entry: ModelCallStarted, attempt: int, now: float) -> dict[str, Any]:
    """The row of a call that begins.

    Args:
        view: the run before it.
        attempt: the one that makes the call.
        now: seconds since the epoch.
    """
    of_turn = entry.purpose == "turn"
    return {
        "run_id": view.run_id,
        "number": entry.number,
        "attempt": attempt,
        "turn": view.progress.turns + 1,
        "model": view.spec.model if of_turn else view.spec.summary_model,
        "max_tokens": entry.reservation.max_tokens,
        "worst_case": entry.reservation.worst_case,
        "started_at": now,
        "purpose": entry.purpose,
        "hour_cache": entry.reservation.hour_cache,
    }


def reply_changes(reply: ModelReply, kept: Sequence[Block], now: float) -> dict[str, Any]:
    """What a reply adds to its call's row.

    Args:
        kept: those of its blocks that are stored elsewhere; the others stay with the call.
        now: seconds since the epoch.
    """
    left_out = [block for block in reply.blocks if block not in kept]
    left_out += [reply.cut] if reply.cut else []
    return {
        "ended_at": now,
        "model": visible(reply.model),
        "latency": reply.latency,
        "request_id": reply.request_id and visible(reply.request_id),
        "stop_reason": visible(reply.stop_reason),
        "input_tokens": reply.usage.input_tokens,
        "cache_read_tokens": reply.usage.cache_read_tokens,
        "cache_creation_tokens": reply.usage.cache_creation_tokens,
        "output_tokens": reply.usage.output_tokens,
        "charged_tokens": reply.usage.total,
        "cut": left_out or None,
    }


def summary_changes(entry: SummaryReplied, now: float) -> dict[str, Any]:
    """What the reply to a call for a summary adds to its row. The compaction has the text; a reply
    that was of no use stays with the call, with the reason."""
    is_used = entry.compaction is not None
    kept = [block for block in entry.reply.blocks if is_used and block["type"] == "text"]
    error = {} if is_used else {"error": visible(f"summary_failed: {entry.why}")}
    return reply_changes(entry.reply, kept, now) | error


def failure_changes(entry: ModelCallFailed) -> dict[str, Any]:
    """What a failure adds to its call's row."""
    return {
        "ended_at": entry.at,
        "request_id": entry.request_id and visible(entry.request_id),
        "charged_tokens": entry.charged,
        "error": visible(f"{entry.kind}: {entry.message}"),
    }
