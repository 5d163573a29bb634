"""Where an own tool's code is: ``package.module:function``, and the folder that it is imported from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


@dataclass(frozen=True, slots=True)
class OwnSource:
    """A function, and the folder that comes first where its module is looked for."""

    module: str
    function: str
    folder: Path

    @classmethod
    def named(cls, name: str, folder: Path) -> OwnSource | None:
        """The source that a job file's ``package.module:function`` means, None when it is no such."""
        match = _NAME.fullmatch(name)
        return match and cls(match["module"], match["function"], folder.absolute())

    @classmethod
    def stored(cls, source: str) -> OwnSource | None:
        """The source that ``str`` wrote, None when it is something else."""
        name, at, folder = source.partition("@")
        return cls.named(name, Path(folder)) if at else None

    def __str__(self) -> str:
        return f"{self.module}:{self.function}@{self.folder}"
