"""Classify failed model calls: the exceptions of anthropic 2.12 and httpx2, and the API's own errors
(https://docs.claude.com/en/api/errors). Which of them are retried: ``runner.core.retries``.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2

from runner.core.entries import MEDIA_REFUSED, PROMPT_TOO_LONG, SPEND_LIMIT
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
    424: "api_error",  # Bedrock: its model failed
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# Answers without JSON with these come from a proxy, a portal or a wrong address, not from the API.
_OF_THE_WAY = {*range(300, 400), 400, 401, 403, 404, 405, 407, 421, 451, 511}

# What AWS calls errors, in a header of an answer or as an exception inside a stream:
# https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html,
# https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html. Others go by their status.
_AWS_HEADER = "x-amzn-errortype"
_AWS_KINDS = {
    "throttling": "rate_limit_error",
    "serviceunavailable": "overloaded_error",
    "modelnotready": "overloaded_error",
    "modeltimeout": "timeout_error",
    "validation": "invalid_request_error",
    "expiredtoken": "authentication_error",
    "incompletesignature": "authentication_error",
    "invalidsignature": "authentication_error",
    "missingauthenticationtoken": "authentication_error",
    "unrecognizedclient": "authentication_error",
}

# What the API says of a prompt that the window does not hold, alone or with the reply. The error's
# type is that of any bad request, and no other field tells.
_TOO_LONG_WORDS = ("prompt is too long", "exceed context limit", "input is too long")
# What it says of an image or a document that it cannot open, or that is too large.
_OF_MEDIA = re.compile(
    r"messages\.\d+\.\S*\.(image|document|pdf)\.|could not process (the )?(image|document|pdf)|"
    r"image (dimensions )?exceeds?|image dimensions|unsupported image|pdf specified|pdf pages|"
    r"invalid (image|base64|pdf)"
)
# The beginning of the API's message when a limit is reached that people have set.
_SPEND_LIMIT_WORDS = tuple(
    f"you have reached your specified {of}api usage limits" for of in ("", "workspace ")
)

UNREADABLE = (BrokenStreamError, json.JSONDecodeError, UnicodeDecodeError, RecursionError)


class StreamEndedError(Exception):
    """The body ended as it should, and the message in it did not; the SDK says nothing then."""


class ForeignAnswerError(Exception):
    """Something on the way to the API answered instead of it, with a page."""


FAILURES = (
    anthropic.AnthropicError,
    httpx2.HTTPError,
    httpx2.StreamError,
    StreamEndedError,
    ForeignAnswerError,
    *UNREADABLE,
)
"""The exceptions of a failed call; any other one is a bug of ours."""


def failure(
    error: Exception, *, started: bool, sent: bool, request_id: str | None
) -> ModelCallError:
    """Return the error that the engine understands for one of ``FAILURES``. ``started``:
    ``message_start`` had come. ``sent``: some of the request may have left this machine. ``request_id``
    is the API's, when an answer had begun."""
    if isinstance(error, anthropic.APIStatusError):
        return _answered(error, started, request_id)
    if isinstance(error, anthropic.CredentialsError):
        return ModelCallError("authentication_error", line_of(error), status=401, billed=False)
    cause = error.__cause__ if isinstance(error, anthropic.APIConnectionError) else error
    if isinstance(cause, httpx2.LocalProtocolError):
        # The exception's words can hold a header with the key in it.
        text = (
            "the request could not be built: look at the key, and at extra_headers in model_options"
        )
        return ModelCallError("invalid_request_error", text, status=400, billed=False)
    if isinstance(error, UNREADABLE):
        return ModelCallError("stream_broken", line_of(error), request_id=request_id)
    if isinstance(error, StreamEndedError):
        return ModelCallError("stream_cut", line_of(error), request_id=request_id)
    kind = "stream_cut" if started else "connection"
    billed = sent and not isinstance(error, ForeignAnswerError)
    return ModelCallError(kind, line_of(cause or error), request_id=request_id, billed=billed)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that an answer asks to wait from ``now`` (since the epoch):
    ``retry-after-ms``, else ``retry-after`` in seconds or as a date (RFC 9110, section 10.2.3); None
    when it says nothing that can be waited for."""
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


def _answered(
    error: anthropic.APIStatusError, started: bool, request_id: str | None
) -> ModelCallError:
    """Return the error for a refusal, or for ``event: error`` inside a stream, which the SDK raises with
    the stream's own status, 200."""
    status: int | None = error.status_code
    is_fault = not 400 <= error.status_code < 500
    kind = _KINDS.get(error.status_code, "api_error" if is_fault else "invalid_request_error")
    if given := error.type or error.response.headers.get(_AWS_HEADER):
        kind = _named(str(given), kind)
    if error.status_code >= 300:
        words, wait = f"HTTP {status}", retry_after(error.response.headers, time.time())
    else:
        status, words, wait = None, "an error event without words", None
    body = _inner(error.body)
    if message := body.get("message") or body.get("Message"):
        words = str(message)
    elif isinstance(error.body, str) and error.body and not error.body.lstrip().startswith("<"):
        words = f"{words}: {error.body}"
    else:  # a proxy's page
        words = f"{words}, with a body that is not the API's"
    if status == 413:
        kind = "request_too_large"
    if error.status_code in _OF_THE_WAY and "json" not in error.response.headers.get(
        "content-type", ""
    ):
        kind, status = "connection", None
    return ModelCallError(
        _our_kind(kind, str(message or ""), error.body),
        _shortened(words),
        status=status,
        request_id=request_id or request_id_in(error.response.headers),
        retry_after=wait,
        billed=started,
    )


