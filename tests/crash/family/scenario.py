"""A family that the sweep goes through: a run with two sub-agents side by side, and hooks around what
all of them do. One works in its parent's folder, the other in a worktree of its own and with all that
its parent has said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from runner.core.agents import AgentType, agent_tool
from runner.core.budget import Limits
from runner.core.conversation import Tool
from runner.core.hooks import Hook, HookEvent
from runner.core.spec import Submission
from runner.permissions import Rule
from tests.crash.life import MARK
from tests.crash.scenario import LIMITED, LOG, OVERLOADED, Scenario
from tests.messages_api import Reply, text, tool_use

Who = Literal["parent", "worker", "reviewer"]

SYSTEMS: Mapping[str, Who] = {
    "Be brief.": "parent",
    "You are the worker.": "worker",
    "You are the reviewer.": "reviewer",
}
TYPES: tuple[Who, Who] = ("worker", "reviewer")  # in the order in which they are asked for
LAST_WORDS: Mapping[Who, str] = {
    "parent": "All of it is done.",
    "worker": "The worker is done.",
    "reviewer": "The reviewer is done.",
}
HOOKED = "hooks.txt"  # beside the workspace: each hook appends its name and its call's id
DENIED = "denied.txt"


def bash(who: Who, position: int) -> dict[str, object]:
    """A command that appends its name."""
    command = f"echo {who}.{position} >> {LOG}"
    return tool_use(f"toolu_{who}_{position}_0", "Bash", {"command": command})


def agent(index: int) -> dict[str, object]:
    """A call for a sub-agent."""
    kind = TYPES[index]
    asks = {"description": f"Be the {kind}", "prompt": "Do your part.", "agent_type": kind}
    return tool_use(f"toolu_parent_1_{index}", "Agent", asks)


SCRIPTS: Mapping[Who, tuple[Reply, ...]] = {
    "parent": (
        Reply([text("I begin."), bash("parent", 0)], fail_first=[LIMITED]),
        Reply([agent(0), agent(1)]),
        Reply(
            [
                bash("parent", 2),
                tool_use("toolu_parent_2_1", "Write", {"file_path": DENIED, "content": "no"}),
            ]
        ),
        Reply([text(LAST_WORDS["parent"])]),
    ),
    "worker": (
        Reply([bash("worker", 0)], fail_first=[OVERLOADED]),
        Reply([text(LAST_WORDS["worker"])]),
    ),
    "reviewer": (Reply([bash("reviewer", 0)]), Reply([text(LAST_WORDS["reviewer"])])),
}


def _notes(event: HookEvent, matcher: tuple[str, ...] = (), *, repeatable: bool = False) -> Hook:
    """A hook that appends what it is told of: its event, and the call's id or the run's."""
    key = "tool_use_id" if matcher else "session_id"
    named = rf"""s/.*"{key}": *"\([^"]*\)".*/\1/p"""
    command = f'echo "{event} $(sed -n \'{named}\')" >> "${MARK}/{HOOKED}"'
    return Hook(event, matcher, command=command, repeatable=repeatable)


HOOKS = (
    _notes("RunStart"),
    _notes("PreToolUse", ("Bash",)),
    Hook(
        "PreToolUse", ("Write",), command="cat > /dev/null; echo 'nothing is written' >&2; exit 2"
    ),
    _notes("PostToolUse", ("Bash",)),
    _notes("TurnEnd", repeatable=True),
    _notes("RunEnd"),
)


@dataclass(frozen=True)
class FamilyScenario(Scenario):
    """See the module."""

    def submission(self, workspace: Path, tools: tuple[Tool, ...]) -> Submission:
        """The job, of one run."""
        submission = super().submission(workspace, (*tools, agent_tool(AGENTS, Limits())))
        spec = replace(submission.spec, agents=AGENTS, hooks=HOOKS)
        return replace(submission, spec=spec)


AGENTS = (
    AgentType("worker", "Works.", system="You are the worker.", tools=("Bash",)),
    AgentType(
        "reviewer",
        "Reviews.",
        system="You are the reviewer.",
        tools=("Bash",),
        workspace="own",
        snapshot=True,
    ),
)

FAMILY = FamilyScenario(
    parallel_tools="safe",
    workspace="git",
    limits=Limits(max_turns=10, max_output_tokens=2_000, token_ceiling=400_000),
    state="succeeded",
    reason="end_turn",
    notes=False,
    script={},
    denied=frozenset({"toolu_parent_2_1"}),
    rules=(Rule("allow", "*"),),
)


def reply_to(body: Mapping[str, Any]) -> tuple[Who, int, Reply]:
    """Who asks for a reply, after how many of its own, and what it is."""
    who = SYSTEMS[_text(body["system"])]
    called = [
        block["id"]
        for message in body["messages"]
        for block in message["content"]
        if block["type"] == "tool_use" and block["id"].split("_")[1] == who
    ]
    position = 1 + max((int(each.split("_")[2]) for each in called), default=-1)
    return who, position, SCRIPTS[who][position]


def _text(system: str | list[dict[str, Any]]) -> str:
    return system if isinstance(system, str) else "".join(block["text"] for block in system)
