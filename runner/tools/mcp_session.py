"""One session with an MCP server, by the official SDK, in a thread that owns it.

The SDK takes a second to import: only who talks to a server imports this module. A server with a
command is a process of the tool host, which ends it with everything below it when this worker ends;
a socket is its stdin and stdout.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.abc import SocketStream
from anyio.from_thread import start_blocking_portal
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    Implementation,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

import runner
from runner.core.mcp import McpServer
from runner.errors import Interrupted
from runner.ports import Interrupt
from runner.tools.host import Ended

T = TypeVar("T")
# Runs the server's process to its end, given the descriptor of its channel.
Begin = Callable[[int, Interrupt], Ended]

_LONGEST_MESSAGE = 64 * 2**20  # bytes
_MOST_PAGES = 100
_ANSWER_PATIENCE = 2.0  # seconds past the timeout of a call, whose request cannot be sent
_LIST_PATIENCE = 2.0  # seconds for listing changed tools
_LISTEN_PAUSE = 2.0  # seconds before a server is listened to again
_EXIT_PATIENCE = 2.0  # seconds that a server has to end by itself when its stdin has ended
_LONGEST_SILENCE = 86_400.0  # seconds without an event over SSE; calls have timeouts of their own
_SESSION_ID = "mcp-session-id"
_Streams = tuple[Any, Any]


class SessionLost(Exception):  # noqa: N818 - becomes an outcome of a call
    """The server has ended or broke the connection; the text says how."""


class SessionForgotten(SessionLost):
    """The server knows the session no more, as after a restart, or had ended: it never took the call."""


class CallFailed(Exception):  # noqa: N818 - becomes an outcome of a call
    """The server answered with an error, or with what is no result."""


class CallTimedOut(CallFailed):
    """The server did not answer in time."""


class Session:
    """A session with a server, whose variables are looked up. ``begin`` is for one with a command."""

    def __init__(self, server: McpServer, begin: Begin | None = None) -> None:
        self._server = server
        self._begin = begin
        self._ended: Ended | None = None  # the server's process
        self._failure: Exception | None = None  # why the process could not be started
        self._status = 0  # of the last answer over HTTP, if it was an error
        self._client: Client | None = None
        self.tools: list[Tool] = []  # of the server, when it is open
        self._is_stale = False  # the server has said that these have changed
        self._has_changed = False  # … and they are others now
        self._listing = threading.Lock()
        self._forgotten = False  # the server has answered that it does not know this session
        self._opened: Future[None] = Future()
        self._stack = ExitStack()
        name = f"mcp {server.name}"
        self._portal = self._stack.enter_context(start_blocking_portal(name=name))
        self._over = self._portal.call(anyio.Event)  # set when it has to end
        self._served = self._portal.start_task_soon(self._serve)

    @property
    def is_alive(self) -> bool:
        return not (self._over.is_set() or self._served.done())

    def wait_open(self, interrupt: Interrupt, seconds: float | None = None) -> None:
        """Wait until the server has answered. Raises ``SessionLost`` with its stderr if it does not,
        ``CallTimedOut`` if that takes longer, ``HostFaultError`` if this host cannot start it,
        ``Interrupted``."""
        try:
            _wait(self._opened, interrupt, seconds)
        except Interrupted:
            raise
        except _Unanswered as error:
            raise CallTimedOut from error
        except Exception as error:
            if self._failure is not None:
                raise self._failure from error
            raise SessionLost(self._how_it_ended(error)) from error

    def call(
        self, tool: str, arguments: dict[str, Any], timeout: float, interrupt: Interrupt
    ) -> CallToolResult:
        """Call a tool. One that is cut or takes too long is cancelled, and the session goes on. Raises
        ``SessionLost``, ``SessionForgotten``, ``CallTimedOut``, ``CallFailed``, ``Interrupted``."""
        assert self._client is not None, "the session is open"
        work = partial(self._client.call_tool, tool, arguments, timeout)
        return self._ask(work, timeout + _ANSWER_PATIENCE, interrupt)

    def has_changed(self) -> bool:
        """True if the server has changed its tools since the session opened. If it has said so since they
        were listed, they are listed again; a server that does not answer soon is asked the next time."""
        with self._listing:
            if self._is_stale and self.is_alive and self._client is not None:
                self._is_stale = False
                try:
                    work = partial(_tools_of, self._client)
                    before, self.tools = self.tools, self._ask(work, _LIST_PATIENCE, Interrupt())
                    self._has_changed |= self.tools != before
                except (SessionLost, CallFailed):
                    self._is_stale = True
            return self._has_changed

    async def _hear(self, message: object) -> None:
        self._is_stale |= isinstance(message, ToolListChangedNotification)

    async def _listen(self, client: Client) -> None:
        """Let a server of the protocol of 2026 say that its tools change; older ones do so unasked."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._is_stale = True
            except SubscriptionLost:
                pass
            except Exception:  # of any kind: it has no such thing
                return
            await anyio.sleep(_LISTEN_PAUSE)
            self._is_stale = True  # what it said meanwhile is lost

    def close(self) -> None:
        """End the session, and the server's process with everything below it."""
        with suppress(RuntimeError):  # the portal has ended
            self._portal.call(self._over.set)
        if not self._opened.done():
            self._served.cancel()  # else it ends when the server has answered
        with suppress(Exception, CancelledError):
            self._served.result()
        self._stack.close()

    def _ask(
        self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float, interrupt: Interrupt
    ) -> T:
        async def ask() -> T:
            if not self.is_alive:
                raise SessionForgotten("its session has ended")
            return await work()

        try:
            future: Future[T] = self._portal.start_task_soon(ask)
        except RuntimeError as error:
            raise SessionForgotten(self._how_it_ended(error)) from error
        try:
            return _wait(future, interrupt, seconds)
        except Interrupted:
            future.cancel()
            raise
        except _Unanswered as error:
            future.cancel()
            raise SessionLost("it does not read what it is sent") from error
        except MCPError as error:
            if self._forgotten and "session" in str(error).lower():  # the code is each server's own
                raise SessionForgotten(self._how_it_ended(error)) from error
            if error.code == REQUEST_TIMEOUT:
                raise CallTimedOut from error
            if error.code == CONNECTION_CLOSED or self._served.done():
                raise SessionLost(self._how_it_ended(error)) from error
            raise CallFailed(str(error)) from error
        except CancelledError as error:
            raise SessionLost(self._how_it_ended(error)) from error
        except SessionForgotten as error:
            raise SessionForgotten(self._how_it_ended(error)) from error
        except Exception as error:  # what it answered is no result
            if not self.is_alive:
                raise SessionLost(self._how_it_ended(error)) from error
            raise CallFailed(f"{_words(error)}. The call may have taken effect.") from error

    def _how_it_ended(self, error: BaseException) -> str:
        """Return how the server ended, with the end of its stderr, in words."""
        error = _first(error)
        if self._begin is None:
            asks = " asks for credentials, which headers may name" if self._status == 401 else ""
            return _words(error) + (f" (HTTP {self._status}{asks})" if self._status else "")
        with suppress(Exception, CancelledError):
            self._served.result(2 * _EXIT_PATIENCE)  # then its process has ended
        ended = self._ended
        if ended is None:
            return _words(error)
        if ended.end == "not_started":
            return f"it could not be started: {ended.output.decode('utf-8', 'replace')}"
        if ended.end == "limited":
            return f"it was ended: {ended.limit}"
        is_closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        if isinstance(error, TimeoutError):
            how = str(error)
        elif isinstance(error, MCPError | ValidationError) and not is_closed:
            how = f"it answered with an error: {_words(error)}"
        elif ended.end == "exited":
            code = ended.exit_code
            how = f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        else:
            how = "it was killed"
        said = ended.errors.decode("utf-8", "replace").strip()
        return f"{how}\n{said}" if said else how

    async def _serve(self) -> None:
        """Hold the session until it is closed or lost."""
        seconds = self._server.start_timeout
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                info = Implementation(name="runner", version=runner.__version__)
                client = Client(self._transport(), client_info=info, message_handler=self._hear)
                async with client as self._client:
                    self.tools = await _tools_of(self._client)  # the SDK checks results by them
                    scope.deadline = float("inf")
                    self._opened.set_result(None)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._listen, self._client)
                        await self._over.wait()
                        group.cancel_scope.cancel()
            if not self._opened.done():
                raise TimeoutError(f"it has not answered in {seconds:g} s")
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)

    def _transport(self) -> AbstractAsyncContextManager[_Streams]:
        if self._begin is not None:
            return self._to_process(self._begin)
        return self._over_http(self._server.url or "")

    @asynccontextmanager
    async def _over_http(self, url: str) -> AsyncIterator[_Streams]:
        async def look(response: Any) -> None:
            self._status = response.status_code if response.is_error else 0
            request = response.request
            if self._status == 404 and request.method == "POST" and _SESSION_ID in request.headers:
                self._forgotten = True

        def connect(**options: Any) -> Any:
            client = create_mcp_http_client(**options)
            client.event_hooks["response"].append(look)
            return client

        headers = dict(self._server.headers)
        if self._server.type == "sse":
            patience: Any = {"sse_read_timeout": _LONGEST_SILENCE, "httpx_client_factory": connect}
            async with sse_client(url, headers, **patience) as streams:
                yield streams
            return
        async with (
            connect(headers=headers) as client,
            streamable_http_client(url, http_client=client) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _to_process(self, begin: Begin) -> AsyncIterator[_Streams]:
        """Yield the streams of messages from and to a process, which is ended at the end."""
        near, far = socket.socketpair()
        cut, over = Interrupt(), anyio.Event()
        with ExitStack() as until_owned:
            until_owned.enter_context(near)
            until_owned.enter_context(far)
            stream = await SocketStream.from_socket(near)
            until_owned.pop_all()
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception]()
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage]()

        async def run() -> None:
            try:
                self._ended = await anyio.to_thread.run_sync(begin, far.fileno(), cut)
            except Interrupted:
                pass
            except Exception as error:
                self._failure = error
            finally:
                far.close()  # it ends the stream
                over.set()

        async def receive() -> None:
            lines = BufferedByteReceiveStream(stream)
            async with to_client:
                with suppress(*_STREAM_ENDS):
                    while True:
                        line = await lines.receive_until(b"\n", _LONGEST_MESSAGE)
                        with suppress(ValueError):  # a server may print what is no message
                            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                            await to_client.send(SessionMessage(message))
            self._over.set()

        async def send() -> None:
            with suppress(*_STREAM_ENDS):
                async for message in from_client:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stream.send(line.encode() + b"\n")

        async with anyio.create_task_group() as group:
            for work in (run, receive, send):
                group.start_soon(work)
            try:
                yield from_server, to_server
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                    with anyio.move_on_after(_EXIT_PATIENCE):
                        await over.wait()
                    cut.set("dropped")
                    await over.wait()
                for each in (to_client, from_server, to_server, from_client):
                    each.close()
                group.cancel_scope.cancel()


_STREAM_ENDS = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.DelimiterNotFound,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)


async def _tools_of(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


class _Unanswered(Exception):  # noqa: N818 - becomes a lost session
    """Nothing came of a request, not even its timeout, which begins when it has been sent."""


def _wait(future: Future[T], interrupt: Interrupt, seconds: float | None = None) -> T:
    """Return the result of a future. Raises ``Interrupted`` if the interrupt is set before, and
    ``_Unanswered`` if it takes longer."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    with interrupt.cut_by(done.set):
        in_time = done.wait(seconds)
    if not future.done():
        interrupt.check()
        if not in_time:
            raise _Unanswered
    return future.result()


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _words(error: BaseException) -> str:
    error = _first(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place} of its answer is wrong: {first['msg']}"
    return str(error) or type(error).__name__
