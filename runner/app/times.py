"""The times at which model calls of jobs may begin: they are moved here, and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from runner.app.handle import App
from runner.app.humanize import moment
from runner.core.run import Author
from runner.errors import UsageError
from runner.queries.jobs import times_of

if TYPE_CHECKING:
    from runner.core.times import Moment

_LATER = ("not_before", "window")
_CAP = "the cap of the day: runner budget --all"


@dataclass(frozen=True, slots=True)
class Moved:
    """A job whose ``finish_by`` was moved."""

    job_id: str
    moment: Moment
    runs: Sequence[str]  # that go on
    unworked_job: str | None  # the job, if it has runs that are queued while no worker is alive


def move_finish_by(app: App, name: str, text: str, author: Author) -> Moved:
    """Let model calls of a job begin until a time such as ``09:00``. Raises ``UsageError``."""
    # Late: lists tell only what waits for a time.
    from runner.jobfile.times import read_moment
    from runner.jobfile.values import BadValueError
    from runner.store import times

    job_id, now = app.find_job(name), app.now()
    try:
        until = read_moment(text).after(now)
    except BadValueError as error:
        raise UsageError(f"TIME {error}") from error
    if (until.at or 0) <= now:
        raise UsageError(f"{until} has passed: give a later time")
    options: Any = {"author": author}
    moved = app.change(
        lambda now: times.move_finish_by(app.database, job_id, until, now, **options)
    )
    return Moved(job_id, until, moved, app.job_without_worker(next(iter(moved), None)))


def waits_for_times(app: App, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run id, why and until when it waits: for a time at which its job's model calls may
    begin, or for the daily cap."""
    now = app.now()
    waiting = [
        run for run in runs if (begins_later(run) and run["due_at"] > now) or is_past_finish(run)
    ]
    if not waiting:
        return {}
    by_job = times_of(app.database, list({run["job_id"] for run in waiting}))
    words = {job_id: _words(job_id, job) for job_id, job in by_job.items()}
    return {
        run["id"]: f"waits until {moment(run['due_at'])} ({words[run['job_id']][run['reason']]})"
        if begins_later(run)
        else words[run["job_id"]]["finish_by"]
        for run in waiting
    }


def _words(job_id: str, job: Row[Any]) -> dict[str, str]:
    """Return, by reason, what runs of a job wait for, in words."""
    from runner.core.spec import JobSpec  # late: it slows the start of other commands

    set_for = JobSpec.from_json(job.spec).times
    past = f"no model call begins since finish_by {job.finish_by_text}: {how_to_move(job_id)}"
    own = {name: f"{name} {getattr(set_for, name)}" for name in _LATER}
    return {**own, "cap": _CAP, "finish_by": past}


def begins_later(run: Mapping[str, Any]) -> bool:
    """True if a run goes on by itself when its job's model calls may begin, or on the next day."""
    return run["state"] == "queued" and run["reason"] in (*_LATER, "cap")


def is_past_finish(run: Mapping[str, Any]) -> bool:
    """True if a run waits until a person moves its job's ``finish_by``."""
    return (run["state"], run["reason"]) == ("waiting", "finish_by")


def how_to_move(job_id: str) -> str:
    """Return the command that moves a job's ``finish_by``."""
    return f"runner finish-by {job_id} TIME"
