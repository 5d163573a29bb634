"""Jobs, and the runs of a job, as ``list`` prints them. Light to import: people wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.app import times
from runner.app.budgets import budget_of, how_to_raise, is_out_of_budget, waits_for_budget
from runner.app.handle import App
from runner.app.humanize import duration, plural, usd_of, verdict
from runner.core.budget import billionths, is_near
from runner.core.run import ENDED, RunStatus
from runner.queries import jobs, outcomes, workers
from runner.queries.jobs import JobSummary, RunSummary
from runner.store.database import in_lots

RUNS_ON_A_PAGE = 200


def list_jobs(
    app: App, status: RunStatus | None, among: Collection[str] | None = None
) -> list[JobSummary]:
    """Return the jobs, or those ``among`` some ids, oldest first, with the states to show."""
    found = jobs.list_jobs(app.database, status, among)
    shown = workers.shown_states_by_job(app.database, app.now(), among)
    listed = (with_shown_state(job, shown[job["id"]]) for job in found)
    return [{**job, "near_limits": job_near_limits(job)} for job in listed]


def what_jobs_wait_for(app: App, found: Sequence[JobSummary]) -> dict[str, str]:
    """Return, by job id, what the job waits for, in words: a person, the budget, the times of its model
    calls, or the reason why no more items start."""
    may_wait = [job["id"] for job in found if job["runs"].keys() & {"queued", "waiting"}]
    idle = {job["id"]: job["state"] for job in found if job["state"] in ("queued", "waiting")}
    first: dict[str, dict[str, Any]] = {}
    answers: dict[str, str] = {}
    for wait in jobs.first_waits(app.database, may_wait):
        job_id = wait["job_id"]
        if wait["reason"] == "approval":
            answers[job_id] = f"calls wait: runner approvals {job_id}"
        elif is_out_of_budget(wait):
            how = how_to_raise(job_id, budget_of(app, job_id))
            answers.setdefault(job_id, f"runs wait for the budget: {how}")
        elif wait["reason"] == "host_fault" and job_id in idle:
            answers.setdefault(job_id, f"no host can work on its runs: {wait['detail']}")
        if wait["state"] == idle.get(job_id):
            first[job_id] = min(first.get(job_id, wait), wait, key=lambda each: each["due_at"] or 0)
    waits = [{**wait, "id": job_id} for job_id, wait in first.items()]
    said = what_holds_back(app, may_wait) | times.waits_for_times(app, waits)
    said |= {
        job_id: "; ".join(filter(None, (line, said.get(job_id))))
        for job_id, line in answers.items()
    }
    return said | {job["id"]: pause_line(job) for job in found if job["pause"]}


def pause_line(job: Mapping[str, Any]) -> str:
    """Return why Runner has paused a job, and what to do about it."""
    pause, by = job["pause"], {"pilot": "the pilot", "breaker": "the circuit breaker"}
    if pause["pending"] == "decide":
        return f"pilot: {pause['detail']}"
    if pause["reason"] == "person":
        return f"paused by {pause['detail']}: `runner resume {job['id']}` goes on"
    go_on = f"`runner resume {job['id']}` goes on, `runner cancel {job['id']}` ends it"
    return f"paused by {by.get(pause['reason'], 'Runner')}: {pause['detail']}: {go_on}"


def what_holds_back(app: App, job_ids: Collection[str]) -> dict[str, str]:
    """Return, by job, how many items do not start, why, and what to do about it."""
    limited = jobs.that_may_wait(app.database, job_ids)
    if not limited:
        return {}
    from runner.store.depth_first import held_back  # late: it slows the start of other commands

    held = held_back(app.database, limited, app.now())
    return {job_id: _held_line(app, job_id, *each) for job_id, each in held.items()}


def _held_line(app: App, job_id: str, count: int, by: str) -> str:
    items = plural(count, "item does not start", "items do not start")
    if by == "budget":
        how = how_to_raise(job_id, budget_of(app, job_id))
        return f"{items}: the rest of the budget is for started items: {how}"
    if by == "cap":
        how = "raise it with `runner budget --all --usd N`, or wait for midnight"
        return f"{items}: the rest of the day's cap is for started items: {how}"
    why = f"{items}: an item would probably not end before"
    return (
        f"{why} finish_by: {times.how_to_move(job_id)}"
        if by == "finish_by"
        else f"{why} the window closes"
    )


def with_shown_state(job: JobSummary, instead: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Return a job with its ``shown_state`` and its ``shown_runs`` by state: runs that no worker works are
    not shown as running."""
    counts: Counter[str] = Counter(job["runs"])
    for (stored, shown), count in instead.items():
        counts[stored] -= count
        counts[shown] += count
    shown_runs = {state: count for state, count in counts.items() if count > 0}
    is_unworked = not counts["running"] and job["state"] in ("running", "queued")
    worst = max(instead, key=lambda each: each[0] == "running", default=None)
    shown_state = worst[1] if is_unworked and worst else job["state"]
    return {**job, "shown_state": shown_state, "shown_runs": shown_runs}


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the runs of a job."""

    runs: Sequence[Mapping[str, Any]]
    next: str | None  # the run that the next page starts after; None on the last one


def list_runs(
    app: App, job_id: str, status: RunStatus | None, *, whole_trees: bool, after: str = ""
) -> Iterator[Page]:
    """Yield the runs of a job, those after one. Each has its model, where it was forked from, its
    branch, the commit that delivered it, the verdict of its last verification and the state to
    show. With ``whole_trees`` sub-agents' runs have numbers of their own."""
    next_after: str | None = after
    options: Any = {"whole_trees": whole_trees, "limit": RUNS_ON_A_PAGE + 1}
    while next_after is not None:
        found = jobs.item_runs(app.database, job_id, status, after=next_after, **options)
        among = found[:RUNS_ON_A_PAGE]
        next_after = among[-1] if len(among) < len(found) else None
        listed = jobs.list_runs(app.database, job_id, status, whole_trees=whole_trees, among=among)
        yield Page(_with_files(app, job_id, listed), next_after)


