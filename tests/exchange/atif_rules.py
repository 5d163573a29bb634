"""The rules of ATIF for a trajectory: its published models as a schema, and checks beyond a schema.

https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads(Path(__file__).with_name("atif.schema.json").read_text())

_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def problems(trajectory: Any) -> list[str]:
    """Everything in which a trajectory is none."""
    found = [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(SCHEMA).iter_errors(trajectory)
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
            for ref in result.get("subagent_trajectory_ref", ()):
                if "trajectory_id" not in ref and "trajectory_path" not in ref:
                    yield f"{place}: a sub-agent's trajectory that nothing names"
        parts = step["message"] if isinstance(step["message"], list) else ()
        for part in parts:
            if ("text" in part) != (part["type"] == "text") or ("text" in part) == (
                "source" in part
            ):
                yield f"{place}: a part of another type than it says"
    children = {
        each.get("trajectory_id"): each for each in trajectory.get("subagent_trajectories", ())
    }
    if None in children or len(children) < len(trajectory.get("subagent_trajectories", ())):
        yield "subagent_trajectories: an id is missing, or is there twice"
    for child in children.values():
        yield from (f"{child['trajectory_id']}: {problem}" for problem in _of_steps(child))
    metrics = [step.get("metrics", {}) for step in trajectory["steps"]]
    totals = trajectory["final_metrics"]
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        if totals[f"total_{name}"] != sum(each.get(name, 0) for each in metrics):
            yield f"final_metrics: total_{name} is not the sum of the steps'"
    costs = [each["cost_usd"] for each in metrics if "cost_usd" in each]
    costs += [each["final_metrics"].get("total_cost_usd", 0) for each in children.values()]
    if totals.get("total_cost_usd", 0) < sum(costs) * 0.999:
        yield "final_metrics: total_cost_usd lacks a cost of a step or of a sub-agent"
