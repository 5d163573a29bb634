"""What must hold of what the model was sent, when the conversation is longer than its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from runner.core.context import Compacted, Compaction, TruncatedResult, sent_messages
from runner.core.conversation import Message
from runner.core.entries import PROMPT_TOO_LONG
from runner.llm.requests import request_body
from runner.queries.transcript import sent_request
from runner.store.database import Database
from tests.crash.record import Record, hold
from tests.crash.scenario import SUMMARY, Scenario


@dataclass(frozen=True)
class Asked:
    """A request for a reply: how many replies came before, its bytes, and its messages as they were
    said, without breakpoints."""

    position: int
    raw: bytes
    messages: list[dict[str, Any]]


def check(record: Record, turns: Sequence[Asked], variant: Scenario) -> None:
    """Raise ``Violation`` unless each request held what the conversation and its compactions say."""
    states = [Compacted()]
    for row in record.compactions:
        truncated = tuple(TruncatedResult(*result) for result in row.clips)
        found = Compaction(row.kind, row.first_message, row.last_message, row.text, truncated)
        states.append(states[-1].after(found))
    messages = [Message(one["role"], tuple(one["content"])) for one in record.messages]
    replies = [n for n, message in enumerate(messages) if message.role == "assistant"]
    for asked in turns:
        before = messages[: [*replies, len(messages)][asked.position]]
        possible = (sent_messages(before, state) for state in states)
        hold(any(_is_of(asked, sent) for sent in possible), "a message was rewritten", asked)
    _check_rows(record, variant)


def _is_of(asked: Asked, sent: Sequence[Message]) -> bool:
    """What people said since may have joined the last message."""
    *before, last = [one.as_api() for one in sent]
    final = asked.messages[-1]["content"]
    return asked.messages[:-1] == before and last["content"][: len(final)] == final


def _check_rows(record: Record, variant: Scenario) -> None:
    rows = record.compactions
    kinds, expected_kinds = tuple(row.kind for row in rows), variant.compactions
    errors = [call.error or "" for call in record.model_calls]
    unheard = bool(expected_kinds) and not any(PROMPT_TOO_LONG in error for error in errors)
    if unheard or any(call.outcome == "unknown" for call in record.calls):
        # The API refuses once, and whoever heard it is gone; or what a call printed is not sent.
        kinds, expected_kinds = (), ()
    hold(kinds == expected_kinds, "it was compacted otherwise", kinds, expected_kinds)
    hold([row.number for row in rows] == list(range(1, len(rows) + 1)), "compactions have gaps")
    told = [event.data for event in record.events if event.type == "context_compacted"]
    expected = [(row.kind, row.first_message, row.last_message) for row in rows]
    found = [(data["kind"], data["first"], data["last"]) for data in told]
    hold(found == expected, "context_compacted is not once a compaction", found, expected)
    for row in rows:
        hold(row.tokens_after < row.tokens_before, "a compaction makes it longer", row)
        last = len(record.messages) - 2  # the last exchange is never compacted
        hold(1 <= row.first_message <= row.last_message < last, "the newest are left out", row)
    stand_ins = [row for row in rows if row.kind != "clip"]
    ends = [row.last_message for row in stand_ins]
    hold(ends == sorted(set(ends)), "the same was left out twice", ends)
    _check_summaries(record, stand_ins)


def _check_summaries(record: Record, stand_ins: Sequence[Row[Any]]) -> None:
    calls = {call.number: call for call in record.model_calls}
    for row in stand_ins:
        if row.kind == "prune":
            hold(row.made_by_call is None, "no model writes a note", row)
            continue
        call = calls[row.made_by_call]
        hold((call.purpose, call.error) == ("summary", None), "another call wrote it", call)
        hold(row.first_sent_in > call.number, "it was sent before it was written", row)
        hold(row.text.count(SUMMARY) == 1, "a summary was applied twice", row.text)
    made_by = [row.made_by_call for row in stand_ins if row.made_by_call is not None]
    hold(len(set(made_by)) == len(made_by), "a summary was applied twice", made_by)


def check_told_again(database: Database, record: Record, turns: Sequence[Asked]) -> None:
    """Raise ``Violation`` unless the last request of each turn that was answered can be told again."""
    last = {asked.position: asked for asked in turns}
    answered = sum(message["role"] == "assistant" for message in record.messages)
    for position in range(answered):
        told = request_body(sent_request(database, record.run.id, position + 1))
        hold(told == last[position].raw, "what was sent is told otherwise", told)
