"""Servers on this machine, and the way to them from a call: over a proxy, from a sandbox."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from runner.tools.proxy import Door, Proxy

LOOPBACK = "127.0.0.1"


class Echo(BaseHTTPRequestHandler):
    """Says what it was asked: the request line, the Host and the body."""

    protocol_version = "HTTP/1.1"
    heads: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        if self.headers.get("Transfer-Encoding"):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Echo.heads.append({name.lower(): value for name, value in self.headers.items()})
        said = f"{self.command} {self.path} {self.headers['Host']} ".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    """The port of a server that serves."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[index]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def echo_server(certificate: Path | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer((LOOPBACK, 0), Echo)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as port:
        yield port


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does what it likes with each connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            serve(self.request)

    server = socketserver.ThreadingTCPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    with serving(server) as port:
        yield port


@contextmanager
def proxy_here(
    resolve: Callable[[str, int], Sequence[str]] = lambda name, port: [LOOPBACK],
    may_dial: Callable[[str], bool] = lambda address: address == LOOPBACK,
) -> Iterator[Proxy]:
    """A proxy that finds every name on this machine."""
    with closing(Proxy(resolve, may_dial)) as proxy:
        yield proxy


def enter(door: Door) -> int:
    """Do what the launcher does, and return the port of the proxy."""
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as worker:
        listener.bind((LOOPBACK, 0))
        listener.listen(128)
        worker.connect(str(door.socket))
        socket.send_fds(worker, [b"l"], [listener.fileno()])
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def through(
    *hosts: str, resolve: Callable[[str, int], Sequence[str]] = lambda name, port: [LOOPBACK]
) -> Iterator[tuple[Door, int]]:
    """A door to hosts that are all on this machine, and the port of the proxy."""
    with proxy_here(resolve) as proxy, proxy.door(hosts) as door:
        yield door, enter(door)


def dial(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), 30)


def ask(port: int, *parts: bytes) -> bytes:
    """Send bytes to the proxy, and return all that it answers until it closes."""
    with dial(port) as client:
        for part in parts:
            client.sendall(part)
        return b"".join(iter(lambda: client.recv(65536), b""))
