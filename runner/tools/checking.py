"""Checks input in a child that can be killed: a schema with a pattern in it can take for ever, and
holds the interpreter that long."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.engine.ports import Interrupt
from runner.tools.host.client import Start, ToolHost, boot
from runner.tools.validation import InputCheck

CHECK_SECONDS = 10.0

_PATTERNS = frozenset({"pattern", "patternProperties"})


def has_patterns(schema: Any) -> bool:
    """Whether regular expressions are matched when something is checked against a JSON Schema."""
    if isinstance(schema, Mapping):
        return not _PATTERNS.isdisjoint(schema) or any(map(has_patterns, schema.values()))
    return isinstance(schema, list) and any(map(has_patterns, schema))


def problem_found_apart(
    host: ToolHost, tool: str, schema: Mapping[str, Any], given: Mapping[str, Any]
) -> str | None:
    """What is wrong with the input of a tool, for the model; None when it fits.

    Raises:
        Interrupted: the worker's watchdog cut it.
    """
    request = json.dumps({"tool": tool, "schema": schema, "given": given})
    start = Start(
        boot(__name__, site=True), Path("/"), "", CHECK_SECONDS, stdin=request.encode(), merge=False
    )
    ended = host.call(start, Interrupt())
    if ended.end == "exited" and ended.exit_code == 0:
        problem: str | None = json.loads(ended.output)
        return problem
    if ended.end == "timed_out":
        return (
            f"The input of {tool} could not be checked in {CHECK_SECONDS:g} s: a pattern in its schema "
            "takes too long on it. Call it again with a shorter or simpler text."
        )
    return f"The input of {tool} could not be checked: the check was ended. Call it again."


def main() -> None:
    """Answer the request on stdin, a JSON object, with the problem as JSON."""
    request = json.load(sys.stdin)
    problem = InputCheck().problem(request["tool"], request["schema"], request["given"])
    sys.stdout.write(json.dumps(problem))
