"""A model that plays a script: for demos, rehearsals and tests, without a key and without cost.

It keeps nothing between calls. The reply follows from the item and the number of replies that the
conversation has, so a run that was interrupted goes on exactly where it was.

The script of a scripted model: what may stand in it, and the problems of one that is wrong.

A script maps an item's key (``"*"``: any item without a list of its own) to the list of its replies.
A reply is a table with any of:

    text         what the model says
    thinking     what it thinks first
    tools        a list of calls: name, and input (a table)
    stop_reason  by default "tool_use" with tools, else "end_turn"
    delay        seconds before it answers
    usage        tokens in place of the counted ones: input_tokens, output_tokens,
                 cache_read_tokens, cache_creation_tokens
    error        the call fails instead: kind, and if wanted status, message, retry_after (seconds).
                 It fails so each time that it is made; a script is for runs that go well.

As TOML: ``[["src/a.py"]]`` begins a reply. A text under the name ``summary`` is what the model says
when a conversation has become too long and it is to sum it up; a list there is the replies of an item
with that key.

A sub-agent has the replies under its own key (``"src/a.py+2"`` is the second that the run of
``src/a.py`` starts), or those under ``@`` and the name of its type (``"@reviewer"``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runner.core.conversation import (
    Block,
    ModelReply,
    ModelRequest,
    Usage,
    content_bytes,
)
from runner.core.spec import ANY_ITEM
from runner.errors import ModelCallError, Problem
from runner.ports import Interrupt

SUMMARY = "summary"
AGENT = "@"  # what the keys of sub-agents' replies, by their types, begin with

_TEXTS = ("text", "thinking", "stop_reason")
_REPLY = frozenset({*_TEXTS, "tools", "delay", "usage", "error"})
_CALL = frozenset({"name", "input"})
_USAGE = frozenset({"input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens"})
_ERROR = frozenset({"kind", "status", "message", "retry_after"})


def check_script(script: Any) -> list[Problem]:
    """Everything that is wrong with a script; places are like ``script.src/a.py[0].tools[1].name``."""
    if not isinstance(script, Mapping):
        return [Problem("script", f"must be a table of item keys to replies, not {_kind(script)}")]
    if not script:
        return [Problem("script", f'is empty; give at least the replies for "{ANY_ITEM}"')]
    return [problem for key, replies in script.items() for problem in _check_list(key, replies)]


def _check_list(key: str, replies: Any) -> Iterator[Problem]:
    place = f"script.{key}"
    if key == AGENT:
        yield Problem(place, f'names no type of sub-agent: write "{AGENT}" and its name')
    if key == SUMMARY and isinstance(replies, str):
        if not replies.strip():
            yield Problem(place, "must be a text that is not blank, or a list of replies")
        return
    if not isinstance(replies, list):
        yield Problem(place, f"must be a list of replies, not {_kind(replies)}")
        return
    for number, reply in enumerate(replies):
        at = f"{place}[{number}]"
        if isinstance(reply, Mapping):
            yield from _check_reply(at, reply)
        else:
            yield Problem(at, f"must be a table, not {_kind(reply)}")


def _check_reply(at: str, reply: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _unknown(at, reply, _REPLY)
    if not reply:
        yield Problem(at, 'is empty; to play an empty reply say so with stop_reason = "end_turn"')
    for name in _TEXTS:
        if name in reply and not (isinstance(reply[name], str) and reply[name].strip()):
            yield Problem(f"{at}.{name}", "must be a text that is not blank")
    if "delay" in reply and not (_is_number(reply["delay"]) and reply["delay"] >= 0):
        yield Problem(f"{at}.delay", "must be a number of seconds, 0 or more")
    yield from _check_calls(f"{at}.tools", reply.get("tools", []))
    yield from _check_usage(f"{at}.usage", reply.get("usage", {}))
    if "error" in reply:
        yield from _check_error(f"{at}.error", reply["error"])


def _check_calls(at: str, calls: Any) -> Iterator[Problem]:
    if not isinstance(calls, list):
        yield Problem(at, f"must be a list of calls, not {_kind(calls)}")
        return
    for number, call in enumerate(calls):
        place = f"{at}[{number}]"
        if not isinstance(call, Mapping):
            yield Problem(place, f"must be a table, not {_kind(call)}")
            continue
        yield from _unknown(place, call, _CALL)
        if not isinstance(call.get("name"), str) or not call["name"]:
            yield Problem(f"{place}.name", "must be the name of a tool")
        if not isinstance(call.get("input", {}), Mapping):
            yield Problem(f"{place}.input", "must be a table of the tool's arguments")


def _check_usage(at: str, usage: Any) -> Iterator[Problem]:
    if not isinstance(usage, Mapping):
        yield Problem(at, f"must be a table, not {_kind(usage)}")
        return
    yield from _unknown(at, usage, _USAGE)
    for name, tokens in usage.items():
        if name in _USAGE and not (_is_whole(tokens) and tokens >= 0):
            yield Problem(f"{at}.{name}", "must be a whole number of tokens, 0 or more")


def _check_error(at: str, error: Any) -> Iterator[Problem]:
    if not isinstance(error, Mapping):
        yield Problem(at, f"must be a table, not {_kind(error)}")
        return
    yield from _unknown(at, error, _ERROR)
    if not isinstance(error.get("kind"), str) or not error["kind"]:
        yield Problem(f"{at}.kind", 'must be an error type of the API, such as "overloaded_error"')
    if "status" in error and not (_is_whole(error["status"]) and 400 <= error["status"] < 600):
        yield Problem(f"{at}.status", "must be an HTTP status from 400 to 599")
    if not isinstance(error.get("message", ""), str):
        yield Problem(f"{at}.message", "must be a text")
    if "retry_after" in error and not _is_number(error["retry_after"]):
        yield Problem(f"{at}.retry_after", "must be a number of seconds")


def _unknown(at: str, table: Mapping[str, Any], known: frozenset[str]) -> Iterator[Problem]:
    for name in table:
        if name not in known:
            yield Problem(f"{at}.{name}", f"is unknown; known are {', '.join(sorted(known))}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _kind(value: Any) -> str:
    return type(value).__name__


BYTES_PER_TOKEN = 4
_PLAIN_SUMMARY = "What came before went as the script says; the next line follows."
_AFTER_THE_LAST: Mapping[str, Any] = {"text": "That was the last line of my script."}


class ScriptedModel:
    """The ``Model`` port over a script (``runner.llm.scripted`` says what stands in one).

    Args:
        script: item key -> replies; ``check_script`` has found nothing wrong with it.
    """

    def __init__(self, script: Mapping[str, Any]) -> None:
        self._script = script

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """Play the reply that is due; see ``runner.ports.Model``. ``delay`` ends when interrupted."""
        began = time.monotonic()
        reply = self._due(request) if request.purpose == "turn" else self._summary()
        interrupt.check()
        if reply.get("delay"):
            interrupt.wait(reply["delay"])
            interrupt.check()
        if "error" in reply:
            raise _error(reply["error"])
        if "text" in reply:
            on_text(reply["text"])
        blocks = _blocks(reply, request)
        return ModelReply(
            blocks=blocks,
            stop_reason=reply.get("stop_reason") or ("tool_use" if _calls(reply) else "end_turn"),
            usage=_usage(reply.get("usage", {}), request, blocks),
            model=request.model,
            latency=time.monotonic() - began,
        )

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """A script counts no tokens: None."""
        return None

    def window(self, model: str) -> int | None:
        """A script has no window of its own: None."""
        return None

    def _summary(self) -> Mapping[str, Any]:
        given = self._script.get(SUMMARY)
        return {"text": given if isinstance(given, str) else _PLAIN_SUMMARY}

    def _due(self, request: ModelRequest) -> Mapping[str, Any]:
        anyone = f"{AGENT}{request.agent_type}" if request.agent_type else ANY_ITEM
        replies = self._script.get(request.item_key)
        if not isinstance(replies, Sequence) or isinstance(replies, str):
            replies = self._script.get(anyone, ())
        if request.reply_number < len(replies):
            due: Mapping[str, Any] = replies[request.reply_number]
            return due
        return _AFTER_THE_LAST


def _calls(reply: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    calls: Sequence[Mapping[str, Any]] = reply.get("tools", ())
    return calls


def _blocks(reply: Mapping[str, Any], request: ModelRequest) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if "thinking" in reply:
        thinking = {"type": "thinking", "thinking": reply["thinking"], "signature": "scripted"}
        blocks.append(thinking)
    if "text" in reply:
        blocks.append({"type": "text", "text": reply["text"]})
    suffix = request.run_id.rpartition("_")[2].replace(".", "-")
    for index, call in enumerate(_calls(reply)):
        call_id = f"toolu_{suffix}_{request.reply_number}_{index}"
        arguments = dict(call.get("input", {}))
        blocks.append({"type": "tool_use", "id": call_id, "name": call["name"], "input": arguments})
    return tuple(blocks)


def _usage(given: Mapping[str, int], request: ModelRequest, blocks: Sequence[Block]) -> Usage:
    """Tokens as a model might count them: a quarter of the bytes. The cache has what was sent
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


def _error(error: Mapping[str, Any]) -> ModelCallError:
    return ModelCallError(
        error["kind"],
        error.get("message", "as the script says"),
        status=error.get("status"),
        retry_after=error.get("retry_after"),
        billed=False,
    )
