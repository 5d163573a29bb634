"""The way out of a sandbox that may reach some hosts: an HTTP proxy in the worker.

The sandbox has a network namespace of its own, with nothing in it but the loopback interface. Before
the command starts, its keeper (``sandbox_gate``) opens a port there and hands the listening socket to the
worker, over a socket in a folder of this call. The worker accepts what connects to that port and dials out
in its own namespace. Without the proxy there is no route.

The proxy takes CONNECT and plain ``http://`` requests, one for each connection. It resolves a name only
if that is on the job's list, and dials an address that it has checked. It does not look inside of TLS.
All calls of a worker share one thread; the connections, lookups and buffers of a call are bounded.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import h11

from runner.core.network import (
    Connection,
    ConnectionOutcome,
    HostPattern,
    host_name,
    is_public,
    port_number,
    refusal,
)
from runner.core.text import shorten
from runner.errors import HostFaultError
from runner.tools import proxy_launcher
from runner.tools.sandbox_mounts import Mount

T = TypeVar("T")

# Where a sandbox finds the socket of its door: each call has a /dev of its own.
SOCKET_INSIDE = "/dev/runner-proxy"

_MOST_CONNECTIONS = 64  # of a call at once; others wait until one ends
_MOST_LOOKUPS = 2  # of a call at once
_LOOKUP_THREADS = 128
_RECORDED_EACH = 100  # connections of a call; later ones to the same port are recorded together
_MOST_RECORDS = 1_000
_CHUNK = 32_768  # bytes read at once; no more are held for who reads slowly
_LONGEST_HEAD = 32_768
_LONGEST_HOST = 253
_HEAD_SECONDS = 60.0
_LOOKUP_SECONDS = 20.0
_DIAL_SECONDS = 15.0
_MOST_ADDRESSES = 4  # of a name that are tried
_END_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_HTTP = 80

_PLAIN = re.compile(r"http://([^/?#@]+?)(?::([0-9]+))?([/?][^#]*)?", re.IGNORECASE)
# Headers of one connection (RFC 9110, 7.6.1). A body is sent on as it is framed.
_OF_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"upgrade")
)
_CLOSE = (b"connection", b"close")
_Headers = list[tuple[bytes, bytes]]


class _Refused(Exception):  # noqa: N818 - an answer
    def __init__(self, status: int, why: str, outcome: ConnectionOutcome = "refused") -> None:
        super().__init__(why)
        self.status, self.outcome, self.why = status, outcome, why


class _ClosedError(OSError):
    """The proxy was closed, and every connection with it."""


def _addresses(name: str, port: int) -> list[str]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Proxy:
    """The proxy of a worker. Its thread starts when it is first needed.

    Args:
        resolve: returns the addresses of a name, for a port. Raises ``OSError``.
        may_dial: whether an address may be reached. Only tests reach servers on this machine.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], Sequence[str]] = _addresses,
        may_dial: Callable[[str], bool] = is_public,
    ) -> None:
        self._resolve, self._may_dial = resolve, may_dial
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._resolvers = ThreadPoolExecutor(_LOOKUP_THREADS, "proxy lookup")

    @contextmanager
    def door(
        self, hosts: Iterable[str], note: Callable[[Connection], None] = lambda made: None
    ) -> Iterator[Door]:
        """While the block runs, one sandbox can reach ``hosts`` (patterns as in the job file). At its
        end all connections are closed. ``note`` takes each as it begins and as it ends. Raises
        ``HostFaultError`` if this host cannot serve it."""
        served = _Served(tuple(map(HostPattern.parse, hosts)), self._find, note)
        with ExitStack() as held:
            try:
                folder = Path(tempfile.mkdtemp(prefix="runner-proxy-"))
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                with socket.socket(socket.AF_UNIX) as entrance:
                    entrance.bind(str(folder / "socket"))
                    entrance.listen(1)
                    entrance.setblocking(False)
                    self._do(served.begin(entrance, folder))
            except OSError as error:
                why = error.strerror or str(error) or "its thread does not answer"
                raise HostFaultError(f"the proxy of a call cannot be opened: {why}") from error
            held.callback(self._end, served)
            yield Door(folder / "socket", served)

    def close(self) -> None:
        """End the thread, and every connection with it. No door is opened any more."""
        with self._starting:
            loop, self._loop, self._is_closed = self._loop, None, True
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    def _end(self, served: _Served) -> None:
        with suppress(_ClosedError):
            self._do(served.end())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` in the proxy's thread. Raises ``_ClosedError`` after ``close``."""
        with self._starting:
            if self._is_closed:
                work.close()
                raise _ClosedError("the worker ends")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="proxy", daemon=True).start()
            doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        return doing.result(_END_SECONDS)

    async def _find(self, name: str, port: int, slots: asyncio.Semaphore) -> list[str]:
        """Return the addresses of a name that may be dialled. Raises ``_Refused``. A lookup that nobody
        waits for any more keeps its slot until it ends."""
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            with suppress(RuntimeError):  # the proxy was closed meanwhile
                loop.call_soon_threadsafe(slots.release)

        await slots.acquire()
        lookup = self._resolvers.submit(self._resolve, name, port)
        lookup.add_done_callback(end)
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                found = await asyncio.wrap_future(lookup)
        except (OSError, UnicodeError) as error:
            raise _Refused(502, "its name cannot be resolved", "failed") from error
        public = [address for address in found if self._may_dial(address)]
        if not public:
            raise _Refused(403, "its address is not a public one")
        return public


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:  # at its end it cancels all tasks
        runner.get_loop().run_forever()


@dataclass(frozen=True, slots=True)
class Door:
    """The way of one call to the proxy."""

    socket: Path
    served: _Served

    @property
    def mount(self) -> Mount:
        """Shows a sandbox the socket."""
        return Mount(SOCKET_INSIDE, str(self.socket), writable=True)

    def launch(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` in the sandbox, with the variables of a proxy."""
        launcher = str(Path(proxy_launcher.__file__).resolve())
        return [sys.executable, "-I", "-S", launcher, SOCKET_INSIDE, *command]

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The connections that have ended, by time."""
        return tuple(sorted(self.served.recorded.values(), key=lambda each: each.at))


