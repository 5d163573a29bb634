"""The audit record: short events without content. Those of entries are in ``core.entry_events``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from runner.core import run
from runner.core.conversation import Usage
from runner.core.network import Connection
from runner.core.text import shorten, visible

INPUT_SUMMARY_LENGTH = 100
OUTPUT_SUMMARY_LENGTH = 80
_TELLING_INPUTS = ("command", "file_path", "path", "query", "pattern", "url")

CONNECTION = "connection"  # the type of the events of connections

# The types of run events that name an author (``signed_event``).
SIGNED = (
    *("run_submitted", "approval_answered", "begun_afresh", "cancelled", "forked", "imported"),
    *("message_queued", "pause_requested", "paused", "resumed", "retried", "workspace_pruned"),
    *("charge_written_off", "transcript_read"),
)


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    data: dict[str, Any]


def summarise_input(arguments: Any) -> str:
    """Return the most telling argument of a call in one line, else all of them."""
    if isinstance(arguments, dict):
        for name in _TELLING_INPUTS:
            if isinstance(value := arguments.get(name), str) and value.strip():
                return summary(value)
    return summary(json.dumps(arguments, ensure_ascii=False))


def summary(text: str) -> str:
    """Return a text in one short line."""
    return shorten(text, INPUT_SUMMARY_LENGTH)


def signed_event(
    kind: str,
    author: run.Author,
    data: Mapping[str, Any] | None = None,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> Event:
    """Return the event of an action with its author and reason. ``old`` and ``new`` are values by
    name; None where a value did not exist before or after."""
    signed = {**(data or {}), **_signature(author)}
    if old is not None or new is not None:
        signed |= {"old": old and dict(old), "new": new and dict(new)}
    return Event(kind, signed)


@lru_cache(maxsize=16)  # the events of all runs of a job have the same one
def _signature(author: run.Author) -> Mapping[str, Any]:
    by = None if author.name is None else shorten(author.name, run.LONGEST_NAME)
    return {"by": by, "why": shorten(author.why, run.LONGEST_WHY)}


def usage_of(usage: Usage) -> dict[str, int]:
    """Return tokens by kind in the form of events."""
    return {
        "input": usage.input_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_creation": usage.cache_creation_tokens,
        "output": usage.output_tokens,
    }


def connection_events(about: dict[str, Any], made: Iterable[Connection]) -> Iterator[Event]:
    """Yield an event for each connection; ``about`` says who made it."""
    for each in made:
        yield Event(CONNECTION, about | asdict(each) | {"host": visible(each.host)})
