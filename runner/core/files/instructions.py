"""What a workspace says to agents: files that join the system prompt of the runs in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")  # in the workspace's root
MOST_INSTRUCTION_BYTES = 65_536  # of one of them

_PART = "# {path} of the workspace\n\n{text}"


@dataclass(frozen=True, slots=True)
class Instructions:
    """A file of instructions as a run has read it: ``sha256`` in hex, of the bytes of the file; ``text``
    is without a byte order mark, and its control characters are written as escapes."""

    path: str
    sha256: str
    text: str


def with_instructions(system: str | None, files: Sequence[Instructions]) -> str | None:
    """A system prompt that goes on with what the files say."""
    parts = [_PART.format(path=file.path, text=file.text.rstrip()) for file in files]
    return "\n\n".join(filter(None, (system, *parts))) or None
