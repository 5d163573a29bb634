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
from collections.abc import Mapping, Sequence
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
from runner.core.conversation import Block, Message, ModelReply, Usage
from runner.core.state import RunState
from runner.core.text import shorten
from runner.ports import Stored

_TRACE_BYTES = 16
_SPAN_BYTES = 8
_NANOSECONDS = 1_000_000_000
_WHY_LENGTH = 300
# https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/
_PROVIDERS = {"bedrock": "aws.bedrock", "vertex": "gcp.vertex_ai"}


def trace_id(run_id: str) -> int:
    """Return the id of the trace that a run is in: that of the run of an item, and of all below it."""
    return _derived(_TRACE_BYTES, "trace", lineage(run_id)[0])


def span_id(run_id: str, *what: str | int) -> int:
    """Return the id of the span that tells of ``what`` in a run; of the run itself when that is empty."""
    return _derived(_SPAN_BYTES, "span", run_id, *what)


def for_child(number: int) -> tuple[str | int, ...]:
    """Return what names the span of a call that started a child: the child knows its number alone."""
    return ("child", number)


def _derived(size: int, *parts: str | int) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:size])


class GivenIds(IdGenerator):
    """Ids that the thread which starts a span has set before."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace: int, span: int) -> None:
        """Set the ids of the span that this thread starts next."""
        self._given.ids = (trace, span)

    def generate_trace_id(self) -> int:
        return int(self._given.ids[0])

    def generate_span_id(self) -> int:
        return int(self._given.ids[1])

    def is_trace_id_random(self) -> bool:
        """Return True: a digest's bits are as good as random ones to a sampler."""
        return True


class Spans:
    """Hands spans to a provider, whose ids come from ``ids``."""

    def __init__(self, provider: TracerProvider, ids: GivenIds) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("runner")
        self._ids = ids

    def tell(
        self,
        run_id: str,
        what: tuple[str | int, ...],
        name: str,
        begun: float,
        ended: float,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str | None = None,
        why: str = "",
    ) -> None:
        """Have a span that has ended exported, sooner or later. ``what`` names it within its run, and
        is empty for the run's own; times are in seconds since the epoch; ``error`` is its class, None
        where it went well, and the beginning of ``why`` is told."""
        trace = trace_id(run_id)
        self._ids.give(trace, span_id(run_id, *what))
        failed = {} if error is None else {"error.type": error}
        span = self._tracer.start_span(
            name,
            context=self._context(run_id, what, trace),
            kind=kind,
            attributes={**attributes, **failed},
            start_time=int(min(begun, ended) * _NANOSECONDS),
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, shorten(why, _WHY_LENGTH) or None))
        span.end(int(ended * _NANOSECONDS))

    def _context(self, run_id: str, what: tuple[str | int, ...], trace: int) -> Context:
        """Return the context of a span: the one that it is below, which another worker may tell, hours
        later. Whether that is sampled is asked here as it will be there."""
        *_, parent, _ = ("", *lineage(run_id))
        if what:
            above = span_id(run_id)
        elif parent:
            above = span_id(parent, *for_child(int(run_id.rpartition(".")[2])))
        else:
            return Context()
        decision = self._provider.sampler.should_sample(None, trace, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT
        context = SpanContext(
            trace, above, is_remote=True, trace_flags=TraceFlags(flags | TraceFlags.RANDOM_TRACE_ID)
        )
        return set_span_in_context(NonRecordingSpan(context), Context())


def of_run(stored: Stored, state: RunState, operation: str) -> dict[str, Any]:
    """Return what every span of a run says."""
    place = place_of(stored.lease.run_id)
    below = {} if place["parent"] is None else {"runner.run.parent": place["parent"]}
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(state.spec.provider, state.spec.provider),
        "gen_ai.agent.name": name_of(state),
        "gen_ai.conversation.id": stored.lease.run_id,
        "runner.job.id": stored.job_id,
        "runner.run.root": place["root"],
        "runner.run.depth": place["depth"],
        **below,
    }


def name_of(state: RunState) -> str:
    """Return what an agent is called: a sub-agent by its type, the run of an item by its job."""
    return state.agent_type or state.spec.name


def of_attempt(stored: Stored, state: RunState, operation: str) -> dict[str, Any]:
    """Return what every span of an attempt says."""
    return of_run(stored, state, operation) | {
        "runner.attempt": stored.lease.attempt,
        "runner.worker.id": stored.lease.worker_id,
    }


def measured(state: RunState, model: str) -> dict[str, Any]:
    """Return what the metrics of model calls are counted by: of few values each."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(state.spec.provider, state.spec.provider),
        "gen_ai.request.model": model,
    }


def of_usage(usage: Usage) -> dict[str, int]:
    """Return the tokens of a call; by the conventions, input includes cache reads and writes."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_tokens,
    }


def of_cost(billionths: int) -> dict[str, float]:
    return {"runner.cost_usd": billionths / BILLIONTHS} if billionths else {}


def of_request(request_id: str | None) -> dict[str, str]:
    return {"runner.request_id": request_id} if request_id else {}


_FINISHED = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}


def output_messages(reply: ModelReply) -> str:
    finished = _FINISHED.get(reply.stop_reason, reply.stop_reason)
    parts = list(map(_part, reply.blocks))
    return as_json([{"role": "assistant", "parts": parts, "finish_reason": finished}])


def new_messages(messages: Sequence[Message]) -> str:
    """Return the messages since the last reply as JSON; earlier spans have the others."""
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    new = messages[replies[-1] + 1 :] if replies else messages
    return as_json([{"role": each.role, "parts": list(map(_part, each.blocks))} for each in new])


def as_json(value: Any) -> str:
    """Return JSON in ASCII: half a surrogate pair would break the whole batch."""
    return json.dumps(value)


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
