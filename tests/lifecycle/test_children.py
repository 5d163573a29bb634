"""Real workers, a strict Messages API, and runs with sub-agents: they work side by side and below each
other, they come to every kind of end, and nothing is done twice though workers die."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from runner.store.tables import approvals, runs, tool_calls
from tests.lifecycle.family import (
    AGENTS,
    Moment,
    Tree,
    delegates,
    family_job,
    in_a_repository,
    runs_bash,
)
from tests.lifecycle.site import Site, wait_until
from tests.messages_api import Received, Reply, text, tool_use

pytestmark = pytest.mark.timeout(900)


only_sqlite = pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)


def logs(name: str, then: str = "") -> list[list[dict[str, Any]]]:
    """The turns of a task that appends its name to a file, once."""
    return [runs_bash(f"echo {name} >> log{then}", f"toolu_log_{name}")]


def logged(site: Site) -> list[str]:
    log = site.workspace / "log"
    return sorted(log.read_text().split()) if log.exists() else []


def test_children_side_by_side_and_below_each_other_give_their_results_in_order(
    tree: Callable[..., Tree],
) -> None:
    here = tree(
        {
            "a": [
                [
                    text("I have it looked at."),
                    *delegates("one"),
                    *delegates("two", agent_type="tester"),
                    *delegates("three"),
                ]
            ],
            "one": logs("one"),
            "two": logs("two"),
            "three": [delegates("four", "five"), *logs("three")],
            "four": logs("four"),
            "five": logs("five"),
        }
    )
    family_job(here.site, "a")
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    assert set(here.states()) == {"a", "a+1", "a+2", "a+3", "a+3+1", "a+3+2"}
    assert logged(here.site) == ["five", "four", "one", "three", "two"]
    (_, joined) = here.api.moments("a")
    assert joined.results == ("one is done.", "two is done.", "three is done.")
    (_, below, _) = here.api.moments("three")
    assert below.results == ("four is done.", "five is done.")
    snapshot = here.api.moments("two")[0].request.body
    assert [message["role"] for message in snapshot["messages"]] == ["user", "assistant", "user"]
    assert snapshot["system"] != here.api.moments("one")[0].request.body.get("system")
    assert len(here.api.moments("one")[0].request.body["messages"]) == 1


def test_children_work_at_the_same_time(tree: Callable[..., Tree]) -> None:
    """Each waits for a file that another makes."""
    meet = "touch {0}; while [ ! -e {1} ]; do sleep 0.05; done"
    here = tree(
        {
            "a": [delegates("one", "two")],
            "one": [runs_bash(meet.format("here-1", "here-2"), "toolu_1")],
            "two": [runs_bash(meet.format("here-2", "here-1"), "toolu_2")],
        }
    )
    family_job(here.site, "a")
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}


def test_a_parent_waits_without_a_worker(tree: Callable[..., Tree]) -> None:
    """One slot is enough for a family."""
    here = tree({"a": [delegates("one")], "one": [delegates("two")], "two": logs("two")})
    family_job(here.site, "a")
    here.site.run("worker", "-c", "1", "--burst")
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    assert len(here.states()) == 3


def test_a_child_s_bad_end_is_an_error_for_its_parent_and_not_its_parent_s_end(
    tree: Callable[..., Tree],
) -> None:
    here = tree(
        {
            "a": [delegates("refuses", "loops", "asks"), delegates("good")],
            "refuses": [lambda now: [text("No.")]],
            "loops": [runs_bash("true", f"toolu_{turn}") for turn in range(9)],
            "asks": [runs_bash("make it", "toolu_make"), *logs("asked")],
        }
    )
    refusing = here.api.server._plan

    def plan(request: Received) -> Reply:
        reply = refusing(request)
        is_no = reply.blocks and reply.blocks[0].get("text") == "No."
        return Reply([], stop_reason="refusal") if is_no else reply

    here.api.server._plan = plan
    job = family_job(
        here.site,
        "a",
        **{
            "agents.reviewer.limits": {"max_turns": 4},
            "permissions": {"allow": ["Bash", "Agent"], "ask": ["Bash(make *)"]},
        },
    )
    here.work()
    assert here.states()["a"] == ("waiting", "children")
    assert here.states()["a+3"] == ("waiting", "approval")
    (group,) = here.site.json("approvals", job)
    here.site.run("deny", group["calls"][0]["id"], "--reason", "not now")
    here.work()
    assert here.states() == {
        "a": ("succeeded", "end_turn"),
        "a+1": ("failed", "refused"),
        "a+2": ("stopped", "max_turns"),
        "a+3": ("succeeded", "end_turn"),
        "a+4": ("succeeded", "end_turn"),
    }
    refused, stopped, asked = here.api.moments("a")[1].results
    assert "failed (refused)" in refused
    assert "stopped (max_turns)" in stopped
    assert asked == "asks is done."
    assert "not now" in here.api.moments("asks")[1].results[0]


@only_sqlite
def test_a_child_that_is_cancelled_is_an_error_and_its_processes_are_gone(
    tree: Callable[..., Tree],
) -> None:
    here = tree(
        {
            "a": [delegates("long", "short")],
            "long": [runs_bash("touch began; sleep 604.5", "toolu_long")],
            "short": logs("short"),
        }
    )
    family_job(here.site, "a")
    here.site.start("worker", "-c", "8")
    here.site.wait_for_file_made("began")
    ((child,),) = here.rows(select(runs.c.id).where(runs.c.item_key == "a+1"))
    here.site.run("cancel", child)
    wait_until(lambda: here.states()["a"][0] == "succeeded", "the parent to go on")
    cancelled, short = here.api.moments("a")[1].results
    assert "cancelled" in cancelled
    assert short == "short is done."


@only_sqlite
def test_cancel_and_pause_reach_the_whole_tree(tree: Callable[..., Tree]) -> None:
    here = tree(
        {
            "a": [delegates("one")],
            "one": [delegates("two")],
            "two": [runs_bash("touch began; while [ ! -e go ]; do sleep 0.05; done", "toolu_two")],
        }
    )
    job = family_job(here.site, "a")
    here.site.start("worker", "-c", "8")
    here.site.wait_for_file_made("began")
    here.site.run("pause", job)
    assert [here.states()[key] for key in ("a", "a+1")] == [("waiting", "paused")] * 2
    (here.site.workspace / "go").touch()
    wait_until(lambda: here.states()["a+1+1"] == ("waiting", "paused"), "the last to pause")
    here.site.run("resume", job)
    wait_until(lambda: here.states()["a"][0] == "succeeded", "the tree to go on")
    assert len(here.api.moments("two")) == 2


STOPS = """grep -q 'Stop now' && echo '{"continue": false}' || true"""
# It fails when what it looks at is changed beside it.
LOOKS = "for _ in 1 2 3 4 5; do cmp made $1 || echo changed > $2; cat made > $1; sleep 0.1; done"


@pytest.mark.parametrize("how", ["silence", "hook"])
def test_a_run_that_is_to_end_has_its_sub_agents_come_to_rest_before_it_is_delivered(
    tree: Callable[..., Tree], how: str
) -> None:
    """Its commit is of the files that are there at the end, and its last hooks see nobody write."""
    writes = "trap '' TERM; while :; do echo more >> made; touch begun; sleep 0.02; done"
    here = tree(
        {
            "a": [[*delegates("writes"), *delegates("asked", agent_type="tester")]],
            "writes": [runs_bash(writes, "toolu_made")],
        }
    )
    site = here.site
    in_a_repository(site)
    late = {"ask_timeout": "1h", "on_timeout": "stop"} if how == "silence" else {}
    rules = {"allow": ["Bash", "Agent(reviewer)"], "ask": ["Agent(tester)"], **late}
    path = site.live_job(
        ["a"],
        options={"tools": ["Bash", "Agent"]},
        **{**AGENTS, "permissions": rules, "workspace": {"repo": "workspace", "mode": "git"}},
    )
    looks = LOOKS.replace("$1", str(site.folder / "seen")).replace("$2", str(site.folder / "bad"))
    hooks = {"PreToolUse": STOPS, "RunEnd": f"cat made > {site.folder / 'seen'}; {looks}"}
    with path.open("a") as job:
        for name, command in hooks.items():
            job.write(f"\n[[hooks.{name}]]\ncommand = {json.dumps(command)}\n")
    site.submit(path)
    site.start("worker", "-c", "8")
    wait_until(lambda: here.states().get("a") == ("waiting", "approval"), "the question")
    ((run_id,),) = here.rows(select(runs.c.id).where(runs.c.item_key == "a"))
    folder = site.home / "workspaces" / run_id
    wait_until((folder / "begun").exists, "the sub-agent to write")
    if how == "silence":
        here.database.execute(update(approvals).values(expires_at=0.0))
    else:
        edited = {"description": "x", "prompt": "Stop now.", "agent_type": "tester"}
        site.run("approve", run_id, "--edit", json.dumps(edited))
    end = ("stopped", "approval_timeout") if how == "silence" else ("failed", "hook")
    wait_until(lambda: here.states()["a"] == end, "the end")
    assert here.states()["a+1"] == ("cancelled", "cancelled")
    assert not (site.folder / "bad").exists()
    assert (folder / "made").exists()
    shown = ["git", "show", "runner/job/a:made"]
    committed = subprocess.run(shown, cwd=site.workspace, check=True, capture_output=True).stdout
    assert committed == (folder / "made").read_bytes() == (site.folder / "seen").read_bytes()
    (result,) = here.told("tool_done", "a")
    assert "cancelled" in result["output"]


@pytest.mark.parametrize("moment", ["children", "parent"])
def test_nothing_is_done_twice_when_workers_die(tree: Callable[..., Tree], moment: str) -> None:
    """Killed while the children run their commands, and while the parent starts."""
    held = "; touch began; while [ ! -e go ]; do sleep 0.05; done"
    here = tree(
        {
            "a": [*logs("a"), delegates("one", "two")],
            "one": logs("one", held if moment == "children" else ""),
            "two": [delegates("three")],
            "three": logs("three"),
        }
    )
    family_job(here.site, "a")
    worker = here.site.start("worker", "-c", "8")
    if moment == "children":
        here.site.wait_for_file_made("began")
    else:
        here.api.server.wait_for(lambda server: len(server.requests) >= 2, 120)
    worker.kill()
    worker.communicate()
    (here.site.workspace / "go").touch()
    here.work()
    assert set(here.states()) == {"a", "a+1", "a+2", "a+2+1"}
    assert here.states()["a"] == ("succeeded", "end_turn")
    bash = (tool_calls.c.name == "Bash") & (tool_calls.c.outcome == "succeeded")
    known = {row[0] for row in here.rows(select(tool_calls.c.tool_use_id).where(bash))}
    done = [f"toolu_log_{name}" for name in logged(here.site)]
    assert "toolu_log_a" in known
    assert known <= set(done), "the outcome of a call that was cut off is unknown"
    assert len(done) == len(set(done))
    for key, task in (("a+1", "one"), ("a+2", "two"), ("a+2+1", "three")):
        assert here.states()[key][0] == "succeeded", (key, task)
        assert len(here.told("run_submitted", key)) == 1
    assert here.api.moments("a")[-1].results == ("one is done.", "two is done.")


def test_a_family_comes_through_many_deaths(tree: Callable[..., Tree]) -> None:
    """Workers are killed again and again; what each said it did is done once."""
    names = [f"n{number}" for number in range(6)]
    here = tree(
        {
            "a": [delegates(*names)],
            **{name: [*logs(name), *logs(f"{name}b"), *logs(f"{name}c")] for name in names},
        }
    )
    family_job(here.site, "a")
    for enough in (4, 9, 14):
        worker = here.site.start("worker", "-c", "4")
        here.api.server.wait_for(lambda server: server.count >= enough, 120)  # noqa: B023 - waits here
        worker.kill()
        worker.communicate()
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    assert len(here.states()) == 7
    assert len(logged(here.site)) == len(set(logged(here.site)))
    (*_, last) = here.api.moments("a")
    assert last.results == tuple(f"{name} is done." for name in names)


@only_sqlite
def test_a_coordinator_s_parts_are_worked_on_and_joined(tree: Callable[..., Tree]) -> None:
    parts = [{"description": part, "prompt": f"Task {part}."} for part in ("left", "right")]
    here = tree(
        {
            "a": [
                [tool_use("toolu_split", "split_task", {"parts": parts})],
                lambda now: [text(f"Joined: {now.results[0]}")],
            ],
            "left": logs("left"),
            "right": logs("right"),
        }
    )
    family_job(here.site, "a", coordinator={"agent": "reviewer"})
    here.work()
    assert set(here.states().values()) == {("succeeded", "end_turn")}
    assert logged(here.site) == ["left", "right"]
    (_, joining) = here.api.moments("a")
    assert joining.results[0].index("left is done.") < joining.results[0].index("right is done.")


@only_sqlite
def test_a_task_that_its_coordinator_does_not_split_is_one_child_s(
    tree: Callable[..., Tree],
) -> None:
    """The child's task is its parent's: who it is shows in what it is sent."""
    here = tree({"a": [lambda now: [text("I cannot."), *_log_of_child(now)]]})
    family_job(here.site, "a", coordinator={"agent": "reviewer"})
    here.work()
    assert here.states() == {"a": ("succeeded", "end_turn"), "a+1": ("succeeded", "end_turn")}
    assert logged(here.site) == ["whole"]


def _log_of_child(now: Moment) -> list[dict[str, Any]]:
    tools = {tool["name"] for tool in now.request.body["tools"]}
    return [] if "split_task" in tools else runs_bash("echo whole >> log", "toolu_whole")


@only_sqlite
def test_what_cannot_be_started_is_an_error_and_starts_nobody(tree: Callable[..., Tree]) -> None:
    here = tree(
        {
            "a": [[*delegates("none", agent_type="nobody"), *delegates("1")]],
            "1": [delegates("2")],
            "2": [delegates("3")],
            "3": [delegates("4")],
        }
    )
    family_job(here.site, "a")
    here.work()
    assert set(here.states()) == {"a", "a+1", "a+1+1", "a+1+1+1"}
    unknown, first = here.api.moments("a")[1].results
    assert "Unknown type" in unknown or "nobody" in unknown
    assert first == "1 is done."
    (too_deep,) = here.api.moments("3")[1].results
    assert "as deep as this one" in too_deep
