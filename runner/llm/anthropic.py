"""Model calls over the Messages API, streamed; each ends at once when it is interrupted or stalls.

Sources: https://docs.claude.com/en/api/messages; counting tokens and listing models, which never fail
a run: https://docs.claude.com/en/api/messages-count-tokens, https://docs.claude.com/en/api/models.
This module imports anthropic, which takes over a second: import it late.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from anthropic import APIStatusError, Stream
from httpx2 import Response

from runner.core.conversation import ModelReply, ModelRequest
from runner.core.entries import OF_KEY
from runner.core.media import LoadBlob
from runner.errors import SHUT_DOWN, ModelCallError, ShutDown
from runner.llm.api_errors import (
    FAILURES,
    UNREADABLE,
    ForeignAnswerError,
    StreamEndedError,
    failure,
    request_id_in,
)
from runner.llm.batches import read_result
from runner.llm.connections import Line, MessagesClients, Watch, Watchdog, monotonic
from runner.llm.requests import body_of, call_ids, encoded, request_body, request_headers
from runner.llm.stream import Accumulator
from runner.ports import Answers, Interrupt

_COUNT_PATH = "/v1/messages/count_tokens"
# What a count of tokens takes: https://docs.claude.com/en/api/messages-count-tokens.
_COUNTED = re.compile(
    "cache_control|messages|model|output_config|speed|system|thinking|tool_choice|tools"
)

_LAST_BYTES_SECONDS = 1.0  # for the end of the body after message_stop
_ASK_AGAIN_SECONDS = 300.0  # after a question had no answer, or none in time


@dataclass(kw_only=True, eq=False, repr=False)
class AnthropicModel:
    """The ``Model`` port over the Messages API, or over a platform that serves the same models."""

    stall_timeout: float = 300.0  # seconds without an event after which a call is cut, pings apart
    total_timeout: float = 1800.0  # seconds that a call may take
    ask_timeout: float = 5.0  # seconds that a question about a prompt or a model may take
    # None for what the environment says at the first call (``ANTHROPIC_BASE_URL``, ``…_API_KEY`` …).
    base_url: str | None = None
    api_key: str | None = None
    answers: Answers | None = None  # hears what the API says about its limits
    blobs: LoadBlob | None = None  # the bytes of images and documents
    clients: MessagesClients | None = None  # of a platform

    def __post_init__(self) -> None:
        self._clients = self.clients or MessagesClients(self.base_url, self.api_key)
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
        body, headers = request_body(request, self.blobs), request_headers(request.options)
        heard = partial(_hear, self.answers, request.run_id)
        reply = Accumulator(lambda: call_ids(request.messages))
        with (
            interrupt.cut_by(line.cut),
            self._watchdog.watch(line.cut, self.stall_timeout, self.total_timeout) as watch,
        ):
            try:
                try:
                    with self._clients.stream(body, headers, line) as events:
                        heard(events.response)
                        _receive(events, reply, line, watch, on_text)
                except FAILURES:
                    if not reply.whole:
                        raise
                if not reply.whole:
                    raise StreamEndedError("the stream ended without message_stop")
                finished = reply.finish(monotonic() - began)
                if self.answers is not None:
                    self.answers.replied(request.run_id, finished.usage)
                return finished
            except FAILURES as error:
                seconds, silent = monotonic() - began, monotonic() - watch.progress_at
                failed = _failure(error, interrupt, reply, line, watch, seconds)
                counted = reply.counted()
                if isinstance(error, APIStatusError) and error.status_code >= 400:
                    heard(error.response)
                if self.answers is not None and failed.kind == "rate_limit_error":
                    self.answers.refused(request.run_id, failed.retry_after)
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
        return _tokens("input_tokens", self._ask(_COUNT_PATH, Interrupt(), encoded(body)))

    def read_result(
        self, request: ModelRequest, result: Mapping[str, Any], seconds: float
    ) -> ModelReply:
        """Return the reply in a result of a batch; see ``runner.ports.Model``."""
        return read_result(request, result, seconds)

    def count(self, request: ModelRequest, interrupt: Interrupt) -> int | None:
        """Return the tokens of a request's prompt; see ``runner.ports.Model``. An API that let a question
        wait is not asked again for some minutes: every run asks, and often."""
        if monotonic() < self._quiet_until:
            return None
        whole = body_of(request, self.blobs)
        body = {name: part for name, part in whole.items() if _COUNTED.fullmatch(name)}
        headers = request_headers(request.options)
        answer = self._ask(_COUNT_PATH, interrupt, encoded(body), headers)
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

    def refuses_host(self) -> bool:
        """True if the API cannot be called from here; see ``runner.ports.Model``. Platforms do not
        tell."""
        try:
            answer = self._answer("/v1/models?limit=1", Interrupt())
        except ModelCallError as error:
            return error.kind in OF_KEY or error.is_unreached
        return isinstance(answer, str)  # the page of a proxy

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
        try:
            return self._answer(path, interrupt, body, headers)
        except ModelCallError:
            return None

    def _answer(
        self,
        path: str,
        interrupt: Interrupt,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the API's answer to a question. Raises ``ModelCallError`` and ``Interrupted``."""
        line = Line()
        seconds = self.ask_timeout
        with interrupt.cut_by(line.cut), self._watchdog.watch(line.cut, seconds, seconds) as watch:
            try:
                return self._clients.ask(path, line, body, headers or {})
            except (ModelCallError, *FAILURES) as error:
                interrupt.check()
                if watch.expired:
                    self._quiet_until = monotonic() + _ASK_AGAIN_SECONDS
                if isinstance(error, ModelCallError):
                    raise
                raise failure(error, started=False, sent=line.sent, request_id=None) from error


def _hear(answers: Answers | None, run_id: str, response: Response) -> None:
    if answers is not None:
        answers.answered(run_id, response.url.host, response.headers)


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
    if "html" in events.response.headers.get("content-type", ""):
        raise ForeignAnswerError("a page came instead of the API's answer")
    reply.request_id = request_id_in(events.response.headers)
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
