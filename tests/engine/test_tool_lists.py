"""Runs whose MCP server changes its tools: what the model is offered from then on, and what is stored."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from runner.app.event_words import event_note
from runner.core.commands import Reply
from runner.core.conversation import ModelRequest
from runner.core.mcp import McpServer, chosen
from runner.core.run import Ended, Lease, Waiting
from runner.core.spec import Asking
from runner.core.workspace import Workspace, result_tool
from runner.llm.scripted import ScriptedModel
from runner.permissions import Rule
from runner.ports import Claimed
from runner.queries.transcript import sent_request
from runner.store.tables import tool_lists
from runner.tools.mcp import list_tools
from runner.tools.registry import resolve_tools
from tests.engine.test_asking import DONE, Desk, Listening, desk, ports, reply
from tests.engine.test_attempt import claimed, scripted
from tests.engine.test_refused_media import happened
from tests.tools.conftest import patient_sessions

__all__ = ["desk", "patient_sessions", "ports"]

pytestmark = pytest.mark.usefixtures("patient_sessions")

SERVER = Path(__file__).parents[1] / "mcp_server.py"
SUCCEEDED = Ended("succeeded", "end_turn")


def use(tool: str, **given: Any) -> dict[str, Any]:
    return {"name": f"mcp__ours__{tool}", "input": given}


def begin(
    desk: Desk, *replies: dict[str, Any], names: tuple[str, ...] = ("mcp__ours",), **changes: Any
) -> Lease:
    """A new run with the tools of our server that the names choose, held."""
    command = (str(SERVER), str(desk.folder / "notes"))
    server = McpServer(
        "ours", sys.executable, command, folder=str(desk.folder), start_timeout=120.0
    )
    listed = list_tools([server])["ours"]
    assert isinstance(listed, tuple)
    read, _ = resolve_tools(["Read"], desk.folder)
    given = {
        "tools": (*read, *chosen((names,), listed), result_tool({"type": "object"})),
        "mcp": (server,),
        "mcp_choice": (names,),
        "rules": (Rule("allow", "mcp__ours"),),
        "asking": Asking("ask"),
        "workspace": Workspace(str(desk.folder)),
    }
    done = reply({"name": "submit_result", "input": {}})
    spec = replace(scripted(*replies, done, DONE), **{**given, **changes})
    desk.model = Listening(ScriptedModel(spec.script or {}))
    desk.ports = replace(desk.ports, models=desk._model)
    return claimed(desk.database, spec)


def offered(request: ModelRequest) -> dict[str, str]:
    """The tools of a request, in order, with their descriptions."""
    return {tool.name.removeprefix("mcp__ours__"): tool.description for tool in request.tools}


def test_a_run_has_the_changed_tools_from_its_next_turn_on(desk: Desk) -> None:
    calls = reply(use("extra"), use("wrong"))
    lease = begin(desk, reply(use("change"), use("say", text="a")), calls)
    assert desk.work(lease) == Ended("succeeded", "submitted")
    first, second, third = desk.model.requests
    before, now = offered(first), offered(second)
    assert before.keys() - now.keys() == {"wrong"}
    assert now.keys() - before.keys() == {"extra"}
    assert now["say"] == "Say a text. Loudly."
    assert [*now] == ["Read", *sorted(now.keys() - {"Read", "submit_result"}), "submit_result"]
    assert third.tools == second.tools
    said, unknown = desk.model.results[-2:]
    assert said == "extra"
    assert unknown.startswith("Unknown tool 'mcp__ours__wrong'. Available tools: Read, mcp__ours__")
    for turn, request in enumerate((first, second, third), 1):
        assert sent_request(desk.database, lease.run_id, turn).tools == request.tools
    (changed,) = happened(desk, "tools_changed")
    (stored,) = desk.database.rows(select(tool_lists))
    assert changed == {
        "sha256": stored.sha256,
        "removed": ["mcp__ours__wrong"],
        "changed": ["mcp__ours__say"],
        "added": ["mcp__ours__extra"],
        "left_out": ["mcp__ours__crooked is not a JSON Schema: at anyOf: [] should be non-empty"],
    }
    note = event_note("tools_changed", changed, 1)
    assert note is not None
    assert note.words == (
        "tools of MCP servers have changed (removed: mcp__ours__wrong; changed: mcp__ours__say; added: "
        f"mcp__ours__extra; left out: {changed['left_out'][0]})"
    )


@pytest.mark.slow
def test_another_attempt_has_the_same_tools_until_its_server_lists_others(desk: Desk) -> None:
    rules = (Rule("ask", "mcp__ours__note"), Rule("allow", "mcp__ours"))
    asks = reply(use("note", text="a"))
    lease = begin(desk, reply(use("change")), asks, reply(use("say", text="b")), rules=rules)
    assert desk.work(lease) == Waiting("approval")
    desk.ports.tools.servers.close()
    desk.answer(Reply("approved", "ada"))
    assert desk.work() == Ended("succeeded", "submitted")
    first, changed, again, last = desk.model.requests
    assert offered(changed) != offered(first)
    assert again.tools == first.tools, "the new server has begun anew by the end of the call"
    assert last.tools == first.tools
    assert len(desk.database.rows(select(tool_lists))) == 2


@pytest.mark.slow
def test_only_chosen_tools_that_the_api_takes_are_offered(desk: Desk) -> None:
    lease = begin(desk, reply(use("change")), names=("mcp__ours__say", "mcp__ours__ch*"))
    assert desk.work(lease) == Ended("succeeded", "submitted")
    first, second = map(offered, desk.model.requests)
    assert [*first] == [*second] == ["Read", "say", "change", "submit_result"]
    (changed,) = happened(desk, "tools_changed")
    assert (changed["changed"], changed["left_out"]) == (["mcp__ours__say"], [])
    assert (first["say"], second["say"]) == ("Say a text.", "Say a text. Loudly.")


@pytest.mark.slow
def test_a_run_that_begins_later_has_the_tools_of_the_server_that_it_shares(desk: Desk) -> None:
    """As a sub-agent does, whose job is its parent's."""
    servers = desk.ports.tools.servers
    lease = begin(desk, reply(use("change")))
    servers.claimed(Claimed(lease, "job_1", "a"))
    assert desk.work(lease) == Ended("succeeded", "submitted")
    changed = desk.model.requests[1].tools
    other = begin(desk, reply(use("say", text="a")))
    servers.claimed(Claimed(other, "job_1", "b"))
    assert desk.work(other) == Ended("succeeded", "submitted")
    assert [request.tools for request in desk.model.requests] == [changed, changed]
    assert len(desk.database.rows(select(tool_lists))) == 2


def test_a_server_that_says_nothing_costs_a_run_nothing(desk: Desk) -> None:
    lease = begin(desk, reply(use("say", text="a")))
    assert desk.work(lease) == Ended("succeeded", "submitted")
    assert desk.database.rows(select(tool_lists)) == []
    first, second = desk.model.requests
    assert first.tools == second.tools
