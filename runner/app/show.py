"""Jobs, runs and tool calls in detail, as ``show`` and ``events`` print them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain, repeat
from typing import Any

from runner import wiring
from runner.app import forecast, lanes
from runner.app.costs import cost_fields, spending_of, total_of
from runner.app.handle import App
from runner.app.humanize import cell, cost_line
from runner.app.listing import (
    what_holds_back,
    what_jobs_wait_for,
    what_runs_wait_for,
    with_shown_state,
)
from runner.core.agents import is_within, place_of
from runner.core.context import DEFAULT_WINDOW
from runner.core.spec import JobSpec
from runner.errors import UnreachableError, UsageError
from runner.queries import decisions, jobs, outcomes, timeline, transcript, workers
from runner.queries.costs import costs_by
from runner.queries.names import Kind
from runner.queries.tool_calls import containments
from runner.store.conditions import in_tree
from runner.store.workspaces import workspace_of

_LOOK_SECONDS = 0.5
_HOW_TO_GO_ON = ": go on with `runner run --resume JOB` or `runner worker`"


def details_of(app: App, name: str) -> tuple[Kind, dict[str, Any]]:
    """Return all details of a job, run or tool call by its id or a part of it."""
    found, database = app.find(name, "job", "run", "call"), app.database
    match found.kind:
        case "job":
            spending = spending_of(app, job_id=found.id)
            shown = workers.shown_states_by_job(database, app.now(), [found.id])
            job = jobs.show_job(database, found.id) | {
                "containment": containments(database, found.id),
                "held_back": what_holds_back(app, [found.id]).get(found.id),
            }
            job["waits_for"] = what_jobs_wait_for(app, [job]).get(found.id)
            values = with_shown_state(job, shown[found.id]) | {"spending": spending}
            spec = JobSpec.from_json(job["spec"])
            values["lane"] = lanes.lane_line(app, found.id, spec)
            values["forecast"] = forecast.forecasts(app, [job]).get(found.id)
            values["page"] = app.settings.page("jobs", found.id)
        case "call":
            values = transcript.show_call(database, found.id)
            values |= decisions.decision_on_call(database, found.id)
            children = outcomes.children_of(database, values["run_id"])
            values["children"] = [each for each in children if each["call_id"] == found.id]
        case _:
            values = _run_details(app, found.id)
    return found.kind, values


def details_as_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a job, run or call for JSON."""
    values = _tree_as_json(details) if "child_spending" in details else dict(details)
    spending = values.pop("spending", None)
    if (expected := values.get("forecast")) is not None:
        values["forecast"] = expected.as_json()
    return values | (cost_fields(spending) if spending is not None else {})


def _run_details(app: App, run_id: str) -> dict[str, Any]:
    """Everything but the conversation and the events of a run."""
    database = app.database
    run, recorded = transcript.show_run(database, run_id), workspace_of(database, run_id)
    # The context window of its last call; before the first, its model's if known without the API.
    windows = ((run[name] or {}).get("window") for name in ("fullness", "context"))
    window = next(filter(None, windows), None) or app.prices().window(run["model"])
    (run,) = workers.with_shown_states(database, app.now(), [run])
    return run | {
        "page": app.settings.page("runs", run_id),
        **place_of(run_id),
        **tree_of(app, run_id),
        "spending": spending_of(app, run_id=run_id),
        "window": window or DEFAULT_WINDOW,
        "session": transcript.session_of_run(database, run_id),
        "left_out": asdict(jobs.pruned_turns(database, run["job_id"], run_id)),
        "waits_for": what_runs_wait_for(app, [run]).get(run_id),
        "denied_calls": decisions.denied_calls(database, run_id),
        "approvals": decisions.approvals_of_run(database, run_id),
        **{name: getattr(recorded, name) for name in ("branch", "start_commit", "commit", "tree")},
        "verifications": outcomes.verifications_of_run(database, run_id),
        "result": outcomes.result_of_run(database, run_id),
    }


def tree_of(app: App, run_id: str) -> dict[str, Any]:
    """Return the ``children`` of a run, the cost of each with its sub-agents (``child_spending``,
    by id), sums over all runs ``below`` the run, and the cost of its tree (``tree_spending``)."""
    children = outcomes.children_of(app.database, run_id)
    condition = (in_tree(run_id),)
    spent = costs_by(app.database, app.prices(), "run", conditions=condition) if children else []
    return {
        "children": workers.with_shown_states(app.database, app.now(), children),
        "child_spending": {
            child["id"]: total_of(each for each in spent if is_within(each.key, child["id"]))
            for child in children
        },
        "below": outcomes.descendants_of(app.database, run_id),
        "tree_spending": total_of(spent),
    }


