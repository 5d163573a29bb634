from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runner.core.conversation import Message, ModelReply, ModelRequest, Tool
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt
from tests.messages_api import API_KEY, MessagesServer, Reply

READ = Tool("Read", "Reads a file.", {"type": "object", "properties": {}})


def ignore(text: str) -> None:
    """For a test that does not look at the text as it comes."""


def user(*texts: str) -> Message:
    return Message("user", tuple({"type": "text", "text": text} for text in texts))


def make_request(*messages: Message, **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "model": "claude-sonnet-5",
        "system": "Be brief.",
        "tools": (READ,),
        "messages": messages or (user("Hello"),),
        "max_tokens": 1000,
        "options": {},
        "run_id": "run_0123abcd",
        "item_key": "a",
        "reply_number": 0,
    }
    return ModelRequest(**{**values, **changes})


class Talk:
    """A server that plays ``reply`` to every request, and a model that is connected to it."""

    def __init__(self, server: MessagesServer, model: AnthropicModel) -> None:
        self.server = server
        self.model = model

    def complete(
        self, request: ModelRequest | None = None, on_text: Callable[[str], None] = ignore
    ) -> ModelReply:
        return self.model.complete(request or make_request(), Interrupt(), on_text)


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Start a server that plays a plan or one reply, and a model with the given timeouts."""
    open_talks: list[Talk] = []

    def start(
        plan: Reply | Callable[..., Reply],
        *,
        key: str = API_KEY,
        server: Any = None,
        **timeouts: Any,
    ) -> Talk:
        playing = (lambda request: plan) if isinstance(plan, Reply) else plan
        serving = MessagesServer(playing, **(server or {})).start()
        patient = {"ask_timeout": 60.0, **timeouts}
        talk = Talk(serving, AnthropicModel(base_url=serving.url, api_key=key, **patient))
        open_talks.append(talk)
        return talk

    yield start
    for talk in open_talks:
        talk.model.close()
        talk.server.stop()
