"""Model calls over the Messages API, streamed, each cut at once when it is interrupted or stalls.

What is asked beside them (how long a prompt is, a model's window) is worth a few seconds and never
fails a run: https://docs.claude.com/en/api/messages-count-tokens, https://docs.claude.com/en/api/models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from runner.core.conversation import ModelReply, ModelRequest
from runner.errors import ModelCallError
from runner.llm.body import count_body, request_body, request_headers
from runner.llm.stream import Accumulator
from runner.llm.watchdog import Expiry, Watch, Watchdog, monotonic
from runner.ports import Interrupt

if TYPE_CHECKING:
    from runner.llm.client import MessagesClients
    from runner.llm.connections import Line

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
        from runner.llm.failures import FAILURES, failure

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
        from runner.llm.failures import FAILURES

        line = Line()
        seconds = self._ask_timeout
        with (
            interrupt.cut_by(line.cut),
            self._watchdog.watch(line.cut, seconds, seconds) as watch,
        ):
            try:
                return self._connected().ask(path, line, body, headers or {})
            except (ModelCallError, *FAILURES):
                interrupt.check()
                if watch.expired:
                    self._quiet_until = monotonic() + _ASK_AGAIN_SECONDS
                return None

    def _connected(self) -> MessagesClients:
        from runner.llm.client import MessagesClients

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
        from runner.llm.failures import FAILURES, StreamEndedError

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
