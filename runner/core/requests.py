"""What a model call sends, from what the run's journal says."""

from __future__ import annotations

from typing import Any

from runner.core.context import summary
from runner.core.conversation import Message, ModelRequest, text_block
from runner.core.journal.view import OpenCall, RunView
from runner.core.money.budget import Reservation
from runner.core.spec import JobSpec

_OPTIONS_OF_ANY_CALL = frozenset(
    {
        "betas",
        "extra_headers",
        "inference_geo",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    }
)


def turn_request(view: RunView, call: OpenCall) -> ModelRequest:
    """The request of a turn: the job's system prompt and tools, and the conversation as it is sent."""
    return ModelRequest(
        model=view.spec.model,
        system=view.spec.system,
        tools=view.spec.tools,
        messages=view.sent,
        max_tokens=call.reservation.max_tokens,
        options=view.spec.model_options,
        run_id=view.run_id,
        item_key=view.item_key,
        reply_number=view.progress.turns,
        hour_cache=call.reservation.hour_cache,
        agent_type=view.agent_type,
    )


def next_request(view: RunView) -> ModelRequest:
    """The request that the next turn would send."""
    most = view.limits.max_output_tokens
    return turn_request(view, OpenCall(0, view.attempt, Reservation(most, 0, lowered=False)))


def summary_request(view: RunView, call: OpenCall) -> ModelRequest:
    """The request for a summary of the middle of the conversation: without tools, and without those of
    the job's options that shape its own replies."""
    question = summary.question(view)
    if question is None:
        raise ValueError(f"there is nothing to summarise in {view.run_id}")
    spec = view.spec
    return ModelRequest(
        model=spec.summary_model,
        system=question.system,
        tools=(),
        messages=(Message("user", (text_block(question.text),)),),
        max_tokens=call.reservation.max_tokens,
        options=_summary_options(spec),
        run_id=view.run_id,
        item_key=view.item_key,
        reply_number=view.progress.turns,
        purpose="summary",
        hour_cache=call.reservation.hour_cache,
        agent_type=view.agent_type,
    )


def _summary_options(spec: JobSpec) -> dict[str, Any]:
    """How a job's calls are sent and billed, whatever they are for. Not every model has a fast mode:
    only the job's own is asked for it."""
    names = _OPTIONS_OF_ANY_CALL
    if spec.summary_model == spec.model:
        names |= {"speed"}
    options = spec.model_options
    kept = {name: value for name, value in options.items() if name in names}
    extra = options.get("extra_body") or {}
    extra = {name: value for name, value in extra.items() if name in names}
    return {**kept, "extra_body": extra} if extra else kept
