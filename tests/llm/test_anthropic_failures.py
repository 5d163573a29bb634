"""Every way that a call can break, over HTTP."""

from __future__ import annotations

import email.utils
import os
import re
import resource
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from runner.core.budget import written_in
from runner.core.conversation import UNREADABLE_INPUT, Message, Usage
from runner.errors import ModelCallError, host_fault
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt
from tests.llm.conftest import ignore, make_request, user
from tests.messages_api import API_KEY, Break, Reply, text, thinking, tool_use

SAID = [text("some words of the model"), tool_use("toolu_1", "Read", {"file_path": "a.py"})]


def failed(here) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        here.complete()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (409, "conflict_error"),
        (413, "prompt_too_long"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_error_status_keeps_type_words_and_request_id(talk, status, kind):
    here = talk(Reply(broken=Break("status", status=status, message="In the API's words.")))
    error = failed(here)
    assert (error.kind, error.status, error.billed) == (kind, status, False)
    assert error.message == "In the API's words."
    assert error.request_id == "req_000000000001"
    assert error.retry_after is None
    assert here.server.count == 1


@pytest.mark.parametrize(
    ("status", "kind"), [(502, "api_error"), (504, "timeout_error"), (413, "prompt_too_long")]
)
def test_page_of_a_proxy_is_not_quoted(talk, status, kind):
    page = Break("status", status=status, html=True, message="<script>alert(1)</script>")
    error = failed(talk(Reply(broken=page)))
    assert (error.kind, error.status, error.billed) == (kind, status, False)
    assert error.message == f"HTTP {status}, with a body that is not the API's"


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 407, 511])
def test_page_in_place_of_an_answer_means_that_the_api_was_not_reached(talk, status):
    page = Break("status", status=status, html=True, message="Log in to the network.")
    here = talk(Reply(broken=page), server={"broken": {"/v1/models": page}})
    error = failed(here)
    assert (error.kind, error.status, error.billed) == ("connection", None, False)
    assert "that is not the API's" in error.message or "a page came instead" in error.message
    assert error.is_unreached
    assert here.model.refuses_host()


def test_key_does_not_follow_a_redirect(talk):
    elsewhere = talk(Reply(SAID))
    moved = {"location": f"{elsewhere.server.url}/v1/messages"}
    here = talk(Reply(broken=Break("status", status=307, html=True, headers=moved)))
    assert failed(here).is_unreached
    assert elsewhere.server.count == 0


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Who are you?\r\ncontent-length: 0\r\n\r\n", b""])
def test_what_a_proxy_refuses_was_not_billed(monkeypatch, answer):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        model = AnthropicModel(base_url="https://api.example.org", api_key=API_KEY)
        with pytest.raises(ModelCallError) as caught:
            model.complete(make_request(), Interrupt(), ignore)
        refusing.join()
    assert caught.value.is_unreached
    model.close()


def test_host_without_certificates_does_not_reach_the_api(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    model = AnthropicModel(base_url="https://api.example.org", api_key=API_KEY)
    with pytest.raises(ModelCallError, match="look at SSL_CERT_FILE") as caught:
        model.complete(make_request(), Interrupt(), ignore)
    assert caught.value.is_unreached
    assert model.refuses_host()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7200"}, 7200.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9.0),
        ({"retry-after": "Fri, 31 Dec 99999999999 23:59:59 GMT"}, None),
        ({"retry-after": email.utils.formatdate(0, usegmt=True)}, 0.0),
    ],
)
def test_retry_after_is_in_seconds(talk, headers, seconds):
    error = failed(talk(Reply(broken=Break("status", status=429, headers=headers))))
    assert error.retry_after == seconds


def test_retry_after_may_be_a_date(talk):
    at = email.utils.formatdate(time.time() + 600, usegmt=True)
    broken = Break("status", status=529, headers={"retry-after": at})
    wait = failed(talk(Reply(broken=broken))).retry_after
    assert wait == pytest.approx(600, abs=30)


TOO_LONG = (
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input "
    "length or `max_tokens` and try again",
)


def test_prompt_that_the_window_does_not_hold_is_told_apart(talk):
    here = talk(Reply(SAID), server={"window": 10})
    error = failed(here)
    assert (error.kind, error.status, error.billed) == ("prompt_too_long", 400, False)
    assert error.message == here.server.refusals[0].message
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 10 maximum", error.message)