@dataclass(slots=True)
class _Asked:
    """A connection that is asked for; the fields of ``Connection``."""

    host: str
    port: int
    at: float
    outcome: ConnectionOutcome = "allowed"
    why: str = ""
    sent: int = 0
    received: int = 0


class _Served:
    """The connections of one call. Its coroutines run in the proxy's thread."""

    def __init__(
        self,
        patterns: Sequence[HostPattern],
        find: Callable[[str, int, asyncio.Semaphore], Awaitable[Sequence[str]]],
        note: Callable[[Connection], None],
    ) -> None:
        self._note = note
        self.recorded: dict[Any, Connection] = {}
        self._patterns, self._find = patterns, find
        self._lookups = asyncio.Semaphore(_MOST_LOOKUPS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, entrance: socket.socket, folder: Path) -> None:
        self._start(self._serve(entrance.dup(), folder))

    async def end(self) -> None:
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, entrance: socket.socket, folder: Path) -> None:
        with entrance:
            launcher = await _accept(entrance)  # the first who comes; nobody else is heard
        shutil.rmtree(folder, ignore_errors=True)  # so a killed worker leaves none
        with launcher:
            listener = await _handed_over(launcher)
        with listener:
            listener.setblocking(False)
            slots = asyncio.Semaphore(_MOST_CONNECTIONS)
            while True:
                await slots.acquire()
                client = _Peer(await _accept(listener), h11.SERVER)
                task = self._start(self._exchange(client))
                task.add_done_callback(lambda _: slots.release())

    async def _exchange(self, client: _Peer) -> None:
        """Serve one connection: one request."""
        with client.socket, suppress(OSError, h11.ProtocolError):
            try:
                async with asyncio.timeout(_HEAD_SECONDS):
                    request = await client.next()
                if isinstance(request, h11.Request):
                    await self._answer(client, request)
            except _Refused as refused:
                await client.tell(refused.status, str(refused))
            except h11.RemoteProtocolError as error:
                await client.tell(error.error_status_hint, f"this is no request: {error}")

    async def _answer(self, client: _Peer, request: h11.Request) -> None:
        host, port, path = _target(request)
        with self._recording(host) as asked:
            remote = await self._dial(asked, host, port)
            if len(self.recorded) < _RECORDED_EACH:
                self._note(Connection(*astuple(asked)))
            with remote:
                if request.method == b"CONNECT":
                    await _tunnel(client, remote, asked)
                    return
                named = asked.host if asked.port == _HTTP else f"{asked.host}:{asked.port}"
                server = _Peer(remote, h11.CLIENT, asked)
                await _forward(client, server, request, named.encode(), path)

    @contextmanager
    def _recording(self, host: str) -> Iterator[_Asked]:
        asked = _Asked(shorten(host, _LONGEST_HOST), 0, time.time())
        try:
            yield asked
        except _Refused as refused:
            asked.outcome, asked.why = refused.outcome, refused.why
            said = f"{asked.host}:{asked.port} is {refused.outcome}: {refused.why}"
            raise _Refused(refused.status, said) from refused
        finally:
            made = Connection(*astuple(asked))
            is_one_of_many = len(self.recorded) >= _RECORDED_EACH
            key = (made.host, made.port, made.outcome) if is_one_of_many else len(self.recorded)
            before = self.recorded.get(key)
            self.recorded[key] = made if before is None else before + made
            self._note(self.recorded[key])

    async def _dial(self, asked: _Asked, host: str, port: str) -> socket.socket:
        """Connect to a host if the job may. Raises ``_Refused``."""
        if len(self.recorded) >= _MOST_RECORDS:
            asked.host = ""
            raise _Refused(403, "this call has asked for too many hosts")
        try:
            asked.port = port_number(port)
            asked.host = host_name(host)
        except ValueError as error:
            raise _Refused(403, "only a port of a host with a name can be reached") from error
        if why := refusal(self._patterns, asked.host, asked.port):
            raise _Refused(403, why)
        addresses = await self._find(asked.host, asked.port, self._lookups)
        for address in addresses[:_MOST_ADDRESSES]:
            with suppress(OSError):
                return await _connected(address, asked.port)
        raise _Refused(502, "it cannot be reached", "failed")


