"""Calls on Bedrock and Vertex AI, over HTTP: the SDK's own clients against stand-ins of the platforms."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from anthropic.lib.aws._auth import _get_session

from runner.core.conversation import Message
from runner.core.prices import Rates, Terms
from runner.errors import HostLacks, Interrupted, ModelCallError
from runner.llm.anthropic import AnthropicModel
from runner.llm.platforms import PlatformClients, lacks
from runner.llm.prices import load_prices
from runner.ports import Interrupt
from tests.llm.conftest import Talk, make_request, user
from tests.messages_api import Break, MessagesServer, Reply, text, tool_use
from tests.messages_api.dialects import Bedrock, Vertex

MODELS = {
    "bedrock": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
    "vertex": "claude-haiku-4-5@20251001",
}
PLATFORMS = tuple(MODELS)
SAID = [text("some words of the model"), tool_use("toolu_1", "Read", {"file_path": "a.py"})]


def dialect_of(platform: str) -> Bedrock | Vertex:
    kind = Bedrock if platform == "bedrock" else Vertex
    return kind({MODELS[platform]: "claude-haiku-4-5"})


@pytest.fixture
def on(tmp_path, monkeypatch) -> Iterator[Callable[..., Talk]]:
    """Start the stand-in of a platform that plays a reply, and a model that calls it."""
    open_talks: list[Talk] = []
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def start(platform: str, plan: Reply, **server) -> Talk:
        _get_session.cache_clear()  # it remembers the credentials of a process
        dialect = dialect_of(platform)
        serving = MessagesServer(lambda request: plan, dialect=dialect, **server).start()
        place = {"provider": platform, "region": dialect.region, "base_url": serving.url}
        if isinstance(dialect, Bedrock):
            for name, value in dialect.environment.items():
                monkeypatch.setenv(name, value)
        else:
            (tmp_path / "account.json").write_text(dialect.credentials(serving.url))
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
            place |= {"project": dialect.project, "base_url": f"{serving.url}/v1"}
        talk = Talk(serving, AnthropicModel(clients=PlatformClients(**place)))
        open_talks.append(talk)
        return talk

    yield start
    for talk in open_talks:
        talk.model.close()
        talk.server.stop()


def ask(platform: str, *messages: Message, **changes):
    return make_request(*messages, model=MODELS[platform], **changes)


def failed(here: Talk, platform: str) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        here.complete(ask(platform))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_reply_is_streamed_whole_with_its_usage(on, platform):
    here, heard = on(platform, Reply(SAID, chunk=4)), []
    reply = here.complete(ask(platform, user("Größe \ud800?")), heard.append)
    assert [block["type"] for block in reply.blocks] == ["text", "tool_use"]
    assert "".join(heard) == "some words of the model"
    assert reply.usage.input_tokens + reply.usage.cache_creation_tokens > 0
    assert here.server.refusals == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_last_block_has_the_cache_breakpoint_that_no_platform_sets_by_itself(on, platform):
    here = on(platform, Reply(SAID))
    talk = [user("a" * 50_000), Message("assistant", ({"type": "text", "text": "b"},)), user("c")]
    here.complete(ask(platform, *talk))
    body = here.server.requests[0].body
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    again = here.complete(ask(platform, *talk))
    assert again.usage.cache_read_tokens > 0


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_refusals_have_the_same_kinds_as_those_of_the_api(on, platform, status, kind):
    here = on(platform, Reply(broken=Break("status", status=status, message="In its words.")))
    error = failed(here, platform)
    assert (error.kind, error.status, error.billed) == (kind, status, False)
    assert error.message == "In its words."
    assert error.request_id == "req_000000000001" or platform == "vertex"


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (503, "ServiceUnavailableException", "overloaded_error"),
        (408, "ModelTimeoutException", "timeout_error"),
        (424, "ModelErrorException", "api_error"),
        (403, "ExpiredTokenException", "authentication_error"),
        (403, "AccessDeniedException", "permission_error"),
    ],
)
def test_an_error_name_of_aws_decides_the_kind_before_the_status(on, status, name, kind):
    broken = Break("status", status=status, error_type=name, message="In its words.")
    error = failed(on("bedrock", Reply(broken=broken)), "bedrock")
    assert (error.kind, error.status, error.billed) == (kind, status, False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("throttlingException", "rate_limit_error"),
        ("modelStreamErrorException", "api_error"),
        ("modelTimeoutException", "timeout_error"),
    ],
)
def test_an_exception_in_a_bedrock_stream_is_billed_for_the_part_before_it(on, name, kind):
    here = on("bedrock", Reply(SAID, broken=Break("error_event", after=3, error_type=name)))
    error = failed(here, "bedrock")
    assert (error.kind, error.status, error.billed) == (kind, None, True)
    assert sum(error.counted.values()) > 0
    assert error.most_output > 0


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("reset", "stream_cut"),
        ("close", "stream_cut"),
        ("cut", "stream_cut"),
        ("malformed", "stream_broken"),
    ],
)
def test_broken_streams_are_told_apart_and_billed(on, platform, how, kind):
    error = failed(on(platform, Reply(SAID, broken=Break(how, after=3))), platform)
    assert (error.kind, error.billed) == (kind, True)
    assert sum(error.counted.values()) > 0


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_prompt_longer_than_the_window_has_an_error_kind_of_its_own(on, platform):
    error = failed(on(platform, Reply(SAID), window=5), platform)
    assert (error.kind, error.status, error.billed) == ("prompt_too_long", 400, False)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_invalid_credentials_are_refused_as_a_wrong_key_is(on, platform, monkeypatch):
    here = on(platform, Reply(SAID))
    if platform == "bedrock":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    else:
        here.server._dialect.answer = lambda path, raw: (
            {"access_token": "another", "expires_in": 3600} if path == "/token" else None
        )
    error = failed(here, platform)
    assert (error.kind, error.billed) == ("authentication_error", False)
    assert "another" not in str(error)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_credentials_that_were_renewed_are_read_again(on, platform, tmp_path, monkeypatch):
    here, dialect = on(platform, Reply(SAID)), dialect_of(platform)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(secret: str) -> None:
        if platform == "bedrock":
            lines = f"aws_access_key_id = {dialect.key}\naws_secret_access_key = {secret}\n"
            file.write_text(f"[default]\n{lines}")
        else:
            account = json.loads(dialect.credentials(here.server.url))
            account["token_uri"] = f"{here.server.url}/{secret}"
            old = {"access_token": "another", "expires_in": 3600}
            known = here.server._dialect.answer
            here.server._dialect.answer = lambda path, raw: (
                old if path == "/an-old-one" else known(path, raw)
            )
            (tmp_path / "account.json").write_text(json.dumps(account))

    if platform == "bedrock":
        for name in dialect.environment:
            monkeypatch.delenv(name)
    write("an-old-one")
    assert failed(here, platform).kind == "authentication_error"
    write(dialect.secret if platform == "bedrock" else "token")
    assert here.complete(ask(platform)).blocks
    assert here.complete(ask(platform)).blocks
    counted = here.server.count
    assert here.complete(ask(platform)).blocks
    assert here.server.count == counted + 1, "credentials that hold are not read again"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_missing_credentials_end_the_call_before_it_is_made(on, platform, monkeypatch):
    here = on(platform, Reply(SAID))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    error = failed(here, platform)
    assert (error.kind, error.status, error.billed) == ("authentication_error", 401, False)
    assert here.server.requests == []
    wanted = {"bedrock": "AWS_ACCESS_KEY_ID", "vertex": "GOOGLE_APPLICATION_CREDENTIALS"}
    assert wanted[platform] in (lacks(platform) or "")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_nothing_is_lacking_if_credentials_are_found(on, platform):
    on(platform, Reply(SAID))
    assert lacks(platform) is None


def test_a_token_source_that_does_not_answer_is_tried_again(on, tmp_path, monkeypatch):
    here = on("vertex", Reply(SAID))
    (tmp_path / "account.json").write_text(
        dialect_of("vertex").credentials("http://127.0.0.1:9")  # nobody listens there
    )
    error = failed(here, "vertex")
    assert (error.kind, error.billed) == ("connection", False)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A source of credentials that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


@pytest.mark.parametrize("ended_by", ["cancel", "deadline"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_call_does_not_wait_for_credentials_past_a_cancel_or_its_deadline(
    on, silent, tmp_path, monkeypatch, platform, ended_by
):
    here, url = on(platform, Reply(SAID)), f"http://127.0.0.1:{silent.getsockname()[1]}"
    if platform == "bedrock":
        for name in dialect_of(platform).environment:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    else:
        (tmp_path / "account.json").write_text(dialect_of(platform).credentials(url))
    interrupt, asked = Interrupt(), []

    def cancel() -> None:
        asked.append(silent.accept()[0])
        if ended_by == "cancel":
            interrupt.set("dropped")

    if ended_by == "deadline":
        here.model.total_timeout = 4.0
    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises((Interrupted, ModelCallError)) as caught:
        here.model.complete(ask(platform), interrupt, lambda text: None)
    thread.join()
    asked[0].close()
    if ended_by == "deadline":
        assert (caught.value.kind, caught.value.billed) == ("call_deadline", False)
    else:
        assert caught.type is Interrupted
    assert here.server.requests == []


def test_only_vertex_counts_tokens_and_neither_lists_models(on):
    request = {"tokens": lambda here, on: here.model.count(ask(on), Interrupt())}
    assert request["tokens"](on("vertex", Reply(SAID)), "vertex") > 0
    here = on("bedrock", Reply(SAID))
    assert request["tokens"](here, "bedrock") is None
    assert here.model.window(MODELS["bedrock"]) is None
    assert here.server.count == 0


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        ("anthropic.claude-haiku-4-5-20251001-v1:0", "1.1"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "1.1"),
        ("global.anthropic.claude-haiku-4-5-20251001-v1:0", "1"),
        ("arn:aws:bedrock:eu-central-1:1:inference-profile/global.anthropic.claude-haiku-4-5", "1"),
        ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-haiku-4-5-v1", "1.1"),
        ("europe-west1/claude-haiku-4-5@20251001", "1.1"),
        ("global/claude-haiku-4-5@default", "1"),
        ("claude-haiku-4-5@20251001", "1"),
    ],
)
def test_names_of_platforms_have_the_price_and_window_of_the_model(model, factor):
    prices = load_prices()
    plain = prices.rates("claude-haiku-4-5", Terms(), 0)
    assert prices.rates(model, Terms(), 0) == plain.times(type(plain.input)(factor))
    assert prices.window(model) == prices.window("claude-haiku-4-5")


def test_models_before_claude_4_5_cost_the_same_in_a_region():
    prices = load_prices()
    old = prices.rates("eu.anthropic.claude-sonnet-4-20250514-v1:0", Terms(), 0)
    assert isinstance(old, Rates)
    assert old == prices.rates("claude-sonnet-4", Terms(), 0)


@pytest.mark.parametrize(
    "model",
    [
        "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc",
        "eu.anthropic.claude-haiku-9-v1:0",
        "meta.llama4-v1:0",
    ],
)
def test_a_name_that_says_no_known_model_has_no_price(model):
    assert load_prices().price(model) is None


def test_an_own_price_of_a_whole_name_comes_first(tmp_path):
    own = tmp_path / "prices.toml"
    own.write_text(
        '[models."eu.anthropic.claude-haiku-4-5-v1"]\n'
        "input = 7\ncache_write_5m = 1\ncache_write_1h = 2\ncache_read = 0.1\noutput = 5\n"
    )
    rates = load_prices(own).rates("eu.anthropic.claude-haiku-4-5-v1", Terms(), 0)
    assert rates.input == 7


def test_libraries_of_platforms_are_imported_only_when_one_is_called():
    code = "import sys, runner.llm.platforms; print({'boto3', 'google.auth'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_host_without_the_extra_leaves_the_job_to_others_and_says_what_to_install(
    platform, monkeypatch
):
    for name in ("boto3", "google.auth.transport.requests"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert f"pip install '.[{platform}]'" in (lacks(platform) or "")
    with pytest.raises(HostLacks, match=f"the extra {platform} is not installed here"):
        PlatformClients(provider=platform, region="r")
