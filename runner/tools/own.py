"""Tools of your own: functions with type hints and a docstring, named in a job's ``tools``.

    from runner.tools.own import tool

    @tool(read_only=True)
    def lookup(word: str) -> str:
        '''Look a word up.'''

Users' code imports this module, so it imports next to nothing. ``OwnSource`` says where a
function's code is: ``package.module:function`` and the folder that it is imported from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


_NAME = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


@dataclass(frozen=True, slots=True)
class OwnSource:
    """A function, and the folder that comes first where its module is looked for."""

    module: str
    function: str
    folder: Path

    @classmethod
    def named(cls, name: str, folder: Path) -> OwnSource | None:
        """Return the source that a job file's ``package.module:function`` means, None if it is none."""
        match = _NAME.fullmatch(name)
        return match and cls(match["module"], match["function"], folder.absolute())

    @classmethod
    def stored(cls, source: str) -> OwnSource | None:
        """Return the source that ``str`` wrote, None if it is something else."""
        name, at, folder = source.partition("@")
        return cls.named(name, Path(folder)) if at else None

    def __str__(self) -> str:
        return f"{self.module}:{self.function}@{self.folder}"
