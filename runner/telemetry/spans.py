"""The ids, attributes and content of spans.

Every worker derives the trace id from the root run and the span id from what the span is about. So
the parts sent by several workers are one trace, and a span that is sent twice is one span. The span
of a sub-agent is below that of its tool call. Source:
https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai (content:
gen-ai-input-messages.json and gen-ai-output-messages.json).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from runner.core.agents import lineage, place_of
from runner.core.budget import BILLIONTHS
from runner.core.conversation import Block, Message, ModelReply, Purpose, Usage
from runner.core.state import RunState
from runner.ports import Stored

_TRACE_BYTES = 16
_SPAN_BYTES = 8
_NANOSECONDS = 1_000_000_000


def trace_id(run_id: str) -> int:
    """The id of the trace that a run is in: that of the run of an item, and of all below it."""
    return _derived(_TRACE_BYTES, "trace", lineage(run_id)[0])


def span_id(run_id: str, *what: str | int) -> int:
    """The id of the span that tells of ``what`` in a run; of the run itself when that is empty."""
    return _derived(_SPAN_BYTES, "span", run_id, *what)


def for_child(number: int) -> tuple[str | int, ...]:
    """What the span of a call tells of that has started a child: the child knows its number alone."""
    return ("child", number)


def _above(told: Told) -> int | None:
    """The id of the span that one is below, None for the top of a trace."""
    if told.what:
        return span_id(told.run_id)
    *_, parent, run_id = ("", *lineage(told.run_id))
    return span_id(parent, *for_child(int(run_id.rpartition(".")[2]))) if parent else None


def _derived(size: int, *parts: str | int) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size])


class GivenIds(IdGenerator):
    """Ids that the thread which starts a span has set before."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace: int, span: int) -> None:
        """The ids of the span that this thread starts next."""
        self._given.ids = (trace, span)

    def generate_trace_id(self) -> int:
        trace: int = self._given.ids[0]
        return trace

    def generate_span_id(self) -> int:
        span: int = self._given.ids[1]
        return span

    def is_trace_id_random(self) -> bool:
        """A digest's bits are as good as random ones to a sampler."""
        return True


@dataclass(frozen=True, slots=True)
class Told:
    """A span that has ended. ``what`` names it within its run, and is empty for the run's own; times are
    in seconds since the epoch; ``error`` is its class, None where it went well."""

    run_id: str
    what: tuple[str | int, ...]
    name: str
    begun: float
    ended: float
    kind: SpanKind = SpanKind.INTERNAL
    error: str | None = None
    why: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Spans:
    """Hands spans to a provider, whose ids come from ``ids``."""

    def __init__(self, provider: TracerProvider, ids: GivenIds) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("runner")
        self._ids = ids

    def tell(self, told: Told) -> None:
        """Have a span exported, sooner or later."""
        trace = trace_id(told.run_id)
        self._ids.give(trace, span_id(told.run_id, *told.what))
        failed = {} if told.error is None else {"error.type": told.error}
        span = self._tracer.start_span(
            told.name,
            context=self._context(_above(told), trace),
            kind=told.kind,
            attributes={**told.attributes, **failed},
            start_time=int(min(told.begun, told.ended) * _NANOSECONDS),
        )
        if told.error is not None:
            span.set_status(Status(StatusCode.ERROR, told.why or None))
        span.end(int(told.ended * _NANOSECONDS))

    def _context(self, above: int | None, trace: int) -> Context:
        """The context of a span that another worker may tell, hours later: whether it is sampled is
        asked here as it will be there."""
        if above is None:
            return Context()
        decision = self._provider.sampler.should_sample(None, trace, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT
        parent = SpanContext(
            trace, above, is_remote=True, trace_flags=TraceFlags(flags | TraceFlags.RANDOM_TRACE_ID)
        )
        return set_span_in_context(NonRecordingSpan(parent), Context())


def of_run(stored: Stored, state: RunState, operation: str) -> dict[str, Any]:
    """What every span of a run says."""
    place = place_of(stored.lease.run_id)
    below = {} if place["parent"] is None else {"runner.run.parent": place["parent"]}
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": state.spec.provider,
        "gen_ai.agent.name": name_of(state),
        "gen_ai.conversation.id": stored.lease.run_id,
        "runner.job.id": stored.job_id,
        "runner.run.root": place["root"],
        "runner.run.depth": place["depth"],
        **below,
    }


def name_of(state: RunState) -> str:
    """What an agent is called: a sub-agent by its type, the run of an item by its job."""
    return state.agent_type or state.spec.name


def of_attempt(stored: Stored, state: RunState, operation: str) -> dict[str, Any]:
    """What every span of an attempt says."""
    return of_run(stored, state, operation) | {
        "runner.attempt": stored.lease.attempt,
        "runner.worker.id": stored.lease.worker_id,
    }


def of_call(stored: Stored, state: RunState) -> dict[str, Any]:
    """What the span of the open model call says, whatever becomes of it."""
    call = state.model.open_call
    assert call is not None
    return of_attempt(stored, state, "chat") | {
        "gen_ai.request.model": model_of(state, call.purpose),
        "gen_ai.request.max_tokens": call.reservation.max_tokens,
        "gen_ai.request.stream": True,
        "runner.turn": state.turns + 1,
        "runner.purpose": call.purpose,
    }


def model_of(state: RunState, purpose: Purpose) -> str:
    """The model that a call asks for."""
    return state.spec.model if purpose == "turn" else state.spec.summary_model


def tool_of(state: RunState, name: str) -> str:
    """The tool that a call names; ``unknown_tool`` for one that the job has not: the model made its name
    up, so it is content, and of any number."""
    return name if state.spec.tool(name) is not None else "unknown_tool"


def measured(state: RunState, model: str) -> dict[str, Any]:
    """What the metrics of model calls are counted by: of few values each."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": state.spec.provider,
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


_FINISHED = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}


def output_messages(reply: ModelReply) -> str:
    """A reply, as JSON."""
    finished = _FINISHED.get(reply.stop_reason, reply.stop_reason)
    message = {"role": "assistant", "parts": _parts(reply.blocks), "finish_reason": finished}
    return _json([message])


def new_messages(messages: Sequence[Message]) -> str:
    """What the model has not been told before: the messages since its last reply, as JSON. The others are
    in the spans of the calls before."""
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    new = messages[replies[-1] + 1 :] if replies else messages
    return _json([{"role": message.role, "parts": _parts(message.blocks)} for message in new])


def system_instructions(text: str) -> str:
    """A system prompt, as JSON."""
    return _json([{"type": "text", "content": text}])


def arguments(given: Any) -> str:
    """What a tool was called with, as JSON."""
    return _json(given)


def _parts(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    return [_part(block) for block in blocks]


def _part(block: Block) -> dict[str, Any]:
    match block:
        case {"type": "text", "text": text}:
            return {"type": "text", "content": text}
        case {"type": "thinking", "thinking": thought}:
            return {"type": "reasoning", "content": thought}
        case {"type": "tool_use", "id": identifier, "name": name, "input": given}:
            return {"type": "tool_call", "id": identifier, "name": name, "arguments": given}
        case {"type": "tool_result", "tool_use_id": identifier, "content": given}:
            return {"type": "tool_call_response", "id": identifier, "response": given}
        case _:
            return {"type": block["type"]}


def _json(value: Any) -> str:
    return json.dumps(value)  # ASCII: half a surrogate pair would break the whole batch