def _tree_as_json(run: Mapping[str, Any]) -> dict[str, Any]:
    children, below, spent = run["children"], run["below"], run["child_spending"]
    inner = ("child_spending", "tree_spending")
    return {name: value for name, value in run.items() if name not in inner} | {
        "children": [{**child, **cost_fields(spent[child["id"]])} for child in children],
        "below": below.runs,
        "used_by_tree": {
            "runs": below.runs + 1,
            "turns": below.turns + run["turns"],
            "charged_tokens": below.tokens + run["charged_tokens"],
            "denials": below.denials + run["denials"],
            **cost_fields(run["tree_spending"] if children else run["spending"]),
        },
    }


def descent(run: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the origin of a sub-agent in words."""
    if run["parent"] is None:
        return ()
    agent = f"{run['agent_type']}, {run['label']} in its tree"
    return ("agent", agent), ("parent", run["parent"]), ("root", run["root"])


def tree_line(run: Mapping[str, Any]) -> str | None:
    """Return the usage of a run and its sub-agents in words; None without sub-agents."""
    below = run["below"]
    if not below.runs:
        return None
    denials = below.denials + run["denials"]
    told = (
        f"{below.runs + 1} runs",
        f"{below.turns + run['turns']:,} turns",
        f"{below.tokens + run['charged_tokens']:,} tokens",
        f"{denials:,} denied" if denials else "",
        cost_line(run["tree_spending"]),
    )
    return ", ".join(filter(None, told))


def child_line(child: Mapping[str, Any]) -> str:
    """Return the outcome of a sub-agent, in words."""
    why = f": {cell(child['reason'])}" if child["reason"] not in ("", "end_turn") else ""
    return f"{cell(child['agent_type'])} {child['state']}{why}, {child['id']}"


def events_of(app: App, name: str, *, whole_tree: bool) -> tuple[Kind, list[dict[str, Any]]]:
    """Return the events of a run or its ``whole_tree``, or the changes to a job; and their kind."""
    found = app.find(name, "job", "run")
    if found.kind == "run":
        return found.kind, timeline.events_after(app.database, found.id, whole_tree=whole_tree)
    if whole_tree:
        raise UsageError("--tree needs one run: name a run of the job (see `runner list JOB`)")
    return found.kind, timeline.changes_of_job(app.database, found.id)


def follow(
    app: App, name: str, *, whole_tree: bool, tell: Callable[[str], None], only_new: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, or of its ``whole_tree``, until it has ended (``only_new``: those from now
    on), and between them the model's live text in events of the type ``text_delta``. ``tell`` gets
    the reason if there is no text, and why nothing goes on if no worker works the run. Raises
    ``UnreachableError`` if the database does not answer."""
    found = app.find(name, "job", "run")
    if found.kind == "job":
        raise UsageError("-f needs one run: name a run of the job (see `runner list JOB`)")
    run_id, last = found.id, dict[str, int]()
    if only_new:
        for event in timeline.events_after(app.database, run_id, whole_tree=whole_tree):
            last[event["run_id"]] = event["number"]
    shown, looked_at = "", 0.0
    with ExitStack() as opened:
        try:
            texts = opened.enter_context(wiring.follow_text(app.settings, run_id))
        except UnreachableError as error:
            tell(f"no live text: {error}")
            texts = map(time.sleep, repeat(_LOOK_SECONDS))  # None each time
        delta = {"type": "text_delta", "run_id": run_id, **place_of(run_id)}
        for look, text in enumerate(chain((None,), texts)):
            if text is not None:
                yield {**delta, "text": text}
            if time.monotonic() - looked_at >= _LOOK_SECONDS:
                looked_at, before = time.monotonic(), shown
                shown = workers.shown_states(app.database, app.now(), [run_id]).get(run_id, "")
                if shown and shown != before:
                    how = _HOW_TO_GO_ON if workers.NO_WORKER in shown else ""
                    tell(f"{run_id} is {shown}{how}")
            has_ended = outcomes.has_ended(app.database, run_id, whole_tree=whole_tree)
            new = timeline.events_after(app.database, run_id, last, whole_tree=whole_tree)
            if has_ended and look:  # its last words may still be on their way
                for text in iter(partial(next, texts), None):
                    yield {**delta, "text": text}
            for event in new:
                last[event["run_id"]] = event["number"]
                yield event
            if has_ended:
                return
