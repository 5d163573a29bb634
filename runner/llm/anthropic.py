"""Model calls over the Messages API, streamed, each cut at once when it is interrupted or stalls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from runner.core.conversation import ModelReply, ModelRequest
from runner.engine.ports import Interrupt
from runner.errors import ModelCallError
from runner.llm.body import request_body, request_headers
from runner.llm.stream import Accumulator
from runner.llm.watchdog import Expiry, Watch, Watchdog, monotonic

if TYPE_CHECKING:
    from runner.llm.client import MessagesClients
    from runner.llm.connections import Line

_LAST_BYTES_SECONDS = 1.0  # for the end of the body after message_stop


class AnthropicModel:
    """The ``Model`` port over the Messages API.

    Args:
        stall_timeout: seconds without an event after which a call is cut; pings do not count.
        total_timeout: seconds that a call may take.
        base_url, api_key: None for what the environment says (``ANTHROPIC_BASE_URL``,
            ``ANTHROPIC_API_KEY`` …), which is read at the first call.
    """

    def __init__(
        self,
        *,
        stall_timeout: float = 300.0,
        total_timeout: float = 1800.0,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._stall_timeout = stall_timeout
        self._total_timeout = total_timeout
        self._base_url = base_url
        self._api_key = api_key
        self._lock = threading.Lock()
        self._clients: MessagesClients | None = None
        self._watchdog = Watchdog()

    def complete(
        self, request: ModelRequest, interrupt: Interrupt, on_text: Callable[[str], None]
    ) -> ModelReply:
        """One model call; see ``engine.ports.Model``."""
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

    def close(self) -> None:
        """End all connections; the next call opens new ones."""
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    def _connected(self) -> MessagesClients:
        from runner.llm.client import MessagesClients

        with self._lock:
            if self._clients is None:
                self._clients = MessagesClients(self._base_url, self._api_key)
            return self._clients


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
