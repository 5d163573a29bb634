"""The strict server's rate limits, by the SDK's own client."""

from __future__ import annotations

import anthropic
import pytest

from tests.messages_api import API_KEY, MessagesServer, RateLimits, Reply, text

HELLO = {"role": "user", "content": "Hello"}


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def call(server: MessagesServer, words: str = "Hello"):
    with anthropic.Anthropic(base_url=server.url, api_key=API_KEY, max_retries=0) as api:
        return api.messages.with_raw_response.create(
            model="claude-sonnet-5", max_tokens=9, messages=[{**HELLO, "content": words}]
        )


def serving(limits: RateLimits) -> MessagesServer:
    return MessagesServer(lambda request: Reply([text("Hi")]), limits=limits)


def test_requests_past_the_limit_are_refused_until_enough_time_has_passed():
    clock = Clock()
    limits = RateLimits(requests=2, now=clock)
    with serving(limits) as server:
        headers = call(server).headers
        assert headers["anthropic-organization-id"] == "org_test"
        assert headers["anthropic-ratelimit-requests-limit"] == "2"
        assert headers["anthropic-ratelimit-requests-remaining"] == "1"
        call(server)
        with pytest.raises(anthropic.RateLimitError) as refused:
            call(server)
        assert refused.value.response.headers["retry-after"] == "30"
        clock.seconds = 30.0
        call(server)
    assert (limits.admitted, limits.refused) == (3, 1)


def test_a_limit_that_changes_holds_from_then_on():
    clock = Clock()
    limits = RateLimits(requests=1, now=clock)
    with serving(limits) as server:
        call(server)
        limits.set(requests=60)
        clock.seconds = 1.0
        call(server)
        with pytest.raises(anthropic.RateLimitError):
            call(server)


def test_input_tokens_are_limited_too():
    limits = RateLimits(input_tokens=2_000, now=Clock())
    with serving(limits) as server:
        headers = call(server, "x" * 4_000).headers
        assert headers["anthropic-ratelimit-input-tokens-remaining"] == "1000"
        with pytest.raises(anthropic.RateLimitError, match="input-tokens"):
            call(server, "x" * 4_000)