def _inner(body: object) -> Mapping[str, Any]:
    """Return the part with an error's kind and message: the API's, AWS's or Google's (a list)."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    return body["error"] if isinstance(body.get("error"), dict) else body


def _named(given: str, otherwise: str) -> str:
    """Return the kind of an error by its name: ``ThrottlingException:http://…`` is AWS's."""
    name = given.partition(":")[0].lower()
    if not name.endswith("exception"):
        return given
    return _AWS_KINDS.get(name.removesuffix("exception"), otherwise)


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """Return the id that the API, or AWS, gave a request."""
    return headers.get("request-id") or headers.get("x-amzn-requestid")


def item_failure(error: Any) -> ModelCallError:
    """Return the error of a request in a batch that the API refused or failed: nothing is billed for it
    (https://platform.claude.com/docs/en/build-with-claude/batch-processing)."""
    inner = error.get("error") if isinstance(error, dict) else None
    inner = inner if isinstance(inner, dict) else {}
    kind, words = str(inner.get("type") or "api_error"), str(inner.get("message") or "")
    return ModelCallError(
        _our_kind(kind, words, error),
        _shortened(words or "an error without words"),
        request_id=error.get("request_id") if isinstance(error, dict) else None,
        billed=False,
    )


def _our_kind(kind: str, words: str, body: object) -> str:
    """Return the kind of an error. The API's type says too little of a prompt that is too long, and a
    gateway has a type of its own for a body that it does not take."""
    said = words.lower()
    too_long = kind == "invalid_request_error" and any(each in said for each in _TOO_LONG_WORDS)
    if too_long or kind == "request_too_large":
        return PROMPT_TOO_LONG
    if kind == "invalid_request_error" and _OF_MEDIA.search(said):
        return MEDIA_REFUSED
    return SPEND_LIMIT if _is_spend_limit(body, said) else kind


def _is_spend_limit(body: object, said: str) -> bool:
    """True for the monthly limit of an organization's tier, which has the type of a rate limit, and for
    a limit that people have set, which has that of a bad request (https://docs.claude.com/en/api/errors)."""
    inner = body.get("error") if isinstance(body, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    code = details.get("error_code") if isinstance(details, dict) else None
    return code == "enforced_spend_limit_reached" or said.startswith(_SPEND_LIMIT_WORDS)


def line_of(error: BaseException) -> str:
    """Return an exception's words in one line."""
    return _shortened(str(error) or type(error).__name__)


def _shortened(words: str) -> str:
    return " ".join(words.split())[:_MOST_CHARACTERS]
