"""The result of a call as Claude Code tells it: ``tool_response`` of its hooks, ``toolUseResult`` of its
sessions. Its shape is the tool's own; Claude Code's documentation leaves it open, so these are the
shapes that its sessions have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.core.conversation import Tool, ToolOutcome

NO_OUTPUT = "(no output)"  # of a command, for the model

# Outcomes of commands that may have printed something.
_PRINTED = ("succeeded", "failed", "timed_out", "interrupted")
_NUMBERED = re.compile(r" *(\d+)\t(.*)", re.DOTALL)
_ENDING = re.compile(
    r"(Exit code|Killed by signal) \d+(: killed by signal .*)?|The command was killed: it took more than .*"
)


def response_of(
    tool: Tool | None,
    arguments: Mapping[str, Any],
    content: str,
    outcome: ToolOutcome | None,
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the response of a builtin tool in Claude Code's shape; None for other tools, and for
    calls without a result. ``arguments`` ran, the model sees ``content``, the tool reported
    ``details``."""
    if tool is None or tool.source != "builtin":
        return None
    if tool.name == "Bash":
        return _bash(content, outcome) if outcome in _PRINTED else None
    shape = _SHAPES.get(tool.name) if outcome == "succeeded" else None
    return None if shape is None else shape(arguments, content, details or {})


def _bash(content: str, outcome: ToolOutcome | None) -> dict[str, Any]:
    """Output and errors come in one stream, as the model sees them."""
    before, _, last = content.rstrip("\n").rpartition("\n")
    if outcome != "succeeded" and _ENDING.fullmatch(last):
        content = before
    return {
        "stdout": "" if content == NO_OUTPUT else content.rstrip("\n"),
        "stderr": "",
        "interrupted": outcome in ("timed_out", "interrupted"),
        "isImage": False,
        "noOutputExpected": False,
    }


def _read(given: Mapping[str, Any], content: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """``totalLines`` counts the lines up to the last one that was read."""
    numbered = [found for line in content.split("\n") if (found := _NUMBERED.fullmatch(line))]
    file = {
        "filePath": given.get("file_path"),
        "content": "\n".join(found[2] for found in numbered),
        "numLines": len(numbered),
        "startLine": int(numbered[0][1]) if numbered else 1,
        "totalLines": int(numbered[-1][1]) if numbered else 0,
    }
    return {"type": "text", "file": file}


def _write(given: Mapping[str, Any], content: str, details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": details.get("type", "update"),
        "filePath": given.get("file_path"),
        "content": given.get("content"),
        "structuredPatch": details.get("structuredPatch", []),
        "originalFile": None,
        "userModified": False,
    }


def _edit(given: Mapping[str, Any], content: str, details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "filePath": given.get("file_path"),
        "oldString": given.get("old_string"),
        "newString": given.get("new_string"),
        "originalFile": None,
        "structuredPatch": details.get("structuredPatch", []),
        "userModified": False,
        "replaceAll": bool(given.get("replace_all")),
    }


def _lines(content: str, nothing: str) -> list[str]:
    """The lines of a search's result, without Runner's notes at its end."""
    lines = content.split("\n")
    while lines and (not lines[-1] or (lines[-1].startswith("[") and lines[-1].endswith("]"))):
        lines.pop()
    return [] if lines and lines[0].startswith(nothing) else lines


def _glob(given: Mapping[str, Any], content: str, details: Mapping[str, Any]) -> dict[str, Any]:
    found = _lines(content, "No files match ")
    return {"filenames": found, "numFiles": len(found), "truncated": False, "durationMs": 0}


def _grep(given: Mapping[str, Any], content: str, details: Mapping[str, Any]) -> dict[str, Any]:
    mode, found = (
        given.get("output_mode", "files_with_matches"),
        _lines(content, "No matches found"),
    )
    if mode == "files_with_matches":
        return {"mode": mode, "filenames": found, "numFiles": len(found)}
    text = "\n".join(found)
    if mode == "content":
        counted = {"numFiles": 0, "numLines": len(found)}
    else:
        counts = [line.rpartition(":")[2] for line in found]
        matches = sum(int(count) for count in counts if count.isdigit())
        counted = {"numFiles": len(found), "numMatches": matches}
    return {"mode": mode, "filenames": [], "content": text, **counted}


_SHAPES = {"Read": _read, "Write": _write, "Edit": _edit, "Glob": _glob, "Grep": _grep}
