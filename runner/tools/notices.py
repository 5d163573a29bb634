"""Send a notice of a job: by a shell command, a webhook, or on the desktop."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from runner.core.notices import Channel, Notify, body_of, signature
from runner.errors import RunnerError
from runner.tools.notice_command import run_command

_ANSWER_SECONDS = 10.0
_LONGEST_WORDS = 200


class NotSentError(RunnerError):
    """A notice could not be sent; says why, without an address or a secret."""


def send(
    channel: Channel,
    notify: Notify,
    id: str,
    data: Mapping[str, Any],
    environ: Mapping[str, str],
    command_environment: Mapping[str, str],
) -> None:
    """Send a notice by one channel. ``environ`` holds addresses and keys, which commands
    (``command_environment``) do not get. Raises ``NotSentError``."""
    match channel:
        case "command":
            if problem := run_command(notify.command or "", data, command_environment):
                raise NotSentError(f"the command {problem}")
        case "webhook":
            _post(notify, id, data, environ)
        case "desktop":
            _show(data)


def _post(notify: Notify, id: str, data: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    url = _variable(notify.webhook or "", environ)
    body, at = body_of(data, notify.format), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "runner",
        "Runner-Notice": id,
        "Runner-Timestamp": str(at),
    }
    if notify.secret is not None:
        headers["Runner-Signature"] = signature(_variable(notify.secret, environ), at, body)
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise NotSentError(f"the address in {notify.webhook} does not begin with https://")
        request = urllib.request.Request(url, body, headers, method="POST")
        with _OPENER.open(request, timeout=_ANSWER_SECONDS) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        raise NotSentError(f"the webhook answered {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # may name the address
        why = type(getattr(error, "reason", error)).__name__
        raise NotSentError(f"the webhook did not answer ({why})") from error


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if not (value := environ.get(name, "").strip()):
        raise NotSentError(f"the environment variable {name} is not set for this worker")
    return value


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the notice, without its body, where nobody said."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
_MAC_SCRIPT = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)


def _show(data: Mapping[str, Any], find: Callable[[str], str | None] = shutil.which) -> None:
    title, text = f"Runner: {data['job_name']}", str(data["text"])[:_LONGEST_WORDS]
    program = "osascript" if sys.platform == "darwin" else "notify-send"
    if (path := find(program)) is None:
        raise NotSentError(f"{program} is not installed here")
    options = [word for line in _MAC_SCRIPT for word in ("-e", line)]
    command = [path, *options, title, text]
    if program == "notify-send":
        command = [path, "--app-name=Runner", "--", title, text]
    try:
        shown = subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSentError(f"{program} did not end: {type(error).__name__}") from error
    if shown.returncode:
        raise NotSentError(f"{program} ended with exit code {shown.returncode}")
