"""An own tool that may run again, for the sweep's scenario."""

from __future__ import annotations

from runner.tools.own import tool


@tool(repeatable=True)
def note(line: str) -> str:
    """Note a line.

    Args:
        line: what to note
    """
    with open("noted.txt", "a") as file:
        file.write(line + "\n")
    return "noted"
