"""What happened in a session, as events: what Runner would have recorded of the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from runner.core.conversation import Usage
from runner.core.journal.events import (
    INPUT_SUMMARY_LENGTH,
    OUTPUT_SUMMARY_LENGTH,
    Event,
    summarise_input,
    usage_of,
)
from runner.core.text.plain import shorten
from runner.exchange.sessions.runs import SessionRun, text_of


class Happened(NamedTuple):
    """An event with its time, in seconds since the epoch."""

    at: float
    event: Event


def happened_in(run: SessionRun) -> list[Happened]:
    """What the model answered, the calls and what became of them, and compactions, in order."""
    found = [*_model_calls(run), *_calls(run), *_compactions(run)]
    return sorted(found, key=lambda each: each.at)


_TELLING = {"model_call_ended": ("call",), "context_compacted": ("first", "last")}


def what_it_tells_of(event: Event) -> tuple[Any, ...]:
    """What events of a session have in common that tell of the same thing, and no others."""
    names = _TELLING.get(event.type, ("turn", "call_index"))
    return (event.type, *(event.data.get(name) for name in names))


def _model_calls(run: SessionRun) -> Iterator[Happened]:
    for row in run.rows["model_calls"]:
        kinds = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
        data = {
            "call": row["number"],
            "turn": row["turn"],
            "stop_reason": shorten(row["stop_reason"], INPUT_SUMMARY_LENGTH),
            "usage": usage_of(Usage(*(row[kind] for kind in kinds))),
            "request_id": row["request_id"],
            "latency": round(row["latency"], 3),
        }
        yield Happened(row["ended_at"], Event("model_call_ended", data))


def _calls(run: SessionRun) -> Iterator[Happened]:
    contents = {(row["message"], row["position"]): row["content"] for row in run.rows["blocks"]}
    uses: dict[int, list[Any]] = {}
    for (message, _), block in sorted(contents.items(), key=lambda each: each[0]):
        if block["type"] == "tool_use":
            uses.setdefault(message, []).append(block["input"])
    for row in run.rows["tool_calls"]:
        place = (row["message"] + 1, row["position"])
        of_call: dict[str, Any] = {
            "turn": row["turn"],
            "call_index": row["position"],
            "tool_use_id": shorten(row["tool_use_id"], INPUT_SUMMARY_LENGTH),
            "name": shorten(row["name"], INPUT_SUMMARY_LENGTH),
        }
        given = uses[row["message"]][row["position"]]
        started = of_call | {"input": summarise_input(given)}
        yield Happened(row["started_at"], Event("tool_started", started))
        if row.get("outcome") is not None:
            ended = {
                "output": shorten(text_of(contents[place]["content"]), OUTPUT_SUMMARY_LENGTH),
                "outcome": row["outcome"],
                "is_error": row["outcome"] != "succeeded",
                "duration": round(row["duration"], 4),
            }
            yield Happened(row["ended_at"], Event("tool_done", of_call | ended))


def _compactions(run: SessionRun) -> Iterator[Happened]:
    for row in run.rows["compactions"]:
        data = {
            "kind": row["kind"],
            "first": row["first_message"],
            "last": row["last_message"],
            "tokens_before": row["tokens_before"],
            "tokens_after": row["tokens_after"],
        }
        yield Happened(row["created_at"], Event("context_compacted", data))
