"""Sessions of Claude Code's as different versions of it wrote them, shortened.

Nothing describes the format. The forms are those of versions 1.0 to 2.1 as public descriptions have them
(https://github.com/daaain/claude-code-log, https://github.com/ryoppippi/ccusage).
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

SESSION = "5a1c0c4e-8f0e-4a53-9d5c-0d3a1f6b7c21"
CWD = "/home/ann/storefront"

Line = dict[str, Any]


class Session:
    """Makes the lines of a session, each a second after the one before."""

    def __init__(self, **common: Any) -> None:
        self.lines: list[Line] = []
        self._common = {
            "isSidechain": False,
            "userType": "external",
            "cwd": CWD,
            "sessionId": SESSION,
            "version": "2.1.37",
            "gitBranch": "main",
            **common,
        }

    def add(self, kind: str, **fields: Any) -> Line:
        number = len(self.lines) + 1
        line = {
            "parentUuid": self.lines[-1].get("uuid") if self.lines else None,
            **self._common,
            "type": kind,
            "uuid": f"00000000-0000-4000-8000-{number:012}",
            "timestamp": f"2026-02-18T11:{number // 60:02}:{number % 60:02}.500Z",
            **fields,
        }
        self.lines.append(line)
        return line

    def user(self, content: Any, **fields: Any) -> Line:
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def reply(self, id_: str, *blocks: Line, stop: str | None = None, **usage: int) -> None:
        """A line for each block, as it is written while a reply is streamed."""
        for block in blocks:
            message = {
                "model": "claude-opus-4-5-20251101",
                "id": id_,
                "type": "message",
                "role": "assistant",
                "content": [block],
                "stop_reason": stop,
                "stop_sequence": None,
                "usage": {"input_tokens": 0, "output_tokens": 0, **usage},
            }
            self.add("assistant", message=message, requestId=f"req_{id_}")

    def result(self, id_: str, content: Any, **fields: Any) -> Line:
        block = {"tool_use_id": id_, "type": "tool_result", "content": content}
        if "is_error" in fields:
            block["is_error"] = fields.pop("is_error")
        return self.user([block], **fields)

    def file(self) -> BytesIO:
        return file_of(self.lines)

    def raw(self) -> list[bytes]:
        return raw_of(self.lines)


def raw_of(lines: list[Line]) -> list[bytes]:
    """The lines as Claude Code writes them."""
    return [json.dumps(line, separators=(",", ":")).encode() for line in lines]


def file_of(lines: list[Line]) -> BytesIO:
    return BytesIO("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def text(words: str) -> Line:
    return {"type": "text", "text": words}


def use(id_: str, name: str, **arguments: Any) -> Line:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def usual() -> Session:
    """A session with two turns: a reply in three lines with two calls, and a last word."""
    session = Session()
    session.lines.append(
        {
            "type": "file-history-snapshot",
            "messageId": "m",
            "snapshot": {},
            "isSnapshotUpdate": False,
        }
    )
    session.lines.append({"type": "summary", "summary": "Mending the cart", "leafUuid": "x"})
    session.user("Mend the cart.")
    thinking = {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}
    read, run = use("toolu_1", "Read", file_path="cart.py"), use("toolu_2", "Bash", command="make")
    session.reply(
        "msg_1",
        thinking,
        read,
        run,
        input_tokens=5,
        output_tokens=40,
        cache_creation_input_tokens=1000,
        cache_read_input_tokens=200,
    )
    session.result("toolu_1", "1→def add():", toolUseResult={"type": "text", "file": {}})
    session.result(
        "toolu_2",
        "make: *** no rule",
        is_error=True,
        toolUseResult={"stdout": "x" * 50, "stderr": "make: *** no rule", "interrupted": False},
    )
    session.reply("msg_2", text("Mended."), stop="end_turn", input_tokens=7, output_tokens=9)
    session.add("system", subtype="turn_duration", durationMs=3000, isMeta=False)
    return session
