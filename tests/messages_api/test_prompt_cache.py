"""The simulated prompt cache, by the documented rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages_api.prompt_cache import LEAST_CACHED_TOKENS, LOOK_BACK, Prompt, PromptCache

SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}
LINE = "x" * 4 * LEAST_CACHED_TOKENS


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def heard(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def body(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    whole = {"model": "m", "messages": list(messages), "cache_control": SHORT}
    return {**whole, **changes}


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Api:
    """A cache, and what a call is billed."""

    def __init__(self, works: bool = True) -> None:
        self.clock = Clock()
        self._cache = PromptCache(self.clock, works)

    def call(self, request: dict[str, Any]) -> tuple[int, int, int]:
        """Tokens that were read, written, and neither."""
        prompt = Prompt.of(request)
        usage = self._cache.keep(prompt, self._cache.find(prompt))
        split = (
            usage["cache_read_input_tokens"],
            usage["cache_creation_input_tokens"],
            usage["input_tokens"],
        )
        assert sum(split) == prompt.tokens
        assert sum(usage["cache_creation"].values()) == split[1]
        return split


FIRST = body(heard(text(LINE)))
SECOND = body(heard(text(LINE)), said(text("a")), heard(text("b")))


def test_prefix_that_was_written_is_read() -> None:
    api = Api()
    read, written, rest = api.call(FIRST)
    assert (read, rest) == (0, 0)
    assert api.call(SECOND)[0] == written
    assert api.call(SECOND) == (Prompt.of(SECOND).tokens, 0, 0)


def test_short_prompt_is_not_cached() -> None:
    api = Api()
    for _ in range(2):
        assert api.call(body(heard(text("x"))))[:2] == (0, 0)


def test_breakpoint_itself_is_no_part_of_the_prefix() -> None:
    api = Api()
    _, written, _ = api.call(body(heard(text(LINE, cache_control=SHORT))))
    assert api.call(SECOND)[0] == written


@pytest.mark.parametrize(
    "changed",
    [
        body(heard(text(LINE + "y")), said(text("a")), heard(text("b"))),
        {**SECOND, "model": "other"},
        {**SECOND, "tools": [{"name": "Read"}]},
        {**SECOND, "system": "Be brief."},
        {**SECOND, "thinking": {"type": "adaptive"}},
        {**SECOND, "tool_choice": {"type": "none"}},
    ],
)
def test_anything_before_that_is_different_is_another_prefix(changed: dict[str, Any]) -> None:
    api = Api()
    api.call(FIRST)
    assert api.call(changed)[0] == 0


def test_tools_and_system_stay_cached_when_thinking_changes() -> None:
    api = Api()
    system = [text(LINE, cache_control=SHORT)]
    read = Prompt.of(body(system=system)).tokens
    for thinking in ("adaptive", "disabled"):
        request = body(heard(text("a")), system=system, thinking={"type": thinking})
        found = api.call(request)[0]
    assert found == read


def test_entry_is_found_as_far_back_as_the_look_back_goes() -> None:
    for added, found in ((LOOK_BACK - 1, True), (LOOK_BACK, False)):
        api = Api()
        _, written, _ = api.call(FIRST)
        blocks = [text(str(number)) for number in range(added)]
        assert api.call(body(heard(text(LINE), *blocks)))[0] == (written if found else 0)


def test_entry_lives_for_five_minutes_after_it_was_last_read() -> None:
    api = Api()
    api.call(FIRST)
    for _ in range(3):
        api.clock.seconds += 299
        assert api.call(FIRST)[0] > 0
    api.clock.seconds += 300
    assert api.call(FIRST)[0] == 0


def test_entry_of_an_hour_lives_for_an_hour() -> None:
    api = Api()
    request = {**FIRST, "cache_control": LONG}
    api.call(request)
    api.clock.seconds += 3599
    assert api.call(request)[0] > 0
    api.clock.seconds += 3600
    assert api.call(request)[0] == 0


def test_entry_can_be_read_only_once_the_reply_that_wrote_it_has_begun() -> None:
    cache, prompt = PromptCache(Clock()), Prompt.of(FIRST)
    found = [cache.find(prompt), cache.find(prompt)]
    cache.keep(prompt, found[0])
    assert [*found, cache.find(prompt)] == [-1, -1, 0]


def test_cache_that_does_not_work_costs_the_whole_input_each_time() -> None:
    api = Api(works=False)
    for _ in range(2):
        assert api.call(SECOND) == (0, 0, Prompt.of(SECOND).tokens)


def test_tokens_are_counted_by_a_rule_that_a_test_sets() -> None:
    assert Prompt.of(FIRST, 2.0).tokens == pytest.approx(2 * Prompt.of(FIRST).tokens, abs=1)
