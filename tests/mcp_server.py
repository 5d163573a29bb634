"""An MCP server over stdio, of the standard library alone, that can be made to misbehave.

    mcp_server.py [NOTES] [--mute | --fails | --quiet | --fickle | --toolless]

It appends a line to the file NOTES when it starts (its process id, unless ``--quiet`` or ``--fickle``)
and for each call of ``note``, which changes its tools with ``--fickle``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NOTES = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.devnull)
FLAGS = sys.argv[2:]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_writing = threading.Lock()
_cancelled: set[Any] = set()


def _schema(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


def _tool(name: str, says: str, hint: bool = False, **properties: str) -> dict[str, Any]:
    schema = {**_schema(**properties), "title": os.environ.get("ABOUT", name)}
    says = f"{says} {os.environ.get('ABOUT', '')}".strip()
    tool = {"name": name, "description": says, "inputSchema": schema}
    return {**tool, "annotations": {"readOnlyHint": True}} if hint else tool


TOOLS = [
    _tool("say", "Say a text.", hint=True, text="string"),
    _tool("note", "Note a text.", text="string"),
    _tool("die", "Note a text and end the server.", text="string"),
    _tool("die_once", "End the server unless it did before.", hint=True),
    _tool("hang_once", "Never answer, unless it was called before.", hint=True),
    _tool("slow", "Note a text and wait until cancelled.", text="string"),
    _tool("where", "The folder, the process and the variables.", hint=True),
    _tool("kinds", "One block of each kind.", hint=True),
    _tool("structured", "Structured content alone.", hint=True),
    _tool("deafen", "Read nothing any more."),
    _tool("wrong", "Fail.", hint=True),
    _tool("odd", "Answer with what is no result.", hint=True),
    _tool("spawn", "Start a process that outlives the server."),
    _tool("write", "Write a file.", path="string"),
    _tool("change", "Change the tools.", hint=True),
    _tool("odd.name/x", "A name that the API does not take.", hint=True),
]


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


def send(message: dict[str, Any]) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(request: Any, name: str, given: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    match name:
        case "say":
            content = [{"type": "text", "text": given["text"]}]
        case "note" | "die" | "slow":
            note(given["text"])
            if name == "die":
                print("last words", file=sys.stderr, flush=True)
                os._exit(3)
            if "--fickle" in FLAGS:
                TOOLS[1]["description"] = f"Note a text. The last one was {given['text']}."
                send({"method": "notifications/tools/list_changed"})
            while name == "slow" and request not in _cancelled:
                time.sleep(0.01)
            if name == "slow":
                note("cancelled")
        case "die_once":
            if "died" not in NOTES.read_text().split():
                note("died")
                os._exit(3)
            content = [{"type": "text", "text": "alive"}]
        case "hang_once":
            hung = "hung" in NOTES.read_text().split()
            note("hung")
            while not hung:
                time.sleep(1)
            content = [{"type": "text", "text": "alive"}]
        case "where":
            about = {"cwd": os.getcwd(), "pid": os.getpid(), "environ": dict(os.environ)}  # noqa: PTH109
            content = [{"type": "text", "text": json.dumps(about)}]
        case "kinds":
            content = [
                {"type": "text", "text": "one"},
                {"type": "image", "mimeType": "image/png", "data": PNG},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                {"type": "resource_link", "uri": "file:///b", "name": "b"},
            ]
        case "change":
            TOOLS[:] = [tool for tool in TOOLS if tool["name"] not in ("wrong", "extra")]
            TOOLS[0]["description"] += " Loudly."
            TOOLS.append(_tool("extra", "One more."))
            TOOLS.append({"name": "crooked", "inputSchema": {**_schema(), "anyOf": []}})
            send({"method": "notifications/tools/list_changed"})
            content = [{"type": "text", "text": "changed"}]
        case "odd":
            content = [{"type": "smell", "data": "x"}]
        case "structured":
            return {"content": [], "structuredContent": {"a": 1}}
        case "deafen":
            content = [{"type": "text", "text": "what?"}]
        case "wrong":
            return {"content": [{"type": "text", "text": "no luck"}], "isError": True}
        case "spawn":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            content = [{"type": "text", "text": str(child.pid)}]
        case "write":
            try:
                Path(given["path"]).write_text("written")
                content = [{"type": "text", "text": "ok"}]
            except OSError as error:
                return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        case _:
            content = [{"type": "text", "text": name}]
    return {"content": content}


def answer(message: dict[str, Any]) -> None:
    method, params, request = message["method"], message.get("params") or {}, message["id"]
    if method == "initialize":
        about = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "ours", "version": "1"},
        }
        send({"id": request, "result": about})
    elif method == "tools/list" and "--toolless" not in FLAGS:
        at = int(params.get("cursor") or 0)
        page: dict[str, Any] = {"tools": TOOLS[at : at + 5]}
        send(
            {
                "id": request,
                "result": page | ({"nextCursor": str(at + 5)} if TOOLS[at + 5 :] else {}),
            }
        )
    elif method == "tools/call":
        result = call(request, params["name"], params.get("arguments") or {})
        if request not in _cancelled:
            send({"id": request, "result": result})
    else:
        send({"id": request, "error": {"code": -32601, "message": f"no {method}"}})


def main() -> None:
    if "--fails" in FLAGS:
        sys.exit("cannot begin: no database")
    if not {"--quiet", "--fickle"} & {*FLAGS}:
        note(f"pid {os.getpid()}")
    print("this line is no message", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            _cancelled.add(message["params"]["requestId"])
        elif "id" in message and "--mute" not in FLAGS:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
            if message["method"] == "tools/call" and message["params"]["name"] == "deafen":
                time.sleep(3_600)


if __name__ == "__main__":
    main()
