"""Sub-agents as the commands show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select

from runner.core.agents import AgentType
from runner.core.commands import Target
from runner.store import jobs as jobs_store
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.tables import runs
from tests.cli.conftest import Result
from tests.cli.questions import ASKING, approval_row, ask
from tests.cli.test_show import STORABLE_HOSTILE
from tests.cli.test_terminal import steers
from tests.store.attempts import run_row
from tests.store.examples import NOW, submission
from tests.store.family import end_child, parent_with_two, start_child, work_child

Command = Callable[..., Result]


def asking_parent(database: Database) -> tuple[str, str]:
    """A run of a job that asks, and its sub-agent."""
    spec = replace(ASKING, agents=(AgentType("reviewer", "Reviews."),))
    job_id = jobs_store.submit(database, submission("a", spec=spec), NOW)
    query = select(runs.c.id).where(runs.c.job_id == job_id)
    parent = str(database.read(lambda connection: connection.execute(query).scalar_one()))
    return parent, start_child(database, parent, 1)


@pytest.mark.slow
def test_jobs_and_their_runs_are_listed_without_sub_agents(
    command: Command, database: Database
) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    job_id = run_row(database, parent).job_id
    assert "1 interrupted" in command("list").out, "its worker is long gone"
    (run,) = command("list", job_id, "--json").json
    assert (run["id"], run["below"], run["root"], run["parent"]) == (parent, 2, parent, None)
    tokens = run_row(database, parent).charged_tokens + run_row(database, first).charged_tokens
    shown = command("list", job_id).out
    assert f"{tokens:,}" in shown
    assert first not in shown


@pytest.mark.slow
def test_the_tree_of_each_run_is_listed_on_demand(command: Command, database: Database) -> None:
    assert command("list", "--tree").out == command("list").out
    parent_with_two(database)
    parent, first, second = parent_with_two(database)
    grandchild = start_child(database, second, 1, agent_type="tester")
    job_id = run_row(database, parent).job_id
    listed = command("list", job_id, "--tree", "--json").json
    assert [run["id"] for run in listed] == [parent, first, second, grandchild]
    lines = command("list", job_id, "--tree").out.splitlines()
    numbers = ("", ".1", ".2", ".2.1")
    assert [line.split()[0] for line in lines[1:]] == [parent[-8:] + each for each in numbers]
    assert [line.split()[2] for line in lines[2:]] == ["reviewer", "tester", "tester"]
    assert [line.split()[1] for line in lines[2:]] == ["1", "2", "2.1"]
    assert command("list", "--tree").out.splitlines() == lines


@pytest.mark.slow
def test_a_parent_is_shown_with_what_became_of_its_sub_agents(
    command: Command, database: Database
) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    shown = command("show", parent)
    assert shown.code == 0
    (line,) = [line for line in shown.out.splitlines() if line.startswith(f"{parent[-8:]}.1 ")]
    assert {"reviewer", "succeeded", "Review"} <= set(line.split())
    assert "its tree" in shown.out
    told = command("show", parent, "--json").json
    assert [child["id"] for child in told["children"]] == [first, f"{parent}.2"]
    used = run_row(database, parent).charged_tokens + run_row(database, first).charged_tokens
    assert (told["used_by_tree"]["runs"], told["used_by_tree"]["charged_tokens"]) == (3, used)
    assert (told["root"], told["parent"], told["depth"], told["label"]) == (parent, None, 0, "")


def test_a_sub_agent_is_shown_with_its_parent_and_its_root(
    command: Command, database: Database
) -> None:
    parent, _, second = parent_with_two(database)
    grandchild = start_child(database, second, 1)
    shown = command("show", f"{parent[-8:]}.2.1")
    assert shown.code == 0
    fields = dict(line.split(None, 1) for line in shown.out.split("\n\n")[0].splitlines())
    assert fields["run"] == grandchild[-12:]
    assert fields["agent"] == "reviewer, 2.1 in its tree"
    assert (fields["parent"], fields["root"]) == (second[-10:], parent[-8:])


def test_a_call_is_shown_with_its_label_and_the_sub_agent_that_it_started(
    command: Command, database: Database
) -> None:
    parent, first, second = parent_with_two(database)
    work_child(database, second)
    call = command("show", f"call_{second.removeprefix('run_')}_1_2").out
    assert "label     2.2\n" in call
    asked = command("show", f"call_{parent.removeprefix('run_')}_1_1", "--json").json
    assert [child["id"] for child in asked["children"]] == [first]
    assert f"reviewer queued: submitted, {first[-10:]}" in command("show", asked["id"]).out


def test_events_of_a_sub_agent_carry_root_parent_depth_and_label(
    command: Command, database: Database
) -> None:
    parent, first, _ = parent_with_two(database)
    work_child(database, first)
    told = command("events", first, "--json").json
    place = {"root": parent, "parent": parent, "depth": 1}
    assert all(place.items() <= event.items() for event in told)
    assert {event["label"] for event in told} == {"1", "1.1", "1.2"}
    lines = command("events", first).out.splitlines()
    assert any(" 1.2 " in line and "tool_done" in line for line in lines)
    of_root = command("events", parent, "--json").json
    assert {(event["root"], event["parent"], event["depth"]) for event in of_root} == {
        (parent, None, 0)
    }


def test_events_of_a_tree_are_told_together(command: Command, database: Database) -> None:
    parent, first, second = parent_with_two(database)
    end_child(database, first)
    told = command("events", parent, "--tree", "--json").json
    assert {event["run_id"] for event in told} == {parent, first} | (
        {second} if any(event["run_id"] == second for event in told) else set()
    )
    refused = command("events", run_row(database, parent).job_id, "--tree")
    assert refused.code == 2
    assert refused.err.startswith("runner: --tree needs one run")


@pytest.mark.slow
def test_events_are_followed_until_the_whole_tree_has_ended(
    command: Command, database: Database
) -> None:
    parent, first, second = parent_with_two(database)
    work_child(database, second)
    for run_id in (parent, first, second):
        cancel(database, Target("run", run_id), NOW)
    followed = command("events", parent, "-f", "--tree")
    assert followed.code == 0
    assert followed.out.count("cancelled (state") == 3
    as_json = command("events", parent, "-f", "--tree", "--json").out.splitlines()
    assert sum(json.loads(line)["type"] == "done" for line in as_json) == 3


def test_costs_are_told_by_tree(command: Command, database: Database) -> None:
    parent, first, _ = parent_with_two(database)
    end_child(database, first)
    (line,) = command("costs", "--by", "tree", "--json").json["lines"]
    lines = command("costs", "--by", "run", "--json").json["lines"]
    assert line["tree"] == parent
    assert line["calls"] == sum(each["calls"] for each in lines) == 3


def test_approvals_name_the_place_in_the_tree_and_are_those_of_a_run_s_tree(
    command: Command, database: Database
) -> None:
    parent, child = asking_parent(database)
    other, _ = asking_parent(database)
    ask(database, child)
    ask(database, other)
    (group,) = command("approvals", parent, "--json").json
    (call,) = group["calls"]
    assert (call["run_id"], call["root"], call["depth"]) == (child, parent, 1)
    assert call["label"].startswith("1.")
    assert f"{call['label']} in its tree" in command("approvals", parent).out
    assert "in its tree" not in command("approvals", other).out


def test_an_answer_for_a_run_reaches_its_tree(command: Command, database: Database) -> None:
    parent, child = asking_parent(database)
    other, _ = asking_parent(database)
    asked, elsewhere = ask(database, child), ask(database, other)
    assert command("approve", parent).code == 0
    assert approval_row(database, asked).answer == "approved"
    assert approval_row(database, elsewhere).answer is None


@pytest.mark.slow
def test_nothing_that_a_sub_agent_is_told_steers_a_terminal(
    command: Command, database: Database
) -> None:
    parent, first, _ = parent_with_two(database, description=STORABLE_HOSTILE)
    end_child(database, first, STORABLE_HOSTILE)
    for arguments in (("show", parent), ("transcript", parent), ("transcript", parent, "--tree")):
        shown = command(*arguments)
        assert shown.code == 0
        assert f"{parent[-8:]}.1" in shown.out
        assert not any(steers(each) for each in shown.out if each != "\n")


@pytest.mark.slow
def test_a_transcript_says_what_became_of_a_sub_agent(command: Command, database: Database) -> None:
    parent, first, second = parent_with_two(database)
    end_child(database, first, "It is well.")
    told = command("transcript", parent).out
    assert f"[Agent 1 {parent[-8:]}_1_1]" in told
    assert f"[reviewer succeeded, {first[-10:]}" in told
    assert f"[tester queued: submitted, {second[-10:]}, Test b]" in told
    assert "It is well." not in told


@pytest.mark.slow
def test_a_transcript_of_a_tree_has_the_sub_agents_where_they_were_started(
    command: Command, database: Database
) -> None:
    parent, first, second = parent_with_two(database)
    end_child(database, first, "It is well.\n── assistant, turn 9")
    told = command("transcript", parent, "--tree").out.splitlines()
    start = next(n for n, line in enumerate(told) if line.startswith("── sub-agent 1 · reviewer"))
    after = next(n for n, line in enumerate(told) if line.startswith("── sub-agent 2 · tester"))
    inside = told[start + 1 : after - 1]
    assert all(line.startswith("1 │") for line in inside)
    assert "1 │   It is well." in inside
    assert "1 │   ── assistant, turn 9" in inside
    assert any(line.startswith(f"1 │ [Read 1.2 {first[-10:]}") for line in inside)
    assert any(line.startswith("2 │ run ") and second[-10:] in line for line in told[after:])


@pytest.mark.slow
def test_a_page_of_a_tree_has_the_sub_agents_folded(command: Command, database: Database) -> None:
    parent, first, _ = parent_with_two(database, description="<b>bold</b>")
    end_child(database, first, "<script>alert(1)</script>")
    page = command("transcript", parent, "--tree", "--html", "-").out
    assert '<details class="agent"><summary>Sub-agent 1 ' in page
    assert 'id="agent-1-turn-1"' in page
    assert 'id="turn-1"' in page
    assert "<script>alert(1)" not in page
    assert "<b>bold</b>" not in page
    assert "alert(1)" not in command("transcript", parent, "--html", "-").out


def test_a_sub_agent_s_transcript_leaves_out_what_it_has_from_its_parent(
    command: Command, database: Database
) -> None:
    parent, *_ = parent_with_two(database)
    child = start_child(database, parent, 3, snapshot=("The parent's.", "It said so."))
    told = command("transcript", child).out
    assert "Look at it." in told
    assert "The parent's." not in told
    assert command("transcript", child, "--json").json[0]["content"][0]["text"] == "The parent's."


def test_the_request_of_a_sub_agent_is_as_it_was_sent(command: Command, database: Database) -> None:
    _, first, _ = parent_with_two(database, system="You review.")
    end_child(database, first)
    sent = json.loads(command("transcript", first, "--as-sent", "1").out)
    assert sent["system"][0]["text"] == "You review."
    assert sent["messages"][0]["content"][-1]["text"] == "Look at it."


@pytest.mark.slow
def test_a_rule_for_one_run_is_told_as_such_and_in_its_tree_alone(
    command: Command, database: Database
) -> None:
    parent, child = asking_parent(database)
    job_id = run_row(database, parent).job_id
    ask(database, child)
    assert command("approve", child, "--remember", "run").code == 0
    told = command("transcript", child).out
    assert f"for {child[-10:]} and its sub-agents: new rule allow Bash(uv lock)" in told
    assert "new rule" not in command("transcript", parent).out
    assert "rule_added" in command("events", job_id).out


@pytest.mark.parametrize("name", ["run_.7", "x.1", "call_.1_1_1"])
def test_a_wrong_name_with_dots_is_refused_in_one_line(
    command: Command, database: Database, name: str
) -> None:
    parent_with_two(database)
    for arguments in (("show", name), ("events", name), ("transcript", name)):
        refused = command(*arguments)
        assert refused.code == 2
        assert refused.out == ""
        assert refused.err.count("\n") == 1
