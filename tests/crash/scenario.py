"""What the sweep's run goes through: tools side by side, retries, a message on the way, a denial, a
limit at the end. ``tests.crash.variants`` has the ways in which that goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from runner.core.budget import Budget, Limits
from runner.core.context import CompactionKind, Context
from runner.core.conversation import Tool, Usage
from runner.core.mcp import McpServer
from runner.core.prices import Terms
from runner.core.run import EndState
from runner.core.spec import JobSpec, Lane, NewRun, ParallelTools, Submission
from runner.core.workspace import Verify, Workspace, WorkspaceMode, result_tool
from runner.llm.prices import load_prices
from runner.permissions import Rule
from runner.tools.registry import resolve_tools
from tests.crash import repository
from tests.messages_api import Break, Reply, text, tool_use

SAID_FIRST = "Said before the run began."
SAID_LATER = "Said while the model was at its third reply."
SAID_LATER_AT = 2  # the reply's position

LOG = "log.txt"  # each Bash call appends its name, as in its id
OUTSIDE = "outside.txt"  # beside the workspace; so does each call of the MCP server
_SERVER_FILE = Path(__file__).parents[1] / "mcp_server.py"
SERVER = McpServer("ours", sys.executable, scope="run", folder=str(_SERVER_FILE.parent))
SERVED = Tool(
    SERVER.tool_name("note"), "Note a text.", {"type": "object"}, source=SERVER.source("note")
)
EDITED, EDIT_MARK = "tasks.txt", "[x]"
NOTED = "noted.txt"
DENIED = "denied.txt"
ASKED_ABOUT = "asked.txt"
ANSWERED = "answered.txt"  # is there once the first question has its answer

MODEL = "claude-sonnet-5"
SUMMARY = "Summary"
REMEMBERED = "Bash(basename *)"
_USAGE = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

TURNS = 5
RULES = (Rule("allow", "*"), Rule("deny", "Write"))
_TOOLS = ("Bash", "Read", "Write", "Edit", "Grep", "own_note:note")
LOST = Break("cut", after=4)
LIMITED = Break("status", status=429, message="Slow down", headers={"retry-after": "1"})
TOO_LONG = Break("status", status=400, message="prompt is too long: 9001 tokens > 9000 maximum")
OVERLOADED = Break("status", status=529, headers={"retry-after": "30"})  # longer than in hand


@dataclass(frozen=True)
class Planned:
    """An answer. ``early``: it is given while a call before it in the reply still runs; ``by`` is
    who gives it: a person, or a rule that was remembered with another."""

    effect: Literal["approved", "denied"]
    by: Literal["person", "rule"] = "person"
    early: bool = False
    reason: str = ""
    command: str | None = None
    remember: str | None = None


@dataclass(frozen=True)
class Files:
    """More of a workspace of the run's own: ``external`` are rules, ``external_calls`` the calls that
    they match, ``invalid`` those of which the input does not fit. With ``hosts``, each worker has a
    home of its own, and all that they share is a remote."""

    external: tuple[Rule, ...] = ()
    external_calls: frozenset[str] = frozenset()
    invalid: frozenset[str] = frozenset()
    output_schema: Mapping[str, Any] | None = None
    verify: Verify | None = None
    verified: tuple[bool, ...] = ()
    hosts: bool = False
    served: bool = False  # by an MCP server of the run's own

    def workspace(self, folder: Path, mode: WorkspaceMode) -> Workspace:
        """The job's, made from a folder that ``furnish`` has made."""
        workspace = Workspace(str(folder), mode, external=self.external)
        if mode == "git":
            workspace = replace(workspace, commit=repository.head(folder))
        if self.hosts:
            remote = repository.remote_of(folder)
            workspace = replace(workspace, path=None, url=str(remote), remote=str(remote))
        return workspace


