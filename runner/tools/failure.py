"""How a tool says that it could not do what it was asked."""

from __future__ import annotations

from runner.core.conversation import ToolOutcome


class ToolFailure(Exception):  # noqa: N818 - not an error of Runner's: a result for the model
    """Ends a tool call; its text tells the model what was wrong and what to do."""

    def __init__(self, message: str, outcome: ToolOutcome = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome
