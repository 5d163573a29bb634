"""Notices of a job: which events people want, and the text and bytes of a notice."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from runner.core.text import visible

NoticeEvent = Literal["done", "failed", "needs_approval", "budget", "breaker"]
NoticeFormat = Literal["json", "slack"]
Channel = Literal["command", "webhook", "desktop"]
EVENTS: tuple[NoticeEvent, ...] = get_args(NoticeEvent)
MOST_TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0
_LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Notify:
    """The events that people are told of, and the channels."""

    on: tuple[NoticeEvent, ...] = EVENTS
    command: str | None = None  # a shell command, which gets the notice as JSON on its input
    webhook: str | None = None  # the environment variable that holds the address
    secret: str | None = (
        None  # the environment variable that holds the key that requests are signed with
    )
    format: NoticeFormat = "json"  # of the webhook's body
    desktop: bool = False

    @property
    def channels(self) -> tuple[Channel, ...]:
        given: dict[Channel, object] = {
            "command": self.command,
            "webhook": self.webhook,
            "desktop": self.desktop,
        }
        return tuple(channel for channel, is_given in given.items() if is_given)


def pause_before(tries: int) -> float | None:
    """Return the seconds until a notice is sent again that failed so often; None: never."""
    return None if tries >= MOST_TRIES else min(_FIRST_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE)


def about(event: NoticeEvent, job_id: str, job_name: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a notice. ``text`` says all in a line; control characters in it become visible."""
    words = visible(text)[:_LONGEST_TEXT]
    return {"event": event, "job_id": job_id, "job_name": job_name, "text": words, **more}


def with_link(notice: Mapping[str, Any], web_url: str | None) -> dict[str, Any]:
    """Return a notice with the address in `runner web` of its job, or of the job's questions."""
    if web_url is None:
        return {**notice}
    asks = notice["event"] == "needs_approval"
    page = "inbox?job=" if asks else "jobs/"
    return {**notice, "url": f"{web_url}/{page}{notice['job_id']}"}


def body_of(notice: Mapping[str, Any], format: NoticeFormat) -> bytes:
    """Return the body of a webhook's request. Slack reads three characters as markup:
    https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    if format == "json":
        return json.dumps(notice).encode()
    text = f"{visible(str(notice['job_name']))}: {notice['text']}"
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    text += f" <{notice['url']}>" if "url" in notice else ""
    return json.dumps({"text": text}).encode()


def signature(secret: str, at: int, body: bytes) -> str:
    """Return the signature of a request that is sent ``at`` a time (seconds since the epoch)."""
    signed = f"{at}.".encode() + body
    return f"sha256={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
