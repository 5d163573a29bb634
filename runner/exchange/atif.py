"""A run as a trajectory in the Agent Trajectory Interchange Format, version 1.7.

https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from runner.core.conversation import Block, Usage
from runner.exchange.recorded import Recorded, Row, iso

VERSION = "ATIF-v1.7"
_NOTES = (
    "Results of tools are as the model was shown them. A compaction takes the place of the steps that "
    "its context_management names for what the model was sent after it; the steps stay."
)
_BOUNDARIES = {
    "summary": {"type": "compaction", "boundary": "replace_steps"},
    "prune": {"type": "pruning", "boundary": "replace_steps"},
    "clip": {"type": "pruning", "boundary": "truncate"},
}

Step = dict[str, Any]


def trajectory(
    recorded: Recorded, version: str, subagents: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return a run's trajectory as a JSON object, with those of the runs that it started."""
    steps = _Steps(recorded).all()
    run, session = recorded.run, recorded.session
    agent: dict[str, Any] = {"name": "runner", "version": version}
    if session is not None:
        agent = {"name": "claude-code", "version": str(session.get("version") or "unknown")}
    agent["model_name"] = recorded.model
    functions = (
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}
        for tool in recorded.spec.tools
    )
    if recorded.spec.tools:  # in the form of OpenAI's function calling
        agent["tool_definitions"] = [{"type": "function", "function": each} for each in functions]
    of_run = ("state", "reason", "detail", "fork_of", "fork_turn", "parent_run", "agent_type")
    return {
        "schema_version": VERSION,
        "session_id": recorded.root,
        "trajectory_id": recorded.id,
        "agent": agent,
        "steps": steps,
        "notes": _NOTES,
        "final_metrics": _totals(recorded, steps, subagents),
        "extra": {
            "job_id": run["job_id"],
            "job_name": recorded.job_name,
            "item_key": run["item_key"],
            "item": recorded.item,
            **{name: run[name] for name in of_run},
        },
        **({"subagent_trajectories": list(subagents)} if subagents else {}),
    }


