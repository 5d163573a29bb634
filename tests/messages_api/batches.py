"""Message Batches: limits, validation at the end, results, expiry, cancelling, listing, and faults.

Source: https://platform.claude.com/docs/en/build-with-claude/batch-processing, the batch limits of
https://platform.claude.com/docs/en/api/rate-limits, and the types of the anthropic package. A batch is
worked at once when it ends, which is when it is looked at after its time.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from tests.messages_api.conversation_rules import Refusal
from tests.messages_api.replies import Break

PATH = "/v1/messages/batches"
ORGANIZATION = {"anthropic-organization-id": "org_test"}
MOST_REQUESTS = 100_000
MOST_QUEUED = 100_000  # requests in batches that have not ended, in the lowest tier
MOST_BODY_BYTES = 256 * 1024 * 1024
LIFETIME = 24 * 3600.0
RESULTS_LIVE = 29 * 24 * 3600.0

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_BATCHES = ("stream", "speed")


@dataclass(frozen=True)
class CreateFault:
    """How one ``create`` breaks, before or after the batch is made."""

    broken: Break
    made: bool


@dataclass
class Batch:
    id: str
    requests: list[dict[str, Any]]
    version: str
    created_at: float
    seconds: float  # that it takes
    cancelled_at: float | None = None
    ended_at: float | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by custom_id

    def told(self) -> dict[str, Any]:
        """The batch as the API tells of it."""
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        for result in self.results.values():
            counts[result["type"]] += 1
        counts["processing"] = len(self.requests) - len(self.results)
        status = "in_progress" if self.cancelled_at is None else "canceling"
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": status if self.ended_at is None else "ended",
            "request_counts": counts,
            "created_at": _text(self.created_at),
            "expires_at": _text(self.created_at + LIFETIME),
            "ended_at": _text(self.ended_at),
            "cancel_initiated_at": _text(self.cancelled_at),
            "archived_at": None,
            "results_url": None if self.ended_at is None else f"{PATH}/{self.id}/results",
        }

    def lines(self) -> Iterator[bytes]:
        """The results, not in the order of the requests."""
        for custom_id in reversed(self.results):
            line = {"custom_id": custom_id, "result": self.results[custom_id]}
            text = json.dumps(line, ensure_ascii=False)
            yield text.encode("utf-8", "backslashreplace") + b"\n"


class BatchShelf:
    """The batches of a workspace.

    Args:
        work: gives the result of one request: its parameters, and the version of the API.
        now: the clock, in seconds since the epoch.
        takes: how many seconds a batch takes, by its number from 1.
    """

    def __init__(
        self,
        work: Callable[[str, dict[str, Any], str], dict[str, Any]],
        now: Callable[[], float],
        takes: Callable[[int], float],
    ) -> None:
        self.prefix = "msgbatch_"  # of ids, which sort by their age
        self.faults: deque[CreateFault] = deque()
        self.most_queued = MOST_QUEUED
        self.batches: dict[str, Batch] = {}
        self._work = work
        self._now = now
        self._takes = takes

    def create(self, body: Any, version: str) -> Batch:
        """Make a batch. Raises ``Refusal``."""
        requests = body.get("requests") if isinstance(body, dict) else None
        if not isinstance(requests, list) or not 1 <= len(requests) <= MOST_REQUESTS:
            raise Refusal(f"requests: List should have 1 to {MOST_REQUESTS} items")
        seen: set[str] = set()
        for index, each in enumerate(requests):
            if not isinstance(each, dict) or set(each) != {"custom_id", "params"}:
                raise Refusal(f"requests.{index}: custom_id and params are required")
            name = each["custom_id"]
            if not isinstance(name, str) or not _CUSTOM_ID.fullmatch(name):
                raise Refusal(f"requests.{index}.custom_id: should match '{_CUSTOM_ID.pattern}'")
            if name in seen:
                raise Refusal(f"requests.{index}.custom_id: must be unique")
            seen.add(name)
        if self._queued() + len(requests) > self.most_queued:
            why = f"the number of batch requests in processing would be over {self.most_queued}"
            raise Refusal(why, 429, "rate_limit_error")
        number = len(self.batches) + 1
        batch_id = f"{self.prefix}{number:06d}"
        batch = Batch(batch_id, requests, version, self._now(), self._takes(number))
        self.batches[batch.id] = batch
        return batch

    def find(self, batch_id: str) -> Batch:
        """Return a batch as it is now. Raises ``Refusal``."""
        if batch_id not in self.batches:
            raise Refusal(f"batch {batch_id} not found", 404, "not_found_error")
        self._advance(batch := self.batches[batch_id])
        return batch

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch: it ends when it is looked at next. Raises ``Refusal``."""
        batch = self.find(batch_id)
        if batch.ended_at is None and batch.cancelled_at is None:
            batch.cancelled_at = self._now()
        return batch

    def page(self, query: str) -> dict[str, Any]:
        """Return a page of the list, the newest first. Raises ``Refusal``."""
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        limit = int(asked.get("limit", 20))
        if not 1 <= limit <= 1000:
            raise Refusal("limit: should be from 1 to 1000")
        found = sorted(self.batches.values(), key=lambda each: each.id, reverse=True)
        ids = [each.id for each in found]
        start, end = 0, len(found)
        if "after_id" in asked:
            start = ids.index(asked["after_id"]) + 1
        if "before_id" in asked:
            end = ids.index(asked["before_id"])
        page = found[start:end][:limit]
        for each in page:
            self._advance(each)
        return {
            "data": [each.told() for each in page],
            "has_more": start + len(page) < end,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }

    def results(self, batch_id: str) -> Batch:
        """Return a batch that has results. Raises ``Refusal``."""
        batch = self.find(batch_id)
        if batch.ended_at is None:
            raise Refusal(f"batch {batch_id} has no results yet")
        if self._now() - batch.created_at > RESULTS_LIVE:
            raise Refusal(f"the results of {batch_id} are gone", 404, "not_found_error")
        return batch

    def _queued(self) -> int:
        """Return the number of requests in batches that have not ended."""
        for batch in self.batches.values():
            self._advance(batch)
        unended = (each for each in self.batches.values() if each.ended_at is None)
        return sum(len(each.requests) for each in unended)

    def _advance(self, batch: Batch) -> None:
        now, done_at = self._now(), batch.created_at + batch.seconds
        expires_at = batch.created_at + LIFETIME
        if batch.ended_at is not None:
            return
        if batch.cancelled_at is not None and batch.cancelled_at < done_at:
            self._end(batch, batch.cancelled_at, {"type": "canceled"})
        elif now >= expires_at and done_at > expires_at:
            self._end(batch, expires_at, {"type": "expired"})
        elif now >= done_at:
            self._end(batch, done_at)

    def _end(self, batch: Batch, at: float, unworked: Mapping[str, Any] | None = None) -> None:
        batch.ended_at = at
        for each in batch.requests:
            result = dict(unworked) if unworked else self._one(each, batch.version)
            batch.results[each["custom_id"]] = result

    def _one(self, request: dict[str, Any], version: str) -> dict[str, Any]:
        try:
            params = request["params"]
            for name in _NOT_IN_BATCHES:
                if name in params:
                    raise Refusal(f"{name}: not supported in batch requests")
            return self._work(request["custom_id"], params, version)
        except Refusal as refusal:
            error = {"type": refusal.kind, "message": refusal.message}
            return {"type": "errored", "error": {"type": "error", "error": error}}


def _text(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
