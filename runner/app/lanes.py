"""The lanes of jobs: changing one, and what jobs and runs wait for in batches, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.app.handle import App
from runner.app.humanize import duration, moment, plural
from runner.core.batches import choose_lane, refused_options
from runner.core.run import Author
from runner.core.spec import JobSpec, Lane
from runner.errors import UsageError
from runner.queries import batches
from runner.queries.batches import BatchedCall
from runner.queries.jobs import show_job
from runner.store.batches import set_lane


def lane(app: App, name: str, lane: Lane | None, author: Author) -> tuple[str, str]:
    """Return a job's id and its lane in words, changed to ``lane`` if there is one. Raises
    ``UsageError`` if the job's calls cannot go in batches."""
    job_id = app.find_job(name)
    spec = JobSpec.from_json(show_job(app.database, job_id)["spec"])
    if lane in ("batch", "auto"):
        if spec.provider != "anthropic":
            raise UsageError(f'{job_id} has provider = "{spec.provider}", which has no batches')
        if refused := refused_options(spec):
            raise UsageError(
                f"batches do not take {', '.join(refused)} of the model_options of {job_id}: submit "
                "it again without"
            )
    if lane is not None:
        app.change(lambda now: set_lane(app.database, job_id, lane, now, author=author))
    return job_id, lane_line(app, job_id, spec) or "realtime"


def lane_line(app: App, job_id: str, spec: JobSpec) -> str | None:
    """Return a job's lane, why ``auto`` takes which, and what waits, in words; None if it has only ever
    called the API one by one."""
    found, now = batches.lane_of(app.database, job_id), app.now()
    if found.lane == "realtime" and not found.sent + found.unsent:
        return None
    finish_by, parts = show_job(app.database, job_id)["finish_by"], list[str]()
    chosen = choose_lane(spec.times, finish_by, found.rounds, now, most_turns=spec.limits.max_turns)
    if found.lane == "auto":
        which = "batch" if chosen.batch else "realtime"
        parts.append(f"{which} for a new item: {chosen.why}")
    if found.sent:
        calls = plural(found.sent, "call waits", "calls wait")
        parts.append(f"{calls} in {plural(found.batches, 'batch', 'batches')}")
    if found.unsent:
        parts.append(f"{plural(found.unsent, 'call', 'calls')} to be sent")
    parts.append(f"a round takes about {duration(found.rounds.seconds)}")
    if found.lane != "realtime":
        parts.append(f"an item that begins now is expected to end by {moment(chosen.ends_at)}")
    return f"{found.lane}; {'; '.join(parts)}"


def waits_for_batches(app: App, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run, the batch that it waits for, in words."""
    waiting = [run["id"] for run in runs if (run["state"], run["reason"]) == ("waiting", "batch")]
    if not waiting:
        return {}
    return {
        run_id: _words(call)
        for run_id, call in batches.waiting_calls(app.database, waiting).items()
    }


def _words(call: BatchedCall) -> str:
    since = f"since {moment(call.asked_at)}"
    if call.count is None:
        return f"waits for others to share a batch, {since}"
    if call.api_id is None:
        return f"is in a batch that may not exist, {since}: Runner is asking the API"
    until = "" if call.expires_at is None else f", at most until {moment(call.expires_at)}"
    return f"is in {call.api_id} of {plural(call.count, 'call', 'calls')}, {since}{until}"
