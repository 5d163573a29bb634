"""Types of sub-agents, their place in the tree of runs, and the tools that start them.

The Agent tool has Claude Code's names and arguments, which models know well; ``agent_type`` and
``snapshot`` are ours (https://code.claude.com/docs/en/sub-agents).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypedDict

from runner.core.budget import Charged, Limits
from runner.core.conversation import Tool, ToolResult
from runner.core.mcp import PREFIX, is_named
from runner.permissions import Rule

AGENT_SOURCE = "agent"  # of the tool that starts one
SPLIT_SOURCE = "split"  # of the tool by which a coordinator gives its parts

AGENT_TOOL = "Agent"
SPLIT_TOOL = "split_task"

DEEPEST = 10  # in any job: the ids of runs have a number for each that is above them

AgentWorkspace = Literal["parent", "own"]

# A coordinator's progress: it was asked to split its task, once or twice; one child has the whole
# task and its result has not been told; or its children have the task. Empty: none of these.
Split = Literal["", "asked", "asked_again", "whole", "done"]


@dataclass(frozen=True, slots=True)
class AgentType:
    """A type of sub-agent (``[agents.NAME]``). None: the job's value or the parent's rest."""

    name: str
    description: str
    system: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None  # of the job's; ``*`` may end the name of an MCP server's
    rules: tuple[Rule, ...] = ()  # only tighten what the parent may do
    workspace: AgentWorkspace = "parent"  # its folder, or an own worktree with the parent's files
    snapshot: bool = False  # children see the parent's conversation unless the call says otherwise
    result_schema: Mapping[str, Any] | None = None  # of the structured result that they submit
    max_turns: int | None = None
    token_ceiling: int | None = None
    cost_ceiling_usd: float | None = None
    working_time: float | None = None  # seconds
    deadline: float | None = None  # seconds

    def has(self, tool: str) -> bool:
        """True if it has the job's tool of that name."""
        if self.tools is None or tool in self.tools:
            return True
        return tool.startswith(PREFIX) and is_named(self.tools, tool)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """``[coordinator]``: the model first splits its task into parts, each for a sub-agent."""

    agent: str  # the type of the sub-agents
    fewest: int = 2  # parts
    most: int = 8


@dataclass(frozen=True, slots=True)
class NewChild:
    number: int  # of the parent's children, from 1
    index: int | None  # of the call that asks for it; None: it gets a coordinator's whole task
    agent_type: str
    description: str
    prompt: str
    snapshot: bool  # it begins with the parent's conversation
    tokens: int  # all that it and its own children may use
    cost: int | None  # billionths of a USD; None: no limit
    deadline: float | None  # seconds from now; None: no limit


@dataclass(frozen=True, slots=True)
class Child:
    number: int
    index: int | None  # as in ``NewChild``
    agent_type: str
    reserved: Charged  # what it may use; after its end: what it and its children were charged
    result: ToolResult | None = None  # that its call gives; None until it has ended


def child_id(run_id: str, number: int) -> str:
    """Return the id of a run's child, the same each time that the child is started."""
    return f"{run_id}.{number}"


def lineage(run_id: str) -> tuple[str, ...]:
    """A run's ancestors, from the run of an item on, and the run itself.

    >>> lineage("run_a.3.1")
    ('run_a', 'run_a.3', 'run_a.3.1')
    """
    return tuple(accumulate(run_id.split("."), "{}.{}".format))


class Place(TypedDict):
    """The place of a run, or of a tool call of it, among the runs of an item."""

    root: str  # the run of the item
    parent: str | None  # None for the root
    depth: int  # 0 for the root
    label: str  # ``3.1`` is the first child of the third child; empty for the root


def place_of(run_id: str) -> Place:
    """The place of a run.

    >>> place_of("run_a.3.1")
    {'root': 'run_a', 'parent': 'run_a.3', 'depth': 2, 'label': '3.1'}
    """
    *above, _ = lineage(run_id)
    root, _, label = run_id.partition(".")
    return Place(root=root, parent=above[-1] if above else None, depth=len(above), label=label)


