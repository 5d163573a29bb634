"""Plans for the server: which reply a request gets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tests.messages_api.replies import Reply, text, tool_use

if TYPE_CHECKING:
    from tests.messages_api.server import Received


class Script:
    """Replies per conversation.

    A conversation is named by a text that its first user message contains (``"*"``: any). The reply
    is chosen by the number of assistant messages sent (``by="position"``: a call made again gets
    the same reply) or by the number of replies already given (``by="turn"``: for replies that never
    become a message). After the last reply the model says "Done.".
    """

    def __init__(
        self,
        conversations: Mapping[str, Sequence[Reply]],
        by: Literal["position", "turn"] = "position",
    ) -> None:
        self._conversations = conversations
        self._by = by
        self._lock = threading.Lock()
        self._failures: Counter[tuple[str, int]] = Counter()
        self._given: Counter[str] = Counter()

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[Mapping[str, Any]]]) -> Script:
        """A script from a file: conversation -> list of replies."""
        return cls({key: [Reply.from_json(item) for item in items] for key, items in data.items()})

    def __call__(self, request: Received) -> Reply:
        first = request.first_text
        names = [key for key in self._conversations if key != "*" and key in first]
        key = max(names, key=len, default="*")
        replies = self._conversations.get(key, ())
        with self._lock:
            index = request.position if self._by == "position" else self._given[first]
            if index >= len(replies):
                return Reply([text("Done.")])
            reply = replies[index]
            failures = self._failures[first, index]
            if failures < len(reply.fail_first):
                self._failures[first, index] += 1
                return replace(reply, broken=reply.fail_first[failures])
            self._given[first] += 1
            return reply


def echo_tools(
    turns: int, tool: str, arguments: Mapping[str, Any], *, latency: float = 0.0, words: str = ""
) -> Any:
    """A plan for benchmarks: ``turns - 1`` replies with one tool call each, then the end."""

    def plan(request: Received) -> Reply:
        position = request.position
        if position >= turns - 1:
            return Reply([text("Done.")], latency=latency)
        call = tool_use(f"toolu_{position:05d}", tool, arguments)
        said = [text(words)] if words else []
        return Reply([*said, call], latency=latency)

    return plan
