"""Hooks: commands and functions of a job's own that are told what a run does, and may tighten it.

Source: https://code.claude.com/docs/en/hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

HookEvent = Literal["RunStart", "PreToolUse", "PostToolUse", "TurnEnd", "RunEnd"]
OnHookFailure = Literal["deny", "continue"]

HOOK_SECONDS = 60.0
# In the environment of a hook: the folder that it works in.
FOLDER_NAME = "CLAUDE_PROJECT_DIR"


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook as the job has it: either ``command``, for bash, or ``function``
    (``package.module:function@/folder``). ``matcher`` are texts of rules, one of which has to match the
    call (empty: every call; PreToolUse and PostToolUse only). ``timeout`` is in seconds.

    ``on_failure`` says what a PreToolUse hook that fails, times out or was cut off means for the call.
    A ``repeatable`` one is run again when its worker died in the middle of it.
    """

    event: HookEvent
    matcher: tuple[str, ...] = ()
    command: str | None = None
    function: str | None = None
    timeout: float = HOOK_SECONDS
    on_failure: OnHookFailure = "deny"
    repeatable: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hook:
        """The value that ``dataclasses.asdict`` made a mapping of."""
        return cls(**{**data, "matcher": tuple(data["matcher"])})
