"""The structured result that a job can ask of its runs: a tool that the model calls to submit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.core.conversation import Tool

RESULT_SOURCE = "result"
RESULT_TOOL = "submit_result"

_DESCRIPTION = (
    "Submit the result of your work. Call this once, when the work is done: it ends your work. "
    "The input is the result, and has to fit the schema."
)


def result_tool(schema: Mapping[str, Any]) -> Tool:
    """The tool that takes a result.

    Args:
        schema: a JSON Schema of an object.
    """
    return Tool(
        RESULT_TOOL, _DESCRIPTION, schema, read_only=True, repeatable=True, source=RESULT_SOURCE
    )
