"""Preflight: why a job would fail or wait at its first call, found before anything is stored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from runner import wiring
from runner.core.budget import JobBudget, Reservation, billionths, in_usd
from runner.core.context import DEFAULT_WINDOW
from runner.core.model_calls import first_call
from runner.core.prices import PriceList
from runner.core.spec import JobSpec, NewRun
from runner.errors import Problem, SandboxMissing
from runner.jobfile.values import shown
from runner.settings import Settings

_DIGITS = re.compile(r"[0-9]+")


def preflight(settings: Settings, spec: JobSpec, runs: Sequence[NewRun]) -> Iterator[Problem]:
    """Yield the reasons why this host cannot work a job, or the job cannot begin."""
    prices = wiring.load_prices(settings)
    if spec.provider == "anthropic" and not wiring.has_key():
        yield Problem(
            "provider",
            "no API key is in the environment: set ANTHROPIC_API_KEY before the job runs",
        )
    if (missing := sandbox_problem(settings, spec)) is not None:
        yield Problem("sandbox.mode", missing)
    if meant := _meant(spec, prices):
        yield Problem("model", f"{shown(spec.model)} is no known model; did you mean {meant}?")
    yield from _too_dear(spec, first_call(spec, runs, prices))


def model_notes(spec: JobSpec, prices: PriceList) -> Iterator[str]:
    """Yield a note of what is assumed of a model that is not in the price list."""
    if spec.provider != "scripted" and not prices.price(spec.model) and not _meant(spec, prices):
        window = spec.context.window or DEFAULT_WINDOW
        yield (
            f"{shown(spec.model)} is not in the price list: its cost will not be known, and its "
            f"window is taken to have {window:,} tokens (see RUNNER_PRICES)"
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
    return next(iter(difflib.get_close_matches(spec.model, same, 1, 0.9)), None)


def _too_dear(spec: JobSpec, call: Reservation | str) -> Iterator[Problem]:
    """Yield the limits that a run's first call, at its worst, does not fit in."""
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
