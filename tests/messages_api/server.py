"""The server: HTTP/1.1 over asyncio streams in one thread, cheap enough to share a machine with."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.messages_api import batches
from tests.messages_api.batches import BatchShelf
from tests.messages_api.conversation_rules import Refusal
from tests.messages_api.dialects import API_KEY, Dialect
from tests.messages_api.prompt_cache import Prompt, PromptCache
from tests.messages_api.rate_limits import Limited, RateLimits
from tests.messages_api.replies import ERROR_TYPES, Break, Reply
from tests.messages_api.rules import MODELS, check_count, check_headers, check_request, check_window
from tests.messages_api.wire import BEFORE_HEADERS, Wire, chunk, stream_head

MOST_BODY_BYTES = 32 * 1024 * 1024
WINDOW = 1_000_000  # of its models, in tokens, where no test says otherwise


@dataclass(frozen=True)
class Received:
    """A request as it came: ``raw`` is the body's bytes, ``body`` what they say (None: no JSON)."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    at: float
    custom_id: str | None = None  # in a batch

    @property
    def position(self) -> int:
        """Assistant messages in the conversation: which reply is due."""
        return sum(1 for message in self.body["messages"] if message["role"] == "assistant")

    @property
    def first_text(self) -> str:
        """The text of the first user message: which conversation this is."""
        content = self.body["messages"][0]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(block.get("text", "") for block in content)