@pytest.mark.parametrize("words", TOO_LONG)
@pytest.mark.parametrize(
    ("how", "status", "billed"),
    [
        (Break("status", status=400), 400, False),
        (Break("error_event", after=0, error_type="invalid_request_error"), None, False),
        (Break("error_event", after=2, error_type="invalid_request_error"), None, True),
    ],
    ids=["status", "first event", "in the stream"],
)
def test_prompt_too_long_is_known_by_the_words_of_the_api(talk, words, how, status, billed):
    error = failed(talk(Reply(SAID, broken=replace(how, message=words))))
    assert (error.kind, error.status, error.billed) == ("prompt_too_long", status, billed)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("messages.2.content.0.image.source.base64.data: Could not process image", "media_refused"),
        ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum", "media_refused"),
        ("At least one of the image dimensions exceed max allowed size: 8000", "media_refused"),
        (
            "messages.4.content.0.pdf.source.base64.data: The PDF specified is password",
            "media_refused",
        ),
        ("messages.1.content: text content blocks must be non-empty", "invalid_request_error"),
        ("tools.0.name: 'image' is no name", "invalid_request_error"),
    ],
)
def test_refused_media_are_known_by_the_words_of_the_api(talk, words, kind):
    error = failed(talk(Reply(SAID, broken=Break("status", status=400, message=words))))
    assert (error.kind, error.status, error.billed) == (kind, 400, False)


def test_request_too_large_inside_a_stream_is_too_long_as_well(talk):
    broken = Break("error_event", after=0, error_type="request_too_large", message="Too large.")
    assert failed(talk(Reply(SAID, broken=broken))).kind == "prompt_too_long"


@pytest.mark.parametrize("kind", ["invalid_request_error", "payload_too_large"])
def test_413_is_too_long_whatever_a_gateway_calls_it(talk, kind):
    message = "Request size exceeds model context window"
    broken = Break("status", status=413, error_type=kind, message=message)
    error = failed(talk(Reply(SAID, broken=broken)))
    assert (error.kind, error.status, error.billed) == ("prompt_too_long", 413, False)


@pytest.mark.parametrize("kind", ["overloaded_error", "permission_error"])
def test_words_alone_do_not_make_a_prompt_too_long(talk, kind):
    broken = Break("status", status=400, error_type=kind, message=TOO_LONG[0])
    assert failed(talk(Reply(SAID, broken=broken))).kind == kind


TIER = (
    429,
    "You have reached your API usage limits.",
    {"error_code": "enforced_spend_limit_reached"},
)
OF_PEOPLE = (
    400,
    "You have reached your specified API usage limits. You will regain access on …",
    {},
)
OF_WORKSPACE = (400, "You have reached your specified workspace API usage limits. …", {})


@pytest.mark.parametrize(("status", "message", "details"), [TIER, OF_PEOPLE, OF_WORKSPACE])
def test_a_spend_limit_is_told_from_a_rate_limit(talk, status, message, details):
    broken = Break("status", status=status, message=message, details=details)
    here = talk(Reply(SAID, broken=broken))
    error = failed(here)
    assert (error.kind, error.status, error.billed) == ("spend_limit", status, False)
    assert (error.message, error.retry_after, here.server.count) == (message, None, 1)


@pytest.mark.parametrize("details", [{"error_code": "other"}, {}])
def test_another_429_is_a_rate_limit(talk, details):
    broken = Break("status", status=429, message="Slow down.", details=details)
    assert failed(talk(Reply(SAID, broken=broken))).kind == "rate_limit_error"


def test_refused_connection_was_not_billed():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    model = AnthropicModel(base_url=url, api_key=API_KEY)
    with pytest.raises(ModelCallError) as caught:
        model.complete(make_request(), Interrupt(), ignore)
    assert (caught.value.kind, caught.value.status) == ("connection", None)
    assert caught.value.billed is False
    model.close()


def test_unknown_host_was_not_billed():
    model = AnthropicModel(base_url="http://nowhere.invalid", api_key=API_KEY)
    with pytest.raises(ModelCallError) as caught:
        model.complete(make_request(), Interrupt(), ignore)
    assert (caught.value.kind, caught.value.billed) == ("connection", False)
    model.close()


@pytest.mark.parametrize("kind", ["reset_before_headers", "reset_in_headers"])
def test_reset_before_the_stream_may_have_been_billed(talk, kind):
    error = failed(talk(Reply(SAID, broken=Break(kind))))
    assert (error.kind, error.status, error.billed) == ("connection", None, True)


