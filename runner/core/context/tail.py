"""Where the most recent messages begin, which stay as they are when those before them are left out."""

from __future__ import annotations

from runner.core.journal.view import RunView


def cuts(view: RunView) -> list[int]:
    """The messages that what is kept may begin with, ascending: replies to what the user said or the
    tools gave. Before one of them no call is parted from its result, and no paused turn from what
    it was paused in."""
    messages = view.messages
    return [
        number
        for number in range(max(2, view.compacted.last + 1), len(messages))
        if messages[number].role == "assistant" and messages[number - 1].role == "user"
    ]


def tail_start(view: RunView) -> int:
    """The number of the first of the most recent messages, of which there are at least as many as the
    job wants to keep; 1 when these are all."""
    most = len(view.messages) - view.spec.context.keep_messages
    return max((number for number in cuts(view) if number <= most), default=1)
