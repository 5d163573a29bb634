"""``python -m tests.messages_api``: the server as a process of its own; its first line is its URL.

It ends when its standard input closes, so that it never outlives the test that started it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.messages_api.replies import Reply
from tests.messages_api.script import Script, echo_tools
from tests.messages_api.server import MessagesServer, Plan, Received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, help="JSON: conversation -> list of replies")
    parser.add_argument("--turns", type=int, default=10, help="without a script: turns of each run")
    parser.add_argument("--tool", default="Read", help="without a script: the tool that is called")
    parser.add_argument("--input", type=json.loads, default={}, help="its arguments, as JSON")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--record", type=Path, help="append every request's body to this file")
    parser.add_argument("--window", type=int, help="the models' window, in tokens")
    parser.add_argument("--chars-per-token", type=float, default=4.0, help="how tokens are counted")
    parser.add_argument("--no-caching", action="store_true", help="the prompt cache does not work")
    options = parser.parse_args()
    plan: Plan = echo_tools(options.turns, options.tool, options.input, latency=options.latency)
    if options.script:
        plan = Script.from_json(json.loads(options.script.read_text()))
    if options.record:
        plan = recorded(plan, options.record)
    with MessagesServer(
        plan,
        port=options.port,
        record=False,
        window=options.window,
        chars_per_token=options.chars_per_token,
        caching=not options.no_caching,
    ) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def recorded(plan: Plan, path: Path) -> Plan:
    """The plan, with every body that it is asked about appended to a file, a line each."""

    def recording(request: Received) -> Reply:
        with path.open("ab") as file:
            file.write(request.raw.replace(b"\n", b" ") + b"\n")
        return plan(request)

    return recording


if __name__ == "__main__":
    main()
