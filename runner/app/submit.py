"""Submit a job file: load and check it, say why it could not begin, and store the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches, unified_diff
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner import wiring
from runner.app.handle import App
from runner.core.budget import JobBudget, Reservation, billionths, in_usd
from runner.core.context import DEFAULT_WINDOW
from runner.core.model_calls import first_call
from runner.core.pauses import Pilot
from runner.core.prices import PriceList
from runner.core.run import Author
from runner.core.spec import JobSpec, NewRun, Submission
from runner.errors import Problem, SandboxMissing
from runner.jobfile.values import shown
from runner.queries.jobs import has_key, item_keys, show_job
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.jobfile.overrides import Overrides

Before = Literal["run", "submission"]

_MOST_ITEMS = 10
_DIGITS = re.compile(r"[0-9]+")


def load_job(
    settings: Settings,
    path: Path,
    pilot: int | None = None,
    *,
    before: Before | None = None,
    overrides: Overrides | None = None,
) -> Submission:
    """Load a job file for submission, changed by ``overrides``; a ``pilot`` is a number of items.

    Raises ``SpecError`` with every problem. ``before`` a run on this host, problems that the preflight
    finds are among them; before a submission they are notes. If ``before`` is neither, notes on the
    workspace are left out."""
    check = partial(preflight, settings)
    found = check if before == "run" else None
    submission = wiring.load_submission(path, settings, found, overrides)
    spec, notes = submission.spec, [*submission.notes]
    if before is None:
        notes = [each for each in notes if each not in submission.workspace_notes]
    else:
        notes += model_notes(spec, wiring.load_prices(settings))
    if before == "submission":
        notes += map(str, check(spec, submission.runs))
    if pilot is not None:
        spec = replace(spec, pilot=replace(spec.pilot or Pilot(pilot), items=pilot))
    return replace(submission, spec=spec, notes=tuple(notes))


def submit(app: App, submission: Submission, author: Author, key: str | None = None) -> str:
    """Submit a job, or find the first with the same ``key``; return its id. Raises ``UsageError`` if
    Runner cannot mark its workspace, or cannot keep the commit that its runs start from."""
    return wiring.submit(app.database, submission, key, author=author)


def is_submitted(app: App, key: str | None) -> bool:
    """True if a job was submitted with a key."""
    return key is not None and has_key(app.database, key)


def difference(app: App, job_id: str, submission: Submission) -> list[str]:
    """Return how a job file differs from the one that a job was submitted with, a line each: its text,
    then the options of the command, then its items. Empty if they are the same."""
    job = show_job(app.database, job_id)
    before, now = job["spec_text"].splitlines(), submission.text.splitlines()
    lines = [*unified_diff(before, now, job_id, submission.source, lineterm="")]
    if (typed := job["spec"].get("options", [])) != [*submission.spec.options]:
        named = (" ".join(each) or "none" for each in (typed, submission.spec.options))
        lines.append("options: {}, now {}".format(*named))
    old, new = item_keys(app.database, job_id), {run.key for run in submission.runs}
    for keys, what in ((old - new, "no longer an item"), (new - old, "a new item")):
        lines += [f"{what}: {key}" for key in sorted(keys)[:_MOST_ITEMS]]
        if len(keys) > _MOST_ITEMS:
            lines.append(f"{what}: {len(keys) - _MOST_ITEMS:,} more")
    return lines


def submitted(app: App, job_id: str) -> dict[str, Any]:
    """Return a job and how far it is."""
    return show_job(app.database, job_id)


# Preflight: why a job would fail or wait at its first call, found before anything is stored


def preflight(settings: Settings, spec: JobSpec, runs: Sequence[NewRun]) -> Iterator[Problem]:
    """Yield the reasons why this host cannot work a job, or why the job cannot begin."""
    prices = wiring.load_prices(settings)
    if (lacking := wiring.missing_credentials(spec.provider)) is not None:
        yield Problem("provider", lacking)
    if (missing := sandbox_problem(settings, spec)) is not None:
        yield Problem("sandbox.mode", missing)
    if meant := _meant(spec, prices):
        yield Problem("model", f"{shown(spec.model)} is not a known model; did you mean {meant}?")
    yield from _too_dear(spec, first_call(spec, runs, prices))


def model_notes(spec: JobSpec, prices: PriceList) -> Iterator[str]:
    """Yield a note on the window that is assumed for a model without a price."""
    if spec.provider != "scripted" and not prices.price(spec.model) and not _meant(spec, prices):
        window = spec.context.window or DEFAULT_WINDOW
        yield (
            f"{shown(spec.model)} is not in the price list: Runner does not know its cost, and "
            f"assumes a window of {window:,} tokens (see RUNNER_PRICES)"
        )


def sandbox_problem(settings: Settings, spec: JobSpec) -> str | None:
    """Return why this host cannot work a job that requires a sandbox, or None."""
    if spec.sandbox is None or not spec.sandbox.is_required:
        return None
    try:
        wiring.sandboxes_here(settings).containment_of(spec.sandbox)
    except SandboxMissing as missing:
        return str(missing)
    return None


def _meant(spec: JobSpec, prices: PriceList) -> str | None:
    """Return the known model whose id has the same numbers and is spelled almost the same, if any."""
    if spec.provider == "scripted" or prices.price(spec.model):
        return None
    same = [name for name in prices.models if _DIGITS.findall(name) == _DIGITS.findall(spec.model)]
    return next(iter(get_close_matches(spec.model, same, 1, 0.9)), None)


def _too_dear(spec: JobSpec, call: Reservation | str) -> Iterator[Problem]:
    """Yield the limits that are too low for the worst case of a run's first call."""
    lower = "raise it, or lower limits.max_output_tokens"
    if not isinstance(call, Reservation):
        key = {"cost_ceiling": "cost_ceiling_usd"}.get(call, call)
        yield Problem(f"limits.{key}", f"leaves no room for the first call of a run: {lower}")
        return
    usd, tokens = spec.budget.usd, spec.budget.tokens
    if usd is not None and JobBudget(most_cost=billionths(usd)).verdict(call) == "never":
        worst = in_usd(call.worst_cost)
        yield Problem(
            "limits.budget_usd", f"one call of a run may cost {worst}, so none begins: {lower}"
        )
    if tokens is not None and JobBudget(most_tokens=tokens).verdict(call) == "never":
        worst = f"{call.worst_case:,} tokens"
        yield Problem(
            "limits.budget_tokens", f"one call of a run may take {worst}, so none begins: {lower}"
        )