class _Steps:
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._replies = recorded.replies()
        self._copied = recorded.run["fork_turn"] if recorded.run["fork_of"] is not None else None
        # The blocks that a sub-agent has from its parent: all that it began with but the last.
        began = [(row["message"], row["position"]) for row in recorded.blocks if row["turn"] == 0]
        self._inherited = began[:-1] if recorded.run["parent_run"] is not None else []
        self._compactions = list(recorded.compactions)
        self._verifications = list(recorded.verifications)
        self._steps: list[Step] = []
        self._first_step: dict[int, int] = {}  # by message

    def all(self) -> list[Step]:
        if system := self._recorded.spec.system:
            self._add({"source": "system", "message": system})
        for rows in self._recorded.messages():
            if rows[0]["role"] == "assistant":
                self._add_happened(rows[0]["turn"])
                self._add_reply(rows)
            else:
                self._add_user(rows)
        self._add_happened(math.inf)
        if not self._steps:  # a trajectory has at least one
            self._add({"source": "system", "message": "Nothing was said."})
        return self._steps

    def _add(self, step: Step) -> Step:
        numbered = {"step_id": len(self._steps) + 1, **step}
        self._steps.append(numbered)
        return numbered

    def _add_happened(self, turn: float) -> None:
        self._add_verifications(turn - 1)
        while self._compactions and self._compactions[0]["turn"] <= turn:
            row = self._compactions.pop(0)
            first, last = (self._step_of(row[name]) for name in ("first_message", "last_message"))
            about = {**_BOUNDARIES[row["kind"]], "first_step": first, "last_step": last}
            tokens = {name: row[name] for name in ("tokens_before", "tokens_after")}
            extra = {"context_management": about, **tokens}
            words = f"Context compaction ({row['kind']})"
            self._add(_system_step(row["created_at"], words, extra, row["text"]))

    def _step_of(self, message: int) -> int | None:
        """The step that a message is in: results are in that of the reply that asked for them."""
        before = [number for number in self._first_step if number <= message]
        return self._first_step[max(before)] if before else None

    def _add_reply(self, rows: Sequence[Row]) -> None:
        message, step = rows[0]["message"], self._common(rows, "agent")
        blocks = [row["content"] for row in rows]
        thought = [b["thinking"] for b in blocks if isinstance(b.get("thinking"), str)]
        call = self._replies.get(rows[0]["turn"])
        step["model_name"] = self._recorded.model if call is None else call["model"]
        options = self._recorded.spec.model_options
        config = {**options, **(options.get("extra_body") or {})}.get("output_config")
        effort = config.get("effort") if isinstance(config, dict) else None
        if isinstance(effort, str | float):
            step["reasoning_effort"] = effort
        step["message"] = _parts([b for b in blocks if b["type"] in ("text", "image")])
        if any(thought):
            step["reasoning_content"] = "\n\n".join(thought)
        uses = [block for block in blocks if block["type"] == "tool_use"]
        if uses:
            step["tool_calls"] = [
                _tool_call(use, self._recorded.calls.get((message, position)))
                for position, use in enumerate(uses)
            ]
        known = ("text", "image", "thinking", "tool_use")
        other = [block for block in blocks if block["type"] not in known]
        extra = step.pop("extra") | ({"other_blocks": other} if other else {})
        if call is not None:
            cost, metrics = self._recorded.costs.get(call["number"]), {}
            if call["input_tokens"] is not None:
                usage = Usage(*(call[kind] or 0 for kind in Usage.__slots__))
                metrics = {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.output_tokens,
                    "cached_tokens": usage.cache_read_tokens,
                    "extra": {"cache_creation_input_tokens": usage.cache_creation_tokens},
                }
            step["metrics"] = metrics | ({} if cost is None else {"cost_usd": cost})
            step["llm_call_count"] = 1
            extra |= {name: call[name] for name in ("stop_reason", "request_id", "latency")}
        self._add({**step, "extra": extra})
        self._first_step[message] = len(self._steps)

    def _add_user(self, rows: Sequence[Row]) -> None:
        results = [row for row in rows if row["content"]["type"] == "tool_result"]
        words = [row for row in rows if row["content"]["type"] != "tool_result"]
        if results:
            self._add_results(results)
        if words:
            # A verification that failed is the cause of the user's next words.
            self._add_verifications(rows[0]["turn"])
        for copied in (True, False):
            if said := [row for row in words if self._is_copied(row) is copied]:
                step = self._common(said, "user")
                self._add({**step, "message": _parts([row["content"] for row in said])})
                self._first_step.setdefault(said[0]["message"], len(self._steps))

    def _add_verifications(self, turn: float) -> None:
        while self._verifications and self._verifications[0]["turn"] <= turn:
            row = self._verifications.pop(0)
            words = f"Verification {row['number']}: {row['outcome'] or 'not ended'}"
            extra = {name: row[name] for name in ("turn", "command", "duration")}
            self._add(_system_step(row["started_at"], words, extra, row["content"]))

    def _add_results(self, rows: Sequence[Row]) -> None:
        agent = next((s for s in reversed(self._steps) if s["source"] == "agent"), None)
        if agent is None:  # results without a reply: of a record that was damaged elsewhere
            agent = self._add(self._common(rows, "system") | {"message": "Results of tools"})
        asked = {call["tool_call_id"] for call in agent.get("tool_calls", ())}
        results = agent.setdefault("observation", {"results": []})["results"]
        for row in rows:
            place, block = (row["message"] - 1, row["position"]), row["content"]
            content = block["content"]
            extra: dict[str, Any] = {"is_error": bool(block.get("is_error"))}
            if call := self._recorded.calls.get(place):
                extra |= {"outcome": call["outcome"], "duration": call["duration"]}
            shown = content if isinstance(content, str) else _parts(content)
            result: dict[str, Any] = {"content": shown, "extra": extra}
            if block["tool_use_id"] in asked:
                result = {"source_call_id": block["tool_use_id"], **result}
            else:
                extra["tool_use_id"] = block["tool_use_id"]
            if started := self._recorded.children.get(place):
                result["subagent_trajectory_ref"] = [{"trajectory_id": each} for each in started]
            results.append(result)
        self._first_step.setdefault(rows[0]["message"], agent["step_id"])

    def _common(self, rows: Sequence[Row], source: str) -> Step:
        """Return what the step of a message's blocks has, whoever said them."""
        first = rows[0]
        extra = {"turn": first["turn"], "message": first["message"]}
        step: Step = {"timestamp": iso(first["created_at"]), "source": source, "extra": extra}
        return step | ({"is_copied_context": True} if self._is_copied(first) else {})

    def _is_copied(self, row: Row) -> bool:
        """True if a fork has a block from the other run, or a sub-agent from its parent. Of the last
        turn that a fork copied, the reply and the results are copied; words after them are its own."""
        if self._copied is None:
            return (row["message"], row["position"]) in self._inherited
        if row["turn"] != self._copied:
            return bool(row["turn"] < self._copied)
        is_prompt = row["message"] == row["position"] == 0
        is_result = row["content"]["type"] == "tool_result"
        return bool(is_prompt or is_result or row["role"] == "assistant")


def _system_step(at: float, message: str, extra: Mapping[str, Any], text: str | None) -> Step:
    step: Step = {"timestamp": iso(at), "source": "system", "message": message, "extra": extra}
    return step | ({"observation": {"results": [{"content": text}]}} if text else {})


def _tool_call(use: Block, row: Row | None) -> dict[str, Any]:
    arguments = use["input"] if isinstance(use["input"], dict) else {"input": use["input"]}
    call = {"tool_call_id": use["id"], "function_name": use["name"], "arguments": arguments}
    if row is not None:
        names = ("decision", "rule", "started_at", "ended_at")
        call["extra"] = {name: row[name] for name in names if row[name] is not None}
    return call


def _totals(
    recorded: Recorded, steps: Sequence[Step], subagents: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return sums over the steps. Calls and costs include those of sub-agents, and the calls that wrote
    summaries or failed."""
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    count, known = len(recorded.model_calls), [*recorded.costs.values()]
    extra = {"model_calls": count, "calls_without_known_cost": count - len(known)}
    for below in (each["final_metrics"] for each in subagents):
        known += [below["total_cost_usd"]] if "total_cost_usd" in below else []
        extra = {name: count + below["extra"][name] for name, count in extra.items()}
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {
        **{f"total_{name}": sum(each.get(name, 0) for each in metrics) for name in names},
        **({"total_cost_usd": sum(known)} if known else {}),
        "total_steps": len(steps),
        "extra": extra,
    }


_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def _parts(blocks: Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return blocks of the Messages API as ATIF's content: one text if there is nothing but text, else
    a list of texts and images. Other blocks become text, as JSON."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case {"text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "image", "source": {"media_type": str(kind), "data": str(data)}} if (
                kind in _IMAGE_TYPES
            ):
                source = {"media_type": kind, "path": f"data:{kind};base64,{data}"}
                parts.append({"type": "image", "source": source})
            case _:
                parts.append({"type": "text", "text": json.dumps(block, ensure_ascii=False)})
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts
