from __future__ import annotations

import threading

import pytest

from runner.core.conversation import Message, ModelReply
from runner.errors import Interrupted, ModelCallError
from runner.jobfile.script import check_script
from runner.llm.scripted import ScriptedModel
from runner.ports import Interrupt
from tests.llm.conftest import ignore, make_request, user


def play(script, **changes) -> ModelReply:
    assert check_script(script) == []
    return ScriptedModel(script).complete(make_request(**changes), Interrupt(), ignore)


def test_reply_has_what_the_script_says_in_the_order_of_the_api():
    line = {
        "tools": [{"name": "Read", "input": {"file_path": "a"}}, {"name": "Glob"}],
        "text": "Reading.",
        "thinking": "Hm.",
    }
    reply = play({"a": [line]})
    assert reply.blocks == (
        {"type": "thinking", "thinking": "Hm.", "signature": "scripted"},
        {"type": "text", "text": "Reading."},
        {
            "type": "tool_use",
            "id": "toolu_0123abcd_0_0",
            "name": "Read",
            "input": {"file_path": "a"},
        },
        {"type": "tool_use", "id": "toolu_0123abcd_0_1", "name": "Glob", "input": {}},
    )
    assert reply.stop_reason == "tool_use"


def test_reply_follows_from_the_request_alone():
    model = ScriptedModel({"*": [{"text": "one"}, {"text": "two"}]})
    second = make_request(reply_number=1)
    replies = [model.complete(second, Interrupt(), ignore) for _ in range(2)]
    assert [reply.blocks for reply in replies] == [({"type": "text", "text": "two"},)] * 2
    assert replies[0].usage == replies[1].usage


def test_item_without_replies_of_its_own_gets_those_for_any_item():
    script = {"a": [{"text": "for a"}], "*": [{"text": "for any"}]}
    assert play(script, item_key="a").blocks[0]["text"] == "for a"
    assert play(script, item_key="b").blocks[0]["text"] == "for any"


def test_after_the_last_reply_the_model_ends_its_turn():
    reply = play({"*": [{"text": "x"}]}, reply_number=1)
    assert reply.stop_reason == "end_turn"
    assert reply.blocks[0]["type"] == "text"


def test_stop_reason_and_usage_can_be_given():
    script = {"*": [{"stop_reason": "max_tokens", "usage": {"output_tokens": 3}}]}
    reply = play(script)
    assert (reply.stop_reason, reply.usage.output_tokens, reply.blocks) == ("max_tokens", 3, ())
    assert reply.usage.cache_creation_tokens > 0


def test_prompt_tokens_grow_with_the_conversation():
    script = {"*": [{"text": "x"}, {"text": "x"}]}
    first = play(script)
    messages = (user("Hello"), Message("assistant", first.blocks), user("y" * 400))
    request = make_request(*messages, reply_number=1)
    second = ScriptedModel(script).complete(request, Interrupt(), ignore)
    assert second.usage.prompt_tokens >= first.usage.prompt_tokens + 100
    assert second.usage.cache_read_tokens > 0


def test_error_of_the_script_is_raised_as_the_api_would():
    error = {"kind": "overloaded_error", "status": 529, "message": "Busy", "retry_after": 2}
    with pytest.raises(ModelCallError) as caught:
        play({"*": [{"error": error}]})
    assert (caught.value.kind, caught.value.status) == ("overloaded_error", 529)
    assert (caught.value.retry_after, caught.value.billed) == (2, False)


def test_text_is_heard():
    heard: list[str] = []
    ScriptedModel({"*": [{"text": "Hi"}]}).complete(make_request(), Interrupt(), heard.append)
    assert heard == ["Hi"]


def test_delay_ends_when_the_call_is_interrupted():
    interrupt = Interrupt()
    outcomes: list[BaseException] = []

    def call() -> None:
        try:
            model = ScriptedModel({"*": [{"text": "x", "delay": 600}]})
            model.complete(make_request(), interrupt, ignore)
        except Interrupted as error:
            outcomes.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    interrupt.set("shutdown")
    thread.join()
    assert [str(error) for error in outcomes] == ["interrupted (shutdown)"]


def test_summary_is_the_one_of_the_script_and_no_line_of_the_conversation():
    script = {"summary": "What was done.", "*": [{"text": "one"}]}
    for given, words in ((script, "What was done."), ({"*": [{"text": "one"}]}, "script")):
        said = play(given, purpose="summary").blocks[0]["text"]
        assert words in said
    assert play(script, item_key="summary").blocks[0]["text"] == "one"


def test_item_may_be_called_summary():
    assert play({"summary": [{"text": "one"}]}, item_key="summary").blocks[0]["text"] == "one"


def test_script_counts_nothing_and_has_no_window():
    model = ScriptedModel({})
    assert model.count(make_request(), Interrupt()) is None
    assert model.window("claude-opus-5") is None


def test_sub_agent_has_its_own_replies_or_those_of_its_type_and_never_those_of_an_item():
    script = {
        "a": [{"text": "for a"}],
        "a+1": [{"text": "for the first of a"}],
        "@reviewer": [{"text": "for a reviewer"}],
        "*": [{"text": "for any item"}],
    }

    def said(item_key: str, agent_type: str) -> str:
        return play(script, item_key=item_key, agent_type=agent_type).blocks[0]["text"]

    assert said("a", "") == "for a"
    assert said("a+1", "reviewer") == "for the first of a"
    assert said("a+2", "reviewer") == "for a reviewer"
    assert said("b+1+2", "reviewer") == "for a reviewer"
    assert said("a+2", "tester") == "That was the last line of my script."


def test_calls_of_a_sub_agent_have_ids_that_the_api_takes():
    script = {"@reviewer": [{"tools": [{"name": "Glob"}]}]}
    reply = play(script, run_id="run_01abc.3.1", item_key="a+3+1", agent_type="reviewer")
    assert reply.blocks[0]["id"] == "toolu_01abc-3-1_0_0"
