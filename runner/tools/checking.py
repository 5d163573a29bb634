"""Check a tool call's input against the tool's schema, in a child process that can be killed.

A schema may hold a regular expression that never ends, and Python holds its lock meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from runner.ports import Interrupt
from runner.tools.host import Start, ToolHost, boot

CHECK_SECONDS = 10.0

_MOST_SHOWN = 5
_LONGEST_MESSAGE = 300
_PATTERNS = frozenset({"pattern", "patternProperties"})
# What is in these are schemas by names: a name says nothing.
_NAMED = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def input_problem(tool: str, schema: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the input of a tool, for the model, or None when it fits."""
    try:
        errors = list(_validator(json.dumps(schema)).iter_errors(given))
    except RecursionError:
        return f"The input of {tool} is nested too deeply: call it again with something flatter."
    errors.sort(key=lambda error: [str(part) for part in error.absolute_path])
    told = []
    for error in errors[:_MOST_SHOWN]:
        place, message = ".".join(map(str, error.absolute_path)), error.message
        if len(message) > _LONGEST_MESSAGE:  # it quotes the input
            message = f"{message[:_LONGEST_MESSAGE]}…"
        told.append(f"{place}: {message}" if place else message)
    if not told:
        return None
    return f"The input does not fit {tool}: {'; '.join(told)}. Call it again with input that does."


def main() -> None:
    """Answer the request on stdin, a JSON object, with the problem as JSON."""
    sys.stdout.write(json.dumps(input_problem(**json.load(sys.stdin))))


def has_patterns(schema: Mapping[str, Any]) -> bool:
    """Return True if regular expressions are matched when something is checked against a JSON Schema."""
    return _text_has_patterns(json.dumps(schema))


@lru_cache(maxsize=256)
def _text_has_patterns(schema: str) -> bool:
    return _has_patterns(json.loads(schema))


def _has_patterns(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_patterns, schema))
    if not isinstance(schema, Mapping):
        return False
    return not _PATTERNS.isdisjoint(schema) or any(
        _has_patterns([*inner.values()] if word in _NAMED and isinstance(inner, Mapping) else inner)
        for word, inner in schema.items()
    )


def problem_found_apart(
    host: ToolHost, tool: str, schema: Mapping[str, Any], given: Mapping[str, Any]
) -> str | None:
    """Return what is wrong with the input of a tool, for the model; None when it fits. Raises
    ``Interrupted`` if the worker's watchdog cut it."""
    request = json.dumps({"tool": tool, "schema": schema, "given": given}).encode()
    start = Start(boot(__name__, site=True), Path("/"), "", CHECK_SECONDS, stdin=request)
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
