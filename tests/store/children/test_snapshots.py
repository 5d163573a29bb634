"""Sub-agents that begin with the conversation of the run that starts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.entries import InstructionsRead, SnapshotRecorded
from runner.core.hooks import Hook, matchers_in
from runner.core.steps import CallModel
from runner.core.workspace import Instructions, Workspace
from runner.queries.transcript import tool_output
from runner.store.database import Database
from runner.store.ids import call_id
from tests.store.attempts import claim, run_row, text, tool_use
from tests.store.children.family import PARENT, WAITS, asks, said_in, submit_parent


def test_a_snapshot_has_what_was_said_up_to_the_call_and_a_result_for_each(
    database: Database,
) -> None:
    run_id = submit_parent(database)
    parent = claim(database, run_id).reply(
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        text("I ask."),
        asks(1, "tester", "Test it."),
        asks(2, snapshot=True),
        stop="tool_use",
    )
    assert parent.effect == WAITS
    (first, asked, own) = said_in(database, f"{run_id}.1")
    assert first == ("user", [text("Mend src/a.py.")])
    assert [block["type"] for block in asked[1]] == ["text", "tool_use", "tool_use"]
    assert [block["type"] for block in own[1]] == ["tool_result", "tool_result", "text"]
    assert [block.get("tool_use_id") for block in own[1]] == ["toolu_1", "toolu_2", None]
    assert own[1][-1] == text("Test it.")
    assert own[1][0]["content"] != own[1][1]["content"]
    child = claim(database, f"{run_id}.1")
    assert isinstance(child.effect, CallModel)
    assert (child.state.turns, child.state.calls) == (0, ())
    child.reply(text("Fine."))
    assert run_row(database, f"{run_id}.1").state == "succeeded"


@pytest.mark.parametrize(
    ("matcher", "sees"), [("Agent", False), ("Agent|Bash", False), ("Bash", True)]
)
def test_a_snapshot_has_no_result_that_a_hook_is_still_to_see(
    database: Database, matcher: str, sees: bool
) -> None:
    """Hooks after a call wait until no sub-agent works; another may start before."""
    hooks = (Hook("PostToolUse", matchers_in(matcher), command="redact"),)
    limits = replace(PARENT.limits, max_agents_at_once=2)
    run_id = submit_parent(database, replace(PARENT, hooks=hooks, limits=limits))
    asked = asks(1), asks(2), asks(3, snapshot=True)
    claim(database, run_id).reply(*asked, stop="tool_use")
    claim(database, f"{run_id}.1").reply(text("hunter2"))
    assert claim(database, run_id).effect == WAITS
    result = said_in(database, f"{run_id}.3")[-1][1][0]
    assert result["tool_use_id"] == "toolu_1"
    assert (result["content"] == "hunter2") is sees


def test_a_snapshot_has_the_outputs_of_the_calls_in_it(database: Database) -> None:
    """Under both names of a call; who begins with a prompt alone has none of its parent's."""
    run_id = submit_parent(database)
    named = f"the head … all of it is in /home/outputs/{run_id}/toolu_1.txt … the tail"
    parent = claim(database, run_id).reply(tool_use(1, "Read", file_path="a"), stop="tool_use")
    parent.finish(named, b"all of it")
    parent.reply(asks(2, snapshot=True), asks(3), stop="tool_use")
    with_it, alone = (f"{run_id}.{number}" for number in (1, 2))
    told = said_in(database, with_it)[-1][1]
    (where,) = [block["text"] for block in told if "outputs/" in block.get("text", "")]
    assert f"outputs/{run_id} is for you in outputs/{with_it}" in where
    below = claim(database, with_it).reply(asks(4, snapshot=True), stop="tool_use")
    assert below.effect == WAITS
    for name in ("toolu_1", call_id(run_id, 1, 0)):
        assert tool_output(database, with_it, name) == b"all of it"
        assert tool_output(database, f"{with_it}.1", name) == b"all of it"
        assert tool_output(database, alone, name) is None


@pytest.mark.parametrize(
    ("agent_type", "options"),
    [("reviewer", {}), ("tester", {"thinking": {"type": "enabled", "budget_tokens": 1_024}})],
)
def test_a_snapshot_keeps_its_thinking_where_the_api_takes_it_or_asks_for_it(
    database: Database, agent_type: str, options: dict[str, Any]
) -> None:
    """A reviewer has its parent's system prompt and tools; a tester has others."""
    run_id = submit_parent(database, replace(PARENT, model_options=options))
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    parent = claim(database, run_id)
    parent.reply(thought, asks(1, agent_type, snapshot=True), stop="tool_use")
    assert said_in(database, f"{run_id}.1")[1][1][0] == thought


READ = Instructions("AGENTS.md", "12" * 32, "Be kind.\n")


@pytest.mark.parametrize("files", [(), (READ,)], ids=["none", "some"])
def test_a_snapshot_in_its_parent_s_folder_goes_on_with_its_instructions(
    database: Database, files: tuple[Instructions, ...]
) -> None:
    """Whatever the files say by now: the prompt stays as it was, with its thinking."""
    run_id = submit_parent(database, replace(PARENT, instructions=True))
    parent = claim(database, run_id).append(InstructionsRead(files))
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    parent.reply(thought, asks(1, snapshot=True), asks(2), stop="tool_use")
    assert said_in(database, f"{run_id}.1")[1][1][0] == thought
    snapshot, alone = (claim(database, f"{run_id}.{number}").state for number in (1, 2))
    assert snapshot.files.instructed
    assert snapshot.spec.shared_texts == parent.state.spec.shared_texts
    assert ("Be kind." in (snapshot.spec.system or "")) == bool(files)
    assert snapshot.context.estimate >= parent.state.context.estimate
    assert not alone.files.instructed  # it reads them as they are


def test_a_snapshot_keeps_no_thinking_where_it_reads_instructions_of_its_own(
    database: Database,
) -> None:
    apart = replace(PARENT.agents[0], workspace="own")
    folder = Workspace("/repo", "git")
    job = replace(PARENT, instructions=True, workspace=folder, agents=(apart,))
    run_id = submit_parent(database, job)
    parent = claim(database, run_id).append(
        InstructionsRead((READ,)), SnapshotRecorded("1" * 40, "found")
    )
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    parent.reply(thought, asks(1, snapshot=True), stop="tool_use")
    assert [block["type"] for block in said_in(database, f"{run_id}.1")[1][1]] == ["tool_use"]
    assert not claim(database, f"{run_id}.1").state.files.instructed
