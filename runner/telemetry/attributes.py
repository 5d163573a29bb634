"""What spans and metrics say: the attributes of the GenAI conventions, and Runner's own.

Source: https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai.
"""

from __future__ import annotations

from typing import Any

from runner.core.agents.place import place_of
from runner.core.conversation import Purpose, Usage
from runner.core.journal.view import RunView
from runner.core.money.budget import BILLIONTHS
from runner.ports import Stored


def of_run(stored: Stored, view: RunView, operation: str) -> dict[str, Any]:
    """What every span of a run says."""
    place = place_of(stored.lease.run_id)
    below = {} if place["parent"] is None else {"runner.run.parent": place["parent"]}
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": view.spec.provider,
        "gen_ai.agent.name": name_of(view),
        "gen_ai.conversation.id": stored.lease.run_id,
        "runner.job.id": stored.job_id,
        "runner.run.root": place["root"],
        "runner.run.depth": place["depth"],
        **below,
    }


def name_of(view: RunView) -> str:
    """What an agent is called: a sub-agent by its type, the run of an item by its job."""
    return view.agent_type or view.spec.name


def of_attempt(stored: Stored, view: RunView, operation: str) -> dict[str, Any]:
    """What every span of an attempt says."""
    return of_run(stored, view, operation) | {
        "runner.attempt": stored.lease.attempt,
        "runner.worker.id": stored.lease.worker_id,
    }


def of_call(stored: Stored, view: RunView) -> dict[str, Any]:
    """What the span of the open model call says, whatever becomes of it."""
    call = view.progress.open_call
    assert call is not None
    return of_attempt(stored, view, "chat") | {
        "gen_ai.request.model": model_of(view, call.purpose),
        "gen_ai.request.max_tokens": call.reservation.max_tokens,
        "gen_ai.request.stream": True,
        "runner.turn": view.progress.turns + 1,
        "runner.purpose": call.purpose,
    }


def model_of(view: RunView, purpose: Purpose) -> str:
    """The model that a call asks for."""
    return view.spec.model if purpose == "turn" else view.spec.summary_model


def tool_of(view: RunView, name: str) -> str:
    """The tool that a call names; ``unknown_tool`` for one that the job has not: the model made its name
    up, so it is content, and of any number."""
    return name if view.spec.tool(name) is not None else "unknown_tool"


def measured(view: RunView, model: str) -> dict[str, Any]:
    """What the metrics of model calls are counted by: of few values each."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": view.spec.provider,
        "gen_ai.request.model": model,
    }


def of_usage(usage: Usage) -> dict[str, int]:
    """Input tokens include those that were read from the cache or written to it, as the conventions
    have it."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_tokens,
    }


def of_cost(billionths: int) -> dict[str, float]:
    """What it cost, where that is known."""
    return {"runner.cost_usd": billionths / BILLIONTHS} if billionths else {}


def of_request(request_id: str | None) -> dict[str, str]:
    """The API's own name of a call, where it gave one."""
    return {"runner.request_id": request_id} if request_id else {}