@dataclass(frozen=True)
class Scenario:
    """A variant: how tools go side by side, where the run works, what ends it, and whether it calls
    a tool of one's own (which takes longer than all else). Calls are named by their ids: those that
    are denied, those that fail, and what a person answers about those that are asked. ``compactions``
    are the kinds of those that it needs, in order."""

    parallel_tools: ParallelTools
    workspace: WorkspaceMode
    limits: Limits
    reason: str
    notes: bool
    script: Mapping[int, Reply]
    denied: frozenset[str]
    fails: frozenset[str] = frozenset()
    answers: Mapping[str, Planned] = field(default_factory=dict)
    rules: tuple[Rule, ...] = RULES
    state: EndState = "stopped"
    context: Context = field(default_factory=Context)
    budget: Budget = field(default_factory=Budget)
    compactions: tuple[CompactionKind, ...] = ()
    files: Files = field(default_factory=Files)
    lane: Lane = "realtime"

    def submission(self, workspace: Path, tools: tuple[Tool, ...]) -> Submission:
        """The job, of one run."""
        schemas, served = filter(None, [self.files.output_schema]), self.files.served
        outside = str(workspace.parent / OUTSIDE)
        spec = JobSpec(
            name="sweep",
            model=MODEL,
            system="Be brief.",
            tools=(*tools, *([SERVED] if served else []), *(result_tool(s) for s in schemas)),
            mcp=(replace(SERVER, args=(str(_SERVER_FILE), outside, "--fickle")),) if served else (),
            mcp_choice=((SERVED.name,),) if served else (),
            rules=self.rules,
            limits=self.limits,
            budget=self.budget,
            context=self.context,
            parallel_tools=self.parallel_tools,
            workspace=self.files.workspace(workspace, self.workspace),
            verify=self.files.verify,
            lane=self.lane,
        )
        return Submission("sweep.toml", "", spec, (NewRun("one", "one", "Do what you can."),))

    def reply(self, position: int) -> Reply:
        """The model's reply after so many of its messages; it never ends by itself."""
        scripted = self.script.get(position) or Reply([bash(position, 0, "")])
        if self.notes:
            return scripted
        blocks = [block for block in scripted.blocks if block.get("name") != "note"]
        return replace(scripted, blocks=blocks)


def position_of(messages: list[dict[str, Any]]) -> int:
    """How many replies came before a request, whatever is left out of it: calls are named by theirs."""
    ids = [
        block["id"]
        for message in messages
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    said = sum(message["role"] == "assistant" for message in messages)
    return max(said, 1 + max((int(name.split("_")[1]) for name in ids), default=-1))


def summary(messages: list[dict[str, Any]], number: int) -> Reply:
    """The summary that the model writes when it is asked for the ``number``-th time: the first time
    that there is none yet it is of use, later it is empty."""
    if SUMMARY in json.dumps(messages):
        return Reply()
    return Reply([text(f"{SUMMARY} {number}: I printed numbers.")])


@cache
def tools() -> tuple[Tool, ...]:
    """The tools of the job, one of one's own among them."""
    return resolve_tools(_TOOLS, Path(__file__).parent)[0]


def furnish(workspace: Path, variant: Scenario) -> None:
    """Make the folder that the run works in, or that its own workspace is made from."""
    workspace.mkdir(parents=True)
    (workspace / EDITED).write_text("mend the fence\n")
    (workspace / ASKED_ABOUT).write_text("secret\n")
    if variant.workspace == "git":
        repository.make(workspace)


def bash(position: int, index: int, after: str) -> dict[str, object]:
    """A command that appends its name."""
    command = f"echo {position}.{index} >> {LOG}{after}"
    return tool_use(f"toolu_{position}_{index}", "Bash", {"command": command})


def served(position: int, index: int) -> dict[str, object]:
    """A call of an MCP server that appends its name."""
    return tool_use(f"toolu_{position}_{index}", SERVED.name, {"text": f"{position}.{index}"})


def read(position: int, index: int) -> dict[str, object]:
    """A look at the file that is edited."""
    return tool_use(f"toolu_{position}_{index}", "Read", {"file_path": EDITED})


def asked(position: int, index: int, says: str | None = None) -> dict[str, object]:
    """A command that appends its name, and that the rules ask about."""
    command = f"basename {says or f'{position}.{index}'} >> {LOG}"
    return tool_use(f"toolu_{position}_{index}", "Bash", {"command": command})


def cost_of(answer: Reply) -> int:
    """What a reply with its usage costs, in billionths of a USD."""
    usage = Usage(*(answer.usage[name] for name in _USAGE))
    tariff = load_prices().tariff(MODEL, Terms())
    assert tariff is not None
    return tariff.cost(usage, hour_cache=False)


def failing(answer: Reply) -> Reply:
    """The reply as it fails the first time."""
    return replace(answer, broken=answer.fail_first[0])


def with_usage(answer: Reply, prompt_tokens: int) -> Reply:
    """The reply, with tokens of all four kinds that are known exactly."""
    quarter = prompt_tokens // 4
    return replace(
        answer,
        usage={
            "input_tokens": prompt_tokens - 2 * quarter,
            "cache_read_input_tokens": quarter,
            "cache_creation_input_tokens": quarter,
            "output_tokens": answer.output_tokens(),
        },
    )
