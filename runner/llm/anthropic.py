"""Model calls over the Messages API, streamed; each ends at once when it is interrupted or stalls.

Sources: https://docs.claude.com/en/api/messages; prompt caching:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching; counting tokens and listing
models, which never fail a run: https://docs.claude.com/en/api/messages-count-tokens,
https://docs.claude.com/en/api/models. This module imports anthropic, which takes over a second:
import it late.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from anthropic import Stream

from runner.core.conversation import Message, ModelReply, ModelRequest
from runner.errors import SHUT_DOWN, ModelCallError, ShutDown
from runner.llm.connections import Line, MessagesClients, Watch, Watchdog, monotonic
from runner.llm.stream import FAILURES, UNREADABLE, Accumulator, StreamEndedError, failure
from runner.ports import Interrupt

_CACHE: Mapping[str, str] = {"type": "ephemeral"}
_HOUR_CACHE: Mapping[str, str] = {"type": "ephemeral", "ttl": "1h"}

# Options that go beside the body, and the ones that are not fields of the API.
_HEADERS = {
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}
_APART = frozenset({"betas", "effort", "extra_body", "extra_headers", *_HEADERS})

_COUNT_PATH = "/v1/messages/count_tokens"
# What a count of tokens takes: https://docs.claude.com/en/api/messages-count-tokens.
_COUNTED = re.compile(
    "cache_control|messages|model|output_config|speed|system|thinking|tool_choice|tools"
)


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that a call's options ask for (``betas``, ``extra_headers`` …)."""
    headers = {header: str(options[name]) for name, header in _HEADERS.items() if name in options}
    if options.get("betas"):
        headers["anthropic-beta"] = ",".join(options["betas"])
    return {**headers, **options.get("extra_headers", {})}


def request_body(request: ModelRequest) -> bytes:
    """Return the request as JSON.

    What does not change from turn to turn comes first and byte for byte the same. There are at most
    four cache breakpoints, as many as the API takes: the tools and the system prompt end with one,
    the API sets one at the last block of all, and two are in between (``_places``). They share their
    ``cache_control``, the job's own if its options have one, else the request's: the API refuses a
    long lifetime after a short one. A summary is asked for once, so nothing of it is cached. The
    stored blocks are not changed. ``effort`` stands for ``output_config.effort``. No option, and
    nothing in ``extra_body``, takes the place of what Runner sets itself.
    """
    return _encoded(_body(request))


def _body(request: ModelRequest) -> dict[str, Any]:
    options = request.options
    given = {name: value for name, value in options.items() if name not in _APART}
    given |= options.get("extra_body", {})
    cache = given.pop("cache_control", _HOUR_CACHE if request.hour_cache else _CACHE)
    mark = {"cache_control": cache} if request.purpose == "turn" else {}
    body: dict[str, Any] = {
        **mark,
        **given,
        "model": request.model,
        "max_tokens": request.max_tokens,
        "stream": True,
    }
    if "effort" in options:
        body["output_config"] = {**body.get("output_config", {}), "effort": options["effort"]}
    tools = [tool.definition() for tool in request.tools]
    if tools:
        body["tools"] = tools
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, **mark}]
    elif tools:
        tools[-1].update(mark)
    sent = [message.as_api() for message in request.messages]
    for place in _places(request):
        content = sent[place]["content"]
        content[-1] = {**content[-1], **mark}
    body["messages"] = sent
    return body


_LOOK_BACK = 20  # positions before a breakpoint at which the API looks for what it has cached


def _places(request: ModelRequest) -> tuple[int, ...]:
    """Return the places of messages that end with a breakpoint, two at most: where compacted
    messages end, because the next compaction keeps that much of the prompt; and where they ended
    before the last compaction, or where the previous request ended, before the last reply. The
    breakpoint at the end finds the latter by itself unless the turn added many blocks."""
    messages = request.messages
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    before = messages[: replies[-1]] if replies else ()
    heard = [at for at, message in enumerate(before) if message.role == "user"][-1:]
    since = messages[heard[-1] + 1 :] if heard else ()
    stable = [place for place in request.stable[::-1] if place < len(messages) - 1]
    if sum(len(message.blocks) for message in since) >= _LOOK_BACK:
        stable = stable[:1]
    return tuple(dict.fromkeys([*stable, *heard]))[:2]


