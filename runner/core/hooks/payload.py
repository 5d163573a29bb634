"""What a hook is told, as JSON on its standard input.

The names are Claude Code's where it has the same thing (https://code.claude.com/docs/en/hooks), and
Runner's own words for the rest.
"""

from __future__ import annotations

from typing import Any

from runner.core.agents.agent import lineage
from runner.core.agents.place import item_of
from runner.core.hooks.run import HookRun
from runner.core.journal.view import Call, RunView
from runner.core.run import Ended


def payload(view: RunView, run: HookRun, outcome: Ended | None = None) -> dict[str, Any]:
    """All that a hook is told but the folder that it runs in.

    Args:
        outcome: how the run is about to end, for RunEnd.
    """
    above = lineage(view.run_id)[:-1]
    told: dict[str, Any] = {
        "session_id": view.run_id,
        "hook_event_name": run.event,
        "item": item_of(view.run_id, view.item_key),
        "run": view.run_id,
        "root": above[0] if above else view.run_id,
        "parent": above[-1] if above else None,
        "depth": view.depth,
        "agent_type": view.agent_type,
        "turn": view.progress.turns,
    }
    if run.index is not None:
        told |= _call(view.calls[run.index])
    if outcome is not None:
        told |= {"state": outcome.state, "reason": outcome.reason, "detail": outcome.detail}
    return told


def _call(call: Call) -> dict[str, Any]:
    told = {"tool_name": call.name, "tool_input": call.input_to_run, "tool_use_id": call.id}
    if call.result is None:
        return told
    response = {
        "content": call.result["content"],
        "is_error": bool(call.result.get("is_error")),
        "outcome": call.outcome,
    }
    return told | {"tool_response": response}
