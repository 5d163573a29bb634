"""What a question is limited to: the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filters:
    """Each that is set must hold. Times are seconds since the epoch: from ``since`` on, before ``until``.

    Args:
        job_id, run_id: whole ids. With a run go all that it has started, and that these have.
        item: an item's key; with its runs go what these have started.
        tool: a tool's name.
        model: as the API names it.
    """

    job_id: str | None = None
    run_id: str | None = None
    item: str | None = None
    since: float | None = None
    until: float | None = None
    tool: str | None = None
    model: str | None = None
