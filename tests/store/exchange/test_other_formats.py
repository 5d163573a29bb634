"""Trajectories (ATIF 1.7) and sessions of Claude Code's, made of what is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings

from runner.core.conversation import Block, ModelReply, ToolResult, Usage
from runner.core.entries import ToolFinished, Verified
from runner.core.run import Author
from runner.core.text import json_line
from runner.core.workspace import Verify
from runner.exchange.atif import trajectory
from runner.exchange.claude_code import session_lines
from runner.llm.prices import load_prices
from runner.queries.costs import known_costs
from runner.store.database import Database
from runner.store.exports import load_recorded, run_ids
from runner.store.fork import fork
from runner.store.sessions import import_session
from tests.core.story import replied
from tests.exchange.atif_rules import problems
from tests.exchange.samples import Session, text, use
from tests.store.attempts import Attempt, claim, submit_one, tool_use
from tests.store.compacting import compact, stand_in, truncation, use_tool
from tests.store.examples import NOW, SPEC
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.stories import Rows, rows_of, store, stories

PRICES = load_prices()
OPUS = "claude-opus-4-5-20251101"
PRICED = replace(SPEC, model=OPUS)
USAGE = Usage(input_tokens=10, cache_read_tokens=200, cache_creation_tokens=30, output_tokens=40)


def atif(database: Database, run_id: str) -> dict[str, Any]:
    """A run's trajectory, which is one."""
    costs = known_costs(database, PRICES, run_id)
    made = trajectory(replace(load_recorded(database, run_id), costs=costs), "1.2.3")
    found: dict[str, Any] = json.loads(json.dumps(made))
    assert problems(found) == []
    return found


def session(database: Database, run_id: str) -> list[dict[str, Any]]:
    """A run's session, each line of which follows another."""
    lines = list(session_lines(load_recorded(database, run_id), "1.2.3"))
    before = None
    for line in lines:
        boundary = line.get("subtype") == "compact_boundary"
        assert line["logicalParentUuid" if boundary else "parentUuid"] == before
        before = line["uuid"]
    assert len({line["uuid"] for line in lines}) == len(lines)
    return lines


def answer(attempt: Attempt, *blocks: Block, stop: str = "end_turn") -> Attempt:
    """A model answers that has a price."""
    return attempt.append(replied(ModelReply(blocks, stop, USAGE, OPUS, "req_1")))


def worked(database: Database, **options: Any) -> tuple[str, Attempt]:
    """A run whose first turn had two calls."""
    run_id = submit_one(database, spec=replace(PRICED, **options))
    attempt = claim(database, run_id)
    thinking = {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}
    calls = (tool_use(1, file_path="a"), tool_use(2, file_path="b"))
    answer(attempt, thinking, text("Let me look."), *calls, stop="tool_use")
    return run_id, attempt.append(
        ToolFinished(0, ToolResult("is a")), ToolFinished(1, ToolResult("no b", "failed"))
    )


def test_a_trajectory_has_a_step_for_each_reply_with_its_calls_and_what_they_gave(
    database: Database,
) -> None:
    run_id, attempt = worked(database)
    answer(attempt, text("Done."))
    made = atif(database, run_id)
    assert (made["session_id"], made["agent"]["name"]) == (run_id, "runner")
    assert made["agent"]["tool_definitions"][0]["function"]["name"] == "Read"
    sources = [step["source"] for step in made["steps"]]
    assert sources == ["system", "user", "agent", "agent"]
    _, asked, step, last = made["steps"]
    assert asked["message"] == "Mend one."
    assert (step["message"], step["reasoning_content"]) == ("Let me look.", "Look first.")
    calls = [(call["tool_call_id"], call["arguments"]) for call in step["tool_calls"]]
    assert calls == [("toolu_1", {"file_path": "a"}), ("toolu_2", {"file_path": "b"})]
    results = step["observation"]["results"]
    told = [(r["source_call_id"], r["content"], r["extra"]["outcome"]) for r in results]
    assert told == [("toolu_1", "is a", "succeeded"), ("toolu_2", "no b", "failed")]
    assert (last["message"], last["llm_call_count"]) == ("Done.", 1)
    assert made["extra"]["state"] == "succeeded"


def test_a_trajectory_counts_tokens_as_the_format_does_and_costs_as_runner_costs_does(
    database: Database,
) -> None:
    run_id, attempt = worked(database)
    answer(attempt, text("Done."))
    made = atif(database, run_id)
    metrics = made["steps"][2]["metrics"]
    assert (metrics["prompt_tokens"], metrics["cached_tokens"]) == (240, 200)
    assert metrics["completion_tokens"] == 40
    assert metrics["extra"]["cache_creation_input_tokens"] == 30
    price = PRICES.price(OPUS)
    assert price is not None
    assert metrics["cost_usd"] == float(price.standard.cost(USAGE, hour_cache=False))
    totals = made["final_metrics"]
    assert (totals["total_prompt_tokens"], totals["total_completion_tokens"]) == (480, 80)
    assert totals["total_cost_usd"] == pytest.approx(2 * metrics["cost_usd"])


def test_a_model_without_a_price_costs_what_nobody_knows(database: Database) -> None:
    run_id = submit_one(database)
    claim(database, run_id).reply(text("Done."))
    made = atif(database, run_id)
    assert "cost_usd" not in made["steps"][-1]["metrics"]
    assert "total_cost_usd" not in made["final_metrics"]
    assert made["final_metrics"]["extra"]["calls_without_known_cost"] == 1


