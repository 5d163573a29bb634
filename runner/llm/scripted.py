"""A model that plays a script: for demos, rehearsals and tests, without a key and without cost.

It keeps nothing between calls. The reply follows from the item and the number of replies in the
conversation, so an interrupted run continues exactly where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.core.conversation import Block, ModelReply, ModelRequest, Usage, content_bytes
from runner.core.spec import ANY_ITEM, OF_AGENT, SUMMARY
from runner.errors import ModelCallError
from runner.ports import Interrupt

BYTES_PER_TOKEN = 4
_PLAIN_SUMMARY = "What came before went as the script says; the next line follows."


class ScriptedModel:
    """The ``Model`` port over a script: item key -> replies. ``runner.jobfile.load`` says what stands
    in one, and ``check_script`` has found nothing wrong with it."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self._script = script

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """Play the reply that is due; see ``runner.ports.Model``. ``delay`` ends when interrupted."""
        began = time.monotonic()
        reply = self._due(request)
        interrupt.check()
        if reply.get("delay"):
            interrupt.wait(reply["delay"])
            interrupt.check()
        if "error" in reply:
            given = {"message": "as the script says", **reply["error"]}
            raise ModelCallError(**given, billed=False)
        if "text" in reply:
            on_text(reply["text"])
        blocks = _blocks(reply, request)
        return ModelReply(
            blocks=blocks,
            stop_reason=reply.get("stop_reason")
            or ("tool_use" if reply.get("tools") else "end_turn"),
            usage=_usage(reply.get("usage", {}), request, blocks),
            model=request.model,
            latency=time.monotonic() - began,
        )

    def read_result(
        self, request: ModelRequest, result: Mapping[str, Any], seconds: float
    ) -> ModelReply:
        """A script has no batches: no job of one is submitted with that lane."""
        raise NotImplementedError

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """Return None: a script counts no tokens."""
        return None

    def window(self, model: str) -> int | None:
        """Return None: a script has no window of its own."""
        return None

    def refuses_host(self) -> bool:
        """Return False: a script needs no API."""
        return False

    def _due(self, request: ModelRequest) -> Mapping[str, Any]:
        if request.purpose != "turn":
            given = self._script.get(SUMMARY)
            return {"text": given if isinstance(given, str) else _PLAIN_SUMMARY}
        replies = self._script.get(request.item_key)
        if not isinstance(replies, Sequence) or isinstance(replies, str):
            anyone = f"{OF_AGENT}{request.agent_type}" if request.agent_type else ANY_ITEM
            replies = self._script.get(anyone, ())
        rest: Sequence[Mapping[str, Any]] = replies[request.reply_number :]
        return rest[0] if rest else {"text": "That was the last line of my script."}


def _blocks(reply: Mapping[str, Any], request: ModelRequest) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if "thinking" in reply:
        thinking = {"type": "thinking", "thinking": reply["thinking"], "signature": "scripted"}
        blocks.append(thinking)
    if "text" in reply:
        blocks.append({"type": "text", "text": reply["text"]})
    suffix = request.run_id.rpartition("_")[2].replace(".", "-")
    for index, call in enumerate(reply.get("tools", ())):
        call_id = f"toolu_{suffix}_{request.reply_number}_{index}"
        arguments = dict(call.get("input", {}))
        blocks.append({"type": "tool_use", "id": call_id, "name": call["name"], "input": arguments})
    return tuple(blocks)


def _usage(given: Mapping[str, int], request: ModelRequest, blocks: Sequence[Block]) -> Usage:
    """Return tokens as a model might count them: a quarter of the bytes. The cache has what was sent
    before, which is everything but the last two messages."""
    sent = [sum(map(content_bytes, message.blocks)) for message in request.messages]
    around = len(request.system or "") + sum(len(tool.description) for tool in request.tools)
    old = 0 if len(sent) < 2 else around + sum(sent[:-2])
    new = around + sum(sent) - old
    counted = {
        "input_tokens": 0,
        "cache_read_tokens": old // BYTES_PER_TOKEN,
        "cache_creation_tokens": new // BYTES_PER_TOKEN,
        "output_tokens": 1 + sum(map(content_bytes, blocks)) // BYTES_PER_TOKEN,
    }
    return Usage(**{**counted, **given})
