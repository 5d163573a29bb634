"""What is asked of the API beside model calls: how long a prompt is, and how large a window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner import wiring
from runner.core.spec import JobSpec
from runner.errors import Interrupted
from runner.llm import anthropic
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt
from tests.llm.conftest import Talk, make_request, user
from tests.messages_api import API_KEY, Break, Reply, text
from tests.messages_api.prompt_cache import Prompt

Start = Callable[..., Talk]

MODEL = "/v1/models/claude-sonnet-5"
COUNT = "/v1/messages/count_tokens"
DONE = Reply([text("x")])
STALLED = Break("stall_before_headers")


def test_count_is_that_of_the_prompt_that_the_call_sends(talk: Start) -> None:
    here = talk(DONE)
    options = {
        "thinking": {"type": "adaptive"},
        "effort": "low",
        "metadata": {"user_id": "u"},
        "betas": ["one-2026"],
        "extra_body": {"stop_sequences": ["END"]},
    }
    request = make_request(user("Hello " * 100), options=options)
    counted = here.model.count(request, Interrupt())
    here.complete(request)
    assert counted == Prompt.of(here.server.requests[0].body).tokens
    asked = here.server.others[0]
    assert (asked.method, asked.path) == ("POST", COUNT)
    assert asked.headers["anthropic-beta"] == "one-2026"
    assert here.server.refusals == []


def test_count_of_a_prompt_that_thinks_for_so_many_tokens_is_taken(talk: Start) -> None:
    here = talk(DONE)
    thinking = {"type": "enabled", "budget_tokens": 4_000}
    request = make_request(model="claude-sonnet-4-6", options={"thinking": thinking})
    assert here.model.count(request, Interrupt()) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        Break("status", status=500),
        Break("status", status=429, headers={"retry-after": "3600"}),
        Break("status", status=502, html=True),
        Break("reset_before_headers"),
        STALLED,
    ],
    ids=lambda broken: f"{broken.kind} {broken.status}",
)
def test_question_without_an_answer_is_not_an_error(talk: Start, broken: Break) -> None:
    here = talk(DONE, server={"broken": {COUNT: broken, MODEL: broken}}, ask_timeout=0.3)
    assert here.model.count(make_request(), Interrupt()) is None
    assert here.model.window("claude-sonnet-5") is None
    assert here.complete().blocks == (text("x"),)


@pytest.mark.slow
def test_question_without_a_key_or_a_server_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for key, url in (("", "http://127.0.0.1:9"), (API_KEY, "http://127.0.0.1:9")):
        model = AnthropicModel(base_url=url, api_key=key)
        assert model.window("claude-sonnet-5") is None
        assert model.count(make_request(), Interrupt()) is None
        model.close()


@pytest.mark.parametrize("reason", ["dropped", "shutdown"])
def test_count_is_cut_at_once(talk: Start, reason: str) -> None:
    here = talk(DONE, server={"broken": {COUNT: STALLED}}, ask_timeout=600)
    interrupt = Interrupt()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(here.model.count, make_request(), interrupt)
        here.server.wait_for(lambda server: server.in_flight == 1)
        interrupt.set(reason)  # type: ignore[arg-type]
        with pytest.raises(Interrupted) as caught:
            asking.result(60)
    assert caught.value.reason == reason


@pytest.mark.slow
def test_api_that_lets_questions_wait_is_left_alone_for_a_while(
    talk: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = talk(DONE, server={"broken": {COUNT: STALLED}}, ask_timeout=2.0)
    here.complete()  # a connection is open, so that the question is heard in time
    for _ in range(3):
        assert here.model.count(make_request(), Interrupt()) is None
    assert len(here.server.others) == 1
    ahead = anthropic.monotonic() + 301
    monkeypatch.setattr(anthropic, "monotonic", lambda: ahead)
    assert here.model.count(make_request(), Interrupt()) is None
    assert len(here.server.others) == 2


@pytest.mark.slow
def test_window_is_the_one_of_the_apis_list_and_asked_for_once(talk: Start) -> None:
    here = talk(DONE, server={"window": 123_456})
    assert [here.model.window("claude-sonnet-5") for _ in range(3)] == [123_456] * 3
    assert here.model.window("claude-opus-5") == 123_456
    assert [asked.path for asked in here.server.others] == [MODEL, "/v1/models/claude-opus-5"]


def test_runs_that_begin_together_ask_for_a_window_once(talk: Start) -> None:
    here = talk(DONE)
    together = threading.Barrier(8)

    def ask(_: int) -> int | None:
        together.wait()
        return here.model.window("claude-sonnet-5")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {1_000_000}
    assert len(here.server.others) == 1


def test_model_that_the_list_does_not_have_is_not_asked_for_again_soon(
    talk: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = talk(DONE)
    now = 1_000.0
    monkeypatch.setattr(anthropic, "monotonic", lambda: now)
    assert [here.model.window("my/model") for _ in range(2)] == [None, None]
    assert [asked.path for asked in here.server.others] == ["/v1/models/my%2Fmodel"]
    now += 301
    assert here.model.window("my/model") is None
    assert len(here.server.others) == 2


def test_window_that_is_known_stays_known(talk: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here = talk(DONE, server={"window": 123_456})
    now = 1_000.0
    monkeypatch.setattr(anthropic, "monotonic", lambda: now)
    for _ in range(2):
        assert here.model.window("claude-sonnet-5") == 123_456
        now += 100_000
    assert len(here.server.others) == 1


@pytest.mark.parametrize(
    "answer", [None, [], "x", {}, {"n": None}, {"n": 0}, {"n": True}, {"n": "9"}]
)
def test_answer_that_is_no_number_of_tokens_is_none(answer: object) -> None:
    assert anthropic._tokens("n", answer) is None


def test_all_runs_of_a_process_share_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowToMake(AnthropicModel):
        def __init__(self, **options: object) -> None:
            time.sleep(0.05)
            super().__init__(**options)  # type: ignore[arg-type]

    monkeypatch.setattr("runner.llm.anthropic.AnthropicModel", SlowToMake)
    model_of, spec = wiring.models(), JobSpec("model", "prompt")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: model_of(spec), range(4)))) == 1
