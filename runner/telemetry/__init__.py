"""OpenTelemetry: traces and metrics of what attempts have stored, by the GenAI conventions.

Loaded only with the extra ``otel`` and if the environment names a collector. One trace is
one run, whichever workers it was on. Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""
