"""What workers log goes to stderr, a line at a time, with no secret and no control character."""

from __future__ import annotations

import logging
import sys

from runner.app.humanize import lines
from runner.settings import Settings


class _OurLines(logging.Formatter):
    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__("runner: %(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return lines(text)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes where stderr is now: a progress display puts itself in between while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(settings: Settings, level: int) -> None:
    """Show what this process logs: Runner's own from ``level`` on, that of libraries from warnings."""
    handler = _Stderr()
    handler.setFormatter(_OurLines(settings.secrets()))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("runner").setLevel(level)
