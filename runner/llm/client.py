"""The SDK's client, one per process, with connections that can be cut.

This module imports anthropic, which takes over a second: import it late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2

from runner.errors import ModelCallError
from runner.llm.connections import CuttableBackend, Line

CONNECT_TIMEOUT = 30.0  # seconds; everything after that is the watchdog's


class MessagesClient:
    """Streams calls of the Messages API.

    The body is sent as it is and events come as plain JSON: the SDK's own walk over every message
    of a request and its models for events cost more than everything else in a turn.

    Args:
        base_url, api_key: None for what the SDK finds in the environment.

    Raises:
        ModelCallError: there is no key.
    """

    def __init__(self, base_url: str | None = None, api_key: str | None = None) -> None:
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        http_client = anthropic.DefaultHttpxClient(timeout=timeout, limits=limits)
        _make_cuttable(http_client)
        try:
            self._client = anthropic.Anthropic(
                base_url=base_url,
                api_key=api_key,
                timeout=timeout,
                max_retries=0,
                http_client=http_client,
            )
        except anthropic.AnthropicError as error:
            raise _no_key(str(error)) from error
        if not (self._client.api_key or self._client.auth_token or self._client.credentials):
            raise _no_key("no API key was found")

    @contextmanager
    def stream(
        self, body: bytes, headers: Mapping[str, str], line: Line
    ) -> Iterator[anthropic.Stream[object]]:
        """The events of one call, as JSON objects.

        Raises:
            anthropic.AnthropicError, httpx2.HTTPError, ValueError: as the SDK does; see ``failures``.
        """
        with (
            line.held(),
            self._client.post(
                "/v1/messages",
                content=body,
                options={"headers": headers},
                cast_to=object,
                stream=True,
                stream_cls=anthropic.Stream[object],
            ) as events,
        ):
            yield events

    def close(self) -> None:
        """End all connections."""
        self._client.close()


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
