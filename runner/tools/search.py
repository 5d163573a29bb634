"""Grep and Glob, from the worker's side: where they may look, and what came of it."""

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
    explain,
    named,
    require,
    tool_context_of,
)
from runner.tools.host import Start, ToolHost, boot, run_reporting
from runner.tools.search_filter import packed

# ruff: noqa: PTH112, PTH116
# (its paths are strings)


def glob(call: ToolCall, places: Places, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """The files that a glob pattern names, by path.

    Raises:
        ToolFailure: the folder may not be searched, or is none. Interrupted: it was cut.
    """
    pattern = call.input["pattern"]
    base = places.find(call.input.get("path") or ".")
    if not os.path.isdir(base):
        raise ToolFailure(f"{places.name(base)} is not a folder: give the folder to search in path")
    if pattern.startswith("/"):
        if not pattern.startswith(base.rstrip("/") + "/"):
            raise ToolFailure(
                f"the pattern has to be relative to the folder that is searched, {base}"
            )
        pattern = pattern[len(base.rstrip("/")) + 1 :]
    return _search(call, places, host, interrupt, base, {"pattern": pattern})


def grep(call: ToolCall, places: Places, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """The files, lines or counts that a regular expression matches, by path.

    Raises:
        ToolFailure: the path may not be searched (a file: by the rules), or is not there.
        Interrupted: it was cut.
    """
    given = call.input
    path = given.get("path") or "."
    base = places.find(path)
    name = places.name(base)
    if not os.path.isdir(base):
        require(call, places, path, base)
        try:
            check_regular(os.stat(base), name)
        except OSError as error:
            raise ToolFailure(explain(error, name)) from error
    around = int(given.get("-C") or given.get("context") or 0)
    request = {
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
    return _search(call, places, host, interrupt, base, request)


def _search(
    call: ToolCall,
    places: Places,
    host: ToolHost,
    interrupt: Interrupt,
    base: str,
    request: dict[str, Any],
) -> ToolResult:
    name = named(call.input.get("path") or ".", call.surroundings, places)
    permission = packed(call.authorization, call.tool.name, name, tool_context_of(places))
    where = {"base": base, "workspace": places.workspace, "excluded": [places.home]}
    start = Start(
        boot(search_child.__name__, site=permission is not None),
        call.surroundings.workspace or call.surroundings.outputs,
        call.run_id,
        call.timeout,
        stdin=json.dumps(request | where | {"permission": permission}).encode(),
    )
    return run_reporting(call, start, host, interrupt)
