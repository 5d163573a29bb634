"""Real workers tell a real collector."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.telemetry.spans import span_id, trace_id
from tests.lifecycle.site import Site, bash, done, wait_until
from tests.telemetry.collector import Collector, Span, collecting

SECRET = "the secret of the prompt"
UNKNOWN = {"text": "On it.", "tools": [{"name": "The secret of John Doe", "input": {}}]}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def site(tmp_path: Path, collector: Collector) -> Iterator[Site]:
    """A site whose workers tell the collector, often."""
    site = Site(
        tmp_path / "site",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="100",
        OTEL_METRIC_EXPORT_INTERVAL="200",
    )
    yield site
    site.stop_all()


def said(span: Span, *names: str) -> list[Any]:
    return [span.says.get(name) for name in names]


@pytest.mark.slow
def test_a_run_of_two_workers_the_first_killed_is_one_whole_trace(
    site: Site, collector: Collector
) -> None:
    script = {
        "a": [bash("echo one"), bash("touch began; exec sleep 604.5"), bash("echo on"), done()]
    }
    job = site.submit(site.job(script))
    first = site.start("worker")
    site.wait_for_file_made("began")
    wait_until(lambda: len(collector.named("chat")) == 2, "what came before it to be told")
    first.kill()
    site.run("worker", "--burst")
    run_id = site.runs(job)["a"]["id"]
    assert site.runs(job)["a"]["state"] == "succeeded"

    (root,) = collector.named("invoke_agent job")
    others = [span for span in collector.spans if span is not root]
    assert {span.trace for span in collector.spans} == {f"{trace_id(run_id):032x}"}
    assert root.id == f"{span_id(run_id):016x}"
    assert (root.parent, {span.parent for span in others}) == ("", {root.id})
    assert len({span.id for span in collector.spans}) == len(collector.spans)
    chats, tools = collector.named("chat scripted"), collector.named("execute_tool Bash")
    assert sorted(span.says["runner.turn"] for span in chats) == [1, 2, 3, 4]
    assert [(span.says["runner.turn"], span.says.get("error.type")) for span in tools] == [
        (1, None),
        (2, "unknown"),
        (3, None),
    ]
    attempts = {span.says["runner.attempt"]: span.says["runner.worker.id"] for span in others}
    assert set(attempts) == {1, 2}
    assert len(set(attempts.values())) == 2
    assert all(root.begun <= span.begun <= span.ended <= root.ended for span in others)


@pytest.mark.slow
def test_a_run_and_its_sub_agents_are_one_trace_each_below_the_call_that_started_it(
    site: Site, collector: Collector
) -> None:
    asked = {"description": "Look", "prompt": "Look at it.", "agent_type": "reviewer"}
    agents = [{"name": "Agent", "input": asked}, {"name": "Agent", "input": asked}]
    script = {
        "a": [{"text": "On it.", "tools": agents}, done()],
        "@reviewer": [bash("echo one"), done()],
    }
    tools = ("Bash", "Agent")
    path = site.job(script, tools=tools, allow=tools)
    text = path.read_text().replace('["a", "@reviewer"]', '["a"]')
    path.write_text(f'{text}\n[agents.reviewer]\ndescription = "Reviews."\n')
    job = site.submit(path)
    site.run("worker", "--burst")
    run_id = site.runs(job)["a"]["id"]
    assert site.runs(job)["a"]["state"] == "succeeded"

    assert {span.trace for span in collector.spans} == {f"{trace_id(run_id):032x}"}
    (root,) = collector.named("invoke_agent job")
    calls = collector.named("execute_tool Agent")
    children = collector.named("invoke_agent reviewer")
    assert root.parent == ""
    assert [span.parent for span in calls] == [root.id] * 2
    assert {span.parent for span in children} == {span.id for span in calls}
    assert {span.parent for span in collector.named("execute_tool Bash")} == {
        span.id for span in children
    }
    for number in (1, 2):
        below = f"{span_id(f'{run_id}.{number}'):016x}"
        (child,) = (span for span in children if span.id == below)
        assert said(child, "runner.run.root", "runner.run.parent", "runner.run.depth") == [
            *(run_id, run_id),
            1,
        ]
    assert all(span.begun < span.ended for span in calls)


@pytest.mark.slow
def test_spans_say_what_the_conventions_ask_for(site: Site, collector: Collector) -> None:
    job = site.submit(site.job({"a": [bash("echo one"), bash("exit 3"), done()]}))
    site.run("worker", "--burst")
    run = site.runs(job)["a"]
    (root,) = collector.named("invoke_agent")
    chat = collector.named("chat")[0]
    fine, failed = collector.named("execute_tool")
    for span, operation, kind in (
        (root, "invoke_agent", 1),
        (chat, "chat", 3),
        (fine, "execute_tool", 1),
    ):
        assert span.says["gen_ai.operation.name"] == operation
        assert span.kind == kind
        assert span.says["gen_ai.provider.name"] == "scripted"
        assert span.says["gen_ai.conversation.id"] == run["id"]
        assert span.says["gen_ai.agent.name"] == "job"
        assert span.says["runner.job.id"] == job
        assert span.resource["service.name"] == "runner"
    assert said(chat, "gen_ai.request.model", "gen_ai.response.model") == ["scripted", "scripted"]
    assert chat.says["gen_ai.response.finish_reasons"] == ["tool_use"]
    assert said(fine, "gen_ai.tool.name", "gen_ai.tool.type", "error.type") == [
        "Bash",
        "function",
        None,
    ]
    assert (failed.says["error.type"], failed.is_error) == ("failed", True)
    kinds = ("cache_read_tokens", "cache_creation_tokens", "input_tokens")
    assert root.says["gen_ai.usage.input_tokens"] == sum(run[kind] for kind in kinds)
    assert root.says["gen_ai.usage.output_tokens"] == run["output_tokens"]
    assert said(root, "runner.state", "runner.reason") == ["succeeded", "end_turn"]


@pytest.mark.slow
def test_metrics_count_all_tokens_and_calls(site: Site, collector: Collector) -> None:
    job = site.submit(site.job({key: [bash("echo"), done()] for key in "abc"}))
    site.run("worker", "--burst", "-c", "2")
    runs = site.runs(job).values()
    points = list(collector.points.values())
    tokens = {
        point.says["gen_ai.token.type"]: point
        for point in points
        if point.metric == "gen_ai.client.token.usage"
    }
    assert tokens["output"].sum == sum(run["output_tokens"] for run in runs)
    assert tokens["input"].count == 6
    assert tokens["input"].unit == "{token}"
    assert tokens["input"].bounds[:3] == (1, 4, 16)
    (calls,) = [point for point in points if point.metric == "gen_ai.client.operation.duration"]
    (tools,) = [point for point in points if point.metric == "gen_ai.execute_tool.duration"]
    assert (calls.count, tools.count, calls.unit) == (6, 3, "s")
    assert calls.says["gen_ai.request.model"] == "scripted"


@pytest.mark.slow
def test_nothing_that_was_said_is_told_unless_asked(site: Site, collector: Collector) -> None:
    script = {"a secret item": [bash(f"echo {SECRET}"), UNKNOWN, done()]}
    site.submit(site.job(script))
    site.run("worker", "--burst")
    assert collector.named("invoke_agent")
    assert [
        span.says["gen_ai.tool.name"] for span in collector.named("execute_tool unknown_tool")
    ] == ["unknown_tool"]
    assert b"secret" not in collector.raw


@pytest.mark.slow
def test_what_was_said_is_told_where_it_is_asked_for(site: Site, collector: Collector) -> None:
    site.environment["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    site.submit(site.job({"a": [bash(f"echo {SECRET}"), UNKNOWN, done()]}))
    site.run("worker", "--burst")
    first, second, _ = collector.named("chat")
    tool, unknown = collector.named("execute_tool")
    assert json.loads(first.says["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Do a."}]}
    ]
    (said_first,) = json.loads(first.says["gen_ai.output.messages"])
    assert said_first["finish_reason"] == "tool_call"
    assert said_first["parts"][-1]["arguments"] == {"command": f"echo {SECRET}"}
    (heard,) = json.loads(second.says["gen_ai.input.messages"])
    assert heard["parts"][0]["type"] == "tool_call_response"
    assert SECRET in heard["parts"][0]["response"]
    assert json.loads(tool.says["gen_ai.tool.call.arguments"]) == {"command": f"echo {SECRET}"}
    assert SECRET in json.loads(tool.says["gen_ai.tool.call.result"])
    assert unknown.says["gen_ai.tool.name"] == "The secret of John Doe"
    assert collector.named("invoke_agent")[0].says["runner.item"] == "a"


@pytest.mark.slow
def test_a_tool_that_the_model_made_up_is_one_series_of_the_metrics_with_all_others(
    site: Site, collector: Collector
) -> None:
    site.environment["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    other = {"text": "On it.", "tools": [{"name": "Another", "input": {}}]}
    site.submit(site.job({"a": [UNKNOWN, other, done()]}))
    site.run("worker", "--burst")
    points = [each for each in collector.points.values() if "tool" in each.metric]
    assert [(each.says["gen_ai.tool.name"], each.count) for each in points] == [("unknown_tool", 2)]


@pytest.mark.slow
def test_a_run_that_a_person_cancels_is_told_to_its_end(site: Site, collector: Collector) -> None:
    job = site.submit(site.job({"a": [bash("touch began; exec sleep 605.5"), done()]}))
    look_often = "from runner.telemetry import observer; observer.LOOK_SECONDS = 0.2"
    program = f"import sys; {look_often}; from runner.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "worker"]
    with subprocess.Popen(command, cwd=site.folder, env=site.environment) as worker:
        try:
            site.wait_for_file_made("began")
            site.run("cancel", job)
            (root,) = wait_until(lambda: collector.named("invoke_agent"), "the end to be told")
        finally:
            worker.terminate()
    assert said(root, "runner.state", "error.type") == ["cancelled", None]
    assert worker.returncode == 0
    assert len(collector.named("invoke_agent")) == 1


def _warnings(printed: str) -> list[str]:
    """The warnings in a log, without their times, and without those of a queue that was starved."""
    return sorted(re.findall(r" WARNING (?!Redis is)(.*)", printed), reverse=True)


@pytest.mark.slow
def test_a_collector_that_refuses_everything_costs_no_run_and_one_line_for_each_signal(
    site: Site, collector: Collector
) -> None:
    collector.status = 400
    job = site.submit(site.job({"a": [bash("echo one; sleep 2"), done()]}))
    worker = site.start("worker", "--burst")
    _, printed = worker.communicate(timeout=120)
    assert worker.returncode == 0
    assert site.runs(job)["a"]["state"] == "succeeded"
    # A worker that is starved as it ends may say more: that it waited for no more.
    told = [line for line in _warnings(printed) if " are lost until " in line]
    assert len(told) == 2, printed
    spans, metrics = told
    assert "spans are lost until the collector takes them: " in spans
    assert "metrics are lost until the collector takes them: " in metrics
    assert "400" in spans


@pytest.mark.slow
def test_a_collector_that_is_away_costs_no_run_and_a_line_that_says_why_and_no_password(
    site: Site,
) -> None:
    """It is not waited for at the end either: a last line would say so."""
    site.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://me:hidden@127.0.0.1:9/?token=hidden"
    site.environment["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=Bearer%20hidden"
    job = site.submit(site.job({"a": [bash("env"), done()]}))
    worker = site.start("worker", "--burst")
    _, printed = worker.communicate(timeout=120)
    assert worker.returncode == 0
    spans, metrics = _warnings(printed)
    assert "spans are lost until the collector takes them: " in spans
    assert "metrics are lost until the collector takes them: " in metrics
    assert "Connection refused" in spans
    assert "Connection refused" in metrics
    run = site.runs(job)["a"]
    assert run["state"] == "succeeded"
    (shown,) = site.tool_results(run["id"])
    assert "OTEL_METRIC_EXPORT_INTERVAL" in shown
    assert "hidden" not in shown + printed