def spent_shares(job: Mapping[str, Any]) -> list[float]:
    """Return the spent share (1.0: all of it) of each cap of a job's budget."""
    usd = job["budget_usd"]
    caps = (
        (job["spent_cost"], None if usd is None else billionths(usd)),
        (job["spent_tokens"], job["budget_tokens"]),
    )
    return [used / most for used, most in caps if most]


def job_near_limits(job: Mapping[str, Any]) -> str:
    """Return the most spent cap of a job's budget in words, if it is nearly spent."""
    share = max(spent_shares(job), default=0.0)
    return f"{share:.0%} of its budget is spent" if is_near(share, 1.0) else ""


def run_near_limits(run: Mapping[str, Any], cost: int, deadline: float | None, now: float) -> str:
    """Return the limits of a run that it has nearly used, in words; ``cost`` is what it was charged, in
    billionths of a USD, ``deadline`` its job's."""
    if run["state"] in ENDED:
        return ""
    waited, usd = now - run["created_at"], run["cost_ceiling_usd"]
    most_cost = None if usd is None else billionths(usd)
    near = {
        f"{run['turns']} of {run['max_turns']} turns": (run["turns"], run["max_turns"]),
        f"{run['tree_tokens']:,} of {run['token_ceiling']:,} tokens": (
            run["tree_tokens"],
            run["token_ceiling"],
        ),
        f"{usd_of(cost)} of {usd_of(most_cost or 0)}": (cost, most_cost),
        f"{duration(waited)} of {duration(deadline)}": (waited, deadline),
    }
    words = [said for said, (used, most) in near.items() if is_near(used, most)]
    return f"near its limits: {', '.join(words)}" if words else ""


def columns_of(app: App, job_id: str) -> list[str]:
    """Return the columns of a job's runs that runs of other jobs may lack."""
    return jobs.columns_of_runs(app.database, job_id)


def _with_files(app: App, job_id: str, found: Sequence[RunSummary]) -> list[dict[str, Any]]:
    from runner.store.workspaces import workspaces_of_job  # late: it slows other commands

    limits, now = jobs.times_of(app.database, [job_id])[job_id].spec["limits"], app.now()
    database, names = app.database, ("model", "fork_of", "fork_turn", "branch", "commit")
    with_files = []
    for some in in_lots(found):
        ids = [run["id"] for run in some]
        limited = [
            run["id"] for run in some if run["cost_ceiling_usd"] and run["state"] not in ENDED
        ]
        charged = outcomes.charged_costs(database, limited) if limited else Counter[str]()
        verified = outcomes.last_verifications(database, job_id, ids)
        recorded = {each.run_id: each for each in workspaces_of_job(database, job_id, among=ids)}
        with_files += [
            {
                **run,
                "near_limits": run_near_limits(run, charged[run["id"]], limits["deadline"], now),
                **{name: getattr(recorded[run["id"]], name) for name in names},
                "verified": verdict(verified.get(run["id"])) or None,
            }
            for run in workers.with_shown_states(database, now, some)
        ]
    return with_files


def what_runs_wait_for(app: App, runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run, why runs of one job wait, until when, and what to do about it."""
    waiting = [run for run in runs if run["state"] in ("queued", "waiting") and run["reason"]]
    if not waiting:
        return {}
    found = waits_for_budget(app, waiting) | times.waits_for_times(app, waiting)
    if any(run["reason"] == "batch" for run in waiting):
        from runner.app.lanes import waits_for_batches  # late: few commands need it

        found |= waits_for_batches(app, waiting)
    return found