class _Peer:
    """HTTP/1.1 over a socket; ``asked`` counts its bytes."""

    def __init__(
        self, sock: socket.socket, role: type[h11.CLIENT | h11.SERVER], asked: _Asked | None = None
    ) -> None:
        self.socket, self._asked = sock, asked
        self.http = h11.Connection(role, max_incomplete_event_size=_LONGEST_HEAD)

    async def next(self) -> Any:
        loop = asyncio.get_running_loop()
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = await loop.sock_recv(self.socket, _CHUNK)
            self.http.receive_data(data)
            if self._asked is not None:
                self._asked.received += len(data)
        return event

    async def send(self, event: Any) -> None:
        if data := self.http.send(event):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
            if self._asked is not None:
                self._asked.sent += len(data)

    async def tell(self, status: int, text: str) -> None:
        """Answer with one line, and end."""
        body = f"Runner: {text}\n".encode()
        kind, length = (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))
        headers = [kind, length, _CLOSE]
        await self.send(h11.Response(status_code=status, headers=headers, reason=text.encode()))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


def _target(request: h11.Request) -> tuple[str, str, str]:
    """Return the host, port and path that a request asks for, as written. Raises ``_Refused``."""
    target = request.target.decode("ascii")
    if request.method == b"CONNECT":
        host, colon, port = target.rpartition(":")
        if colon:
            return host, port, ""
    elif plain := _PLAIN.fullmatch(target):
        path = plain[3] or "/"
        return plain[1], plain[2] or str(_HTTP), path if path.startswith("/") else f"/{path}"
    raise _Refused(400, "this is a proxy: ask it with CONNECT host:port, or for http://host/…")


