"""The SDK's clients of this process, over connections that another thread can cut at any moment.

``close()`` from another thread blocks while a read is under way; ``shutdown()`` of the socket ends
the read at once. A kept-alive connection outlives the call that opened it, so it notes whose call
it serves when that call writes its request. One thread watches all calls: read timeouts do not
suffice, because pings keep a stalled stream alive for ever. This module imports anthropic, which
takes over a second: import it late.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, cast

import anthropic
import httpcore2
import httpx2
from anthropic._decoders.jsonl import JSONLDecoder

from runner.errors import ModelCallError

T = TypeVar("T")

_lock = threading.Lock()  # guards who serves whom; held for moments, never during I/O
_current = threading.local()


class Line:
    """One call's hold on the network."""

    def __init__(self) -> None:
        self.patience: float | None = None  # seconds that a read may take; None: any number
        self.sent = False  # some of its request may have left
        self.is_cut = False
        self._apart: Future[Any] | None = None
        self._stream: CuttableStream | None = None

    def cut(self) -> None:
        """End what the call is doing on the network, and whatever it tries next. Never blocks."""
        with _lock:
            self.is_cut = True
            if self._apart is not None:
                self._apart.cancel()
            if self._stream is not None and self._stream.line is self:
                self._stream.shut_down()

    @contextmanager
    def held(self) -> Iterator[None]:
        """In the block, what this thread does on the network is this call's."""
        _current.line = self
        try:
            yield
        finally:
            _current.line = None

    def take(self, stream: CuttableStream | None, apart: Future[Any] | None = None) -> None:
        """Note the connection that serves this call from now on, or what is done apart for it.
        Raises ConnectError when the call was cut."""
        with _lock:
            if self.is_cut:
                raise httpcore2.ConnectError("the call was cut")
            self._apart, self._stream = apart, stream
            if stream is not None:
                stream.line = self

    def apart(self, work: Callable[[], T], drop: Callable[[T], object] = lambda result: None) -> T:
        """Return the result of ``work``, which nothing can cut: a thread of its own does it, and a call
        that is cut leaves it behind, to ``drop`` its result. Raises ConnectError then."""
        pending: Future[T] = Future()  # cancelled when the call is cut
        self.take(None, pending)

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # of any kind: the caller raises it
                if pending.set_running_or_notify_cancel():
                    pending.set_exception(error)
                return
            if pending.set_running_or_notify_cancel():
                pending.set_result(result)
            else:
                drop(result)

        threading.Thread(target=do, name="apart", daemon=True).start()
        try:
            return pending.result()
        except CancelledError as error:
            raise httpcore2.ConnectError("the call was cut") from error