Plan = Callable[[Received], Reply]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Connection(asyncio.StreamReaderProtocol):
    """The streams of one connection, known to the server from its first byte to its last."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        serve: Serve,
        transports: set[asyncio.WriteTransport],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(reader, serve, loop)
        self._open = transports

    def connection_made(self, transport: Any) -> None:
        self._transport_made = transport
        self._open.add(transport)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self._transport_made)
        super().connection_lost(error)


class MessagesServer:
    """The Messages API at ``url``, until ``stop``.

    Args:
        plan: gives the reply to each request that was not refused; called in the server's thread.
        record: keep every model call in ``requests``, every other request in ``others`` and every
            refusal in ``refusals``.
        most_body_bytes: a longer body is refused with 413.
        window: a prompt with more tokens is refused, and a reply that would pass it is cut; None: any
            length is taken, and the list of models says ``WINDOW``.
        chars_per_token: the rule by which tokens are counted (of the blocks' JSON).
        caching: whether the prompt cache works.
        now: the cache's clock, in seconds.
        limits: what the organisation may ask for; None: as much as it likes.
        broken: how requests to a path other than ``/v1/messages`` break.
        batch_now: the clock of batches, in seconds since the epoch.
        batch_takes: how many seconds a batch takes, by its number from 1.
        tls: encrypts connections.
        dialect: the platform that it plays; by default the Messages API itself.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        port: int = 0,
        record: bool = True,
        most_body_bytes: int = MOST_BODY_BYTES,
        tls: ssl.SSLContext | None = None,
        window: int | None = None,
        chars_per_token: float = 4.0,
        caching: bool = True,
        now: Callable[[], float] = time.monotonic,
        broken: Mapping[str, Break] | None = None,
        batch_now: Callable[[], float] = time.time,
        batch_takes: Callable[[int], float] = lambda number: 0.0,
        limits: RateLimits | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.others: list[Received] = []
        self.refusals: list[Refusal] = []
        self.count = 0
        self.connections = 0
        self.in_flight = 0
        self.api_key = API_KEY  # the only one that it takes
        self.dropped = 0  # connections that the client ended while a reply was due
        self._plan = plan
        self._record = record
        self._most_body_bytes = most_body_bytes
        self._tls = tls
        self._window = window
        self._chars_per_token = chars_per_token
        self._cache = PromptCache(now, caching)
        self._broken = broken or {}
        self.shelf = BatchShelf(self._work_in_batch, batch_now, batch_takes)
        self.worked_in_batches: list[Received] = []  # what was paid for
        self._limits = limits
        self._dialect = dialect or Dialect()
        self._issued: set[str] = set()
        self._changed = threading.Condition()
        self._serving = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="messages-api", daemon=True)
        self._transports: set[asyncio.WriteTransport] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._serving.wait()  # a loop that is stopped before it serves leaves its sockets open
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait_for(self, condition: Callable[[MessagesServer], bool], seconds: float = 60.0) -> None:
        """Wait until ``condition`` holds; AssertionError after ``seconds``."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), seconds), "it never came about"

    # --- the loop's thread ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = self._loop.create_server(self._connection, sock=self._listener, ssl=self._tls)
        server = self._loop.run_until_complete(start)
        self._serving.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(server))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _connection(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=1024 * 1024, loop=self._loop)
        return _Connection(reader, self._serve, self._transports, self._loop)

    async def _end(self, server: asyncio.Server) -> None:
        """Return when no socket is left open, whatever its connection was doing."""
        self._loop.remove_reader(self._listener)
        await asyncio.sleep(0)  # asyncio forgets a socket that it accepted when the server closed
        server.close()
        while self._transports or len(asyncio.all_tasks()) > 1:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.sleep(0)  # asyncio logs a task that is cancelled before it began
            for transport in self._transports:
                transport.abort()
            for task in tasks:
                task.cancel()
        # A connection cancelled while it was being accepted closes in the round after.
        await asyncio.sleep(0.01)

    def _change(self, **by: int) -> None:
        with self._changed:
            for name, amount in by.items():
                setattr(self, name, getattr(self, name) + amount)
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer, self._dialect)
        self._change(connections=1)
        try:
            while await self._answer_one(wire):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self._change(dropped=1)
        except asyncio.CancelledError:
            return  # the server stops; asyncio would log it as an error
        finally:
            wire.close()

    async def _answer_one(self, wire: Wire) -> bool:
        """Answer one request; False when the connection is over."""
        incoming = await wire.request()
        if incoming is None:
            return False
        self._change(in_flight=1)
        try:
            return await self._respond(wire, *incoming)
        finally:
            self._change(in_flight=-1)

    async def _respond(
        self, wire: Wire, method: str, target: str, headers: dict[str, str], raw: bytes
    ) -> bool:
        path = urlsplit(target).path
        self.count += 1
        request_id = f"req_{self.count:012d}"
        try:
            if (told := self._dialect.answer(path, raw)) is not None:
                return await wire.send(told, request_id)
            path, headers, raw = self._dialect.as_api(method, path, headers, raw)
            request = self._take(method, path, headers, raw)
            if path.startswith(batches.PATH):
                return await self._answer_batches(wire, request, urlsplit(target).query, request_id)
            if path != "/v1/messages":
                return await self._answer(wire, request, request_id)
            prompt = Prompt.of(request.body, self._chars_per_token)
            check_window(prompt.tokens, self._window)
            found = self._cache.find(prompt)
            if self._limits is not None:
                self._limits.admit(prompt.tokens - prompt.tokens_to(found))
            reply = self._fitting(self._plan(request), prompt)
        except Refusal as refusal:
            if self._record:
                self.refusals.append(refusal)
            failure = Break(
                "status",
                status=refusal.status,
                error_type=refusal.kind,
                message=refusal.message,
                headers=refusal.headers if isinstance(refusal, Limited) else {},
            )
            return await wire.break_before_headers(failure, request_id)
        self._issued.update(block["type"] for block in reply.blocks)
        if reply.latency:
            await asyncio.sleep(reply.latency)
        while reply.held_until is not None and not reply.held_until.is_set():
            await asyncio.sleep(0.01)
        usage = self._cache.keep(prompt, found)
        return await self._play(wire, request, reply, usage, request_id)

    def _fitting(self, reply: Reply, prompt: Prompt) -> Reply:
        """A reply, cut where the window ends:
        https://docs.claude.com/en/api/handling-stop-reasons#model-context-window-exceeded."""
        if self._window is None or prompt.tokens + reply.output_tokens() <= self._window:
            return reply
        return replace(reply, cut=True, stop_reason="model_context_window_exceeded")

    async def _answer_batches(
        self, wire: Wire, request: Received, query: str, request_id: str
    ) -> bool:
        """Answer a request about batches. Raises ``Refusal``."""
        shelf, headers = self.shelf, batches.ORGANIZATION
        if (failure := self._broken.get(f"{request.method} {request.path}")) is not None:
            return await wire.break_before_headers(failure, request_id)
        match [request.method, *request.path.removeprefix(batches.PATH).split("/")[1:]]:
            case ["POST"]:
                fault = shelf.faults.popleft() if shelf.faults else None
                batch = None
                if fault is None or fault.made:
                    batch = shelf.create(request.body, request.headers["anthropic-version"])
                if fault is not None:
                    return await wire.break_before_headers(fault.broken, request_id)
                assert batch is not None
                return await wire.send(batch.told(), request_id, headers)
            case ["GET"]:
                return await wire.send(shelf.page(query), request_id, headers)
            case ["GET", name]:
                return await wire.send(shelf.find(name).told(), request_id, headers)
            case ["POST", name, "cancel"]:
                return await wire.send(shelf.cancel(name).told(), request_id, headers)
            case ["GET", name, "results"]:
                lines = shelf.results(name).lines()
                await wire.write(stream_head(request_id, "application/x-jsonl"))
                for line in lines:
                    await wire.write(chunk(line))
                await wire.write(b"0\r\n\r\n")
                return True
        raise Refusal("Not found", 404, "not_found_error")

    def _work_in_batch(
        self, custom_id: str, params: dict[str, Any], version: str
    ) -> dict[str, Any]:
        """Return the result of one request of a batch. Raises ``Refusal``."""
        check_request(params, version, self._issued)
        self.count += 1
        raw = json.dumps(params).encode()
        at = time.time()
        request = Received(self.count, "POST", "/v1/messages", {}, raw, params, at, custom_id)
        prompt = Prompt.of(params, self._chars_per_token)
        check_window(prompt.tokens, self._window)
        found = self._cache.find(prompt)
        reply = self._fitting(self._plan(request), prompt)
        failure = reply.broken
        if failure is not None:
            kind = failure.error_type or ERROR_TYPES.get(failure.status, "api_error")
            raise Refusal(failure.message, failure.status, kind)
        self._issued.update(block["type"] for block in reply.blocks)
        usage = {**self._cache.keep(prompt, found), "service_tier": "batch"}
        self._change_worked(request)
        message = reply.message(f"msg_{request.number:012d}", params["model"], usage)
        return {"type": "succeeded", "message": message}

    def _change_worked(self, request: Received) -> None:
        with self._changed:
            self.worked_in_batches.append(request)
            self._changed.notify_all()

    async def _answer(self, wire: Wire, request: Received, request_id: str) -> bool:
        """Answer a request that is no model call."""
        failure = self._broken.get(request.path)
        if failure is not None:
            return await wire.break_before_headers(failure, request_id)
        if request.path == "/v1/messages/count_tokens":
            tokens = Prompt.of(request.body, self._chars_per_token).tokens
            return await wire.send({"input_tokens": tokens}, request_id)
        name = _model_named(request.path)
        window = self._window or WINDOW
        if name is not None:
            return await wire.send(_model(name, window), request_id)
        data = [_model(name, window) for name in sorted(MODELS)]
        listed = {"data": data, "has_more": False, "first_id": None, "last_id": None}
        return await wire.send(listed, request_id)

    def _take(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Received:
        """The request, unless the API would refuse it."""
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        request = Received(self.count, method, path, headers, raw, body, time.time())
        if self._record:
            with self._changed:
                (self.requests if path == "/v1/messages" else self.others).append(request)
                self._changed.notify_all()
        check_headers(headers, self.api_key)
        if path.startswith(batches.PATH):
            if len(raw) > batches.MOST_BODY_BYTES:
                raise Refusal("Request exceeds the maximum size", 413, "request_too_large")
            return request
        if len(raw) > self._most_body_bytes:
            raise Refusal("Request exceeds the maximum size", 413, "request_too_large")
        if (method, path) == ("GET", "/v1/models"):
            return request
        name = _model_named(path)
        if method == "GET" and name is not None:
            if name not in MODELS:
                raise Refusal(f"model: {name}", 404, "not_found_error")
            return request
        if method != "POST" or path not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise Refusal("Not found", 404, "not_found_error")
        if "json" not in headers.get("content-type", ""):
            raise Refusal("content-type: must be application/json")
        if body is None:
            raise Refusal("The request body is not valid JSON")
        check = check_count if path.endswith("count_tokens") else check_request
        check(body, headers["anthropic-version"], self._issued)
        return request

    async def _play(
        self, wire: Wire, request: Received, reply: Reply, usage: Mapping[str, Any], request_id: str
    ) -> bool:
        failure = reply.broken
        if failure is not None and failure.kind in BEFORE_HEADERS:
            return await wire.break_before_headers(failure, request_id)
        model = request.body["model"]
        message_id = f"msg_{request.number:012d}"
        headers = {} if self._limits is None else self._limits.headers()
        if not request.body.get("stream"):
            message = reply.message(message_id, model, usage)
            return await wire.send(message, request_id, headers)
        head = stream_head(request_id, self._dialect.stream_type, headers)
        if failure is not None and failure.kind == "reset_in_headers":
            await wire.write(head[: len(head) // 2])
            return wire.reset()
        pending = [head]
        for number, (name, data) in enumerate(reply.events(message_id, model, usage)):
            if failure is not None and number == failure.after:
                break
            pending.append(chunk(self._dialect.event(name, data)))
            if reply.pause:
                await wire.write(b"".join(pending))
                pending.clear()
                await asyncio.sleep(reply.pause)
        if failure is not None:
            await wire.write(b"".join(pending))
            return await wire.break_off(failure, request_id)
        if self._limits is not None:
            self._limits.wrote(reply.output_tokens())
        await wire.write(b"".join(pending) + b"0\r\n\r\n")
        return True


def _model_named(path: str) -> str | None:
    """The model that a path asks about."""
    name = path.removeprefix("/v1/models/")
    return None if name == path else unquote(name)


def _model(name: str, window: int) -> dict[str, Any]:
    """A model as the list has it: https://docs.claude.com/en/api/models."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-06-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": window,
        "max_tokens": 128_000,
    }
