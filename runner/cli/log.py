"""The log on stderr: lines of text with ``key=value`` fields, or JSON lines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

from runner.app.humanize import cell, lines
from runner.errors import UsageError
from runner.settings import LOG_FORMAT, LOG_FORMATS, Settings

_PLAIN = re.compile(r"[\w.:/@%+~-]+")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the stderr of the moment: a progress display replaces it while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Formatter(logging.Formatter):
    """Formats without secrets and control characters."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        super().__init__()
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            name: self._hide(value) if isinstance(value, str) else value
            for name, value in vars(record).get("fields", {}).items()
        }
        error = self._hide(self.formatException(record.exc_info)) if record.exc_info else ""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return self.line(record, at, self._hide(record.getMessage()), fields, error)

    def line(
        self, record: logging.LogRecord, at: str, said: str, fields: dict[str, object], error: str
    ) -> str:
        words = [f"{name}={_value(value)}" for name, value in fields.items()]
        text = " ".join((f"runner: {at}Z {record.levelname} {cell(said)}", *words))
        return f"{text}\n{lines(error)}" if error else text


class _JsonFormatter(_Formatter):
    def line(
        self, record: logging.LogRecord, at: str, said: str, fields: dict[str, object], error: str
    ) -> str:
        about: dict[str, object] = {
            "time": f"{at}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": said,
        }
        return json.dumps(about | fields | ({"exception": error} if error else {}))


def _value(value: object) -> str:
    """A value as one word: what is not plain is quoted and escaped as in JSON."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else cell(json.dumps(text, ensure_ascii=False))


def log_to_stderr(settings: Settings, level: int) -> None:
    """Show the log: Runner's from ``level`` on, that of libraries from warnings. Raises ``UsageError``
    if there is no such format."""
    if settings.log_format not in LOG_FORMATS:
        raise UsageError(f"{LOG_FORMAT}={settings.log_format!a}: use {' or '.join(LOG_FORMATS)}")
    formatter = _JsonFormatter if settings.log_format == "json" else _Formatter
    handler = _Stderr()
    handler.setFormatter(formatter(settings.secrets().hide))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("runner").setLevel(level)