class CuttableBackend(httpcore2.SyncBackend):
    """Opens connections apart: neither name resolution nor connecting can be cut."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        connect = partial(super().connect_tcp, host, port, timeout, local_address, socket_options)
        return _taken(line_in_hand().apart(connect, lambda opened: opened.close()))


class CuttableStream(httpcore2.NetworkStream):
    """A connection, and the call that it serves (``line``, guarded by the module's lock)."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self.line: Line | None = None
        self._inner = inner
        self._guard: socket.socket | None = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, line_in_hand().patience or timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        line = line_in_hand()
        line.take(self)
        if buffer and not buffer.startswith(b"CONNECT "):  # which only a proxy gets
            line.sent = True
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        with _lock:  # or ``shut_down`` could meet a number that names another socket by now
            self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        # The handshake moves the socket into another object; a duplicate reaches it meanwhile.
        with self._inner.get_extra_info("socket").dup() as guard:
            with _lock:
                self._guard = guard
            try:
                encrypted = self._inner.start_tls(ssl_context, server_hostname, timeout)
            finally:
                with _lock:
                    self._guard = None
        return _taken(encrypted)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def shut_down(self) -> None:
        """End both directions; the caller holds the module's lock."""
        connection = self._guard or self._inner.get_extra_info("socket")
        with suppress(OSError):  # it has ended by itself
            # Not SSLSocket.shutdown: that drops the encryption first, and a write that is under way
            # in the other thread would go out in the clear.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _taken(inner: httpcore2.NetworkStream) -> CuttableStream:
    stream = CuttableStream(inner)
    try:
        line_in_hand().take(stream)
    except httpcore2.ConnectError:
        stream.close()
        raise
    return stream


def line_in_hand() -> Line:
    """Return the line that this thread holds."""
    line: Line | None = getattr(_current, "line", None)
    if line is None:
        raise RuntimeError("a connection was used outside of Line.held()")
    return line


CALLS_PER_CLIENT = 32
CONNECT_TIMEOUT = 30.0  # seconds; everything after that is the watchdog's


@dataclass(eq=False, repr=False)
class MessagesClients:
    """Streams calls of the Messages API.

    The body is sent unchanged and events come as plain JSON: the SDK's own walk over every message
    of a request and its models for events cost more than everything else in a turn. A client has
    one pool of connections, and what a call costs in it grows with the calls in flight (measured at
    500: 5.8 ms of CPU a turn with one client, 2.4 ms with many), so each takes a few. A call without
    a key raises ``ModelCallError``.
    """

    base_url: str | None = None  # None for what the SDK finds in the environment, as is the key
    api_key: str | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        # How many calls each client has in flight; guarded by the lock.
        self._calls: Counter[Any] = Counter()

    @contextmanager
    def stream(
        self, body: bytes, headers: Mapping[str, str], line: Line
    ) -> Iterator[anthropic.Stream[object]]:
        """Yield the events of a call as JSON objects. Raises ``stream.FAILURES``."""
        with (
            self._client() as client,
            line.held(),
            client.post(
                "/v1/messages",
                content=body,
                options={"headers": headers},
                cast_to=object,
                stream=True,
                stream_cls=anthropic.Stream[object],
            ) as events,
        ):
            yield events

    def ask(self, path: str, line: Line, body: bytes | None, headers: Mapping[str, str]) -> object:
        """Return the JSON answer to a call (GET without a body). Raises as ``stream`` does."""
        with self._client() as client, line.held():
            if body is None:
                return client.get(path, options={"headers": headers}, cast_to=object)
            return client.post(path, content=body, options={"headers": headers}, cast_to=object)

    def fetch(
        self, path: str, line: Line, body: bytes | None, headers: Mapping[str, str]
    ) -> httpx2.Response:
        """Return the whole answer to a call (GET without a body). Raises as ``stream`` does."""
        with self._client() as client, line.held():
            given: Any = {"options": {"headers": headers}, "cast_to": httpx2.Response}
            if body is None:
                return cast(httpx2.Response, client.get(path, **given))
            return cast(httpx2.Response, client.post(path, content=body, **given))

    @contextmanager
    def lines(
        self, path: str, line: Line, headers: Mapping[str, str]
    ) -> Iterator[Iterator[object]]:
        """Yield the JSON lines of an answer as it comes. Raises as ``stream`` does."""
        with self._client() as client, line.held():
            kind = JSONLDecoder[object]
            decoder = client.get(path, options={"headers": headers}, cast_to=kind, stream=True)
            try:
                yield iter(decoder)
            finally:
                decoder.close()

    def close(self) -> None:
        """End all connections; the next call opens new ones."""
        with self._lock:
            for client in self._calls:
                client.close()
            self._calls.clear()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with self._lock:
            free = (each for each, calls in self._calls.items() if calls < CALLS_PER_CLIENT)
            try:
                client = next(free, None) or self._new_client()
            except (OSError, ValueError, httpx2.InvalidURL) as error:
                # Its words can hold the password of a proxy.
                raise ModelCallError(
                    "connection",
                    f"no client can be made ({type(error).__name__}): look at SSL_CERT_FILE, "
                    "HTTPS_PROXY and ANTHROPIC_BASE_URL",
                    billed=False,
                ) from error
            self._calls[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                if client in self._calls:  # not closed meanwhile
                    self._calls[client] -= 1

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def _options(self) -> dict[str, Any]:
        """Return the arguments for a new client of the SDK."""
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        http_client = anthropic.DefaultHttpxClient(
            timeout=timeout,
            limits=limits,
            verify=self._certificates,
            follow_redirects=False,  # the key would follow to any host
        )
        # Every connection is opened by our backend, to proxies from the environment too. httpx2 has no
        # public way to say so without giving up the SDK's own transports.
        transports: list[Any] = [http_client._transport, *http_client._mounts.values()]
        for transport in filter(None, transports):
            transport._pool._network_backend = CuttableBackend()
        return {"timeout": timeout, "max_retries": 0, "http_client": http_client}

    def _new_client(self) -> Any:
        try:
            client = anthropic.Anthropic(
                base_url=self.base_url, api_key=self.api_key, **self._options()
            )
        except anthropic.AnthropicError as error:
            raise _no_key(str(error)) from error
        if not (client.api_key or client.auth_token or client.credentials):
            raise _no_key("no API key was found")
        for key in (client.api_key, client.auth_token):
            if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
                # The transport would name the whole key in its error.
                raise _no_key("the API key has blanks or control characters in it or around it")
        return client


def _no_key(why: str) -> ModelCallError:
    return ModelCallError(
        "authentication_error",
        f"{why}: set ANTHROPIC_API_KEY in the environment of every worker",
        status=401,
        billed=False,
    )


Expiry = Literal["stream_stalled", "call_deadline"]

# The calls are looked at this often at least: waiting itself does not count the machine's sleep.
LOOK_SECONDS = 1.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Return seconds on a clock that nobody sets and that counts the machine's sleep as well."""
    return time.clock_gettime(_CLOCK)


@dataclass(eq=False, slots=True)
class Watch:
    """One call under watch. Times are in seconds, on the clock of ``monotonic``."""

    cut: Callable[[], None]
    stall_timeout: float
    deadline: float
    progress_at: float
    expired: Expiry | None = None  # why it was cut, if it was

    def progress(self) -> None:
        self.progress_at = monotonic()

    @property
    def due_at(self) -> float:
        """Return when the call is cut if nothing happens."""
        return min(self.deadline, self.progress_at + self.stall_timeout)


class Watchdog:
    """The thread that looks after calls; it starts with the first one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    @contextmanager
    def watch(
        self, cut: Callable[[], None], stall_timeout: float, total_timeout: float
    ) -> Iterator[Watch]:
        """In the block, call ``cut`` after a stall of seconds, or ``total_timeout`` in all."""
        now = monotonic()
        watch = Watch(cut, stall_timeout, now + total_timeout, now)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            elif watch.due_at < self._wakes_at:
                self._changed.notify()
        try:
            yield watch
        finally:
            with self._changed:
                self._watches.discard(watch)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = monotonic()
                for watch in [watch for watch in self._watches if watch.due_at <= now]:
                    self._watches.remove(watch)
                    watch.expired = "call_deadline" if now >= watch.deadline else "stream_stalled"
                    watch.cut()
                self._wakes_at = min((each.due_at for each in self._watches), default=float("inf"))
                seconds = self._wakes_at - monotonic()
                self._changed.wait(min(max(0.0, seconds), LOOK_SECONDS) if self._watches else None)
