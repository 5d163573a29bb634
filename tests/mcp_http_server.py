"""An MCP server over HTTP, of the official SDK: prints its port. It answers only with the header
``Authorization: Bearer open``, at ``/sse`` over the older transport, and at ``?old`` knows only the
protocol that has sessions."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import PlainTextResponse

server = MCPServer("http")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def slow() -> str:
    """Never answer."""
    await asyncio.sleep(3_600)
    return "late"


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(1)


@server.tool()
async def forget() -> str:
    """Forget all sessions, as a restart does."""
    server.session_manager._server_instances.clear()
    return "forgotten"


@server.tool()
async def grow(context: Context) -> str:
    """Offer one more tool."""
    server.add_tool(lambda: "grown", name="grown", description="One more.")
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()  # to sessions of the older protocol
    return "grown"


def main() -> None:
    streamable, sse = server.streamable_http_app(), server.sse_app()

    async def guarded(scope, receive, send):
        if scope["type"] == "http" and Request(scope).headers.get("authorization") != "Bearer open":
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
            return
        version = (
            Request(scope).headers.get("mcp-protocol-version", "") if "headers" in scope else ""
        )
        if scope.get("query_string") == b"old" and version >= "2026":
            await PlainTextResponse("not found", 404)(scope, receive, send)
            return
        is_sse = scope.get("path", "").startswith(("/sse", "/messages"))
        await (sse if is_sse else streamable)(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(guarded, log_level="error")).run([listener])


main()
