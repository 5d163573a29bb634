"""Grep and Glob, from the worker's side: where they may look, and what came of it."""

# ruff: noqa: PTH112, PTH116 - its paths are strings

from __future__ import annotations

import json
import os
from typing import Any

from runner.core.conversation import ToolResult
from runner.ports import Interrupt, ToolCall
from runner.tools import search_child
from runner.tools.file_access import (
    Places,
    ToolFailure,
    check_regular,
    explained,
    named,
    require,
    tool_context_of,
)
from runner.tools.host import Start, ToolHost, boot, run_reporting
from runner.tools.search_filter import packed


def glob(call: ToolCall, places: Places, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """Return the files that a glob pattern names, by path. Raises ``ToolFailure`` if the folder may
    not be searched, or is none; ``Interrupted`` if it was cut."""
    pattern, base = call.input["pattern"], places.find(call.input.get("path") or ".")
    if not os.path.isdir(base):
        raise ToolFailure(f"{places.name(base)} is not a folder: give the folder to search in path")
    if pattern.startswith("/"):
        folder = base.rstrip("/") + "/"
        if not pattern.startswith(folder):
            raise ToolFailure(
                f"the pattern has to be relative to the folder that is searched, {base}"
            )
        pattern = pattern[len(folder) :]
    return _search(call, places, host, interrupt, {"base": base, "pattern": pattern})


def grep(call: ToolCall, places: Places, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """Return the files, lines or counts that a regular expression matches, by path. Raises
    ``ToolFailure`` if the path may not be searched (a file: by the rules), or is not there;
    ``Interrupted`` if it was cut."""
    given, path = call.input, call.input.get("path") or "."
    base = places.find(path)
    name = places.name(base)
    if not os.path.isdir(base):
        require(call, places, path, base)
        with explained(name):
            check_regular(os.stat(base), name)
    around = int(given.get("-C") or given.get("context") or 0)
    request = {
        "base": base,
        "pattern": given["pattern"],
        "output_mode": given.get("output_mode", "files_with_matches"),
        "glob": given.get("glob"),
        "type": given.get("type"),
        "ignore_case": given.get("-i", False),
        "line_numbers": given.get("-n", True),
        "before": int(given.get("-B", around)),
        "after": int(given.get("-A", around)),
        "head_limit": int(given.get("head_limit") or 0),
        "multiline": given.get("multiline", False),
    }
    return _search(call, places, host, interrupt, request)


def _search(
    call: ToolCall, places: Places, host: ToolHost, interrupt: Interrupt, request: dict[str, Any]
) -> ToolResult:
    name = named(call.input.get("path") or ".", call.surroundings, places)
    permission = packed(call.authorization, call.tool.name, name, tool_context_of(places))
    request |= {"workspace": places.workspace, "excluded": [places.home], "permission": permission}
    command = boot(search_child.__name__, site=permission is not None)
    folder = call.surroundings.workspace or call.surroundings.outputs
    given = json.dumps(request).encode()
    start = Start(command, folder, call.run_id, call.timeout, stdin=given)
    return run_reporting(call, start, host, interrupt)
