"""The rate limits of an organisation: token buckets, their headers, and refusals with ``retry-after``.

Source: https://docs.claude.com/en/api/rate-limits. Requests and input count as a call begins, output as
it is written; reads from the cache do not count.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.messages_api.conversation_rules import Refusal

MINUTE = 60.0
ROUNDED_TO = 1_000  # what remains of tokens, in the headers


class Limited(Refusal):
    """429, with what the API says about its limits."""

    def __init__(self, kind: str, headers: dict[str, str]) -> None:
        words = f"This request would exceed your organization's rate limit of {kind} per minute"
        super().__init__(words, 429, "rate_limit_error")
        self.headers = headers


class _Bucket:
    """Holds at most a minute's limit."""

    def __init__(self, limit: float, level: float, now: float) -> None:
        self.limit, self.level, self.at = limit, min(level, limit), now

    def fill(self, now: float) -> float:
        """Return what has flowed in."""
        flowed = self.limit / MINUTE * (now - self.at)
        self.level, self.at = min(self.limit, self.level + flowed), now
        return flowed


class RateLimits:
    """The limits of one organisation; ``set`` changes them at any moment, from any thread.

    Args:
        requests, input_tokens, output_tokens: a minute; None: any number.
        full: the share of a minute's limit that is in each bucket at the first call.
        now: a clock in seconds, which may run faster than the real one.
    """

    def __init__(
        self,
        requests: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        *,
        organisation: str = "org_test",
        full: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admitted = 0
        self.refused = 0
        self.allowed: dict[str, float] = {}  # flowed in since the beginning, by kind
        self.used: dict[str, float] = {}
        self._organisation = organisation
        self._full = full
        self._now = now
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}
        self.set(requests, input_tokens, output_tokens)

    def set(
        self,
        requests: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
    ) -> None:
        """From now on, these are the limits. What is in the buckets stays, up to their new sizes."""
        limits = {
            "requests": requests,
            "input-tokens": input_tokens,
            "output-tokens": output_tokens,
        }
        with self._lock:
            self._fill()
            for kind, limit in limits.items():
                if limit is None:
                    self._buckets.pop(kind, None)
                    continue
                old = self._buckets.get(kind)
                level = self._full * limit if old is None else old.level
                self._buckets[kind] = _Bucket(limit, level, self._now())

    def admit(self, input_tokens: int) -> None:
        """Count a call. Raises ``Limited``."""
        wanted = {"requests": 1, "input-tokens": input_tokens, "output-tokens": 0}
        with self._lock:
            self._fill()
            for kind, bucket in self._buckets.items():
                need = max(min(wanted[kind], bucket.limit), 1)
                if bucket.level < need:
                    self.refused += 1
                    wait = (need - bucket.level) * MINUTE / bucket.limit
                    headers = {**self._headers(), "retry-after": str(math.ceil(wait))}
                    raise Limited(kind, headers)
            self.admitted += 1
            for kind, bucket in self._buckets.items():
                bucket.level -= wanted[kind]
                self.used[kind] = self.used.get(kind, 0.0) + wanted[kind]

    def wrote(self, output_tokens: int) -> None:
        """Count output."""
        with self._lock:
            self._fill()
            if (bucket := self._buckets.get("output-tokens")) is not None:
                bucket.level -= output_tokens
                self.used["output-tokens"] = self.used.get("output-tokens", 0.0) + output_tokens

    def headers(self) -> dict[str, str]:
        """Return what an answer says of the limits."""
        with self._lock:
            self._fill()
            return self._headers()

    def reading(self) -> Reading:
        with self._lock:
            self._fill()
            return Reading(self.admitted, self.refused, dict(self.allowed), dict(self.used))

    def _headers(self) -> dict[str, str]:
        said = {"anthropic-organization-id": self._organisation}
        for kind, bucket in self._buckets.items():
            left = max(0.0, bucket.level)
            unit = 1 if kind == "requests" else ROUNDED_TO
            full_in = (bucket.limit - bucket.level) * MINUTE / bucket.limit
            reset = datetime.fromtimestamp(time.time() + full_in, UTC).replace(microsecond=0)
            said |= {
                f"anthropic-ratelimit-{kind}-limit": str(round(bucket.limit)),
                f"anthropic-ratelimit-{kind}-remaining": str(round(left / unit) * unit),
                f"anthropic-ratelimit-{kind}-reset": reset.isoformat().replace("+00:00", "Z"),
            }
        return said

    def _fill(self) -> None:
        now = self._now()
        for kind, bucket in self._buckets.items():
            if not self.admitted:
                bucket.at = now
            self.allowed[kind] = self.allowed.get(kind, 0.0) + bucket.fill(now)


@dataclass(frozen=True)
class Reading:
    """What was admitted and refused, and what flowed in and was used of each kind."""

    admitted: int
    refused: int
    allowed: Mapping[str, float]
    used: Mapping[str, float]

    def __sub__(self, before: Reading) -> Reading:
        def since(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
            return {kind: amount - then.get(kind, 0.0) for kind, amount in now.items()}

        return Reading(
            self.admitted - before.admitted,
            self.refused - before.refused,
            since(self.allowed, before.allowed),
            since(self.used, before.used),
        )

    @property
    def share(self) -> float:
        """The used share of the limit that was used most."""
        used = {kind: self.used.get(kind, 0.0) for kind in self.allowed}
        return max(used[kind] / amount for kind, amount in self.allowed.items() if amount)
