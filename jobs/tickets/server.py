"""An MCP server over stdio, of the standard library alone: the tickets of a small shop, in memory.

With the SDK (https://github.com/modelcontextprotocol/python-sdk) such a server takes a few lines.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TICKETS = {
    "T-1": "The invoice of March shows the old address.",
    "T-2": "The app closes when I scan a second parcel.",
    "T-3": "Please cancel my order of yesterday.",
}
LABELS: dict[str, str] = {}
_TEXT = {"type": "string"}


def tool(name: str, says: str, reads: bool, *arguments: str) -> dict[str, Any]:
    properties = dict.fromkeys(arguments, _TEXT)
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    hints = {"readOnlyHint": reads}
    return {"name": name, "description": says, "inputSchema": schema, "annotations": hints}


TOOLS = [
    tool("get_ticket", "Read a ticket.", True, "id"),
    tool("set_label", "Label a ticket: billing, bug or order.", False, "id", "label"),
    tool("close_ticket", "Close a ticket.", False, "id"),
]


def call(name: str, given: dict[str, str]) -> str:
    ticket = TICKETS[given["id"]]
    if name == "get_ticket":
        return ticket
    if name == "set_label":
        LABELS[given["id"]] = given["label"]
        return f"{given['id']} is labelled {given['label']}. Labelled so far: {len(LABELS)}."
    del TICKETS[given["id"]]
    return f"{given['id']} is closed."


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "tickets", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": TOOLS}
    try:
        text, wrong = call(params["name"], params["arguments"]), False
    except KeyError as error:
        text, wrong = f"there is no {error}", True
    return {"content": [{"type": "text", "text": text}], "isError": wrong}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in ("initialize", "tools/list", "tools/call"):
        reply["result"] = answer(message["method"], message.get("params", {}))
    else:
        reply["error"] = {"code": -32601, "message": f"no {message['method']}"}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
