"""What the specification of ATIF 1.7 asks of a trajectory: a schema, and what no schema can say.

https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
AMOUNT: Schema = {"type": "number"}
ANY_OBJECT: Schema = {"type": "object"}


def closed(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items}


IMAGE = closed(
    {"media_type": {"enum": ["image/jpeg", "image/png", "image/gif", "image/webp"]}, "path": TEXT},
    {},
)
PART: Schema = {
    "oneOf": [
        closed({"type": {"const": "text"}, "text": TEXT}, {}),
        closed({"type": {"const": "image"}, "source": IMAGE}, {}),
    ]
}
CONTENT: Schema = {"oneOf": [TEXT, several(PART)]}
SUBAGENT: Schema = {
    **closed(
        {},
        {"trajectory_id": TEXT, "trajectory_path": TEXT, "session_id": TEXT, "extra": ANY_OBJECT},
    ),
    "anyOf": [{"required": ["trajectory_id"]}, {"required": ["trajectory_path"]}],
}
RESULT = closed(
    {},
    {
        "source_call_id": TEXT,
        "content": CONTENT,
        "subagent_trajectory_ref": several(SUBAGENT),
        "extra": ANY_OBJECT,
    },
)
CALL = closed(
    {"tool_call_id": TEXT, "function_name": TEXT, "arguments": ANY_OBJECT}, {"extra": ANY_OBJECT}
)
METRICS = closed(
    {},
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "cached_tokens": COUNT,
        "cost_usd": AMOUNT,
        "prompt_token_ids": several(COUNT),
        "completion_token_ids": several(COUNT),
        "logprobs": several(AMOUNT),
        "extra": ANY_OBJECT,
    },
)
STEP = closed(
    {
        "step_id": {"type": "integer", "minimum": 1},
        "source": {"enum": ["system", "user", "agent"]},
        "message": CONTENT,
    },
    {
        "timestamp": TEXT,
        "model_name": TEXT,
        "reasoning_effort": {"type": ["string", "number"]},
        "reasoning_content": TEXT,
        "tool_calls": several(CALL),
        "observation": closed({"results": several(RESULT)}, {}),
        "metrics": METRICS,
        "extra": ANY_OBJECT,
        "llm_call_count": {"type": "integer", "minimum": 0},
        "is_copied_context": {"type": "boolean"},
    },
)
AGENT = closed(
    {"name": TEXT, "version": TEXT},
    {"model_name": TEXT, "tool_definitions": several(ANY_OBJECT), "extra": ANY_OBJECT},
)
TOTALS = closed(
    {},
    {
        "total_prompt_tokens": COUNT,
        "total_completion_tokens": COUNT,
        "total_cached_tokens": COUNT,
        "total_cost_usd": AMOUNT,
        "total_steps": COUNT,
        "extra": ANY_OBJECT,
    },
)
TRAJECTORY = closed(
    {"schema_version": {"const": "ATIF-v1.7"}, "agent": AGENT, "steps": several(STEP)},
    {
        "session_id": TEXT,
        "trajectory_id": TEXT,
        "notes": TEXT,
        "final_metrics": TOTALS,
        "continued_trajectory_ref": TEXT,
        "extra": ANY_OBJECT,
        "subagent_trajectories": several(ANY_OBJECT),
    },
)

_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def problems(trajectory: Any) -> list[str]:
    """Everything in which a trajectory is none."""
    found = [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(TRAJECTORY).iter_errors(trajectory)
    ]
    return found or [*_of_steps(trajectory)]


def _of_steps(trajectory: dict[str, Any]) -> Iterator[str]:
    for number, step in enumerate(trajectory["steps"], 1):
        place = f"step {number}"
        if step["step_id"] != number:
            yield f"{place}: its id is {step['step_id']}"
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        if step["source"] != "agent":
            yield from (f"{place}: {name} is an agent's" for name in _AGENT_ONLY if name in step)
        if step.get("llm_call_count") == 0 and ("metrics" in step or "reasoning_content" in step):
            yield f"{place}: metrics or reasoning without a model call"
        asked = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": ()})["results"]:
            source = result.get("source_call_id")
            if source is not None and source not in asked:
                yield f"{place}: a result of {source}, which it did not call"
    metrics = [step.get("metrics", {}) for step in trajectory["steps"]]
    totals = trajectory["final_metrics"]
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        if totals[f"total_{name}"] != sum(each.get(name, 0) for each in metrics):
            yield f"final_metrics: total_{name} is not the sum of the steps'"
