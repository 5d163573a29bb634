"""Spans of runs: every worker gives the trace of a run and of all below it the same id, and a span the
id of what it tells.

So the parts that several workers told are one trace, and what is told twice is one span. The span of a
sub-agent is below that of the tool call which it is the work of.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
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

from runner.core.agents.agent import lineage

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
            trace,
            above,
            is_remote=True,
            trace_flags=TraceFlags(flags | TraceFlags.RANDOM_TRACE_ID),
        )
        return set_span_in_context(NonRecordingSpan(parent), Context())