def test_a_compaction_is_a_system_step_that_says_which_steps_it_stands_in_for(
    database: Database,
) -> None:
    run_id = submit_one(database, spec=PRICED)
    attempt = compact(use_tool(claim(database, run_id), "read"), stand_in(2))
    compact(attempt, truncation(6)).reply(text("Done."))
    made = atif(database, run_id)
    summary, truncated = [s for s in made["steps"] if "context_management" in s.get("extra", {})]
    assert summary["extra"]["context_management"] == {
        "type": "compaction",
        "boundary": "replace_steps",
        "first_step": 3,
        "last_step": 3,
    }
    assert summary["observation"]["results"] == [{"content": "summed up"}]
    assert made["steps"][summary["step_id"]]["extra"]["turn"] == 3
    assert truncated["extra"]["context_management"]["type"] == "pruning"


def test_what_a_fork_copied_is_marked_as_copied(database: Database) -> None:
    run_id, attempt = worked(database)
    attempt.reply(text("Done."))
    forked = fork(database, run_id, 1, NOW + 1, text="And now?")
    claim(database, forked.id, NOW + 2).reply(text("Now this."))
    steps = atif(database, forked.id)["steps"]
    assert [step.get("is_copied_context") for step in steps] == [None, True, True, None, None]
    assert "metrics" not in steps[2]
    assert steps[3]["message"].endswith("And now?")


def test_a_verification_is_a_system_step_before_what_it_led_to(database: Database) -> None:
    run_id = submit_one(database, spec=replace(PRICED, verify=Verify(("make test",))))
    attempt = claim(database, run_id).reply(text("Done."))
    attempt.append(Verified(1, "make test", ToolResult("1 failed", "failed")))
    attempt.reply(text("Mended."))
    steps = atif(database, run_id)["steps"]
    assert [step["source"] for step in steps][:4] == ["system", "user", "agent", "system"]
    assert steps[3]["message"] == "Verification 1: failed"
    assert steps[3]["observation"]["results"] == [{"content": "1 failed"}]
    assert (steps[4]["source"], steps[5]["message"]) == ("user", "Mended.")


def test_images_of_a_session_are_images_of_its_trajectory(database: Database) -> None:
    shown = Session()
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    image = {"type": "image", "source": source}
    shown.user([text("Look:"), image])
    shown.reply("msg_1", use("toolu_1", "Read", file_path="a.png"))
    shown.result("toolu_1", [image, {"type": "document", "title": "x"}])
    shown.reply("msg_2", {"type": "server_tool_use", "name": "web_search"}, text("Seen."))
    (brought,) = import_session(database, {"": shown.raw()}, "session.jsonl", Author("ann"), NOW)
    made = atif(database, brought.run_id)
    assert (made["agent"]["name"], made["agent"]["version"]) == ("claude-code", "2.1.37")
    path = {"media_type": "image/png", "path": "data:image/png;base64,aGk="}
    assert made["steps"][0]["message"][1] == {"type": "image", "source": path}
    content = made["steps"][1]["observation"]["results"][0]["content"]
    assert content[0] == {"type": "image", "source": path}
    assert json.loads(content[1]["text"]) == {"type": "document", "title": "x"}
    assert made["steps"][2]["extra"]["other_blocks"][0]["type"] == "server_tool_use"


def test_a_session_has_a_line_for_each_block_and_the_usage_of_its_reply(database: Database) -> None:
    run_id, attempt = worked(database)
    attempt.reply(text("Done."))
    lines = session(database, run_id)
    assert [line["type"] for line in lines] == [
        "user",
        *["assistant"] * 4,
        *["user"] * 2,
        "assistant",
    ]
    first, *replies = lines[:5]
    assert first["message"] == {"role": "user", "content": "Mend one."}
    assert len({line["message"]["id"] for line in replies}) == 1
    assert [line["message"]["content"][0]["type"] for line in replies] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    usage = replies[0]["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (10, 200)
    assert lines[5]["sourceToolAssistantUUID"] == replies[2]["uuid"]
    assert {UUID(line["sessionId"]) for line in lines} == {UUID(first["sessionId"])}


def test_a_compaction_is_a_boundary_with_what_stands_in_for_all_before(database: Database) -> None:
    run_id = submit_one(database)
    compact(use_tool(claim(database, run_id), "read"), stand_in(2)).reply(text("Done."))
    kinds = [(line["type"], line.get("subtype")) for line in session(database, run_id)]
    assert ("system", "compact_boundary") in kinds
    (summary,) = [line for line in session(database, run_id) if line.get("isCompactSummary")]
    assert summary["message"]["content"] == "summed up"


def test_a_session_of_claude_codes_keeps_its_id(database: Database) -> None:
    shown = Session(isSidechain=True, agentId="a9f4657")
    shown.user("Go on.")
    shown.reply("msg_1", text("Done."), stop="end_turn")
    (brought,) = import_session(database, {"": shown.raw()}, "session.jsonl", Author("ann"), NOW)
    for line, theirs in zip(session(database, brought.run_id), shown.lines, strict=True):
        for name in ("sessionId", "cwd", "version", "gitBranch", "isSidechain", "agentId", "type"):
            assert line[name] == theirs[name]


@pytest.mark.slow
def test_whatever_is_recorded_is_a_trajectory_and_a_session(make_database: MakeDatabase) -> None:
    target = make_database("sqlite")

    @settings(
        max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(stories(states=("succeeded", "queued", "running", "waiting")))
    def converts(story: tuple[str, Rows]) -> None:
        job_id, rows = story
        store(target, rows)
        found = [run_id for run_id, _ in run_ids(target, job_id)]
        assert found == [run["id"] for run in rows_of(rows, "runs")]
        for run_id in found:
            atif(target, run_id)
            for line in session(target, run_id):
                json_line(line)

    converts()
