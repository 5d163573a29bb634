"""Changing what runs do: cancel, pause, resume, retry, say and fork."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.app.costs import refuse_unpriced
from runner.app.handle import App
from runner.core.commands import Change, Raised, Target
from runner.core.run import Author, RunStatus
from runner.queries.jobs import job_of, show_job
from runner.queries.transcript import show_run
from runner.store import jobs, pauses
from runner.store import retry as ended
from runner.store.database import Database
from runner.store.fork import fork as fork_run
from runner.wiring import mend_workspaces

Changing = Callable[..., Sequence[Change]]  # takes a database, a target, the time, and options


@dataclass(frozen=True, slots=True)
class Outcome:
    target: Target  # the job or the run that the command named
    changes: Sequence[Change]  # of each run
    unworked_job: str | None = None  # has queued runs while no worker is alive
    mended: Sequence[str] = ()  # paths of workspaces that got their lost ids back
    # A fork's workspace is that of other runs: the files are as they are now.
    is_shared: bool = False


def cancel(app: App, name: str, author: Author) -> Outcome:
    """End the runs of a job, or a run, that have not ended, with their sub-agents."""
    return _changed(app, _target(app, name), pauses.cancel, author=author)


def pause(app: App, name: str, author: Author) -> Outcome:
    """Let runs wait until they are resumed."""
    return _changed(app, _target(app, name), pauses.pause, author=author)


def resume(app: App, name: str, author: Author) -> Outcome:
    """Let paused runs go on, and give workspaces whose folder lost its id the id back."""
    target = _target(app, name)
    mended = mend_workspaces(app.database, target.id)
    return _changed(app, target, pauses.resume, mended, author=author)


def retry(
    app: App,
    name: str,
    author: Author,
    limits: dict[str, Any],
    *,
    fresh: bool,
    state: RunStatus | None = None,
) -> Outcome:
    """Retry ended runs from what is stored, or (``fresh``) as new runs, with the new ``limits`` of
    ``Raised``; of a job, only runs in ``state``. Raises ``UsageError`` if a single run, or a run in
    that state, cannot be retried, or if a cost limit is set for a model without a price."""
    target, raised = _target(app, name), Raised(**limits)
    if raised.cost_ceiling_usd is not None:
        is_job = target.kind == "job"
        refuse_unpriced(app, target.id if is_job else job_of(app.database, target.id))
    options: Any = {"raised": raised, "fresh": fresh, "state": state, "author": author}
    return _changed(app, target, ended.retry, **options)


def say(app: App, name: str, text: str, author: Author) -> Outcome:
    """Queue a message for a run; one that has ended starts again to answer it."""

    def tell(database: Database, target: Target, now: float) -> list[Change]:
        return [ended.say(database, target.id, text, now, author=author)]

    return _changed(app, Target("run", app.find_to_change(name, "run").id), tell)


def _target(app: App, name: str) -> Target:
    found = app.find_to_change(name, "job", "run")
    return Target("job" if found.kind == "job" else "run", found.id)


def _changed(
    app: App, target: Target, change: Changing, mended: Sequence[str] = (), **options: Any
) -> Outcome:
    changes = app.change(lambda now: change(app.database, target, now, **options))
    queued = (each.id for each in changes if each.changed and each.state == "queued")
    return Outcome(target, changes, app.job_without_worker(next(queued, None)), mended)


def priority(app: App, name: str, author: Author, weight: float | None) -> tuple[str, float]:
    """Return a job's id and its weight, set to ``weight`` if there is one."""
    job_id, database = app.find_job(name), app.database
    if weight is not None:
        app.change(lambda now: jobs.set_priority(database, job_id, weight, now, author))
    return job_id, jobs.priority_of(database, job_id)


def fork(
    app: App, name: str, turn: int, author: Author, *, text: str | None, model: str | None
) -> Outcome:
    """Go on from a turn of a run (0: from before the first) as another run, which may be told a
    ``text`` and call another ``model``. Raises ``UsageError`` if there is no such turn, it has not
    ended, or the cost of ``model`` is limited and it has no price."""
    run_id = app.find_to_change(name, "run").id
    run = show_run(app.database, run_id)
    job = show_job(app.database, run["job_id"])
    if model is not None and (run["cost_ceiling_usd"], job["budget_usd"]) != (None, None):
        refuse_unpriced(app, run["job_id"], model)

    def begin(database: Database, target: Target, now: float) -> list[Change]:
        return [fork_run(database, target.id, turn, now, text=text, model=model, author=author)]

    outcome = _changed(app, Target("run", run_id), begin)
    workspace = job["spec"]["workspace"]
    is_shared = workspace is not None and workspace["mode"] == "shared"
    return replace(outcome, is_shared=is_shared)
