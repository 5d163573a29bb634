"""Read from the environment whether to send telemetry, and what.

Sources: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_IN_SPANS = frozenset({"true", "span_only", "span_and_event"})


@dataclass(frozen=True, slots=True)
class Switch:
    """What is told. ``content``: also what was said and what tools printed."""

    traces: bool
    metrics: bool
    content: bool

    @property
    def is_on(self) -> bool:
        return self.traces or self.metrics


def read(environment: Mapping[str, str]) -> Switch:
    """What the environment asks for: nothing, unless it names a collector's endpoint."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"

    def is_asked(signal: str) -> bool:
        endpoint = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environment.get(
            _ENDPOINT
        )
        exporter = environment.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower()
        return bool(endpoint) and exporter != "none" and not disabled

    content = environment.get(_CONTENT, "").strip().lower() in _CONTENT_IN_SPANS
    return Switch(is_asked("TRACES"), is_asked("METRICS"), content)
