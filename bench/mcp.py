"""(o) What a call of an MCP server takes beyond the bare protocol, in milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from bench.stage.databases import Databases
from bench.tables import Table, held
from runner.core.conversation import Tool
from runner.core.mcp import McpServer
from runner.permissions import Decision, digest_of
from runner.permissions.decisions import Authorization, Policy
from runner.ports import Interrupt, Surroundings, ToolCall
from runner.tools.toolbox import LocalTools

MOST_MILLISECONDS = 15.0
ROUNDS = 5
SERVER = str(Path(__file__).parents[1] / "tests" / "mcp_server.py")


def measure(databases: Databases, folder: Path, *, quick: bool) -> list[Table]:
    """Measure calls of a tool that answers at once, of a server over stdio, in rounds."""
    table = Table("mcp", "(o) milliseconds that a call of an MCP server takes")
    with closing(LocalTools(folder / "home", folder / "locks")) as tools, _bare() as bare:
        ways = {"bare protocol": _asking(bare), "in a run": _calling(tools, folder)}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                taken[name].append(_milliseconds(call, 50 if quick else 300))
        bare.terminate()
    fastest = {name: min(rounds) for name, rounds in taken.items()}
    added = fastest["in a run"] - fastest["bare protocol"]
    table.rows.append({**fastest, "added": added, "time": held(added, MOST_MILLISECONDS)})
    table.notes.append(f"medians of the fastest of {ROUNDS} rounds, one call at a time")
    return [table]


def _milliseconds(call: Callable[[], None], times: int) -> float:
    """The median of so many calls."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1_000)
    return median(taken)


def _bare() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, SERVER], stdin=pipe, stdout=pipe, text=True)


def _asking(server: subprocess.Popen[str]) -> Callable[[], None]:
    assert server.stdin is not None
    assert server.stdout is not None
    to, answers = server.stdin, server.stdout
    answers.readline()  # is no message

    def ask() -> None:
        params = {"name": "say", "arguments": {"text": "a"}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        print(json.dumps(request), file=to, flush=True)
        assert json.loads(answers.readline())["result"]

    return ask


def _calling(tools: LocalTools, folder: Path) -> Callable[[], None]:
    server = McpServer("ours", sys.executable, (SERVER,), folder=str(folder))
    say, given = server.tool_name("say"), {"text": "a"}
    tool = Tool(say, "", {"type": "object"}, source=server.source("say"))
    authorization = Authorization(Decision("allow"), None, digest_of(given), Policy(()))
    surroundings = Surroundings(folder, folder / "outputs")
    call = ToolCall("call_1", "run_1", tool, given, authorization, surroundings, 60, server=server)

    def run() -> None:
        assert tools.run(call, Interrupt()).content == "a"

    return run
