"""Calls that take too long on a clock that counts the machine's sleep."""

from __future__ import annotations

import threading

import pytest

from runner.llm import connections
from runner.llm.connections import Watchdog

PATIENCE = 60.0


@pytest.mark.slow
def test_call_is_cut_soon_after_the_machine_slept_past_its_time(monkeypatch):
    asleep = 0.0
    awake = connections.monotonic
    looks: list[float] = []
    waiting = threading.Event()

    def monotonic() -> float:
        if threading.current_thread().name == "watchdog":
            looks.append(asleep)
            if len(looks) == 2:  # when it begins to look, and for how long it is to wait
                waiting.set()
        return awake() + looks[-1] if looks else awake()

    monkeypatch.setattr(connections, "monotonic", monotonic)
    cut = threading.Event()
    with Watchdog().watch(cut.set, stall_timeout=300.0, total_timeout=1800.0) as watch:
        assert waiting.wait(PATIENCE)
        asleep = 3600.0
        assert cut.wait(PATIENCE)
        assert watch.expired == "call_deadline"


@pytest.mark.parametrize(
    ("stall", "total", "why"), [(0.01, 300.0, "stream_stalled"), (300.0, 0.01, "call_deadline")]
)
def test_call_is_cut_when_either_time_is_over(stall, total, why):
    cut = threading.Event()
    with Watchdog().watch(cut.set, stall, total) as watch:
        assert cut.wait(PATIENCE)
        assert watch.expired == why
