"""What the Messages API demands of a conversation, as a list of everything that is wrong in one.

Source: https://docs.claude.com/en/api/messages and its error messages; consecutive messages of one
role are taken together there, which Runner needs only after ``pause_turn``.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.core.context import Compacted
from runner.core.conversation import Message, text_block

THINKING = ("thinking", "redacted_thinking")


def faults(messages: Sequence[Message], compacted: Compacted | None = None) -> list[str]:
    """Why the API would refuse these messages; empty when it would take them. What stands in for left
    out messages may follow the task, and nothing else of the user's another word of theirs."""
    stand_in = (text_block(compacted.text),) if compacted and compacted.last else None
    found = [] if messages and messages[0].role == "user" else ["does not start with the user"]
    waiting: list[str] = []
    answered: set[str] = set()
    before = None
    for number, message in enumerate(messages):
        place = f"message {number}"
        if not message.blocks:
            found.append(f"{place} is empty")
        texts = (str(block["text"]) for block in message.blocks if block["type"] == "text")
        found += [f"{place} has a blank text" for text in texts if not text.strip()]
        if message.role == "user":
            results = [b["tool_use_id"] for b in message.blocks if b["type"] == "tool_result"]
            if results != waiting:
                found.append(f"{place} answers {results}, but {waiting} were asked, in that order")
            if any(b["type"] != "tool_result" for b in message.blocks[: len(results)]):
                found.append(f"{place} has something before its results")
            if before == "user" and not (number == 1 and message.blocks == stand_in):
                found.append(f"{place} is a second user message in a row")
            found += [f"{place} answers {call} twice" for call in results if call in answered]
            answered.update(results)
            waiting = []
        else:
            if waiting:
                found.append(f"{place} comes while {waiting} wait for results")
            if message.blocks and message.blocks[-1]["type"] in THINKING:
                found.append(f"{place} ends with thinking")
            waiting = [b["id"] for b in message.blocks if b["type"] == "tool_use"]
        before = message.role
    if waiting:
        found.append(f"{waiting} were never answered")
    return found
