"""Anthropic's models on Amazon Bedrock and Google Vertex AI, by the SDK's own clients.

The clients name the model in the path, sign requests, and on Bedrock read AWS event streams. Credentials
come from where those SDKs look for them: the environment, profiles, the metadata of a cloud's machine.
The platforms have no batches and no list of models, and set no cache breakpoint by themselves
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching); Bedrock counts no tokens. This
module imports anthropic, which takes over a second; boto3 and google-auth, which are extras, are
imported when they are needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anthropic
import httpcore2
import httpx2
from anthropic._base_client import SyncAPIClient
from anthropic.lib.aws._auth import _get_session
from anthropic.lib.vertex._auth import load_auth, refresh_auth

from runner.core.spec import Provider
from runner.errors import HostLacks, ModelCallError
from runner.llm.api_errors import FAILURES, line_of
from runner.llm.connections import Line, MessagesClients, line_in_hand
from runner.llm.stream import BrokenStreamError

_NO_BREAKPOINT = ("thinking", "redacted_thinking")  # types of blocks that take none
_WAYS = {
    "bedrock": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or AWS_BEARER_TOKEN_BEDROCK",
    "vertex": "GOOGLE_APPLICATION_CREDENTIALS (or run `gcloud auth application-default login`)",
}


class _FetchesApart(SyncAPIClient):
    """A client that leaves the fetching of credentials behind when its call is cut."""

    def _prepare_request(self, request: httpx2.Request) -> None:
        try:
            line_in_hand().apart(partial(super()._prepare_request, request))
        except httpcore2.ConnectError as error:
            raise httpx2.ConnectError(str(error)) from error


class _Bedrock(_FetchesApart, anthropic.AnthropicBedrock):
    def forget_credentials(self) -> None:
        cast(Any, _get_session).cache_clear()


class _Vertex(_FetchesApart, anthropic.AnthropicVertex):
    def forget_credentials(self) -> None:
        self.credentials = None

    def _ensure_access_token(self) -> str:
        if (known := self.credentials) is None:  # another call may forget them at any time
            known, _ = load_auth(project_id=self.project_id)
            self.credentials = known
        if known.expired or not known.token:
            refresh_auth(known)
        return str(known.token)


@dataclass(eq=False, repr=False)
class PlatformClients(MessagesClients):
    """The clients of one region. Raises ``HostLacks`` if the platform's extra is not installed.
    ``base_url``: None for the one in the environment, or else the SDK's default."""

    provider: Provider = "bedrock"
    region: str = ""
    project: str | None = None  # of Google Cloud

    def __post_init__(self) -> None:
        super().__post_init__()
        self._errors = _errors_of(self.provider)

    @contextmanager
    def stream(
        self, body: bytes, headers: Mapping[str, str], line: Line
    ) -> Iterator[anthropic.Stream[object]]:
        """Yield the events of a call as JSON objects. Raises ``stream.FAILURES``, and
        ``ModelCallError`` without valid credentials."""
        how: dict[str, Any] = {"stream": True, "stream_cls": anthropic.Stream[object]}
        with (
            self._client() as client,
            line.held(),
            self._post(client, "/v1/messages", body, headers, how) as events,
        ):
            try:
                yield events
            except self._errors.unreadable as error:
                raise BrokenStreamError(line_of(error)) from error

    def ask(self, path: str, line: Line, body: bytes | None, headers: Mapping[str, str]) -> object:
        """Return the JSON answer to a call, None if the platform has no such call. Raises as
        ``stream`` does."""
        if body is None or self.provider == "bedrock":
            return None
        with self._client() as client, line.held():
            return self._post(client, path, body, headers, {})

    def _post(self, client: Any, *request: Any) -> Any:
        """Return the answer to a request. Credentials that are refused are read again, once: people renew
        them while a worker lives, and the SDKs keep what they have read."""
        try:
            return self._post_once(client, *request)
        except (anthropic.AuthenticationError, anthropic.PermissionDeniedError):
            pass
        except ModelCallError as error:
            if error.kind != "authentication_error":
                raise
        client.forget_credentials()
        return self._post_once(client, *request)

    def _post_once(
        self,
        client: Any,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        how: Mapping[str, Any],
    ) -> Any:
        request = _with_breakpoint(json.loads(body))  # a copy: the SDK moves fields out of it
        try:
            return client.post(
                path, body=request, options={"headers": headers}, cast_to=object, **how
            )
        except FAILURES:
            raise
        except self._errors.refused as error:
            if type(error) is RuntimeError and "resolve" not in str(error):
                raise  # a bug, not the SDK's word on credentials
            if isinstance(error, self._errors.unanswered) or getattr(error, "retryable", False):
                raise ModelCallError("connection", line_of(error), billed=False) from error
            raise ModelCallError(
                "authentication_error", line_of(error), status=401, billed=False
            ) from error

    def _new_client(self) -> Any:
        if self.provider == "bedrock":
            return _Bedrock(aws_region=self.region, base_url=self.base_url, **self._options())
        return _Vertex(
            region=self.region,
            project_id=self.project or "",
            base_url=self.base_url,
            **self._options(),
        )


def lacks(provider: Provider) -> str | None:
    """Return what this host lacks to call a platform and what to do, in one line; None: nothing."""
    try:
        refused = _errors_of(provider).refused
    except HostLacks as error:
        return str(error)
    why = ""
    try:
        if _finds_credentials(provider):
            return None
    except refused as error:
        why = " ({})".format(line_of(error).partition(". ")[0])
    return (
        f"no credentials for {provider} are found{why}: set {_WAYS[provider]} before the job runs"
    )


def _finds_credentials(provider: Provider) -> bool:
    if provider == "bedrock":
        import boto3

        if os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
            return True
        return boto3.Session().get_credentials() is not None
    import google.auth

    return google.auth.default()[0] is not None


@dataclass(frozen=True, slots=True)
class _Errors:
    """The exceptions of a platform's own libraries."""

    refused: tuple[type[Exception], ...]  # about credentials, before a request is sent
    unanswered: tuple[type[Exception], ...]  # those of ``refused`` that a retry may fix
    unreadable: tuple[type[Exception], ...]  # about the stream


def _errors_of(provider: Provider) -> _Errors:
    try:
        if provider == "bedrock":
            import boto3  # noqa: F401 - the SDK needs it
            from botocore.eventstream import ParserError
            from botocore.exceptions import BotoCoreError, ConnectionError, HTTPClientError

            unanswered = (ConnectionError, HTTPClientError)
            return _Errors((BotoCoreError, RuntimeError), unanswered, (ParserError,))
        import google.auth.transport.requests  # noqa: F401 - the SDK needs it
        from google.auth.exceptions import GoogleAuthError, TransportError
    except ImportError as error:
        install = f"`pip install '.[{provider}]'` in Runner's folder"
        raise HostLacks(f"the extra {provider} is not installed here: {install}") from error
    return _Errors((GoogleAuthError, RuntimeError), (TransportError,), ())


def _with_breakpoint(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request that ends with the cache breakpoint that the Messages API would set by itself."""
    mark = request.pop("cache_control", None)
    last = request["messages"][-1]["content"][-1]
    if mark is not None and last["type"] not in _NO_BREAKPOINT:
        last.setdefault("cache_control", mark)
    return request