def _encoded(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair is no text and the API refuses it; it becomes a replacement mark.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


_LAST_BYTES_SECONDS = 1.0  # for the end of the body after message_stop
_ASK_AGAIN_SECONDS = 300.0  # after a question had no answer, or none in time


@dataclass(kw_only=True, eq=False, repr=False)
class AnthropicModel:
    """The ``Model`` port over the Messages API."""

    stall_timeout: float = 300.0  # seconds without an event after which a call is cut, pings apart
    total_timeout: float = 1800.0  # seconds that a call may take
    ask_timeout: float = 5.0  # seconds that a question about a prompt or a model may take
    # None for what the environment says at the first call (``ANTHROPIC_BASE_URL``, ``…_API_KEY`` …).
    base_url: str | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        self._clients = MessagesClients(self.base_url, self.api_key)
        self._watchdog = Watchdog()
        self._asking = threading.Lock()
        # What the API said of each model's window, and when it was asked; None: it did not say.
        self._windows: dict[str, tuple[int | None, float]] = {}
        self._quiet_until = 0.0

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """Make one model call; see ``runner.ports.Model``."""
        line, began = Line(), monotonic()
        body, headers = request_body(request), request_headers(request.options)
        reply = Accumulator(lambda: _call_ids(request.messages))
        with (
            interrupt.cut_by(line.cut),
            self._watchdog.watch(line.cut, self.stall_timeout, self.total_timeout) as watch,
        ):
            try:
                try:
                    with self._clients.stream(body, headers, line) as events:
                        _receive(events, reply, line, watch, on_text)
                except FAILURES:
                    if not reply.whole:
                        raise
                if not reply.whole:
                    raise StreamEndedError("the stream ended without message_stop")
                return reply.finish(monotonic() - began)
            except FAILURES as error:
                seconds, silent = monotonic() - began, monotonic() - watch.progress_at
                failed = _failure(error, interrupt, reply, line, watch, seconds)
                counted = reply.counted()
                failed.counted = None if counted is None else counted.by_kind()
                is_taken = not isinstance(error, UNREADABLE)
                failed.most_output = reply.most_output(
                    seconds, silent if is_taken else seconds, self._tokens_of(reply, request.model)
                )
                raise failed from error

    def _tokens_of(self, reply: Accumulator, model: str) -> int | None:
        """Return the API's count of the text in a cut reply, free of charge; None if it gives none."""
        if not (text := reply.shown) or monotonic() < self._quiet_until:
            return None
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        return _tokens("input_tokens", self._ask(_COUNT_PATH, Interrupt(), _encoded(body)))

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """Return the tokens of a request's prompt; see ``runner.ports.Model``. An API that let a question
        wait is not asked again for some minutes: every run asks, and often."""
        if monotonic() < self._quiet_until:
            return None
        body = {name: part for name, part in _body(request).items() if _COUNTED.fullmatch(name)}
        headers = request_headers(request.options)
        answer = self._ask(_COUNT_PATH, interrupt, _encoded(body), headers)
        return _tokens("input_tokens", answer)

    def window(self, model: str) -> int | None:
        """Return a model's window by the API's list of models; see ``runner.ports.Model``. It is asked
        for once in a process, by one run while the others wait for it; after a failure not for some
        minutes."""
        if self._is_unknown(model):
            with self._asking:
                if self._is_unknown(model):
                    answer = self._ask(f"/v1/models/{quote(model, safe='')}", Interrupt())
                    self._windows[model] = _tokens("max_input_tokens", answer), monotonic()
        return self._windows[model][0]

    def _is_unknown(self, model: str) -> bool:
        tokens, asked_at = self._windows.get(model, (None, float("-inf")))
        return tokens is None and monotonic() - asked_at >= _ASK_AGAIN_SECONDS

    def close(self) -> None:
        """End all connections; the next call opens new ones."""
        self._clients.close()

    def _ask(
        self,
        path: str,
        interrupt: Interrupt,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the API's answer to a question, None when none comes soon. Raises ``Interrupted``."""
        line = Line()
        seconds = self.ask_timeout
        with interrupt.cut_by(line.cut), self._watchdog.watch(line.cut, seconds, seconds) as watch:
            try:
                return self._clients.ask(path, line, body, headers or {})
            except (ModelCallError, *FAILURES):
                interrupt.check()
                if watch.expired:
                    self._quiet_until = monotonic() + _ASK_AGAIN_SECONDS
                return None


def _tokens(name: str, answer: Any) -> int | None:
    """Return a number of tokens in an answer, whatever was answered."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if type(value) is int and value > 0 else None


def _receive(
    events: Stream[object],
    reply: Accumulator,
    line: Line,
    watch: Watch,
    on_text: Callable[[str], None],
) -> None:
    reply.request_id = events.response.headers.get("request-id")
    watch.progress()
    for event in events:
        watch.progress()
        if text := reply.add(event):
            on_text(text)
        if reply.whole:
            line.patience = _LAST_BYTES_SECONDS


def _failure(
    error: Exception,
    interrupt: Interrupt,
    reply: Accumulator,
    line: Line,
    watch: Watch,
    seconds: float,
) -> ModelCallError:
    """Return the error of a call that ended after ``seconds``. Raises ``Interrupted`` if it was dropped."""
    sent, request_id = line.sent, reply.request_id
    try:
        interrupt.check()
    except ShutDown:
        return ModelCallError("shutdown", SHUT_DOWN, request_id=request_id, billed=sent)
    if watch.expired is None:
        return failure(error, started=reply.started, sent=sent, request_id=request_id)
    words = {
        "stream_stalled": f"no event came for too long; cut after {seconds:.1f} s",
        "call_deadline": f"the call was not done after {seconds:.1f} s",
    }[watch.expired]
    return ModelCallError(watch.expired, words, request_id=request_id, billed=sent)


def _call_ids(messages: Sequence[Message]) -> frozenset[str]:
    blocks = (block for message in messages for block in message.blocks)
    return frozenset(block["id"] for block in blocks if block["type"] == "tool_use")
