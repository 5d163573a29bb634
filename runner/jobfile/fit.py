"""Whether a job's limits fit its models: their context windows, and prices where USD are limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.core.agents import AgentType
from runner.core.budget import Limits
from runner.core.context import DEFAULT_WINDOW, Context
from runner.core.prices import PriceList, Terms
from runner.jobfile.table import Section
from runner.jobfile.values import shown


def note_misfits(top: Section, agents: Iterable[AgentType], prices: PriceList) -> None:
    """Note what does not fit the job's models, save where it depends on keys with problems."""
    wrong = {problem.place for problem in top.problems}

    def is_sound(*places: str) -> bool:
        return not any(place.startswith(places) for place in wrong)

    def missing(model: str) -> list[str]:
        return missing_prices(prices, top["provider"], model, top["model_options"].written, context)

    limits, context = top["limits"].fill(Limits), top["context"].fill(Context)
    if not wrong & {"model", "context.window", "context.reserve", "limits.max_output_tokens"}:
        for place, message in window_problems(top["model"], limits, context, prices):
            top.note(message, *place)
    limited = [key for key in ("cost_ceiling_usd", "budget_usd") if top["limits"][key] is not None]
    if limited and is_sound("model", "provider", "context"):
        for message in missing(top["model"]):
            for key in limited:
                top.note(message, "limits", key)
    for agent in agents:
        at = top.at("agents", agent.name)
        if not is_sound(at.place, "model", "provider", "context", "limits"):
            continue
        model = agent.model or top["model"]
        window = prices.window(model) or DEFAULT_WINDOW
        reserve = context.reserve_in(window, limits.max_output_tokens)
        if model != top["model"] and reserve > window // 2:
            at.note(
                f"{shown(model)} has a window of {window:,} tokens, and {reserve:,} are to stay free "
                "for a reply, over half of it: lower limits.max_output_tokens or context.reserve",
                "model",
            )
        own_limit = agent.cost_ceiling_usd is not None
        if own_limit or (limited and model != top["model"]):
            for message in missing(model):
                at.note(message, *(("limits", "cost_ceiling_usd") if own_limit else ("model",)))


def window_problems(
    model: str, limits: Limits, context: Context, prices: PriceList
) -> list[tuple[tuple[str, str], str]]:
    """Return the place and message of a reserve over half of the window; else nothing."""
    window = context.window or prices.window(model) or DEFAULT_WINDOW
    reserve = context.reserve_in(window, limits.max_output_tokens)
    if reserve <= window // 2:
        return []
    whole = f"the window of {window:,} tokens"
    if context.window is None:
        whole += f" {'of' if prices.window(model) else 'assumed for'} {shown(model)}"
    if context.reserve is not None:
        return [(("context", "reserve"), f"must be at most half of {whole}, not {reserve:,}")]
    message = (
        f"a reply of {limits.max_output_tokens:,} tokens and 2,000 more take over half of {whole}: "
        "lower limits.max_output_tokens, or give context.window or context.reserve"
    )
    return [(("context", "window") if context.window else ("limits", "max_output_tokens"), message)]


def missing_prices(
    prices: PriceList, provider: str, model: str, options: Mapping[str, Any], context: Context
) -> list[str]:
    """Return why the cost of a job's calls cannot be limited: a line for each model without a price,
    the job's own and the one that writes summaries."""
    summary_model = context.summary_model if context.compaction == "auto" else None
    missing = []
    for called in dict.fromkeys((model, summary_model or model)):
        terms = Terms.of(provider, options, own_model=called == model)
        if prices.tariff(called, terms) is None:
            mode = " in fast mode" if terms.fast and prices.price(called) is not None else ""
            missing.append(
                f"{shown(called)}{mode} has no price, so its cost cannot be limited: name one in the "
                "file of RUNNER_PRICES, or limit tokens instead (token_ceiling, budget_tokens)"
            )
    return missing
