from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from runner.store import ids
from runner.telemetry.spans import GivenIds, Spans, for_child, span_id, trace_id


def spans_of(ratio: float) -> tuple[Spans, InMemorySpanExporter]:
    given_ids, exporter = GivenIds(), InMemorySpanExporter()
    sampler = ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler=sampler, id_generator=given_ids, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider, given_ids), exporter


def tell(worker: Spans, run_id: str, *what: str | int) -> None:
    worker.tell(run_id, what, "name", 1.0, 2.5, {})


def test_what_two_workers_tell_of_a_run_is_one_trace() -> None:
    exported = []
    for what in (("chat", 1), ("tool", 1, 0), ()):
        worker, exporter = spans_of(1.0)
        tell(worker, "run_a", *what)
        exported += exporter.get_finished_spans()
    *parts, root = exported
    assert {span.context.trace_id for span in exported} == {trace_id("run_a")}
    assert root.parent is None
    assert root.context.span_id == span_id("run_a")
    assert [span.parent.span_id for span in parts] == [span_id("run_a")] * 2
    assert (root.start_time, root.end_time) == (1_000_000_000, 2_500_000_000)


def test_what_is_told_of_a_tree_is_one_trace_with_each_child_below_its_call() -> None:
    worker, exporter = spans_of(1.0)
    tell(worker, "run_a.2.1", "chat", 1)
    tell(worker, "run_a.2.1")
    tell(worker, "run_a.2", *for_child(1))
    tell(worker, "run_a.2")
    tell(worker, "run_a", *for_child(2))
    tell(worker, "run_a")
    spans = exporter.get_finished_spans()
    assert {span.context.trace_id for span in spans} == {trace_id("run_a")}
    for span, above in pairwise(spans):
        assert span.parent.span_id == above.context.span_id
    assert spans[-1].parent is None


def test_what_is_told_twice_is_one_span() -> None:
    ids_seen = set()
    for _ in range(2):
        worker, exporter = spans_of(1.0)
        tell(worker, "run_a", "chat", 7)
        ids_seen |= {span.context.span_id for span in exporter.get_finished_spans()}
    assert len(ids_seen) == 1


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="."))  # of runs of items


@given(st.lists(_NAMES, min_size=2, max_size=2, unique=True))
def test_two_runs_have_two_traces(run_ids: list[str]) -> None:
    one, other = run_ids
    assert trace_id(one) != trace_id(other)
    assert 0 < trace_id(one) < 2**128
    assert 0 < span_id(one) < 2**64


def test_a_run_is_sampled_whole_or_not_at_all_and_runs_of_one_moment_differ() -> None:
    worker, exporter = spans_of(0.5)
    run_ids = [ids.new("run", 1_795_000_000.0) for _ in range(200)]
    for run_id in run_ids:
        for what in (("chat", 1), ("tool", 1, 0), ()):
            tell(worker, run_id, *what)
    counts: dict[int, int] = {}
    for span in exporter.get_finished_spans():
        counts[span.context.trace_id] = counts.get(span.context.trace_id, 0) + 1
    assert set(counts.values()) == {3}
    assert 50 < len(counts) < 150
