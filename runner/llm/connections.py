"""Connections that another thread can cut at any moment: while connecting, in the TLS handshake,
waiting for an answer, in a stream.

``close()`` from another thread blocks while a read is under way; ``shutdown()`` of the socket ends
the read at once. A connection outlives the call that opened it (keep-alive), so each notes whose
call it serves when that call writes its request.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpcore2

_lock = threading.Lock()  # guards who serves whom; held for moments, never during I/O
_current = threading.local()


class Line:
    """One call's hold on the network.

    ``sent`` says whether any of its request may have left; ``patience`` is how many seconds a read
    may take, None for any number.
    """

    def __init__(self) -> None:
        self.patience: float | None = None
        self.is_cut = False
        self.sent = False
        self._connecting: _Connecting | None = None
        self._stream: CuttableStream | None = None

    def cut(self) -> None:
        """End what the call is doing on the network, and whatever it tries next. Never blocks."""
        with _lock:
            self.is_cut = True
            if self._connecting is not None:
                self._connecting.settled.set()
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

    def begin_connecting(self, connecting: _Connecting) -> None:
        with _lock:
            self._refuse_if_cut()
            self._connecting = connecting

    def take(self, stream: CuttableStream) -> None:
        """``stream`` serves this call from now on."""
        with _lock:
            self._refuse_if_cut()
            self._connecting = None
            self._stream = stream
            stream.line = self

    def _refuse_if_cut(self) -> None:
        if self.is_cut:
            raise httpcore2.ConnectError("the call was cut")


class CuttableBackend(httpcore2.SyncBackend):
    """Opens connections in a thread of their own: neither name resolution nor connecting can be cut,
    so the call leaves them behind."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        line = _line()
        connecting = _Connecting()
        line.begin_connecting(connecting)

        def connect() -> None:
            try:
                opened = super(CuttableBackend, self).connect_tcp(
                    host, port, timeout, local_address, socket_options
                )
            except Exception as error:  # whatever it is, the caller raises it
                connecting.failed(error)
            else:
                connecting.succeeded(opened)

        threading.Thread(target=connect, name="connect", daemon=True).start()
        return _taken(connecting.result())


class CuttableStream(httpcore2.NetworkStream):
    """A connection, and the call that it serves (``line``, guarded by the module's lock)."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self.line: Line | None = None
        self._inner = inner
        self._guard: socket.socket | None = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _line().patience or timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        line = _line()
        line.take(self)
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


class _Connecting:
    """A connection being opened by another thread; whoever waits may leave (``settled`` is set)."""

    def __init__(self) -> None:
        self.settled = threading.Event()
        self._left = False
        self._stream: httpcore2.NetworkStream | None = None
        self._error: Exception | None = None

    def succeeded(self, stream: httpcore2.NetworkStream) -> None:
        with _lock:
            self._stream = stream
            left = self._left
        if left:
            stream.close()
        self.settled.set()

    def failed(self, error: Exception) -> None:
        self._error = error
        self.settled.set()

    def result(self) -> httpcore2.NetworkStream:
        """Wait for the connection; raises what the connecting thread met, or ConnectError."""
        self.settled.wait()
        with _lock:
            self._left = self._stream is None
        if self._stream is not None:
            return self._stream
        raise self._error or httpcore2.ConnectError("the call was cut")


def _taken(inner: httpcore2.NetworkStream) -> CuttableStream:
    stream = CuttableStream(inner)
    try:
        _line().take(stream)
    except httpcore2.ConnectError:
        stream.close()
        raise
    return stream


def _line() -> Line:
    line: Line | None = getattr(_current, "line", None)
    if line is None:
        raise RuntimeError("a connection was used outside of Line.held()")
    return line
