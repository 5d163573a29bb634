"""``[limits]`` and ``[context]``: what bounds a run, its job, and what the model is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from runner.core.agents import DEEPEST, AgentType
from runner.core.budget import Budget, Limits
from runner.core.context import DEFAULT_WINDOW, Context
from runner.core.prices import PriceList, Terms
from runner.errors import Problem
from runner.jobfile.lines import place
from runner.jobfile.section import Section, shown

LIMIT_KEYS = (*(limit.name for limit in fields(Limits)), "budget_usd", "budget_tokens")
CONTEXT_KEYS = tuple(option.name for option in fields(Context))

MOST_TURNS = 1_000_000
MOST_TOKENS = 1_000_000_000_000
MOST_OUTPUT_TOKENS = 1_000_000
MOST_TOOL_SECONDS = 600.0
MOST_WINDOW = 1_000_000_000
MOST_MESSAGES = 1_000_000
LEAST_USD, MOST_USD = 0.000001, 1_000_000_000.0
LEAST_CHARACTERS, MOST_CHARACTERS = 1.0, 32.0  # of a token
MOST_MODEL_CHARACTERS = 200
MOST_AT_ONCE, MOST_AGENTS = 100, 1_000  # sub-agents; their numbers have four digits

_COST_LIMITS = ("cost_ceiling_usd", "budget_usd")


def limits_of(section: Section) -> Limits:
    """A run's limits as ``[limits]`` has them."""
    default = Limits()
    return Limits(
        max_turns=section.integer("max_turns", default.max_turns, most=MOST_TURNS),
        token_ceiling=section.integer("token_ceiling", default.token_ceiling, most=MOST_TOKENS),
        max_output_tokens=section.integer(
            "max_output_tokens", default.max_output_tokens, most=MOST_OUTPUT_TOKENS
        ),
        tool_timeout=section.seconds("tool_timeout", most=MOST_TOOL_SECONDS)
        or default.tool_timeout,
        deadline=section.seconds("deadline"),
        working_time=section.seconds("working_time"),
        cost_ceiling_usd=section.number("cost_ceiling_usd", least=LEAST_USD, most=MOST_USD),
        max_agent_depth=section.integer("max_agent_depth", default.max_agent_depth, most=DEEPEST),
        max_agents_at_once=section.integer(
            "max_agents_at_once", default.max_agents_at_once, most=MOST_AT_ONCE
        ),
        max_agents=section.integer("max_agents", default.max_agents, most=MOST_AGENTS),
    )


def budget_of(section: Section) -> Budget:
    """What ``[limits]`` says of all runs of the job together."""
    return Budget(
        usd=section.number("budget_usd", least=LEAST_USD, most=MOST_USD),
        tokens=_tokens(section, "budget_tokens", MOST_TOKENS),
    )


def context_of(section: Section) -> Context:
    """What ``[context]`` says."""
    default = Context()
    per_token = section.number("chars_per_token", least=LEAST_CHARACTERS, most=MOST_CHARACTERS)
    return Context(
        window=_tokens(section, "window", MOST_WINDOW),
        reserve=_tokens(section, "reserve", MOST_WINDOW),
        chars_per_token=per_token or default.chars_per_token,
        keep_messages=section.integer("keep_messages", default.keep_messages, most=MOST_MESSAGES),
        compaction=cast(
            Literal["auto", "off"],
            section.choice("compaction", ("auto", "off"), default.compaction),
        ),
        summary_model=section.line("summary_model", MOST_MODEL_CHARACTERS),
        summary_instructions=section.text("summary_instructions"),
    )


def _tokens(section: Section, key: str, most: int) -> int | None:
    return section.integer(key, 1, most=most) if section.has(key) else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a job may send and spend, to be held against what is known of its models."""

    provider: str
    model: str
    options: Mapping[str, Any]
    limits: Limits
    budget: Budget
    context: Context

    def window_problems(self, prices: PriceList) -> list[Problem]:
        """A reserve that leaves less than half of the window for the conversation."""
        limits, context = self.limits, self.context
        window = context.window or prices.window(self.model) or DEFAULT_WINDOW
        reserve = context.reserve_in(window, limits.max_output_tokens)
        if reserve <= window // 2:
            return []
        whole = f"the window of {window:,} tokens"
        if context.window is None:
            known = "of" if prices.window(self.model) else "assumed for"
            whole = f"the window of {window:,} tokens {known} {shown(self.model)}"
        if context.reserve is not None:
            message = f"must be at most half of {whole}, not {reserve:,}"
            return [Problem("context.reserve", message)]
        place = "context.window" if context.window else "limits.max_output_tokens"
        message = (
            f"a reply of {limits.max_output_tokens:,} tokens and 2,000 more take over half of {whole}: "
            "lower limits.max_output_tokens, or give context.window or context.reserve"
        )
        return [Problem(place, message)]

    def price_problems(self, prices: PriceList) -> list[Problem]:
        """Limits in USD on calls of models that have no price."""
        places = [f"limits.{key}" for key in _COST_LIMITS if self._has(key)]
        if not places:
            return []
        missing = missing_prices(prices, self.provider, self.model, self.options, self.context)
        return [Problem(place, message) for place in places for message in missing]

    def agent_problems(self, agent: AgentType, prices: PriceList) -> list[Problem]:
        """A type of sub-agent whose model has too small a window, or no price where USD are limited."""
        at = ("agents", agent.name)
        found = []
        model = agent.model or self.model
        is_other = model != self.model
        window = prices.window(model) or DEFAULT_WINDOW
        reserve = self.context.reserve_in(window, self.limits.max_output_tokens)
        if is_other and reserve > window // 2:
            message = (
                f"{shown(model)} has a window of {window:,} tokens, and {reserve:,} are to stay free for a "
                "reply, over half of it: lower limits.max_output_tokens or context.reserve"
            )
            found.append(Problem(place(*at, "model"), message))
        of_job = any(map(self._has, _COST_LIMITS))
        missing = missing_prices(prices, self.provider, model, self.options, self.context)
        if agent.cost_ceiling_usd is not None:
            where = place(*at, "limits", "cost_ceiling_usd")
            found += [Problem(where, message) for message in missing]
        elif of_job and is_other:
            found += [Problem(place(*at, "model"), message) for message in missing]
        return found

    def _has(self, key: str) -> bool:
        value = self.budget.usd if key == "budget_usd" else self.limits.cost_ceiling_usd
        return value is not None


def missing_prices(
    prices: PriceList, provider: str, model: str, options: Mapping[str, Any], context: Context
) -> list[str]:
    """Why the cost of a job's calls cannot be limited, and what to do: a line for each of the models
    that it calls (its own, and the one that writes summaries if there are any) without a price."""
    summary_model = context.summary_model if context.compaction == "auto" else None
    missing = []
    for called in dict.fromkeys((model, summary_model or model)):
        terms = Terms.of(provider, options, own_model=called == model)
        if prices.tariff(called, terms) is None:
            missing.append(_no_price(called, prices, terms))
    return missing


def _no_price(model: str, prices: PriceList, terms: Terms) -> str:
    mode = " in fast mode" if terms.fast and prices.price(model) is not None else ""
    return (
        f"{shown(model)}{mode} has no price, so its cost cannot be limited: name one in the file of "
        "RUNNER_PRICES, or limit tokens instead (token_ceiling, budget_tokens)"
    )
