"""Changing what runs do: cancel, pause, resume, retry, say, fork, and the budget of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.app.costs import refuse_unpriced
from runner.app.handle import App
from runner.core.budget import JobBudget
from runner.core.commands import Change, Raised, Target
from runner.core.run import Author
from runner.queries.jobs import list_runs, show_job, show_run
from runner.store import control
from runner.store import retry as ended
from runner.store.fork import fork as fork_run
from runner.wiring import mend_workspaces


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command."""

    target: Target  # the job or the run that the command named
    changes: Sequence[Change]  # of each run
    unworked_job: str | None = None  # has queued runs while no worker is alive
    mended: Sequence[str] = ()  # paths of workspaces that got their lost ids back


def cancel(app: App, name: str, author: Author) -> Outcome:
    """End the runs of a job, or a run, that have not ended, with their sub-agents."""
    target = _target(app, name)
    return Outcome(
        target, app.change(lambda now: control.cancel(app.database, target, now, author=author))
    )


def pause(app: App, name: str, author: Author) -> Outcome:
    """Let runs wait until they are resumed."""
    target = _target(app, name)
    return Outcome(
        target, app.change(lambda now: control.pause(app.database, target, now, author=author))
    )


def resume(app: App, name: str, author: Author) -> Outcome:
    """Let paused runs go on, and give workspaces whose folder lost its id the id back."""
    target = _target(app, name)
    mended = mend_workspaces(app.database, target.id)
    changes = app.change(lambda now: control.resume(app.database, target, now, author=author))
    return Outcome(target, changes, _unworked_job(app, changes), mended)


def retry(
    app: App, name: str, author: Author, raised: Raised, *, fresh: bool, only_failed: bool
) -> Outcome:
    """Let ended runs go on from what is stored, or (``fresh``) begin them again as new runs.

    Raises:
        UsageError: a single run cannot be retried, or its cost cannot be limited.
    """
    target = _target(app, name)
    if raised.cost_ceiling_usd is not None:
        refuse_unpriced(app, _job_of(app, target))
    options: dict[str, Any] = {"fresh": fresh, "only_failed": only_failed, "author": author}
    changes = app.change(
        lambda now: ended.retry(app.database, target, now, raised=raised, **options)
    )
    return Outcome(target, changes, _unworked_job(app, changes))


def say(app: App, name: str, text: str, author: Author) -> Outcome:
    """Queue a message for a run; one that has ended starts again to answer it."""
    run_id = app.find(name, "run").id
    change = app.change(lambda now: ended.say(app.database, run_id, text, now, author=author))
    return Outcome(Target("run", run_id), [change], _unworked_job(app, [change]))


def _target(app: App, name: str) -> Target:
    found = app.find(name, "job", "run")
    return Target("job" if found.kind == "job" else "run", found.id)


def _job_of(app: App, target: Target) -> str:
    return target.id if target.kind == "job" else str(show_run(app.database, target.id)["job_id"])


def _unworked_job(app: App, changes: Sequence[Change]) -> str | None:
    queued = (each.id for each in changes if each.changed and each.state == "queued")
    return app.job_without_worker(next(queued, None))


@dataclass(frozen=True, slots=True)
class Fork:
    """A run that goes on from a turn of another."""

    change: Change  # of the new run
    run_id: str  # the run that it was forked from
    turn: int
    is_shared: bool  # its workspace is that of other runs: the files are as they are now
    unworked_job: str | None  # its job, while no worker is alive

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.change), "fork_of": self.run_id, "fork_turn": self.turn}


def fork(
    app: App, name: str, turn: int, author: Author, *, text: str | None, model: str | None
) -> Fork:
    """Go on from a turn of a run as another run.

    Args:
        turn: the last that the new run has; 0 is before the first.
        text: what the new run is told.
        model: the model that it calls; None: the one of the job.

    Raises:
        UsageError: there is no such turn, or it has not ended, or the cost of ``model`` is limited
            and it has no price.
    """
    run_id = app.find(name, "run").id
    run = show_run(app.database, run_id)
    job = show_job(app.database, run["job_id"])
    if model is not None and (run["cost_ceiling_usd"], job["budget_usd"]) != (None, None):
        refuse_unpriced(app, run["job_id"], model)
    change = app.change(
        lambda now: fork_run(app.database, run_id, turn, now, text=text, model=model, author=author)
    )
    workspace = job["spec"]["workspace"]
    is_shared = workspace is not None and workspace["mode"] == "shared"
    return Fork(change, run_id, turn, is_shared, app.job_without_worker(change.id))


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The budget of a job."""

    job_id: str
    budget: JobBudget
    waiting: int  # runs that wait for it, sub-agents included
    woken: Sequence[Change] = ()  # runs that go on since it was raised
    unworked_job: str | None = None  # this job, if runs were woken while no worker is alive

    def as_json(self) -> dict[str, Any]:
        budget = self.budget
        has_cost, has_any = budget.most_cost is not None, budget != JobBudget()
        return {
            "job": self.job_id,
            "budget_usd": None if budget.most_cost is None else budget.most_cost / 1e9,
            "spent_usd": budget.spent_cost / 1e9 if has_cost else None,
            "reserved_usd": budget.reserved_cost / 1e9 if has_cost else None,
            "budget_tokens": budget.most_tokens,
            "spent_tokens": budget.spent_tokens if has_any else None,
            "reserved_tokens": budget.reserved_tokens if has_any else None,
            "waiting_runs": self.waiting,
            "woken": [asdict(change) for change in self.woken],
        }

    @property
    def is_overdrawn(self) -> bool:
        """True if the calls in hand may use more than the budget has left."""
        budget = self.budget
        cost = budget.spent_cost + budget.reserved_cost
        tokens = budget.spent_tokens + budget.reserved_tokens
        return (budget.most_cost is not None and cost > budget.most_cost) or (
            budget.most_tokens is not None and tokens > budget.most_tokens
        )


def budget(
    app: App, name: str, author: Author, *, usd: float | None = None, tokens: int | None = None
) -> BudgetStatus:
    """Return the budget of a job; set it first if ``usd`` or ``tokens`` says to what.

    Raises:
        UsageError: the job has no budget, or would have less than what it has used.
    """
    job_id = app.find_job(name)
    woken: Sequence[Change] = []
    if usd is not None or tokens is not None:
        woken = app.change(
            lambda now: control.set_budget(
                app.database, job_id, now, author=author, usd=usd, tokens=tokens
            )
        )
    runs = list_runs(app.database, job_id, "waiting", whole_trees=True)
    return BudgetStatus(
        job_id,
        control.budget_of(app.database, job_id) or JobBudget(),
        sum(run["reason"] == "budget" for run in runs),
        woken,
        app.job_without_worker(woken[0].id if woken else None),
    )
