"""The tools by which a model starts sub-agents: Agent, and a coordinator's split_task.

Names and arguments of Agent are those of Claude Code, which models know well; ``agent_type`` and
``snapshot`` are ours (https://code.claude.com/docs/en/sub-agents).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.core.agents.agent import (
    AGENT_SOURCE,
    AGENT_TOOL,
    SPLIT_SOURCE,
    SPLIT_TOOL,
    AgentType,
    Coordinator,
)
from runner.core.conversation import Tool
from runner.core.money.budget import Limits

_AGENT = (
    "Starts a sub-agent that works on a task by itself and gives back what it says last.\n\n"
    "- It begins with the prompt alone, unless `snapshot` is set: say all that it has to know, and what "
    "it is to give back.\n"
    "- Several calls in one reply work side by side, {at_once} at a time. They may share one folder: do "
    "not let two of them change the same files.\n"
    "- Its rules are no wider than yours, and what it uses comes out of what you have left.\n"
    "- A sub-agent that fails is an error result with the reason: you go on.\n\n"
    "Types of sub-agents:\n{types}"
)
_SPLIT = (
    "Splits your task into {fewest} to {most} parts, on each of which a sub-agent works by itself, all "
    "side by side. Call this first, and once.\n\n"
    "- Each prompt has to stand alone: its sub-agent {begins}, and sees nothing of the other parts.\n"
    "- The parts together are the whole task, and no two of them change the same files.\n"
    "- The result is what each sub-agent gave back, in the order of the parts."
)

_DEFAULT_LIMITS = Limits()


def agent_tool(types: Sequence[AgentType], limits: Limits = _DEFAULT_LIMITS) -> Tool:
    """The tool that starts a sub-agent.

    Args:
        types: those that there are, at least one.
        limits: the job's.
    """
    listed = "\n".join(f"- `{each.name}`: {each.description}" for each in types)
    properties: dict[str, Any] = {
        "description": _text("What the sub-agent is to do, in 3 to 5 words"),
        "prompt": _text("The task"),
        "agent_type": {
            "type": "string",
            "enum": [each.name for each in types],
            "description": "The type of sub-agent",
        },
        "snapshot": {
            "type": "boolean",
            "description": f"Let it see this conversation up to here ({_by_default(types)})",
        },
    }
    return Tool(
        AGENT_TOOL,
        _AGENT.format(at_once=limits.max_agents_at_once, types=listed),
        _object(properties, ["description", "prompt", "agent_type"]),
        source=AGENT_SOURCE,
    )


def split_tool(coordinator: Coordinator, agent: AgentType) -> Tool:
    """The tool by which a coordinator gives the parts of its task.

    Args:
        agent: the type of the parts' sub-agents.
    """
    part = _object(
        {
            "description": _text("What the part is, in 3 to 5 words"),
            "prompt": _text("What the sub-agent is to do, and what it is to give back"),
        },
        ["description", "prompt"],
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
    schema = _object({"parts": parts}, ["parts"])
    return Tool(SPLIT_TOOL, description, schema, source=SPLIT_SOURCE)


def _by_default(types: Sequence[AgentType]) -> str:
    seeing = [f"`{each.name}`" for each in types if each.snapshot]
    if len(seeing) in (0, len(types)):
        return f"default {'true' if seeing else 'false'}"
    return f"default true for {', '.join(seeing)}, else false"


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
