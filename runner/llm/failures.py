"""What a failed call of the SDK means for the run.

Sources: https://docs.claude.com/en/api/errors; the exceptions of anthropic 2.12 and httpx2.
"""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2

from runner.core.journal.entries import PROMPT_TOO_LONG
from runner.errors import ModelCallError
from runner.llm.stream import BrokenStreamError

_MOST_CHARACTERS = 500

# Where an error answer has no error type of its own (a proxy's page), its status stands for one.
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# What the API says of a prompt that the window does not hold, alone or with the reply. The error's
# type is that of any bad request, and no other field tells.
_TOO_LONG_WORDS = ("prompt is too long", "exceed context limit")

_UNREADABLE = (BrokenStreamError, json.JSONDecodeError, UnicodeDecodeError, RecursionError)


class StreamEndedError(Exception):
    """The body ended as it should, and the message in it did not; the SDK says nothing then."""


FAILURES = (
    anthropic.AnthropicError,
    httpx2.HTTPError,
    httpx2.StreamError,
    StreamEndedError,
    *_UNREADABLE,
)
"""What a call raises when it fails; anything else is a fault of ours."""


def failure(
    error: Exception, *, started: bool, sent: bool, request_id: str | None
) -> ModelCallError:
    """The error that the engine understands.

    Args:
        error: one of ``FAILURES``.
        started: ``message_start`` had come.
        sent: some of the request may have left this machine.
        request_id: the API's, when an answer had begun.
    """
    if isinstance(error, anthropic.APIStatusError):
        if error.status_code >= 400:
            return _refused(error)
        return _error_event(error, started, request_id)
    if isinstance(error, anthropic.CredentialsError):
        return ModelCallError("authentication_error", _line(error), status=401, billed=False)
    cause = error.__cause__ if isinstance(error, anthropic.APIConnectionError) else error
    if isinstance(cause, httpx2.LocalProtocolError):
        # Its words can hold a header with the key in it.
        text = (
            "the request could not be built: look at the key, and at extra_headers in model_options"
        )
        return ModelCallError("invalid_request_error", text, status=400, billed=False)
    if isinstance(error, _UNREADABLE):
        return ModelCallError("stream_broken", _line(error), request_id=request_id)
    if isinstance(error, StreamEndedError):
        return ModelCallError("stream_cut", _line(error), request_id=request_id)
    kind = "stream_cut" if started else "connection"
    return ModelCallError(kind, _line(cause or error), request_id=request_id, billed=sent)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that an answer asks to wait: ``retry-after-ms``, else ``retry-after`` in seconds or as
    a date (RFC 9110, section 10.2.3); None when it says nothing that can be waited for.

    Args:
        now: seconds since the epoch.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    date = email.utils.parsedate_tz(headers.get("retry-after"))
    try:
        return max(0.0, email.utils.mktime_tz(date) - now) if date else None
    except (ValueError, OverflowError):  # a date that no calendar has
        return None


def _refused(error: anthropic.APIStatusError) -> ModelCallError:
    status = error.status_code
    otherwise = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return ModelCallError(
        _kind(error, otherwise),
        _words(error, f"HTTP {status}"),
        status=status,
        request_id=error.request_id,
        retry_after=retry_after(error.response.headers, time.time()),
        billed=False,
    )


def _error_event(
    error: anthropic.APIStatusError, started: bool, request_id: str | None
) -> ModelCallError:
    """``event: error`` inside a stream, which the SDK raises with the stream's own status, 200."""
    return ModelCallError(
        _kind(error, "api_error"),
        _words(error, "an error event without words"),
        request_id=request_id or error.request_id,
        billed=started,
    )


def _kind(error: anthropic.APIStatusError, otherwise: str) -> str:
    """The API's error type, or one of ours where its own says too little."""
    kind = error.type or otherwise
    words = str(error.api_message or "").lower()
    too_long = kind == "invalid_request_error" and any(said in words for said in _TOO_LONG_WORDS)
    # A gateway has a type of its own for a body that it does not take.
    too_large = kind == "request_too_large" or error.status_code == 413
    return PROMPT_TOO_LONG if too_long or too_large else kind


def _words(error: anthropic.APIStatusError, otherwise: str) -> str:
    """The API's own words; of a proxy's page only that there was one."""
    if error.api_message:
        return _shortened(str(error.api_message))
    body: Any = error.body
    if isinstance(body, str) and body and not body.lstrip().startswith("<"):
        return _shortened(f"{otherwise}: {body}")
    return f"{otherwise}, with a body that is not the API's"


def _line(error: BaseException) -> str:
    return _shortened(str(error) or type(error).__name__)


def _shortened(words: str) -> str:
    return " ".join(words.split())[:_MOST_CHARACTERS]
