"""A call is cut at once, whatever it is doing."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.core.conversation import ModelReply, Usage
from runner.errors import Interrupted, ModelCallError
from runner.llm.anthropic import AnthropicModel
from runner.ports import Interrupt
from tests.llm.conftest import ignore, make_request
from tests.messages_api import API_KEY, Break, MessagesServer, Reply, text

PATIENCE = 60.0  # shorter than any call here lasts that is not cut
CERTIFICATE = Path(__file__).parent / "localhost.pem"  # self-signed, for localhost, with its key


class Calling:
    """A call in a thread of its own."""

    def __init__(self, model: AnthropicModel, on_text: Callable[[str], None] = ignore) -> None:
        self.interrupt = Interrupt()
        self.outcome: ModelReply | Exception | None = None
        self._model = model
        self._on_text = on_text
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self) -> None:
        try:
            self.outcome = self._model.complete(make_request(), self.interrupt, self._on_text)
        except Exception as error:
            self.outcome = error

    def cut(self, reason: str = "dropped") -> ModelReply | Exception | None:
        """Interrupt the call; gives what became of it, None when it goes on."""
        self.interrupt.set(reason)
        self._thread.join(PATIENCE)
        return self.outcome

    def end(self) -> ModelReply | Exception | None:
        self._thread.join()
        return self.outcome


def test_call_is_cut_while_it_waits_for_headers(talk):
    here = talk(Reply(broken=Break("stall_before_headers")))
    calling = Calling(here.model)
    here.server.wait_for(lambda server: server.in_flight == 1)
    outcome = calling.cut()
    assert isinstance(outcome, Interrupted)
    assert outcome.reason == "dropped"
    here.server.wait_for(lambda server: server.dropped == 1)


def test_call_is_cut_in_the_middle_of_its_stream(talk):
    heard = threading.Event()
    here = talk(Reply([text("x" * 60_000)], chunk=1, pause=0.01))
    calling = Calling(here.model, lambda text: heard.set())
    assert heard.wait(PATIENCE)
    outcome = calling.cut()
    assert isinstance(outcome, Interrupted)
    assert outcome.reason == "dropped"


@pytest.mark.slow
def test_call_that_a_shutdown_cuts_says_what_it_can_have_used(talk):
    heard = threading.Event()
    usage = {"input_tokens": 70, "cache_read_input_tokens": 5}
    here = talk(Reply([text("x" * 60_000)], chunk=1, pause=0.01, usage=usage))
    calling = Calling(here.model, lambda text: heard.set())
    assert heard.wait(PATIENCE)
    outcome = calling.cut("shutdown")
    assert isinstance(outcome, ModelCallError)
    assert (outcome.kind, outcome.billed) == ("shutdown", True)
    assert outcome.counted == Usage(70, 5).by_kind()
    assert 0 < outcome.most_output < 60_000


@pytest.mark.parametrize("pings", [False, True])
def test_call_is_cut_while_its_stream_stalls(talk, pings):
    heard = threading.Event()
    here = talk(Reply([text("abcdef")], broken=Break("stall", after=4, pings=pings)))
    calling = Calling(here.model, lambda text: heard.set())
    assert heard.wait(PATIENCE)
    assert isinstance(calling.cut(), Interrupted)


def test_call_is_cut_on_a_connection_that_served_another_call_before(talk):
    plan = iter([Reply([text("x")]), Reply(broken=Break("stall_before_headers"))])
    here = talk(lambda request: next(plan))
    here.complete()
    calling = Calling(here.model)
    here.server.wait_for(lambda server: server.in_flight == 1 and server.count == 2)
    assert here.server.connections == 1
    assert isinstance(calling.cut(), Interrupted)


@pytest.mark.slow
def test_cut_of_one_call_leaves_the_others_alone(talk):
    go_on = threading.Event()
    here = talk(Reply([text("x")], held_until=go_on))
    cut, kept = Calling(here.model), Calling(here.model)
    here.server.wait_for(lambda server: server.in_flight == 2)
    assert isinstance(cut.cut(), Interrupted)
    go_on.set()
    assert isinstance(kept.end(), ModelReply)


class RecordingInterrupt(Interrupt):
    """Keeps how its effect is cut for longer than the effect lasts."""

    def cut_by(self, cut):
        self.recorded = cut
        return super().cut_by(cut)


@pytest.mark.slow
def test_late_cut_does_not_touch_a_connection_that_serves_the_next_call(talk):
    go_on = threading.Event()
    plan = iter([Reply([text("x")]), Reply([text("x")], held_until=go_on)])
    here = talk(lambda request: next(plan))
    interrupt = RecordingInterrupt()
    here.model.complete(make_request(), interrupt, ignore)
    calling = Calling(here.model)
    here.server.wait_for(lambda server: server.in_flight == 1 and server.count == 2)
    interrupt.recorded()
    go_on.set()
    assert isinstance(calling.end(), ModelReply)
    assert here.server.connections == 1


def test_interrupted_before_it_began_sends_nothing(talk):
    here = talk(Reply([text("x")]))
    interrupt = Interrupt()
    interrupt.set("shutdown")
    with pytest.raises(Interrupted):
        here.model.complete(make_request(), interrupt, ignore)
    assert here.server.count == 0


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port whose queue of connections is full: another connection hangs in connecting."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(8):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            waiting.append(client)
        yield listener.getsockname()[1]
        for client in waiting:
            client.close()


def test_call_is_cut_while_it_connects(full_port):
    model = AnthropicModel(base_url=f"http://127.0.0.1:{full_port}", api_key=API_KEY)
    calling = Calling(model)
    while not any(thread.name == "apart" for thread in threading.enumerate()):
        assert calling.outcome is None
    assert isinstance(calling.cut(), Interrupted)
    model.close()


@pytest.mark.slow
def test_watchdog_cuts_a_call_that_hangs_in_connecting_and_it_was_not_billed(full_port):
    url = f"http://127.0.0.1:{full_port}"
    model = AnthropicModel(base_url=url, api_key=API_KEY, stall_timeout=0.2)
    with pytest.raises(ModelCallError) as caught:
        model.complete(make_request(), Interrupt(), ignore)
    assert (caught.value.kind, caught.value.billed) == ("stream_stalled", False)
    model.close()


def test_call_is_cut_in_the_tls_handshake():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        model = AnthropicModel(base_url=url, api_key=API_KEY)
        calling = Calling(model)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b"\x16"  # the handshake's first byte; never answered
            assert isinstance(calling.cut(), Interrupted)
        model.close()


@pytest.fixture
def encrypted_url() -> Iterator[str]:
    """A server whose replies take long, behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    reply = Reply([text("x" * 60_000)], chunk=1, pause=0.01)
    with MessagesServer(lambda request: reply, tls=context) as server:
        yield server.url.replace("127.0.0.1", "localhost")


def test_unknown_certificate_fails_the_call_before_anything_is_sent(encrypted_url):
    model = AnthropicModel(base_url=encrypted_url, api_key=API_KEY)
    with pytest.raises(ModelCallError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        model.complete(make_request(), Interrupt(), ignore)
    assert (caught.value.kind, caught.value.billed) == ("connection", False)
    model.close()


@pytest.mark.slow
def test_call_is_cut_inside_an_encrypted_stream(encrypted_url, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    model = AnthropicModel(base_url=encrypted_url, api_key=API_KEY)
    heard = threading.Event()
    calling = Calling(model, lambda text: heard.set())
    assert heard.wait(PATIENCE)
    assert isinstance(calling.cut(), Interrupted)
    model.close()
