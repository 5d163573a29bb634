"""Model calls over the Messages API, streamed; each ends at once when it is interrupted or stalls.

Sources: https://docs.claude.com/en/api/messages; prompt caching:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching; counting tokens and listing
models, which never fail a run: https://docs.claude.com/en/api/messages-count-tokens,
https://docs.claude.com/en/api/models.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from runner.core.conversation import Message, ModelReply, ModelRequest
from runner.errors import ModelCallError
from runner.llm.connections import Expiry, Watch, Watchdog, monotonic
from runner.llm.stream import Accumulator
from runner.ports import Interrupt

if TYPE_CHECKING:
    from runner.llm.connections import Line, MessagesClients


_CACHE: Mapping[str, str] = {"type": "ephemeral"}
_HOUR_CACHE: Mapping[str, str] = {"type": "ephemeral", "ttl": "1h"}

# Options that go beside the body, and the ones that are not fields of the API.
_HEADERS = {
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}
_APART = frozenset({"betas", "effort", "extra_body", "extra_headers", *_HEADERS})

# What a count of tokens takes: https://docs.claude.com/en/api/messages-count-tokens.
_COUNTED = frozenset(
    {
        "cache_control",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers that a call's options ask for (``betas``, ``extra_headers`` …)."""
    headers = {header: str(options[name]) for name, header in _HEADERS.items() if name in options}
    if options.get("betas"):
        headers["anthropic-beta"] = ",".join(options["betas"])
    return {**headers, **options.get("extra_headers", {})}


def request_body(request: ModelRequest) -> bytes:
    """The request as JSON.

    What does not change from turn to turn comes first and byte for byte the same. There are three
    cache breakpoints: the tools and the system prompt end with one, the last block of the previous
    request has one, and the API sets one at the last block of all. They share their
    ``cache_control``, the job's own if its options have one, else the request's: the API refuses a
    long lifetime after a short one. A summary is asked for once, so nothing of it is cached. The
    stored blocks are not changed. ``effort`` stands for ``output_config.effort``. No option, and
    nothing in ``extra_body``, takes the place of what Runner sets itself.
    """
    return _encoded(_body(request))


def count_body(request: ModelRequest) -> bytes:
    """The part of a request that its tokens are counted by, as JSON."""
    body = _body(request)
    return _encoded({name: value for name, value in body.items() if name in _COUNTED})


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
    body["messages"] = _marked(request.messages, mark)
    return body


