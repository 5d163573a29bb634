"""The Message Batches API, and the replies in a batch's results.

Source: https://platform.claude.com/docs/en/build-with-claude/batch-processing and the resource of the
anthropic package. Each method is one try of one call (listing: of one a page). This module imports
anthropic, which takes over a second: import it late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runner.core.batches import ListedBatch
from runner.core.conversation import ModelReply, ModelRequest
from runner.core.media import LoadBlob
from runner.errors import ModelCallError
from runner.llm.api_errors import FAILURES, failure, item_failure
from runner.llm.connections import Line, MessagesClients, Watch, Watchdog
from runner.llm.requests import call_ids, request_body, request_headers
from runner.llm.stream import Accumulator, BrokenStreamError

_PATH = "/v1/messages/batches"
_PAGE = 100  # batches
_WORKSPACE = "anthropic-workspace-id"
_ORGANIZATION = "anthropic-organization-id"
# What may be missing in an answer that is not the API's, and what a date may be.
_SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)
_UNKNOWN_OUTCOME = 500  # from this status on, and at 408, the API may have taken the request


@dataclass(kw_only=True, eq=False, repr=False)
class AnthropicBatches:
    """The ``Batches`` port over the Messages API."""

    timeout: float = 300.0  # seconds that a call may take, and a pause between two results
    # None for what the environment says at the first call (``ANTHROPIC_BASE_URL``, ``…_API_KEY`` …).
    base_url: str | None = None
    api_key: str | None = None
    blobs: LoadBlob | None = None  # the bytes of images and documents

    def __post_init__(self) -> None:
        self._clients = MessagesClients(self.base_url, self.api_key)
        self._watchdog = Watchdog()

    def organization(self) -> str:
        """Return the id of the key's organization; see ``runner.ports.Batches``."""
        with self._line("") as (line, _, headers):
            answer = self._clients.fetch(f"{_PATH}?limit=1", line, None, headers)
            return str(answer.headers.get(_ORGANIZATION) or "")

    def body(self, request: ModelRequest) -> bytes:
        """Return the parameters of a request; see ``runner.ports.Batches``."""
        return request_body(request, self.blobs)

    def shared(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the headers of a batch; see ``runner.ports.Batches``."""
        return request_headers(options)

    def create(self, body: bytes, headers: Mapping[str, str]) -> ListedBatch:
        """Make a batch, in one try; see ``runner.ports.Batches``."""
        return self._one(_PATH, headers.get(_WORKSPACE, ""), body, headers)

    def listed(self, since: float, workspace: str) -> Iterator[ListedBatch]:
        """Yield the batches made since a time; see ``runner.ports.Batches``."""
        after = ""
        while True:
            with self._line(workspace) as (line, _, headers):
                page = self._clients.fetch(f"{_PATH}?limit={_PAGE}{after}", line, None, headers)
                found = page.json()
                batches = [_listed(each) for each in found["data"]]
            yield from (each for each in batches if each.created_at >= since)
            if not found.get("has_more") or not batches or batches[-1].created_at < since:
                return
            after = f"&after_id={batches[-1].id}"

    def look(self, id: str, workspace: str) -> ListedBatch:
        """Return a batch as it is by now; see ``runner.ports.Batches``."""
        return self._one(f"{_PATH}/{id}", workspace)

    def results(self, id: str, workspace: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the results of a batch; see ``runner.ports.Batches``."""
        with (
            self._line(workspace) as (line, watch, headers),
            self._clients.lines(f"{_PATH}/{id}/results", line, headers) as lines,
        ):
            for each in lines:
                watch.progress()
                if not isinstance(each, dict) or not isinstance(each.get("result"), dict):
                    raise BrokenStreamError("a line of the results of an unexpected shape")
                yield str(each.get("custom_id")), each["result"]

    def cancel(self, id: str, workspace: str) -> None:
        """Cancel a batch; see ``runner.ports.Batches``."""
        self._one(f"{_PATH}/{id}/cancel", workspace, b"")

    def close(self) -> None:
        """End all connections; the next call opens new ones."""
        self._clients.close()

    def _one(
        self,
        path: str,
        workspace: str,
        body: bytes | None = None,
        more: Mapping[str, str] | None = None,
    ) -> ListedBatch:
        with self._line(workspace) as (line, _, headers):
            return _listed(
                self._clients.fetch(path, line, body, {**headers, **(more or {})}).json()
            )

    @contextmanager
    def _line(self, workspace: str) -> Iterator[tuple[Line, Watch, dict[str, str]]]:
        """Yield what a call needs, with the headers that name the workspace. Raises ``ModelCallError``."""
        line, headers = Line(), {_WORKSPACE: workspace} if workspace else {}
        with self._watchdog.watch(line.cut, self.timeout, float("inf")) as watch:
            try:
                yield line, watch, headers
            except (*FAILURES, *_SHAPE_ERRORS) as error:
                if not isinstance(error, FAILURES):
                    error = BrokenStreamError(f"an answer of an unexpected shape: {error!r:.200}")
                failed = failure(error, started=False, sent=line.sent, request_id=None)
                unknown = failed.status is None or failed.status >= _UNKNOWN_OUTCOME
                failed.billed = line.sent and (unknown or failed.status == 408)
                raise failed from error


def _listed(answer: Mapping[str, Any]) -> ListedBatch:
    def at(name: str) -> float:
        return datetime.fromisoformat(answer[name]).timestamp()

    return ListedBatch(
        id=str(answer["id"]),
        count=sum(answer["request_counts"].values()),
        created_at=at("created_at"),
        expires_at=at("expires_at"),
        ended_at=at("ended_at") if answer["processing_status"] == "ended" else None,
    )


def read_result(request: ModelRequest, result: Mapping[str, Any], seconds: float) -> ModelReply:
    """Return the reply in a result of a batch, as if it had been streamed; see ``runner.ports.Model``."""
    match result["type"]:
        case "succeeded":
            return _reply(request, result.get("message"), seconds)
        case "errored":
            raise item_failure(result.get("error"))
        case "expired" | "canceled" as how:
            words = f"the batch was {how} before a model worked on the call"
            raise ModelCallError(f"batch_{how}", words, billed=False)
        case "refused":
            given = {name: value for name, value in result.items() if name != "type"}
            raise ModelCallError(**given, billed=False)
        case "withdrawn" | "warms_cache" as why:
            raise ModelCallError(why, "the call was not sent in a batch", billed=False)
        case _:
            raise ModelCallError("batch_lost", "nobody knows what became of the call in its batch")


def _reply(request: ModelRequest, message: Any, seconds: float) -> ModelReply:
    reply = Accumulator(lambda: call_ids(request.messages))
    try:
        for event in _events(message):
            reply.add(event)
        return reply.finish(seconds)
    except (BrokenStreamError, *_SHAPE_ERRORS) as error:
        failed = ModelCallError("stream_broken", f"a reply of an unexpected shape: {error!r:.200}")
        counted = reply.counted()
        failed.counted = None if counted is None else counted.by_kind()
        raise failed from error


def _events(message: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the events that would have streamed a message."""
    yield {"type": "message_start", "message": message}
    for index, block in enumerate(message["content"]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": message, "usage": message["usage"]}
    yield {"type": "message_stop"}
