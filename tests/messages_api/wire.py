"""One connection to the server: what is written to it, and how it is broken."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from tests.messages_api.dialects import Dialect
from tests.messages_api.replies import ERROR_TYPES, Break, sse

PING_SECONDS = 0.05
BEFORE_HEADERS = ("status", "reset_before_headers", "stall_before_headers")
_LINGER_NOT = struct.pack("ii", 1, 0)  # close() sends a reset


class Wire:
    """A connection. What answers says whether another request may follow on it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: Dialect
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._dialect = dialect

    async def request(self) -> tuple[str, str, dict[str, str], bytes] | None:
        """Method, target, headers and body of the next request; None when there is none."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return method, target, headers, body

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def break_before_headers(self, failure: Break, request_id: str) -> bool:
        """Reset or hold the connection, or answer with an error status."""
        if failure.kind == "reset_before_headers":
            return self.reset()
        if failure.kind == "stall_before_headers":
            return await self.stall(pings=False)
        kind = "text/html" if failure.html else "application/json"
        body, more = self._dialect.refusal(failure, request_id)
        return await self._send(failure.status, body, request_id, kind, {**failure.headers, **more})

    async def send(
        self, body: Mapping[str, Any], request_id: str, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Answer with a JSON object."""
        raw = json.dumps(body).encode()
        return await self._send(200, raw, request_id, "application/json", headers or {})

    async def break_off(self, failure: Break, request_id: str) -> bool:
        """Break inside the stream."""
        match failure.kind:
            case "reset":
                return self.reset()
            case "stall":
                return await self.stall(failure.pings)
            case "error_event":
                data = chunk(self._dialect.error_event(failure, request_id))
                await self.write(data + b"0\r\n\r\n")
            case "malformed":
                data = chunk(self._dialect.malformed())
                await self.write(data + b"0\r\n\r\n")
            case "cut":
                await self.write(b"0\r\n\r\n")
            case "close":
                return False
            case _:
                raise AssertionError(f"a stream cannot break by {failure.kind!r}")
        return True

    async def stall(self, pings: bool) -> bool:
        """Hold the connection until the client ends it."""
        while not self._reader.at_eof() and not self._writer.transport.is_closing():
            if pings:
                await self.write(chunk(sse("ping", {"type": "ping"})))
            await asyncio.sleep(PING_SECONDS)
        raise ConnectionResetError

    def reset(self) -> bool:
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._writer.transport.abort()
        return False

    def close(self) -> None:
        self._writer.close()

    async def _send(
        self, status: int, body: bytes, request_id: str, kind: str, headers: Mapping[str, str]
    ) -> bool:
        lines = [
            f"HTTP/1.1 {status} {ERROR_TYPES.get(status, 'OK')}",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
            f"request-id: {request_id}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)
        return True


def stream_head(
    request_id: str,
    kind: str = "text/event-stream; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The head of a streamed answer."""
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return (
        f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n"
        f"transfer-encoding: chunked\r\nrequest-id: {request_id}\r\n{more}\r\n"
    ).encode()


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
