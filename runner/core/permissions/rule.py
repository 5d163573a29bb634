"""A permission rule as people write it, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["allow", "ask", "deny"]

REMEMBERED = "remembered"  # the origin of a rule that is a person's answer


@dataclass(frozen=True, slots=True)
class Rule:
    """``text`` is ``Tool`` or ``Tool(specifier)``. ``origin`` says who wrote it: ``job`` (the job
    file), ``mode`` (what ``mode`` expands to), a settings file's path, or ``remembered`` (the answer
    of a person, which stands above ``ask`` rules). ``run_id`` limits it to one run of the job.
    ``position`` is its place in the job's list, once it is stored."""

    effect: Effect
    text: str
    why: str = ""
    origin: str = "job"
    run_id: str | None = None
    position: int | None = None