def place_columns(run_id: str) -> dict[str, Any]:
    """Return the columns of ``runs`` that follow from a run's id."""
    place = place_of(run_id)
    is_child = place["parent"] is not None
    return {
        "parent_run": place["parent"],
        "root_run": place["root"] if is_child else None,
        "depth": place["depth"],
        "child_number": int(run_id.rpartition(".")[2]) if is_child else None,
    }


def call_label(run_id: str, number: int) -> str:
    """The label of the n-th tool call of a run.

    >>> call_label("run_a.3", 2)
    '3.2'
    """
    return f"{place_of(run_id)['label']}.{number}".lstrip(".")


def is_within(run_id: str, top: str) -> bool:
    """True if a run is ``top`` or below it."""
    return run_id == top or run_id.startswith(f"{top}.")


def item_of(run_id: str, item_key: str) -> str:
    """Return the item's key from a run's: each level of sub-agents adds ``+`` and a number.

    >>> item_of("run_a.3.1", "src/a.py+3+1")
    'src/a.py'
    """
    return item_key.rsplit("+", run_id.count("."))[0]


def tree_order(run_id: str) -> tuple[str | int, ...]:
    """Return a sort key: a run comes before its sub-agents, which are in order."""
    root, *numbers = run_id.split(".")
    return root, *map(int, numbers)


_AGENT = (
    "Starts a sub-agent that works on a task by itself and returns its last message.\n\n"
    "- It begins with the prompt alone, unless `snapshot` is set: state everything that it must know, "
    "and what it must return.\n"
    "- Several calls in one reply work side by side, {at_once} at a time. They may share one folder: do "
    "not let two of them change the same files.\n"
    "- Its rules are no wider than yours, and its usage counts against your remaining limits.\n"
    "- If a sub-agent fails, the result is an error with the reason, and you continue.\n\n"
    "Types of sub-agents:\n{types}"
)
_SPLIT = (
    "Splits your task into {fewest} to {most} parts. A sub-agent works on each part by itself, all side "
    "by side. Call this first, and once.\n\n"
    "- Each prompt must be complete: its sub-agent {begins}, and does not see the other parts.\n"
    "- The parts together are the whole task, and no two of them change the same files.\n"
    "- The result has the results of the sub-agents, in the order of the parts."
)


def agent_tool(types: Sequence[AgentType], limits: Limits) -> Tool:
    """Return the tool that starts a sub-agent of one of these types."""
    seeing = [f"`{each.name}`" for each in types if each.snapshot]
    by_default = f"default true for {', '.join(seeing)}, else false"
    if len(seeing) in (0, len(types)):
        by_default = f"default {'true' if seeing else 'false'}"
    listed = "\n".join(f"- `{each.name}`: {each.description}" for each in types)
    properties: dict[str, Any] = {
        "description": _text("The sub-agent's task in 3 to 5 words"),
        "prompt": _text("The task"),
        "agent_type": {
            "type": "string",
            "enum": [each.name for each in types],
            "description": "The type of sub-agent",
        },
        "snapshot": {
            "type": "boolean",
            "description": f"Let it see this conversation up to here ({by_default})",
        },
    }
    return Tool(
        AGENT_TOOL,
        _AGENT.format(at_once=limits.max_agents_at_once, types=listed),
        _object(properties, optional="snapshot"),
        source=AGENT_SOURCE,
    )


def split_tool(coordinator: Coordinator, agent: AgentType) -> Tool:
    """Return the tool that splits a coordinator's task among sub-agents of this type."""
    part = _object(
        {
            "description": _text("The part in 3 to 5 words"),
            "prompt": _text("The sub-agent's task, and what it must return"),
        }
    )
    parts = {
        "type": "array",
        "items": part,
        "minItems": coordinator.fewest,
        "maxItems": coordinator.most,
        "description": "The parts of the task",
    }
    begins = "sees this conversation and it" if agent.snapshot else "begins with it alone"
    description = _SPLIT.format(fewest=coordinator.fewest, most=coordinator.most, begins=begins)
    schema = _object({"parts": parts})
    return Tool(SPLIT_TOOL, description, schema, source=SPLIT_SOURCE)


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _object(properties: dict[str, Any], optional: str = "") -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != optional],
        "additionalProperties": False,
    }
