"""``python -m bench.stage.ungoverned``: ``runner`` whose workers do not share rate limits."""

from __future__ import annotations

from runner.cli.main import main
from runner.engine.governor import Governor


def _always(self: Governor, state: object) -> None:
    return None


if __name__ == "__main__":
    Governor.draw = _always  # type: ignore[assignment]
    main()
