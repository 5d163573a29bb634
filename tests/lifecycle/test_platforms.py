"""Whole runs on Bedrock and Vertex AI: real workers against stand-ins of the platforms' HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.lifecycle.site import Site, wait_until
from tests.messages_api import Break, MessagesServer, Reply, Script, text, tool_use
from tests.messages_api.dialects import Bedrock, Vertex

MODELS = {
    "bedrock": "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
    "vertex": "claude-haiku-4-5@20251001",
}
FAILURES = {
    "bedrock": Break(
        "error_event", after=2, error_type="throttlingException", message="Slow down."
    ),
    "vertex": Break("error_event", after=2, error_type="overloaded_error"),
}
Play = Callable[..., tuple[Site, MessagesServer, dict[str, str]]]


def call(number: int, command: str) -> Reply:
    return Reply([text("On it."), tool_use(f"toolu_{number}", "Bash", {"command": command})])


@pytest.fixture
def play(site: Site) -> Iterator[Play]:
    """Start the stand-in of a platform; return the site whose workers call it, it, and ``[provider]``."""
    with ExitStack() as opened:

        def start(
            platform: str, replies: dict[str, list[Reply]]
        ) -> tuple[Site, MessagesServer, dict]:
            kind = Bedrock if platform == "bedrock" else Vertex
            dialect = kind({MODELS[platform]: "claude-haiku-4-5"})
            server = opened.enter_context(MessagesServer(Script(replies), dialect=dialect))
            provider = {"name": platform, "region": dialect.region}
            for name in ("ANTHROPIC_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
                site.environment.pop(name, None)
            if isinstance(dialect, Bedrock):
                site.environment |= {**dialect.environment, "COPY": f"x{dialect.secret}"}
                site.environment["ANTHROPIC_BEDROCK_BASE_URL"] = server.url
            else:
                account = site.folder / "account.json"
                account.write_text(dialect.credentials(server.url))
                site.environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(account)
                site.environment["ANTHROPIC_VERTEX_BASE_URL"] = f"{server.url}/v1"
                provider["project"] = dialect.project
            return site, server, provider

        yield start


def live_job(site: Site, platform: str, provider: dict[str, str], items: list[str]):
    options, off = {"model": MODELS[platform]}, {"mode": "off"}
    return site.live_job(items, options=options, provider=provider, sandbox=off)


@pytest.mark.parametrize("platform", MODELS)
def test_runs_survive_throttling_and_cut_streams_and_fail_on_a_refusal(
    play: Play, platform: str
) -> None:
    throttled = Break("status", status=429, message="Slow down.", headers={"retry-after": "0"})
    replies = {
        "Do a.": [
            Reply(
                call(
                    1, "echo $AWS_SECRET_ACCESS_KEY:$GOOGLE_APPLICATION_CREDENTIALS:$COPY:"
                ).blocks,
                fail_first=[throttled, Break("cut", after=3), FAILURES[platform]],
            ),
            call(2, "echo two >> log"),
        ],
        "Do b.": [Reply(broken=Break("status", status=404, message="No such model."))],
    }
    site, server, provider = play(platform, replies)
    job = site.submit(live_job(site, platform, provider, ["a", "b"]))
    site.run("worker", "--burst")
    runs = site.runs(job)
    assert (runs["a"]["state"], runs["b"]["state"]) == ("succeeded", "failed")
    assert site.tool_results(runs["a"]["id"])[0].startswith(":::")
    assert (site.workspace / "log").read_text() == "two\n"
    assert "No such model." in site.run("show", runs["b"]["id"], expect=0)
    assert server.refusals == []
    pools = site.json("workers", "--limits")["limits"]
    assert {pool["organization"] for pool in pools} == {
        "/".join(filter(None, (platform, provider.get("project"), provider["region"])))
    }
    costs = site.json("costs", job, "--by", "model")
    billed = {"bedrock": MODELS["bedrock"], "vertex": f"europe-west1/{MODELS['vertex']}"}
    assert [line["model"] for line in costs["lines"]] == [billed[platform]]
    assert costs["total"]["unpriced_models"] == []
    (by_view,) = site.json("audit", "sql", "SELECT sum(usd) AS usd FROM v_costs")
    assert by_view["usd"] == pytest.approx(costs["total"]["cost_usd"])


@pytest.mark.slow
@pytest.mark.parametrize("platform", MODELS)
def test_a_worker_killed_in_the_middle_of_a_stream_is_replaced(play: Play, platform: str) -> None:
    stalls = Break("stall", after=3)
    slow = Reply(call(2, "echo two >> log").blocks, fail_first=[stalls])
    site, server, provider = play(platform, {"Do a.": [call(1, "echo one >> log"), slow]})
    job = site.submit(live_job(site, platform, provider, ["a"]))
    worker = site.start("worker")
    wait_until(lambda: len(server.requests) == 2 and server.in_flight, "the second call")
    worker.kill()
    server.wait_for(lambda server: server.dropped == 1)
    site.start("worker")
    run = site.wait_for(job, "a", "succeeded")
    assert (site.workspace / "log").read_text() == "one\ntwo\n"
    assert len(site.tool_results(run["id"])) == 2
    assert server.refusals == []


@pytest.mark.parametrize("platform", MODELS)
def test_a_job_without_credentials_is_refused_before_it_runs(play: Play, platform: str) -> None:
    site, _, provider = play(platform, {})
    wanted = {"bedrock": "AWS_SECRET_ACCESS_KEY", "vertex": "GOOGLE_APPLICATION_CREDENTIALS"}[
        platform
    ]
    site.environment.pop(wanted)
    site.environment |= {"HOME": str(site.folder)}
    with pytest.raises(
        AssertionError, match=f"provider: no credentials for {platform} are found.*{wanted}"
    ):
        site.run("run", str(live_job(site, platform, provider, ["a"])))