def test_reset_before_the_first_event_is_a_connection_error(talk):
    error = failed(talk(Reply(SAID, broken=Break("reset", after=0))))
    assert (error.kind, error.billed) == ("connection", True)
    assert error.request_id == "req_000000000001"


@pytest.mark.parametrize("kind", ["reset", "close", "cut"])
@pytest.mark.parametrize("after", [1, 3, 4, 6, 8, 9])
def test_stream_that_ends_early_is_cut_wherever_it_ends(talk, kind, after):
    error = failed(talk(Reply(SAID, pause=0.001, broken=Break(kind, after=after))))
    assert (error.kind, error.status, error.billed) == ("stream_cut", None, True)
    assert error.request_id == "req_000000000001"


COUNTED = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reset", "error_event", "malformed"])
@pytest.mark.parametrize("after", [1, 4, 8])
def test_a_cut_stream_says_what_was_counted_and_bounds_the_rest(talk, kind, after):
    began = time.monotonic()
    error = failed(talk(Reply(SAID, usage=COUNTED, broken=Break(kind, after=after))))
    seconds = time.monotonic() - began
    assert error.counted == Usage(7, 90, 5).by_kind()
    assert 0 < error.most_output <= written_in(seconds + 0.5)


@pytest.mark.slow
def test_a_fast_stream_is_bounded_by_its_bytes_and_slow_thinking_by_its_time(talk):
    slow = {"pause": 0.3, "usage": COUNTED, "broken": Break("cut", after=6)}
    shown = failed(talk(Reply([text("abc"), text("def")], **slow)))
    hidden = failed(talk(Reply([thinking("abc"), text("def")], **slow)))
    assert written_in(1.0) < hidden.most_output
    assert len("abc") <= shown.most_output < hidden.most_output


LONG = {"pause": 0.1, "usage": COUNTED, "broken": Break("cut", after=33)}  # 30 parts of 64


@pytest.mark.slow
def test_the_text_of_a_cut_stream_is_counted_by_the_api(talk):
    here = talk(Reply([text("x" * 8_000)], **LONG))
    shown = failed(here).most_output
    (asked,) = here.server.others
    assert "x" * 64 * 30 in asked.body["messages"][0]["content"]
    assert "x" * 64 * 31 not in asked.body["messages"][0]["content"]
    assert 64 * 30 / 4 <= shown < 64 * 30
    assert here.server.refusals == []


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Break("status", status=529), Break("reset_before_headers")])
def test_text_that_the_api_does_not_count_has_a_token_a_byte(talk, broken):
    server = {"broken": {"/v1/messages/count_tokens": broken}}
    assert failed(talk(Reply([text("x" * 8_000)], **LONG), server=server)).most_output >= 64 * 30


def test_thinking_is_not_counted_because_it_may_be_a_summary(talk):
    broken = Break("cut", after=9)
    here = talk(Reply([thinking("x" * 8_000)], usage=COUNTED, broken=broken))
    failed(here)
    assert here.server.others == []


@pytest.mark.slow
def test_a_stream_cut_behind_its_usage_is_counted_whole(talk):
    usage = {**COUNTED, "output_tokens": 11}
    error = failed(talk(Reply([text("hi")], usage=usage, broken=Break("cut", after=6))))
    assert (error.counted, error.most_output) == (Usage(7, 90, 5, 11).by_kind(), 11)


def test_nothing_is_counted_before_the_stream_begins(talk):
    error = failed(talk(Reply(SAID, broken=Break("reset_before_headers"))))
    assert error.counted is None
    assert error.most_output >= written_in(0.5)


def test_stream_without_any_event_is_cut(talk):
    assert failed(talk(Reply(SAID, broken=Break("cut", after=0)))).kind == "stream_cut"


def test_error_event_before_message_start_was_not_billed(talk):
    error = failed(talk(Reply(SAID, broken=Break("error_event", after=0))))
    assert (error.kind, error.status, error.billed) == ("overloaded_error", None, False)
    assert error.message == "Overloaded"
    assert error.request_id == "req_000000000001"


def test_error_event_in_a_reply_may_have_been_billed(talk):
    broken = Break("error_event", after=5, error_type="api_error", message="Internal")
    error = failed(talk(Reply(SAID, broken=broken)))
    assert (error.kind, error.status, error.billed) == ("api_error", None, True)


def test_malformed_event_breaks_the_stream(talk):
    error = failed(talk(Reply(SAID, broken=Break("malformed", after=4))))
    assert (error.kind, error.billed) == ("stream_broken", True)


