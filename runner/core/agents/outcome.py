"""What a sub-agent that has ended gives the call that asked for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.core.context.clips import place_of_output, shortened
from runner.core.conversation import ToolResult
from runner.core.journal.view import Call, RunView
from runner.core.text.plain import shorten

MOST_CHARACTERS = 50_000

_SAID_NOTHING = "(The sub-agent is done, and its last message has no text.)"
_NOT_DONE = "The sub-agent did not finish its task: {}"
_LEFT = "\n\n[Its files are in the commit {1}, which the branch {0} of the repository has.]"
_DETAIL_LENGTH = 500


def outcome_of(
    state: str,
    reason: str,
    detail: str,
    said: str,
    submitted: Mapping[str, Any] | None = None,
    left: tuple[str, str] | None = None,
) -> ToolResult:
    """The result of a child that has ended: what it said last or submitted, or why it did not come
    to an end.

    Args:
        state, reason, detail: how it has ended.
        said: the text of its last message.
        submitted: its structured result, None when it gave none.
        left: the branch and the commit that it has left, None without.
    """
    files = "" if left is None else _LEFT.format(*left)
    if state != "succeeded":
        why = ": ".join(part for part in (f"{state} ({reason})", detail.strip()) if part)
        return ToolResult(_NOT_DONE.format(shorten(why, _DETAIL_LENGTH)) + files, "failed")
    if submitted is not None:
        said = json.dumps(submitted, ensure_ascii=False)
    return ToolResult((said if said.strip() else _SAID_NOTHING) + files)


def fitted(view: RunView, call: Call, result: ToolResult) -> ToolResult:
    """The result of a call, no longer than the output of a tool may be: all of it can be read where those
    outputs are.

    Args:
        view: of the run that made the call.
    """
    text = result.content
    if len(text) <= MOST_CHARACTERS:
        return result
    content = shortened(text, MOST_CHARACTERS, place_of_output(view, call.id, call.name))
    return replace(result, content=content, output=text.encode("utf-8", "replace"))
