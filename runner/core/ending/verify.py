"""What says whether a run has succeeded, beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

OnFailure = Literal["feedback", "fail"]

VERIFY_ROUNDS = 3
VERIFY_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True)
class Verify:
    """Shell commands that run in the workspace, one after the other, when the agent has ended; the
    first that fails is what failed. ``rounds`` is how often its output goes back to the agent;
    ``timeout`` is in seconds, for each command."""

    commands: tuple[str, ...]
    on_failure: OnFailure = "feedback"
    rounds: int = VERIFY_ROUNDS
    timeout: float = VERIFY_SECONDS

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verify:
        """The value that ``dataclasses.asdict`` made a mapping of."""
        return cls(**{**data, "commands": tuple(data["commands"])})


@dataclass(frozen=True, slots=True)
class Verification:
    """The newest verification of a run: its number, the turn after which it began, and whether it
    passed (None: it has not ended). ``command`` is the one that failed, and ``output`` what the model
    is shown of it until it was told. ``tree`` is the workspace's that is verified."""

    number: int
    turn: int
    passed: bool | None = None
    command: str = ""
    output: str = ""
    tree: str | None = None

    def is_of(self, turns: int, tree: str | None) -> bool:
        """Whether it is of a run as it stands: after so many turns, with this tree of its workspace."""
        return self.turn == turns and self.tree == tree
