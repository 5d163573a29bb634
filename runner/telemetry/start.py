"""Begin to tell a collector of runs, where the environment names one and the extra is installed.

Sources: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.ports import Ending

if TYPE_CHECKING:
    from runner.telemetry.observer import Telemetry

logger = logging.getLogger(__name__)

_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_IN_SPANS = frozenset({"true", "span_only", "span_and_event"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The configuration of exports to a collector."""

    traces: bool
    metrics: bool
    content: bool  # what was said and what tools printed, too


def wanted_by(environment: Mapping[str, str]) -> Wanted:
    """Return what the environment asks for: nothing, unless it names a collector's endpoint."""

    def said(name: str, default: str = "") -> str:
        return environment.get(name, default).strip().lower()

    def is_asked(signal: str) -> bool:
        names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        exports = said(f"OTEL_{signal}_EXPORTER", "otlp") != "none"
        return exports and said("OTEL_SDK_DISABLED") != "true" and any(map(environment.get, names))

    return Wanted(is_asked("TRACES"), is_asked("METRICS"), said(_CONTENT) in _CONTENT_IN_SPANS)


def start_telemetry(
    environment: Mapping[str, str], endings: Callable[[Sequence[str]], Sequence[Ending]]
) -> Telemetry | None:
    """Return what tells the environment's collector of runs, to be closed at the end; None where
    nothing is exported. ``endings`` returns the ends of the given runs that have ended."""
    wanted = wanted_by(environment)
    if not (wanted.traces or wanted.metrics):
        return None
    try:
        from runner.telemetry.exporting import Exporting
        from runner.telemetry.observer import Telemetry
        from runner.telemetry.spans import Spans
    except ImportError as error:
        logger.warning(
            "an OTLP endpoint is set, but nothing is sent: `pip install '.[otel]'` in Runner's folder (%s)",
            error,
        )
        return None
    exporting = Exporting(traces=wanted.traces, metrics=wanted.metrics)
    return Telemetry(
        Spans(exporting.traces, exporting.ids),
        exporting.metrics.get_meter("runner"),
        with_content=wanted.content,
        endings=endings,
        export_rest=exporting.close,
    )
