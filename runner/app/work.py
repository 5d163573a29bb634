"""Work a job: take it up, start a worker or leave one behind, and follow the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner import wiring
from runner.app.handle import App
from runner.app.submit import sandbox_problem
from runner.app.watch import Progress
from runner.core.commands import Target
from runner.core.run import ENDED, Assignment, Author
from runner.core.spec import JobSpec
from runner.errors import RunnerError, UnreachableError, UsageError
from runner.queries.jobs import list_jobs, list_runs, show_job
from runner.queries.workers import list_workers, live_workers
from runner.store import pauses

if TYPE_CHECKING:
    from runner.engine.worker import Worker

_LOOK_SECONDS = 0.5
_START_SECONDS = 30.0


def take_up(app: App, job: str, author: Author) -> tuple[str, Sequence[str]]:
    """Return the id of a job that is to go on, resumed if it is paused as a whole, and the paths of the
    workspaces that had lost their ids, which are written again. Raises ``UsageError`` if the job
    requires a sandbox that this host lacks."""
    job_id = app.find_job(job)
    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    if (problem := sandbox_problem(app.settings, spec)) is not None:
        raise UsageError(problem)
    if pauses.is_paused(app.database, job_id):
        target = Target("job", job_id)
        app.change(lambda now: pauses.resume(app.database, target, now, author=author))
    return job_id, wiring.mend_workspaces(app.database, job_id)


def pause_unworked(app: App, job_id: str, author: Author) -> int:
    """Pause a job if no living worker works it. Returns the number of those that do."""
    database = app.database
    workers = live_workers(database, app.now(), job_id)
    if not workers:
        target = Target("job", job_id)
        app.change(lambda now: pauses.pause(database, target, now, author=author))
    return workers


def workers_of(app: App, job_id: str) -> int:
    """Return the number of living workers that work a job."""
    return live_workers(app.database, app.now(), job_id)


def has_ended(app: App, job_id: str) -> bool:
    """True if every run of a job has ended."""
    return list_jobs(app.database, among=[job_id])[0]["state"] in ENDED


def start_worker(
    app: App, slots: int, assigned: Assignment, metrics: tuple[str, int] | None = None
) -> Worker:
    """Start a worker in threads of this process. Raises ``UnreachableError`` if the database is away, or
    there is no embedded queue."""
    return wiring.start_worker(app.settings, app.database, slots, assigned, metrics)


def leave_worker(app: App, job_id: str, slots: int) -> tuple[int, Path] | None:
    """Start a worker in a process of its own that works a job until all of its runs have ended. Returns
    its process id and log; None if it has ended already. Raises ``RunnerError`` if it does not start."""
    process, log = wiring.leave_worker(app.settings, job_id, slots)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and not (code := process.poll()):
        if code == 0:
            return None
        if any(each["pid"] == process.pid for each in list_workers(app.database, app.now())):
            return process.pid, log
        time.sleep(_LOOK_SECONDS / 5)
    process.terminate()
    raise RunnerError(f"the background worker did not start: see {log}")


def wait_for_end(worker: Worker, is_done: Callable[[], bool] = lambda: False) -> None:
    """Wait until a worker has drained, in pieces that let signals in. It is told to drain once ``is_done``
    returns True. Raises the error that ended it."""
    while not worker.wait(_LOOK_SECONDS):
        with suppress(UnreachableError):  # the worker says so
            if is_done():
                worker.drain()
    if isinstance(worker.failure, RunnerError):
        raise worker.failure
    if worker.failure is not None:
        raise RunnerError(f"the worker failed: {worker.failure!r}") from worker.failure


def settled_progress_of(app: App, job_id: str) -> Progress:
    """Return how far a job is, once it is decided if it pauses: its pilot may have ended."""
    app.change(lambda now: pauses.attend(app.database, now))
    return progress_of(app, job_id)


def progress_of(app: App, job_id: str) -> Progress:
    """Return how far a job is."""
    return Progress(list_runs(app.database, job_id, whole_trees=True))
