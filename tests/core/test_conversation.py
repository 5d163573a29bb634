import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.conversation import Message, Tool, ToolResult, Usage, content_bytes

USAGES = st.builds(Usage, *[st.integers(0, 10**6)] * 4)


@pytest.mark.slow
@given(USAGES, USAGES)
def test_usage_adds_up_kind_by_kind(one, other):
    both = one + other
    assert both.total == one.total + other.total
    assert both.prompt_tokens == one.prompt_tokens + other.prompt_tokens
    assert both == other + one
    assert one + Usage() == one


def test_prompt_counts_cache_reads_and_writes():
    usage = Usage(input_tokens=1, cache_read_tokens=20, cache_creation_tokens=300, output_tokens=4)
    assert (usage.prompt_tokens, usage.total) == (321, 325)


@pytest.mark.parametrize(
    "outcome",
    ["failed", "denied", "unknown_tool", "invalid_input", "timed_out", "interrupted", "unknown"],
)
def test_only_success_is_no_error(outcome):
    assert ToolResult("", outcome).is_error
    assert not ToolResult("").is_error


def test_message_goes_out_as_the_api_takes_it():
    block = {"type": "text", "text": "hi"}
    assert Message("user", (block,)).as_api() == {"role": "user", "content": [block]}


def test_tool_definition_tells_the_model_nothing_of_how_it_is_run():
    tool = Tool("Bash", "Run it.", {"type": "object"}, read_only=True, source="a.b:c")
    assert list(tool.definition()) == ["name", "description", "input_schema"]


@pytest.mark.slow
@given(st.text())
def test_every_byte_of_a_text_is_counted(text):
    assert content_bytes({"type": "text", "text": text}) >= len(text.encode())


def test_characters_are_counted_as_they_are_sent():
    assert content_bytes({"text": "ö"}) == len('{"text": "ö"}'.encode())
    assert content_bytes({"text": "\ud800"}) > len(json.dumps({"text": ""}))
