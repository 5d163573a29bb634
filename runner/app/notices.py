"""Notices of jobs: try how people are told, and list what they were told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner import wiring
from runner.app.handle import App
from runner.core.notices import Channel, NoticeEvent, Notify, about
from runner.core.spec import JobSpec
from runner.errors import RunnerError, UsageError
from runner.queries.jobs import show_job
from runner.settings import Settings
from runner.store import notices
from runner.store.notices import DueNotice

_TRIAL_ID = "job_test"


def settings_in(settings: Settings, path: Path) -> tuple[str, Notify]:
    """Return a job file's name and how it tells people. Raises ``SpecError``, and ``UsageError`` if it
    tells nobody."""
    spec = wiring.load_submission(path, settings).spec
    if spec.notify is None:
        raise UsageError(f"{path} has no [notify]: see docs/notices.md")
    return spec.name, spec.notify


def settings_of(app: App, name: str) -> tuple[str, Notify]:
    """Return a job's name and how it tells people. Raises ``UsageError`` if it tells nobody."""
    job = show_job(app.database, app.find_job(name))
    spec = JobSpec.from_json(job["spec"])
    if spec.notify is None:
        raise UsageError(f"{job['id']} has no [notify]: see docs/notices.md")
    return spec.name, spec.notify


def send_trial(
    settings: Settings, name: str, notify: Notify, event: NoticeEvent
) -> Iterator[tuple[Channel, str]]:
    """Send a trial of a notice by each channel, from this process. Yields the channel and what went
    wrong; nothing if it was sent."""
    data = about(event, _TRIAL_ID, name, f"this is a test of `{event}`", trial=True)
    for channel in notify.channels:
        notice = DueNotice(_TRIAL_ID, event, "", channel, 1, data, notify)
        try:
            wiring.send_notice(notice, settings)
        except RunnerError as error:
            yield channel, str(error)
        else:
            yield channel, ""


def list_notices(app: App, name: str) -> list[dict[str, Any]]:
    """Return the notices of a job, and whether each was sent."""
    return notices.list_notices(app.database, app.find_job(name))
