"""Schedules: jobs that workers submit at the times of a cron expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner import wiring
from runner.app.handle import App
from runner.core.run import Author
from runner.core.spec import Submission
from runner.errors import UsageError
from runner.jobfile.times import zone_named
from runner.jobfile.values import BadValueError
from runner.store import schedules
from runner.store.schedules import Cron


def add(
    app: App, submission: Submission, cron: str, zone: str | None, author: Author
) -> Mapping[str, Any]:
    """Store a job for submission at the times of ``cron`` in a time zone (this host's by default),
    and return the schedule. Raises ``UsageError``."""
    try:
        times = Cron(cron, zone_named(zone))
    except BadValueError as error:
        raise UsageError(f"--tz {error}") from error
    times.next_after(app.now())  # before anything is written into the workspace
    workspace_id = wiring.mark_workspace(submission)
    added = app.change(
        lambda now: schedules.add(app.database, submission, times, workspace_id, now, author)
    )
    return _one(app, added)


def listed(app: App, *, removed: bool = False) -> Sequence[Mapping[str, Any]]:
    """Return all schedules, with ``removed`` those too that were removed, the oldest first."""
    return schedules.listed(app.database, removed=removed)


def pause(app: App, name: str, author: Author) -> Mapping[str, Any]:
    """Let a schedule submit nothing until it is resumed. Raises ``NotFoundError``."""
    return _changed(app, name, author, schedules.pause)


def resume(app: App, name: str, author: Author) -> Mapping[str, Any]:
    """Let a paused schedule go on with its next time. Raises ``NotFoundError``."""
    return _changed(app, name, author, schedules.resume)


def remove(app: App, name: str, author: Author) -> Mapping[str, Any]:
    """Let a schedule submit nothing any more. Raises ``NotFoundError``."""
    return _changed(app, name, author, schedules.remove)


def _changed(app: App, name: str, author: Author, change: Callable[..., None]) -> Mapping[str, Any]:
    schedule_id = app.find(name, "schedule").id
    app.change(lambda now: change(app.database, schedule_id, now, author))
    return _one(app, schedule_id)


def _one(app: App, schedule_id: str) -> Mapping[str, Any]:
    found = schedules.listed(app.database, removed=True)
    return next(each for each in found if each["id"] == schedule_id)
