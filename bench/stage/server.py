"""The strict Messages API in a process of its own, which all sides of a measurement talk to.

``python -m bench.stage.server``: its first line is its URL, its last one what it did; it ends when its
standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.messages_api import MessagesServer, Received, Reply, text, tool_use
from tests.messages_api.replies import sse
from tests.messages_api.wire import Wire, chunk, stream_head

WORDS = (
    "I will read the file once more, to see whether anything in it has changed since I last did."
)
TURNS = re.compile(r"in (\d+) turns")
HOST_ITEM = "host"
KEY = re.compile(r"item (\w+)")
_REPLAYED_USAGE = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 400,
    "cache_read_input_tokens": 1600,
}


@dataclass
class Served:
    """A server that runs. Once it has ended: how many ``requests`` it answered, and the seconds of
    processor time that it took for them."""

    url: str
    requests: int = field(default=0)
    cpu_seconds: float = field(default=0.0)


@contextmanager
def serving(*, latency: float = 0.0, replay: bool = False, tool: str = "Read") -> Iterator[Served]:
    """A server with ``latency`` seconds before each reply.

    A conversation about the item ``host`` begins with a call of Bash, whatever ``tool`` is.

    Args:
        replay: give the replies without checking the requests, at a fraction of the processor time.
        tool: the tool that every reply but the last one calls, ``Read`` or ``Bash``.
    """
    command = [sys.executable, "-m", "bench.stage.server", f"--latency={latency}", f"--tool={tool}"]
    command += ["--replay"] if replay else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        served = Served(process.stdout.readline().strip())
        if not served.url:
            raise RuntimeError("the Messages API server did not start: its error is above")
        try:
            yield served
        finally:
            process.stdin.close()
            told = json.loads(process.stdout.readline())
            served.requests, served.cpu_seconds = told["requests"], told["cpu_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--replay", action="store_true", help="do not check the requests")
    parser.add_argument("--tool", choices=_INPUTS, default="Read", help="the tool that is called")
    options = parser.parse_args()

    def plan(request: Received) -> Reply:
        return reply_to(request.first_text, request.position, options.tool, options.latency)

    kind = ReplayingServer if options.replay else MessagesServer
    with kind(plan, record=False) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(json.dumps({"requests": server.count, "cpu_seconds": time.process_time()}))


class ReplayingServer(MessagesServer):
    """Answers without looking at more of a request than how far its conversation is."""

    async def _respond(
        self, wire: Wire, method: str, target: str, headers: dict[str, str], raw: bytes
    ) -> bool:
        if method != "POST":  # how long the model's window is: asked once by a worker
            return await super()._respond(wire, method, target, headers, raw)
        self.count += 1
        request = _Glance(raw)
        reply = self._plan(request)
        if reply.latency:
            await asyncio.sleep(reply.latency)
        await wire.write(stream_head(f"req_{self.count:012d}") + _streamed(reply.blocks))
        return True


class _Glance(Received):
    """A request of which only the bytes are looked at."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(0, "POST", "/v1/messages", {}, raw, None, 0.0)

    @property
    def position(self) -> int:
        return self.raw.count(b'"assistant"')

    @property
    def first_text(self) -> str:
        begin = self.raw.index(b'"messages"')
        return self.raw[begin : begin + 1000].decode("utf-8", "replace")


def reply_to(first_text: str, position: int, tool: str, latency: float) -> Reply:
    """Return the reply of a conversation that is so far."""
    turns = TURNS.search(first_text)
    key = KEY.search(first_text)
    assert turns is not None, "the prompt says how many turns there are to be"
    if position >= int(turns[1]) - 1:
        return Reply((text("Done."),), latency=latency)
    item = key[1] if key else ""
    if item == HOST_ITEM and position == 0:
        tool = "Bash"
    arguments = _INPUTS[tool](item, position)
    call = tool_use(f"toolu_{position:05d}", tool, arguments)
    return Reply((text(WORDS), call), latency=latency)


def _streamed(blocks: Any) -> bytes:
    return _streamed_json(json.dumps(list(blocks)))


@lru_cache(maxsize=1024)
def _streamed_json(blocks: str) -> bytes:
    reply = Reply(json.loads(blocks))
    events = reply.events("msg_replayed", "claude-sonnet-5", _REPLAYED_USAGE)
    return b"".join(chunk(sse(name, data)) for name, data in events) + b"0\r\n\r\n"


_INPUTS: dict[str, Any] = {
    "Read": lambda key, position: {"file_path": "notes.txt"},
    "Bash": lambda key, position: {"command": f"echo {position} >> ran-{key}; sleep 0.1"},
}

if __name__ == "__main__":
    main()