@pytest.mark.parametrize("source", ['{"file_path": ', "[1]", '"text"', '{"n": NaN}', "{} {}"])
def test_tool_input_that_is_no_object_is_a_reply_with_its_usage(talk, source):
    usage = {"input_tokens": 7, "output_tokens": 11}
    reply = talk(Reply(SAID, partial_json={1: source}, usage=usage)).complete()
    assert reply.blocks[1]["input"] == {UNREADABLE_INPUT: source}
    assert (reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens) == (
        "tool_use",
        7,
        11,
    )


def test_unreadable_input_is_accepted_when_it_is_sent_back(talk):
    here = talk(Reply(SAID, partial_json={1: "[1]"}))
    reply = here.complete()
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no", "is_error": True}
    sent = make_request(
        user("Hello"), Message("assistant", reply.blocks), Message("user", (result,))
    )
    with pytest.raises(ModelCallError, match="used twice"):  # of the second reply, which was given
        here.complete(sent)
    assert here.server.refusals == []


def test_call_id_used_twice_breaks_the_stream(talk):
    call = tool_use("toolu_1", "Read", {})
    assert failed(talk(Reply([call, call]))).kind == "stream_broken"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stall", "stall_before_headers"])
@pytest.mark.parametrize("pings", [False, True])
def test_stall_is_cut_whether_or_not_it_pings(talk, kind, pings):
    here = talk(Reply(SAID, broken=Break(kind, after=4, pings=pings)), stall_timeout=2.0)
    error = failed(here)
    assert (error.kind, error.status, error.billed) == ("stream_stalled", None, True)
    here.server.wait_for(lambda server: server.dropped == 1)


@pytest.mark.slow
def test_call_that_gets_on_for_too_long_meets_its_deadline(talk):
    here = talk(Reply([text("x" * 1000)], chunk=1, pause=0.01), total_timeout=2.0)
    error = failed(here)
    assert (error.kind, error.billed) == ("call_deadline", True)


@pytest.mark.slow
def test_slow_stream_is_no_stall(talk):
    here = talk(Reply([text("x" * 20)], chunk=1, pause=0.25), stall_timeout=4.0)
    assert here.complete().blocks == (text("x" * 20),)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stall", "reset", "close"])
def test_reply_is_whole_however_the_body_ends_after_message_stop(talk, kind):
    here = talk(Reply([text("x")], broken=Break(kind, after=99)))
    assert here.complete().blocks == (text("x"),)


@pytest.mark.slow
def test_call_after_a_broken_one_succeeds(talk):
    breaks = [Break("reset", after=3), Break("status"), Break("cut", after=5)]
    plan = iter([*(Reply(SAID, broken=broken) for broken in breaks), Reply([thinking("a"), *SAID])])
    here = talk(lambda request: next(plan))
    for _ in breaks:
        failed(here)
    assert len(here.complete().blocks) == 3


def test_request_that_is_too_large_is_refused(talk):
    error = failed(talk(Reply(SAID), server={"most_body_bytes": 10}))
    assert (error.kind, error.status, error.billed) == ("prompt_too_long", 413, False)


@pytest.mark.parametrize("blank", ["{}\n", " {}", "{}\u00e9", "{}\x1b"])
def test_key_that_is_no_key_fails_at_once_and_is_not_repeated(talk, blank):
    here = talk(Reply(SAID), key=blank.format(API_KEY))
    error = failed(here)
    assert (error.kind, error.status, error.billed) == ("authentication_error", 401, False)
    assert "ANTHROPIC_API_KEY" in error.message
    assert API_KEY not in str(error)
    assert here.server.count == 0


def test_header_that_cannot_be_sent_fails_at_once_and_is_not_repeated(talk):
    here = talk(Reply(SAID))
    with pytest.raises(ModelCallError) as caught:
        here.complete(make_request(options={"extra_headers": {"x-team": "hunter2\n"}}))
    error = caught.value
    assert (error.kind, error.status, error.billed) == ("invalid_request_error", 400, False)
    assert "hunter2" not in str(error)


def test_call_that_finds_no_descriptor_tells_that_it_is_the_host(talk):
    here = talk(Reply([text("hi")]))
    here.complete()
    here.model.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, limits[1]))
    try:
        with suppress(OSError):  # fills what is free below the limit
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        error = failed(here)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
    assert (error.kind, error.billed) == ("connection", False)
    assert "Too many open files" in (host_fault(error) or "")
