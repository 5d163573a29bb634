"""Whether the next model call may begin: what it may use at the most, and what is left for it."""

from __future__ import annotations

from runner.core.context.cache import is_worth_an_hour, paced
from runner.core.conversation import Purpose
from runner.core.journal.entries import ModelCallStarted
from runner.core.journal.view import RunView
from runner.core.money.budget import Ceiling, JobBudget, Reservation, in_usd, prompt_bound, reserve
from runner.core.money.prices import FREE, PriceList, Tariff, Terms
from runner.core.run import Ended, Requeued, Waiting
from runner.core.spec import JobSpec
from runner.core.steps import Record, Step, settle

# What others have reserved comes back when their calls end.
# Hundreds of runs may wait for it: each asks less often the longer it has waited.
BUDGET_WAIT_SECONDS = 2.0
LONGEST_BUDGET_WAIT_SECONDS = 20.0


def tariffs_of(spec: JobSpec, prices: PriceList) -> dict[str, Tariff]:
    """What the calls of a job's models are billed at, by model: of those that have a price."""
    tariffs = {}
    for model in (spec.model, spec.summary_model):
        own = model == spec.model
        terms = Terms.of(spec.provider, spec.model_options, own_model=own)
        if (tariff := prices.tariff(model, terms)) is not None:
            tariffs[model] = tariff
    return tariffs


def start_turn(view: RunView) -> Step:
    """The step that begins the run's next turn, or that says why it cannot."""
    progress = view.progress
    prompt = prompt_bound(progress.last_prompt_tokens, progress.appended_bytes)
    call = _turn(view, prompt)
    if view.compacted.count and not _has_room(view, call):
        # The last prompt was longer. What is sent by now takes long to count.
        sent = prompt_bound(None, view.spec.request_bytes(view.sent))
        call = _turn(view, min(prompt, sent))
    if not isinstance(call, Reservation):
        return stopped_by(view, call)
    return start(view, view.spec.model, call, "turn")


def _turn(view: RunView, prompt: int) -> Reservation | Ceiling:
    return reserved(view, view.spec.model, prompt, view.limits.max_output_tokens)


def _has_room(view: RunView, call: Reservation | Ceiling) -> bool:
    """Whether a call fits what is left, with as long a reply as the job allows."""
    if not isinstance(call, Reservation) or call.lowered:
        return False
    return view.purse is None or view.purse.verdict(call) == "fits"


def reserved(view: RunView, model: str, prompt: int, most_output: int) -> Reservation | Ceiling:
    """What a model call may use, or the ceiling that leaves no room for it.

    Args:
        prompt: the most tokens that it can send.
        most_output: the most that it should reply with.
    """
    hour_cache = view.spec.hour_cache
    if hour_cache is None:
        hour_cache = is_worth_an_hour(
            paced(view.progress.pace.last_at, view.progress.pace.slow, view.now)[1]
        )
    return reserve(
        view.limits,
        view.used,
        prompt,
        most_output=most_output,
        thinking_tokens=view.spec.thinking_tokens if model == view.spec.model else 0,
        tariff=view.tariffs.get(model, FREE),
        hour_cache=hour_cache,
    )


def start(view: RunView, model: str, call: Reservation, purpose: Purpose) -> Step:
    """Begin a call, when the job's budget has room for it."""
    if model not in view.tariffs and _is_cost_limited(view):
        detail = (
            f"the cost is limited, and {model} has no price in this worker's list: "
            "add it to the file that RUNNER_PRICES names, and retry"
        )
        return settle(Ended("failed", "no_price", detail))
    if view.purse is not None:
        match view.purse.verdict(call):
            case "later":
                return settle(Requeued(view.now + _wait(view.progress.budget_waits), "budget"))
            case "never":
                return settle(Waiting("budget", _lacking(view.purse, call)))
    number = view.progress.model_calls + 1
    return Record(ModelCallStarted(number, call, view.now, purpose))


def _lacking(purse: JobBudget, call: Reservation) -> str:
    """What the next call may use, and what the caps leave for it."""
    parts = []
    if purse.most_tokens is not None:
        left = max(0, purse.most_tokens - purse.spent_tokens)
        parts.append(f"{call.worst_case:,} tokens, and {left:,} are left")
    if purse.most_cost is not None:
        left = max(0, purse.most_cost - purse.spent_cost)
        parts.append(f"{in_usd(call.worst_cost)}, and {in_usd(left)} is left")
    return f"its next call may use {'; '.join(parts)}"


def _wait(waits: int) -> float:
    return min(LONGEST_BUDGET_WAIT_SECONDS, BUDGET_WAIT_SECONDS * 2.0 ** min(waits, 10))


def may_ever_start(view: RunView, model: str, call: Reservation) -> bool:
    """Whether a call is one that ``start`` would begin, at once or later, with the limits as they
    are."""
    if model not in view.tariffs and _is_cost_limited(view):
        return False
    return view.purse is None or view.purse.verdict(call) != "never"


def _is_cost_limited(view: RunView) -> bool:
    of_job = view.purse is not None and view.purse.most_cost is not None
    return of_job or view.limits.cost_ceiling is not None


def stopped_by(view: RunView, ceiling: Ceiling) -> Step:
    """The step that ends a run which has used up one of its ceilings."""
    used_up, limits = view.used, view.limits
    if ceiling == "cost_ceiling":
        used = f"{in_usd(used_up.cost)} of {in_usd(limits.cost_ceiling or 0)} is used"
    else:
        used = f"{used_up.tokens:,} of {limits.token_ceiling:,} tokens are used"
    detail = f"{used}; what is left is too little for the next call"
    return settle(Ended("stopped", ceiling, detail))
