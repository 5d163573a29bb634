"""Tools of one's own: functions with type hints and a docstring, named in a job's ``tools``.

    from runner.tools.own import tool

    @tool(read_only=True)
    def lookup(word: str) -> str:
        \"\"\"Look a word up.\"\"\"

This module is imported by users' code, so it imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

DECLARED = "__runner_tool__"

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def tool(
    *, read_only: bool = False, repeatable: bool = False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Declare how a function may be run as a tool. Without it, a tool is neither.

    Args:
        read_only: it changes nothing, so it may run beside other read-only tools.
        repeatable: it may run again when the worker died in the middle of it.
    """

    def declare(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        setattr(function, DECLARED, {"read_only": read_only, "repeatable": repeatable})
        return function

    return declare
