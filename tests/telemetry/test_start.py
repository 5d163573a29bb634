from __future__ import annotations

import subprocess
import sys

import pytest

from runner.telemetry.start import Wanted, wanted_by

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_without_an_endpoint_nothing_is_told() -> None:
    nothing = Wanted(traces=False, metrics=False, content=False)
    assert wanted_by({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_EXPORTER": "otlp"}) == nothing
    assert wanted_by({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) == nothing


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        (ENDPOINT, Wanted(traces=True, metrics=True, content=False)),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, Wanted(True, False, False)),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m/v1/metrics"},
            Wanted(False, True, False),
        ),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, Wanted(False, False, False)),
    ],
)
def test_the_environment_says_which_signals_are_told(
    environment: dict[str, str], wanted: Wanted
) -> None:
    assert wanted_by(environment) == wanted


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("", False),
        ("NO_CONTENT", False),
        ("false", False),
        ("EVENT_ONLY", False),
        ("SPAN_ONLY", True),
        ("SPAN_AND_EVENT", True),
        ("true", True),
    ],
)
def test_content_is_told_only_where_it_is_asked_for_in_spans(value: str, content: bool) -> None:
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert wanted_by(ENDPOINT | {name: value}).content is content


@pytest.mark.slow
def test_a_runner_that_tells_nothing_does_not_import_opentelemetrys_sdk() -> None:
    code = (
        "import sys; from runner.telemetry.start import start_telemetry;"
        "assert start_telemetry({}, list) is None;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_without_the_extra_a_worker_says_what_to_install_and_works() -> None:
    code = (
        "import logging, sys; logging.basicConfig(); sys.modules['opentelemetry.sdk.trace'] = None;"
        "from runner.telemetry.start import start_telemetry;"
        f"assert start_telemetry({ENDPOINT!r}, list) is None"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install '.[otel]'" in done.stderr
