"""Live pages: one look into the database for all that are open, and a stream of events for each.

A stream says that something has changed, and the page loads itself again. So whatever was missed while a
page slept is there with the next event, and a page can show nothing that it would not show when opened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from runner.app import live as watched
from runner.app.handle import App
from runner.errors import RunnerError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_BEAT_SECONDS = 15.0  # a stream without events says something, so that a lost one is noticed
# A stream ends after this, and the browser opens another: the guard looks who it is again.
_LONGEST_SECONDS = 300.0
_MOST_STREAMS = 500
_MOST_HELD = 1_000  # events of a stream whose reader does not read

_Event = tuple[str, str, str]  # the kind, the id, and the data


@dataclass(eq=False)
class _Stream:
    topic: str
    loop: asyncio.AbstractEventLoop
    wants_text: bool  # that the model is saying
    events: asyncio.Queue[_Event | None] = field(default_factory=asyncio.Queue)

    def put(self, event: _Event | None) -> None:
        """Called in any thread."""
        if event is None or self.events.qsize() < _MOST_HELD:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class Hub:
    """Looks what has changed, for all streams at once, while there are any."""

    def __init__(self, app: App) -> None:
        self.looks = 0  # into the database
        self._app = app
        self._lock = threading.Lock()
        self._streams: defaultdict[str, set[_Stream]] = defaultdict(set)
        self._versions: dict[str, str] = {}
        self._looking: threading.Thread | None = None
        self._listening: dict[str, threading.Thread] = {}
        self._closed = threading.Event()

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._streams.values()))

    def add(self, stream: _Stream, version: str) -> None:
        with self._lock:
            known = self._versions.setdefault(stream.topic, version)
            if known != version:  # the others were told since ``version`` was looked up
                stream.put(("changed", known, stream.topic))
            self._streams[stream.topic].add(stream)
            if self._looking is None:
                self._looking = threading.Thread(target=self._look, name="live", daemon=True)
                self._looking.start()
            kind, _, run_id = stream.topic.partition(":")
            if kind == "run" and stream.wants_text and run_id not in self._listening:
                listening = threading.Thread(target=self._listen, args=(run_id,), daemon=True)
                self._listening[run_id] = listening
                listening.start()

    def remove(self, stream: _Stream) -> None:
        with self._lock:
            self._streams[stream.topic].discard(stream)
            if not self._streams[stream.topic]:
                del self._streams[stream.topic]
                self._versions.pop(stream.topic, None)

    def close(self) -> None:
        """End all streams."""
        self._closed.set()
        with self._lock:
            for stream in [each for of_topic in self._streams.values() for each in of_topic]:
                stream.put(None)

    def _look(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._lock:
                topics = list(self._streams)
                if not topics:
                    self._looking = None
                    return
            self.looks += 1
            try:
                found = watched.look(self._app, topics)
            except Exception as error:  # the next look may see them
                logger.warning("open pages see no changes: %s: %s", type(error).__name__, error)
                continue
            with self._lock:
                for topic, version in found.items():
                    if self._versions.get(topic) != version and topic in self._streams:
                        self._versions[topic] = version
                        for stream in self._streams[topic]:
                            stream.put(("changed", version, topic))

    def _listen(self, run_id: str) -> None:
        """Pass on the text of a run while somebody reads it."""
        topic = f"run:{run_id}"
        try:
            with closing(watched.texts_of(self._app, run_id)) as texts:  # type: ignore[type-var]
                for text in texts:
                    with self._lock:
                        streams = [s for s in self._streams.get(topic, ()) if s.wants_text]
                        if not streams or self._closed.is_set():
                            break
                    for stream in streams if text is not None else ():
                        stream.put(("text", "", json.dumps(text)))
        except Exception as error:  # the next page that opens may hear it
            logger.warning("pages hear no text: %s: %s", type(error).__name__, error)
        finally:
            with self._lock:
                self._listening.pop(run_id, None)


async def live(hub: Hub, app: App, request: Request) -> Response:
    """Return the stream of a page: ``topic``, ``since`` which version of it the page shows, and ``text`` if
    it shows what the model is saying."""
    if hub.count() >= _MOST_STREAMS:
        return PlainTextResponse("too many pages are open\n", 503)
    query = request.query_params
    try:
        topic = await run_in_threadpool(watched.topic_of, app, query.get("topic", ""))
        found = await run_in_threadpool(watched.look, app, [topic])
    except RunnerError as error:
        return PlainTextResponse(f"{error}\n", 404)
    seen = request.headers.get("last-event-id") or query.get("since", "")
    stream = _Stream(topic, asyncio.get_running_loop(), wants_text="text" in query)
    version = found.get(topic, "")
    if version != seen:  # while the page slept, or was on its way
        stream.put(("changed", version, topic))
    return StreamingResponse(
        _events(hub, stream, version),
        headers={"x-accel-buffering": "no"},
        media_type="text/event-stream",
    )


async def _events(hub: Hub, stream: _Stream, version: str) -> AsyncIterator[str]:
    until = time.monotonic() + _LONGEST_SECONDS
    hub.add(stream, version)
    try:
        yield "retry: 2000\n\n"
        while time.monotonic() < until:
            try:
                event = await asyncio.wait_for(stream.events.get(), _BEAT_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if event is None:
                return
            kind, id_, data = event
            yield f"{f'id: {id_}' if id_ else ':'}\nevent: {kind}\ndata: {data}\n\n"
    finally:
        hub.remove(stream)