async def _accept(listener: socket.socket) -> socket.socket:
    while True:
        with suppress(OSError):  # it went away already, or there is no descriptor left
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            return accepted
        await asyncio.sleep(_PAUSE_SECONDS)


async def _handed_over(launcher: socket.socket) -> socket.socket:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(launcher, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(launcher)
    _, descriptors, _, _ = socket.recv_fds(launcher, 1, 1)
    return socket.socket(fileno=descriptors[0])


async def _connected(address: str, port: int) -> socket.socket:
    """Raises ``OSError``."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        made.setblocking(False)
        # Not wait_for: before Python 3.12 it loses a cancel that comes as the connection is made.
        async with asyncio.timeout(_DIAL_SECONDS):
            await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made


async def _tunnel(client: _Peer, remote: socket.socket, asked: _Asked) -> None:
    loop = asyncio.get_running_loop()

    async def pump(source: socket.socket, target: socket.socket, counted: str) -> None:
        while data := await loop.sock_recv(source, _CHUNK):
            await loop.sock_sendall(target, data)
            setattr(asked, counted, getattr(asked, counted) + len(data))
        target.shutdown(socket.SHUT_WR)

    await client.send(h11.Response(status_code=200, headers=[], reason=b"Connected"))
    early, _ = client.http.trailing_data
    await loop.sock_sendall(remote, early)
    asked.sent += len(early)
    pumps = [
        asyncio.create_task(pump(client.socket, remote, "sent")),
        asyncio.create_task(pump(remote, client.socket, "received")),
    ]
    try:
        await asyncio.gather(*pumps)
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _forward(
    client: _Peer, remote: _Peer, request: h11.Request, host: bytes, path: str
) -> None:
    """Send a request on, and its response back. Raises ``_Refused``."""
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise _Refused(400, "the request says its length in two ways")
    headers = [(b"host", host), *_end_to_end(request.headers, b"host"), _CLOSE]
    await remote.send(h11.Request(method=request.method, target=path, headers=headers))
    body = asyncio.create_task(_relay_body(client, remote))
    try:
        await _relay(remote, client)
    except h11.RemoteProtocolError as error:
        raise _Refused(502, "its answer is no HTTP", "failed") from error
    finally:
        body.cancel()
        await asyncio.gather(body, return_exceptions=True)


async def _relay_body(client: _Peer, remote: _Peer) -> None:
    try:
        await _relay(client, remote)
    except (OSError, h11.ProtocolError):  # the response may have come nevertheless
        with suppress(OSError):
            remote.socket.shutdown(socket.SHUT_RDWR)


async def _relay(source: _Peer, target: _Peer) -> None:
    """Send on what is left of a message."""
    while True:
        event = await source.next()
        match event:
            case h11.Response():
                headers = [*_end_to_end(event.headers), _CLOSE]
                event = h11.Response(
                    status_code=event.status_code, reason=event.reason, headers=headers
                )
            case h11.EndOfMessage():
                await target.send(h11.EndOfMessage())
                return
            case h11.ConnectionClosed() | h11.PAUSED:
                return
        await target.send(event)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]], *left_out: bytes) -> _Headers:
    """Return the headers that are not of one connection."""
    listed = (value for name, value in headers if name == b"connection")
    named = {each.strip().lower() for value in listed for each in value.split(b",")}
    drop = _OF_CONNECTION | named | {*left_out}
    return [(name, value) for name, value in headers if name not in drop]
