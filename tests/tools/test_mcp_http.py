"""MCP servers over HTTP: calls, headers, cuts, and servers that are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.conversation import Tool, ToolResult
from runner.core.mcp import McpServer, Transport
from runner.permissions import Decision, digest_of
from runner.permissions.decisions import Authorization
from runner.ports import Interrupt, ToolCall
from runner.tools.mcp import list_tools

from .conftest import PATIENCE, Workbench, wait_until

SERVER = Path(__file__).parents[1] / "mcp_http_server.py"
HEADERS = {"Authorization": "Bearer ${DOCS_TOKEN}"}

pytestmark = pytest.mark.usefixtures("patient_sessions")


def start(port: str = "") -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-P", str(SERVER), *filter(None, [port])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], McpServer]]:
    monkeypatch.setenv("DOCS_TOKEN", "open")
    process, port = start()
    yield process, McpServer("docs", url=f"http://127.0.0.1:{port}/mcp", headers=HEADERS)
    process.kill()
    process.communicate()


def call(
    bench: Workbench, server: McpServer, tool: str, seconds: float = PATIENCE, **given: Any
) -> ToolResult:
    described = Tool(server.tool_name(tool), tool, {"type": "object"}, source=server.source(tool))
    authorization = Authorization(Decision("allow"), None, digest_of(given), bench.policy)
    around = bench.surroundings
    request = ToolCall(
        "call_1", "run_1", described, given, authorization, around, seconds, server=server
    )
    return bench.tools.run(request, Interrupt())


@pytest.mark.parametrize("transport", ["http", pytest.param("sse", marks=pytest.mark.slow)])
def test_a_call_over_http_sends_the_headers_and_outlives_timeouts_and_restarts(
    patient: Workbench, served: tuple[subprocess.Popen[str], McpServer], transport: Transport
) -> None:
    process, server = served
    if transport == "sse":
        server = replace(server, type="sse", url=str(server.url).replace("/mcp", "/sse"))
    added = call(patient, server, "add", a=1, b=2)
    assert (added.outcome, added.content, added.containment) == ("succeeded", "3", None)
    assert call(patient, server, "slow", 0.5).outcome == "timed_out"
    assert call(patient, server, "add", a=3, b=4).content == "7"
    died = call(patient, server, "die")
    assert died.outcome == "unknown", died
    assert call(patient, server, "add", a=1, b=1).outcome == "failed"
    process.wait()
    again, _ = start(server.url.split(":")[2].partition("/")[0])
    try:
        assert call(patient, server, "add", a=5, b=6).content == "11"
    finally:
        again.kill()
        again.communicate()


@pytest.mark.slow
def test_a_call_that_is_refused_with_its_session_is_made_in_a_new_one(
    patient: Workbench, served: tuple[subprocess.Popen[str], McpServer]
) -> None:
    server = replace(served[1], url=f"{served[1].url}?old")
    for _ in range(2):
        assert call(patient, server, "forget").content == "forgotten"
        assert call(patient, server, "add", a=5, b=6).content == "11"


@pytest.mark.parametrize(
    "protocol", [pytest.param("?old", marks=pytest.mark.slow), pytest.param("", id="of 2026")]
)
def test_tools_that_change_over_http_are_listed_again(
    patient: Workbench, served: tuple[subprocess.Popen[str], McpServer], protocol: str
) -> None:
    server = replace(served[1], url=f"{served[1].url}{protocol}")

    def listed() -> list[str]:
        tools, _ = patient.tools.listed("run_1", again=False).get("docs", ((), {}))
        return [tool.name.removeprefix("mcp__docs__") for tool in tools]

    assert call(patient, server, "add", a=1, b=2).content == "3"
    assert listed() == []
    assert call(patient, server, "grow").content == "grown"
    wait_until(lambda: "grown" in listed(), "the new tool")
    assert listed() == ["add", "die", "forget", "grow", "grown", "slow"]


def test_a_server_that_refuses_or_is_not_there_says_so(
    served: tuple[subprocess.Popen[str], McpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = served
    listed = list_tools([server])["docs"]
    assert isinstance(listed, tuple)
    assert [tool.name for tool in listed] == [
        f"mcp__docs__{name}" for name in ("add", "die", "forget", "grow", "slow")
    ]
    monkeypatch.setenv("DOCS_TOKEN", "wrong")
    refused = list_tools([server])["docs"]
    assert isinstance(refused, str)
    assert refused.endswith("(HTTP 401 asks for credentials, which headers may name)"), refused
    over_sse = replace(server, type="sse", url=str(server.url).replace("/mcp", "/sse"))
    assert "401" in str(list_tools([over_sse])["docs"])
    absent = McpServer("docs", url="http://127.0.0.1:9/mcp")
    missing = list_tools([absent])["docs"]
    assert isinstance(missing, str)
    assert "connect" in missing.lower(), missing
