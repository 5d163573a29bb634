"""The SDK's clients of this process, with connections that can be cut.

This module imports anthropic, which takes over a second: import it late.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2

from runner.errors import ModelCallError
from runner.llm.connections import CuttableBackend, Line

CALLS_PER_CLIENT = 32
CONNECT_TIMEOUT = 30.0  # seconds; everything after that is the watchdog's


class MessagesClients:
    """Streams calls of the Messages API.

    The body is sent as it is and events come as plain JSON: the SDK's own walk over every message
    of a request and its models for events cost more than everything else in a turn. A client has
    one pool of connections, and what a call costs in it grows with the calls in flight (measured
    at 500: 5.8 ms of CPU a turn with one client, 2.4 ms with many), so each takes a few.

    Args:
        base_url, api_key: None for what the SDK finds in the environment.

    Raises:
        ModelCallError: there is no key.
    """

    def __init__(self, base_url: str | None = None, api_key: str | None = None) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._lock = threading.Lock()
        self._certificates = httpx2.create_ssl_context()
        self._seats = [_Seat(self._new_client())]

    @contextmanager
    def stream(
        self, body: bytes, headers: Mapping[str, str], line: Line
    ) -> Iterator[anthropic.Stream[object]]:
        """The events of one call, as JSON objects.

        Raises:
            anthropic.AnthropicError, httpx2.HTTPError, ValueError: as the SDK does; see ``failures``.
        """
        with (
            self._seat() as client,
            line.held(),
            client.post(
                "/v1/messages",
                content=body,
                options={"headers": headers},
                cast_to=object,
                stream=True,
                stream_cls=anthropic.Stream[object],
            ) as events,
        ):
            yield events

    def ask(self, path: str, line: Line, body: bytes | None, headers: Mapping[str, str]) -> object:
        """The answer to a call that is not streamed, as JSON; without a body it is a GET.

        Raises:
            anthropic.AnthropicError, httpx2.HTTPError, ValueError: as the SDK does; see ``failures``.
        """
        with self._seat() as client, line.held():
            if body is None:
                return client.get(path, options={"headers": headers}, cast_to=object)
            return client.post(path, content=body, options={"headers": headers}, cast_to=object)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for seat in self._seats:
                seat.client.close()

    @contextmanager
    def _seat(self) -> Iterator[anthropic.Anthropic]:
        with self._lock:
            free = (seat for seat in self._seats if seat.calls < CALLS_PER_CLIENT)
            seat = next(free, None)
            if seat is None:
                seat = _Seat(self._new_client())
                self._seats.append(seat)
            seat.calls += 1
        try:
            yield seat.client
        finally:
            with self._lock:
                seat.calls -= 1

    def _new_client(self) -> anthropic.Anthropic:
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        http_client = anthropic.DefaultHttpxClient(
            timeout=timeout, limits=limits, verify=self._certificates
        )
        _make_cuttable(http_client)
        try:
            client = anthropic.Anthropic(
                base_url=self._base_url,
                api_key=self._api_key,
                timeout=timeout,
                max_retries=0,
                http_client=http_client,
            )
        except anthropic.AnthropicError as error:
            raise _no_key(str(error)) from error
        if not (client.api_key or client.auth_token or client.credentials):
            raise _no_key("no API key was found")
        for key in (client.api_key, client.auth_token):
            if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
                # The transport would name the whole key in its error.
                raise _no_key("the API key has blanks or control characters in it or around it")
        return client


@dataclass
class _Seat:
    """A client, and how many calls it has in flight (guarded by the lock of ``MessagesClients``)."""

    client: anthropic.Anthropic
    calls: int = 0


def _make_cuttable(http_client: httpx2.Client) -> None:
    """Have every connection of a client opened by our backend, proxies from the environment too.

    httpx2 has no public way to say so without giving up the SDK's own transports.
    """
    backend = CuttableBackend()
    transports: list[Any] = [http_client._transport, *http_client._mounts.values()]
    for transport in transports:
        if transport is not None:
            transport._pool._network_backend = backend


def _no_key(why: str) -> ModelCallError:
    return ModelCallError(
        "authentication_error",
        f"{why}: set ANTHROPIC_API_KEY in the environment of every worker",
        status=401,
        billed=False,
    )
