"""Exports spans and metrics over OTLP/HTTP to the collector that the environment names."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

import runner
from runner.core.text import shorten
from runner.telemetry.spans import GivenIds

logger = logging.getLogger(__name__)

# The most that a collector keeps a worker from ending.
CLOSE_SECONDS = 5.0
_WHY_LENGTH = 300


class _Outage(logging.Handler):
    """Says once that a collector does not take a signal, and why, by what the exporter's module logs at
    its tries; and again after it has taken something. At the end a collector that is away is not tried
    again: ``stop`` ends an exporter, and its waiting."""

    def __init__(self, signal: str, exporter: str, stop: Callable[[], object]) -> None:
        super().__init__()
        self._signal = signal
        self._stop = stop
        self.why = ""
        self._is_away = False
        self._is_said = False
        self._is_ending = False
        self._is_stopped = False
        log = logging.getLogger(exporter)
        log.propagate = False
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        given = record.args if isinstance(record.args, tuple) else ()
        # Else the exporter logged what the collector answered.
        error = next((each for each in given if isinstance(each, BaseException)), None)
        self._is_away = self._is_away or error is not None
        while error is not None and (below := error.__cause__ or error.__context__) is not None:
            error = below  # the others only wrap it, in long words
        why = record.getMessage() if error is None else str(error)
        for name, value in os.environ.items():
            if name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") and value:
                why = why.replace(value.rstrip("/"), "…")  # an address may hold a password
        self.why = self.why or shorten(why, _WHY_LENGTH)  # later ones say only that it was in vain
        self._stop_if_in_vain()

    def note(self, *, is_taken: bool) -> None:
        if not is_taken and not self._is_said:
            logger.warning("%s are lost until the collector takes them: %s", self._signal, self.why)
        self._is_said = not is_taken
        self.why = ""
        self._is_away = False

    def end(self) -> None:
        """Wait for no collector that is away, from now on."""
        self._is_ending = True
        self._stop_if_in_vain()

    def _stop_if_in_vain(self) -> None:
        if self._is_away and self._is_ending and not self._is_stopped:
            self._is_stopped = True  # before it, as a second time would be logged, and so on
            self._stop()


class _SpanExporter(OTLPSpanExporter):
    def __init__(self) -> None:
        super().__init__()
        self.outage = _Outage("spans", OTLPSpanExporter.__module__, self.shutdown)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.outage.note(is_taken=result is SpanExportResult.SUCCESS)
        return result


class _MetricExporter(OTLPMetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.outage = _Outage("metrics", OTLPMetricExporter.__module__, self.shutdown)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self.outage.note(is_taken=result is MetricExportResult.SUCCESS)
        return result


class Exporting:
    """Providers of Runner's own: the process's global ones are left to whoever sets them."""

    def __init__(self, *, traces: bool, metrics: bool) -> None:
        own = Resource({"service.name": "runner", "service.version": runner.__version__})
        instance = Resource({"service.instance.id": str(uuid4())})
        given = OTELResourceDetector().detect()
        resource = Resource.create().merge(own).merge(instance).merge(given)
        self.ids = GivenIds()
        self.traces = TracerProvider(
            resource=resource, id_generator=self.ids, shutdown_on_exit=False
        )
        self._outages: list[_Outage] = []
        readers = []
        if metrics:
            metric_exporter = _MetricExporter()
            self._outages.append(metric_exporter.outage)
            readers.append(PeriodicExportingMetricReader(metric_exporter))
        if traces:
            span_exporter = _SpanExporter()
            self._outages.append(span_exporter.outage)
            self.traces.add_span_processor(BatchSpanProcessor(span_exporter))
        self.metrics = MeterProvider(readers, resource=resource, shutdown_on_exit=False)

    def close(self) -> None:
        """Send what there is. No collector is waited for that is away, or beyond its time."""
        for outage in self._outages:
            outage.end()
        ending = [
            threading.Thread(target=end, name="runner-telemetry-end", daemon=True)
            for end in (self.traces.shutdown, self.metrics.shutdown)
        ]
        until = time.monotonic() + CLOSE_SECONDS
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in ending):
            whys = (outage.why for outage in self._outages if outage.why)
            why = next(whys, "the collector did not answer in time")
            logger.warning("some telemetry is lost: %s", why)
