"""Checks input in a child that can be killed: a schema with a pattern in it can take for ever, and
holds the interpreter that long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.ports import Interrupt
from runner.tools import validation
from runner.tools.host.client import Start, ToolHost, boot

CHECK_SECONDS = 10.0

_PATTERNS = frozenset({"pattern", "patternProperties"})
# What is in these are schemas by names: a name says nothing.
_NAMED = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})


def has_patterns(schema: Any) -> bool:
    """Whether regular expressions are matched when something is checked against a JSON Schema."""
    if isinstance(schema, list):
        return any(map(has_patterns, schema))
    if not isinstance(schema, Mapping):
        return False
    return not _PATTERNS.isdisjoint(schema) or any(
        has_patterns(list(inner.values()) if _is_named(word, inner) else inner)
        for word, inner in schema.items()
    )


def _is_named(word: str, inner: Any) -> bool:
    return word in _NAMED and isinstance(inner, Mapping)


def problem_found_apart(
    host: ToolHost, tool: str, schema: Mapping[str, Any], given: Mapping[str, Any]
) -> str | None:
    """What is wrong with the input of a tool, for the model; None when it fits.

    Raises:
        Interrupted: the worker's watchdog cut it.
    """
    request = json.dumps({"tool": tool, "schema": schema, "given": given})
    command = boot(validation.__name__, site=True)
    start = Start(command, Path("/"), "", CHECK_SECONDS, stdin=request.encode(), merge=False)
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