def _marked(messages: Sequence[Message], mark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages, with a breakpoint where the previous request ended: before the last reply.

    From the breakpoint at the end the API looks back at 20 positions at most, and a turn may have
    added more.
    """
    sent = [message.as_api() for message in messages]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    before = messages[: replies[-1]] if replies else ()
    heard = [index for index, message in enumerate(before) if message.role == "user"]
    if heard:
        content = sent[heard[-1]]["content"]
        content[-1] = {**content[-1], **mark}
    return sent


def _encoded(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair is no text and the API refuses it; it becomes a replacement mark.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


_LAST_BYTES_SECONDS = 1.0  # for the end of the body after message_stop
_ASK_AGAIN_SECONDS = 300.0  # after a question had no answer, or none in time


class AnthropicModel:
    """The ``Model`` port over the Messages API.

    Args:
        stall_timeout: seconds without an event after which a call is cut; pings do not count.
        total_timeout: seconds that a call may take.
        ask_timeout: seconds that a question about a prompt or a model may take.
        base_url, api_key: None for what the environment says (``ANTHROPIC_BASE_URL``,
            ``ANTHROPIC_API_KEY`` …), which is read at the first call.
    """

    def __init__(
        self,
        *,
        stall_timeout: float = 300.0,
        total_timeout: float = 1800.0,
        ask_timeout: float = 5.0,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._stall_timeout = stall_timeout
        self._total_timeout = total_timeout
        self._ask_timeout = ask_timeout
        self._base_url = base_url
        self._api_key = api_key
        self._lock = threading.Lock()
        self._clients: MessagesClients | None = None
        self._watchdog = Watchdog()
        self._asking = threading.Lock()
        self._windows: dict[str, _Window] = {}
        self._quiet_until = 0.0

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """One model call; see ``runner.ports.Model``."""
        # Importing the SDK takes over a second, so it waits for the first call.
        from runner.llm.connections import Line
        from runner.llm.stream import FAILURES, failure

        clients = self._connected()
        line = Line()
        call = _Call(request, line)
        with (
            interrupt.cut_by(line.cut),
            self._watchdog.watch(line.cut, self._stall_timeout, self._total_timeout) as watch,
        ):
            try:
                return call.run(clients, watch, on_text)
            except FAILURES as error:
                interrupt.check()
                if watch.expired:
                    raise call.expired(watch.expired) from error
                raise failure(
                    error, started=call.started, sent=line.sent, request_id=call.request_id
                ) from error

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """The tokens of a request's prompt; see ``runner.ports.Model``. An API that let a question wait
        is not asked again for some minutes: every run asks, and often."""
        if monotonic() < self._quiet_until:
            return None
        body, headers = count_body(request), request_headers(request.options)
        answer = self._ask("/v1/messages/count_tokens", interrupt, body, headers)
        return _tokens("input_tokens", answer)

    def window(self, model: str) -> int | None:
        """A model's window by the API's list of models; see ``runner.ports.Model``. It is asked for once
        in a process, by one run while the others wait for it; after a failure not for some minutes."""
        known = self._windows.get(model)
        if known is None or known.is_stale():
            with self._asking:
                known = self._windows.get(model)
                if known is None or known.is_stale():
                    answer = self._ask(f"/v1/models/{quote(model, safe='')}", Interrupt())
                    known = _Window(_tokens("max_input_tokens", answer))
                    self._windows[model] = known
        return known.tokens

    def close(self) -> None:
        """End all connections; the next call opens new ones."""
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    def _ask(
        self,
        path: str,
        interrupt: Interrupt,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The API's answer to a question, None when none comes soon. Raises ``Interrupted``."""
        from runner.llm.connections import Line
        from runner.llm.stream import FAILURES

        line = Line()
        seconds = self._ask_timeout
        with interrupt.cut_by(line.cut), self._watchdog.watch(line.cut, seconds, seconds) as watch:
            try:
                return self._connected().ask(path, line, body, headers or {})
            except (ModelCallError, *FAILURES):
                interrupt.check()
                if watch.expired:
                    self._quiet_until = monotonic() + _ASK_AGAIN_SECONDS
                return None

    def _connected(self) -> MessagesClients:
        from runner.llm.connections import MessagesClients

        with self._lock:
            if self._clients is None:
                self._clients = MessagesClients(self._base_url, self._api_key)
            return self._clients


class _Window:
    """What the API said of a model's window; None: it did not say."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self._asked_at = monotonic()

    def is_stale(self) -> bool:
        return self.tokens is None and monotonic() - self._asked_at >= _ASK_AGAIN_SECONDS


def _tokens(name: str, answer: Any) -> int | None:
    """A number of tokens in an answer, whatever was answered."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if type(value) is int and value > 0 else None


class _Call:
    """One call under way."""

    def __init__(self, request: ModelRequest, line: Line) -> None:
        self.request_id: str | None = None
        self._request = request
        self._body = request_body(request)
        self._headers = request_headers(request.options)
        self._line = line
        self._events = Accumulator(self._taken_ids)
        self._began = monotonic()

    @property
    def started(self) -> bool:
        return self._events.started

    def run(
        self, clients: MessagesClients, watch: Watch, on_text: Callable[[str], None]
    ) -> ModelReply:
        """Stream the call to its end."""
        from runner.llm.stream import FAILURES, StreamEndedError

        try:
            self._stream(clients, watch, on_text)
        except FAILURES:
            if not self._events.whole:
                raise
        if not self._events.whole:
            raise StreamEndedError("the stream ended without message_stop")
        return self._events.reply(monotonic() - self._began, self.request_id)

    def expired(self, expiry: Expiry) -> ModelCallError:
        """The error for a call that the watchdog cut."""
        seconds = monotonic() - self._began
        words = {
            "stream_stalled": f"no event came for too long; cut after {seconds:.1f} s",
            "call_deadline": f"the call was not done after {seconds:.1f} s",
        }
        return ModelCallError(
            expiry, words[expiry], request_id=self.request_id, billed=self._line.sent
        )

    def _stream(
        self, clients: MessagesClients, watch: Watch, on_text: Callable[[str], None]
    ) -> None:
        with clients.stream(self._body, self._headers, self._line) as events:
            self.request_id = events.response.headers.get("request-id")
            watch.progress()
            for event in events:
                watch.progress()
                text = self._events.add(event)
                if text:
                    on_text(text)
                if self._events.whole:
                    self._line.patience = _LAST_BYTES_SECONDS

    def _taken_ids(self) -> frozenset[str]:
        return frozenset(
            block["id"]
            for message in self._request.messages
            for block in message.blocks
            if block["type"] == "tool_use"
        )
