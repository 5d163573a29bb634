"""Begins to tell a collector of runs, where one is named and the extra is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from runner.ports import Ending
from runner.telemetry import switch

if TYPE_CHECKING:
    from runner.telemetry.observer import Telemetry

logger = logging.getLogger(__name__)


def start_telemetry(
    environment: Mapping[str, str], endings: Callable[[Sequence[str]], Sequence[Ending]]
) -> Telemetry | None:
    """What tells a collector of runs, to be closed at the end; None where nothing is to be told.

    Args:
        environment: says which collector, and what it is told.
        endings: of these runs, those that have ended.
    """
    wanted = switch.read(environment)
    if not wanted.is_on:
        return None
    try:
        from runner.telemetry.exporting import Exporting
        from runner.telemetry.observer import Telemetry
        from runner.telemetry.spans import Spans
    except ImportError as error:
        logger.warning(
            "a collector is named, but nothing is told: install runner[otel] (%s)", error
        )
        return None
    exporting = Exporting(wanted)
    return Telemetry(
        Spans(exporting.traces, exporting.ids),
        exporting.metrics.get_meter("runner"),
        with_content=wanted.content,
        endings=endings,
        close=exporting.close,
    )
