"""A recorded run as one value: the source of ATIF trajectories and of Claude Code sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from runner.core.agents import place_of
from runner.core.spec import JobSpec

Row = Mapping[str, Any]

# The key in a run's item that describes the Claude Code session that the run was imported from.
SESSION = "claude_code"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run with all of its rows, as mappings by column."""

    run: Row
    item: Any
    job_name: str
    spec: JobSpec  # the job's, as it applies to the run
    blocks: tuple[Row, ...]
    calls: Mapping[tuple[int, int], Row]  # tool calls by message and position
    model_calls: tuple[Row, ...]
    compactions: tuple[Row, ...]
    verifications: tuple[Row, ...]
    # The runs that it started, by message and position of the tool call that asked for them (None: no
    # call did).
    children: Mapping[tuple[int, int] | None, tuple[str, ...]] = field(default_factory=dict)
    lines: tuple[bytes, ...] = ()  # of the file that an imported session was read from
    # The costs of its model calls in USD, by number, as far as they are known and wanted.
    costs: Mapping[int, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.run["id"])

    @property
    def root(self) -> str:
        """The run of the item: itself, or the top run above a sub-agent."""
        return place_of(self.id)["root"]

    @property
    def model(self) -> str:
        return self.run["model"] or self.spec.model

    @property
    def session(self) -> Mapping[str, Any] | None:
        """The description of the Claude Code session that it was, or None for a run of Runner."""
        found = self.item.get(SESSION) if isinstance(self.item, dict) else None
        return found if isinstance(found, dict) else None

    def messages(self) -> Iterator[tuple[Row, ...]]:
        """Yield the rows of each message's blocks, in order."""
        for _, rows in groupby(self.blocks, key=lambda row: row["message"]):
            yield tuple(rows)

    def replies(self) -> dict[int, Row]:
        """Return the model call of each turn's reply. Turns copied from another run have none."""
        return {
            call["turn"]: call
            for call in self.model_calls
            if call["purpose"] == "turn" and call["stop_reason"] is not None
        }


def iso(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond: ``2026-11-22T11:40:00.123Z``."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
