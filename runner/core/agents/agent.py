"""Sub-agents: the types of them that a job has, and what a run knows of those that it has started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.conversation import ToolResult
from runner.core.money.budget import Charged
from runner.permissions import Rule

AGENT_SOURCE = "agent"  # of the tool that starts one
SPLIT_SOURCE = "split"  # of the tool by which a coordinator gives its parts

AGENT_TOOL = "Agent"
SPLIT_TOOL = "split_task"

DEEPEST = 10  # in any job: the ids of runs have a number for each that is above them

AgentWorkspace = Literal["parent", "own"]

# How far a coordinator is: it was told to split its task, once or again; one child has the whole of
# it, and what came of it has not been told; or its task is with its children. Empty: none of these.
Split = Literal["", "asked", "asked_again", "whole", "done"]


@dataclass(frozen=True, slots=True)
class AgentType:
    """A type of sub-agent, as ``[agents.NAME]`` has it. None: as the job has it.

    ``tools`` are names of the job's own; ``rules`` can only tighten what the parent may do, and
    ``snapshot`` says whether its children see the parent's conversation where the call does not.
    ``workspace`` is the parent's folder, or a worktree of their own that begins with the parent's
    files. ``result_schema`` is of a structured result that is asked of them. Limits are as in
    ``core.budget.Limits``: a child gets no more than its parent has left.
    """

    name: str
    description: str
    system: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    rules: tuple[Rule, ...] = ()
    workspace: AgentWorkspace = "parent"
    snapshot: bool = False
    result_schema: Mapping[str, Any] | None = None
    max_turns: int | None = None
    token_ceiling: int | None = None
    cost_ceiling_usd: float | None = None
    working_time: float | None = None
    deadline: float | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AgentType:
        """The value that ``dataclasses.asdict`` made a mapping of."""
        tools = data["tools"]
        return cls(
            **{
                **data,
                "tools": None if tools is None else tuple(tools),
                "rules": tuple(Rule(**rule) for rule in data["rules"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Coordinator:
    """``[coordinator]``: the model first splits the task into parts, each of which becomes a child of
    type ``agent``."""

    agent: str
    fewest: int = 2
    most: int = 8


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child about to be started. ``index`` is of the call that asks for it, None for the one that a
    task goes to which was not split. ``number`` counts the parent's children from 1. ``tokens``,
    ``cost`` (billionths of a USD) and ``deadline`` (seconds from now) are all that it may use, its
    own children with it; None: without that limit."""

    number: int
    index: int | None
    agent_type: str
    description: str
    prompt: str
    snapshot: bool
    tokens: int
    cost: int | None
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its parent knows it. ``index`` as in ``NewChild``; ``held`` is what it may use, or,
    once it has ended, what it and its own children were charged. ``result`` is what its call gives,
    None until it has ended."""

    number: int
    index: int | None
    agent_type: str
    held: Charged
    result: ToolResult | None = None


def child_id(run_id: str, number: int) -> str:
    """The id of a run's child: the same however often it is started."""
    return f"{run_id}.{number}"


def lineage(run_id: str) -> tuple[str, ...]:
    """A run's ancestors, from the run of an item on, and the run itself.

    >>> lineage("run_a.3.1")
    ('run_a', 'run_a.3', 'run_a.3.1')
    """
    root, *numbers = run_id.split(".")
    ids = [root]
    for number in numbers:
        ids.append(f"{ids[-1]}.{number}")
    return tuple(ids)


def label(run_id: str) -> str:
    """What a run is called in its tree: ``3.1`` is the first child of the third child; empty for the
    run of an item."""
    return run_id.partition(".")[2]
