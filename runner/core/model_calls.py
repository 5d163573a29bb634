"""Model calls: limits and context window before the next one, its request, its charge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.core import entries
from runner.core.batches import goes_in_batch
from runner.core.budget import (
    Ceiling,
    Charged,
    JobBudget,
    Reservation,
    charge_of,
    in_usd,
    prompt_bound,
    reserve,
)
from runner.core.compaction import (
    SummaryQuestion,
    TokenEstimate,
    cheapest,
    fitting,
    summary_question,
    token_estimate,
)
from runner.core.context import Compaction
from runner.core.conversation import (
    Message,
    ModelRequest,
    Purpose,
    Usage,
    content_bytes,
    text_block,
    text_bytes,
)
from runner.core.prices import FREE, PriceList, Tariff, Terms
from runner.core.retries import IN_HAND_SECONDS
from runner.core.run import Ended, Requeued, Waiting
from runner.core.spec import JobSpec, NewRun
from runner.core.state import OpenCall, RunState
from runner.core.steps import AwaitPermit, CountTokens, Step, end, stop_at_deadline
from runner.errors import ModelCallError

# Other runs' reservations are released when their calls end. Hundreds of runs may wait for it: each
# checks less often the longer it has waited.
BUDGET_WAIT_SECONDS = 2.0
LONGEST_BUDGET_WAIT_SECONDS = 20.0


def tariffs_of(spec: JobSpec, prices: PriceList) -> dict[str, Tariff]:
    """Return the tariffs of a job's models that have a price, by model."""
    tariffs = {}
    for model in (spec.model, spec.summary_model):
        terms = Terms.of(spec.provider, spec.model_options, own_model=model == spec.model)
        if (tariff := prices.tariff(spec.billed_as(model), terms)) is not None:
            tariffs[model] = tariff
    return tariffs


def first_call(spec: JobSpec, runs: Sequence[NewRun], prices: PriceList) -> Reservation | Ceiling:
    """Return the smallest reservation for the first call of the run with the largest first message, or the
    ceiling that leaves no room for it."""
    begins = ([text_block(run.prompt), *run.attached] for run in runs)
    longest = max(begins, key=lambda blocks: sum(map(content_bytes, blocks)), default=[])
    sent = spec.request_bytes([Message("user", tuple(longest))])
    return reserve(
        spec.limits,
        Charged(0),
        prompt_bound(None, sent),
        most_output=spec.limits.max_output_tokens,
        thinking_tokens=spec.thinking_tokens,
        tariff=tariffs_of(spec, prices).get(spec.model, FREE),
        hour_cache=bool(spec.hour_cache),
    )


def start_turn(state: RunState) -> Step:
    """Return the step that begins the next turn, or says why it cannot begin."""
    context, limited_by = state.context, (state.money.budget, state.money.cap)
    model, most = state.spec.model, state.limits.max_output_tokens
    prompt = prompt_bound(context.last_prompt_tokens, context.appended_bytes)
    call = _reserved(state, model, prompt, most)
    has_room = (
        isinstance(call, Reservation)
        and not call.lowered
        and all(each is None or each.verdict(call) == "fits" for each in limited_by)
    )
    if context.compacted.count and not has_room:
        # The last prompt was longer, and counting a request takes long.
        sent = prompt_bound(None, state.spec.request_bytes(state.sent))
        call = _reserved(state, model, min(prompt, sent), most)
    if not isinstance(call, Reservation):
        return stopped_by(state, call)
    return _start(state, model, call, "turn")


def _reserved(state: RunState, model: str, prompt: int, most_output: int) -> Reservation | Ceiling:
    asked, batch = state.spec.hour_cache, goes_in_batch(state)
    paced = state.model.pace.after(state.now).is_worth_an_hour
    paced |= batch or (state.model.warms_cache and state.lane != "realtime")
    return reserve(
        state.limits,
        state.used,
        prompt,
        most_output=most_output,
        thinking_tokens=state.spec.thinking_tokens if model == state.spec.model else 0,
        tariff=state.money.tariffs.get(model, FREE),
        hour_cache=paced if asked is None else asked,
        batch=batch,
    )


def _start(
    state: RunState, model: str, call: Reservation, purpose: Purpose, last: int | None = None
) -> Step:
    budget, cap = state.money.budget, state.money.cap
    if cap is not None and not cap.is_set:
        cap = None
    most = (state.limits.cost_ceiling, budget and budget.most_cost, cap)
    if most != (None, None, None) and model not in state.money.tariffs:
        detail = (
            f"the cost is limited, and {model} has no price in this worker's list: "
            "add it to the file that RUNNER_PRICES names, and retry"
        )
        return end("failed", "no_price", detail)
    verdict = "fits" if budget is None else budget.verdict(call)
    if budget is not None and verdict == "never":
        return entries.RunSettled(Waiting("budget", _lacking(budget, call)))
    of_day = "fits" if cap is None else cap.verdict(call)
    if cap is not None and of_day == "never":
        at = cap.ends_at if state.ends_at is None else min(cap.ends_at, state.ends_at)
        return entries.RunSettled(Requeued(at, "cap"))
    if "later" in (verdict, of_day):
        wait = BUDGET_WAIT_SECONDS * 2.0 ** min(state.money.budget_waits, 10)
        return entries.RunSettled(
            Requeued(state.now + min(LONGEST_BUDGET_WAIT_SECONDS, wait), "budget")
        )
    if state.permit_at is not None:
        return _wait_for_permit(state, state.permit_at)
    if cap is not None:
        call = replace(call, day=cap.day)
    return entries.ModelCallStarted(state.model.calls + 1, call, state.now, purpose, last)


def _wait_for_permit(state: RunState, at: float) -> Step:
    """Return the wait for a rate limit: no failure of the run, however long it takes."""
    if at - state.now <= IN_HAND_SECONDS:
        return AwaitPermit(state.now + IN_HAND_SECONDS)
    if state.ends_at is not None and at >= state.ends_at:
        return stop_at_deadline(state)
    return entries.RunSettled(Requeued(at, "rate_limit"))


def _lacking(job_budget: JobBudget, call: Reservation) -> str:
    parts = []
    if job_budget.most_tokens is not None:
        left = max(0, job_budget.most_tokens - job_budget.spent_tokens)
        parts.append(f"{call.worst_case:,} tokens, and {left:,} are left")
    if job_budget.most_cost is not None:
        left = max(0, job_budget.most_cost - job_budget.spent_cost)
        parts.append(f"{in_usd(call.worst_cost)}, and {in_usd(left)} is left")
    return f"its next call may use {'; '.join(parts)}"


def stopped_by(state: RunState, ceiling: Ceiling) -> Step:
    """Return the step that ends a run at one of its ceilings."""
    used, limits = state.used, state.limits
    if ceiling == "cost_ceiling":
        detail = f"{in_usd(used.cost)} of {in_usd(limits.cost_ceiling or 0)} is used"
    else:
        detail = f"{used.tokens:,} of {limits.token_ceiling:,} tokens are used"
    if used.tokens:
        detail += f" (tokens: {_shares(state)})"
    return end("stopped", ceiling, f"{detail}; what is left is too little for the next call")


def _shares(state: RunState) -> str:
    """Return the shares of the tokens that a run used, in words."""
    usage = state.money.usage
    parts = {
        "read from the cache": usage.cache_read_tokens,
        "written to it": usage.cache_creation_tokens,
        "other input": usage.input_tokens,
        "output": usage.output_tokens,
        "charged for calls of unknown usage": state.money.charged_tokens - usage.total,
        "charged to or held for sub-agents": state.children.reserved.tokens,
    }
    total = sum(parts.values())
    return ", ".join(f"{tokens / total:.1%} {name}" for name, tokens in parts.items() if tokens)


def charge_for(state: RunState, call: OpenCall, error: ModelCallError) -> tuple[Charged, Usage]:
    """Return the charge for a failed call, and the part of it that the API has counted."""
    if not error.billed:
        return Charged(0), Usage()
    counted = None if error.counted is None else Usage(**error.counted)
    model = state.spec.model if call.purpose == "turn" else state.spec.summary_model
    tariff = state.money.tariffs.get(model, FREE)
    charge = charge_of(call.reservation, counted, error.most_output, tariff)
    return charge, counted or Usage()


# The model options that control sending and billing.
_SENDING = {"betas", "extra_headers", "metadata", "user_profile_id", "workspace_id"}
_BILLING = {"inference_geo", "service_tier"}


def turn_request(state: RunState, call: OpenCall) -> ModelRequest:
    """Return a turn's request: system prompt, tools, and the conversation after compaction."""
    return ModelRequest(
        model=state.spec.model,
        system=state.spec.system,
        tools=state.spec.tools,
        messages=state.sent,
        stable=state.context.compacted.stable,
        max_tokens=call.reservation.max_tokens,
        options=state.spec.model_options,
        run_id=state.run_id,
        item_key=state.item_key,
        reply_number=state.turns,
        hour_cache=call.reservation.hour_cache,
        batch=call.reservation.batch,
        agent_type=state.agent_type,
    )


def request_of(state: RunState, call: OpenCall) -> ModelRequest:
    """Return the request of a call, for a turn or a summary."""
    return (summary_request if call.purpose == "summary" else turn_request)(state, call)


def next_request(state: RunState) -> ModelRequest:
    """Return the request of the next turn."""
    most = state.limits.max_output_tokens
    return turn_request(state, OpenCall(0, state.attempt, Reservation(most, 0, lowered=False)))


def summary_request(state: RunState, call: OpenCall) -> ModelRequest:
    """Return the request for a summary: without tools, and with only those model options that
    control sending and billing. Fast mode is asked for only from the job's own model: not every
    model has it."""
    question, spec = summary_question(state, call.last), state.spec
    if question is None:
        raise ValueError(f"there is nothing to summarise in {state.run_id}")
    names = _SENDING | _BILLING | ({"speed"} if spec.summary_model == spec.model else set())
    extra = spec.model_options.get("extra_body") or {}
    extra = {name: value for name, value in extra.items() if name in names}
    options = {name: value for name, value in spec.model_options.items() if name in names}
    return replace(
        turn_request(state, call),
        model=spec.summary_model,
        system=question.system,
        tools=(),
        messages=(Message("user", (text_block(question.text),)),),
        options=options | ({"extra_body": extra} if extra else {}),
        purpose="summary",
    )


MOST_REFUSALS = 2  # in a row that are answered by making the prompt shorter

# Shares of the limit: the API counts an estimated prompt above the first, and any prompt within the
# second of the limit.
ESTIMATED_CLOSE, CLOSE = 0.5, 0.1


def fit_context(state: RunState) -> Step | None:
    """Return the next step towards a request that fits; None if it fits. The cost does not grow
    with the conversation."""
    context = state.context
    if state.spec.context.compaction == "off":
        if not context.must_shrink:
            return None
        return _stopped(
            "the API found the prompt too long, and context.compaction is off: submit the job with "
            'compaction = "auto", or with smaller items'
        )
    if context.refusals > MOST_REFUSALS:
        return _stopped(
            f"the API found the prompt too long {context.refusals} times in a row, though it was made "
            "shorter: give the job the context.window that the model really has, or smaller items"
        )
    if state.spec.context.compaction == "reactive" and not context.must_shrink:
        return None
    found = token_estimate(state)
    if not context.must_shrink:
        if _is_in_doubt(state, found):
            return CountTokens()
        if found.tokens <= found.limit:
            return None
    return _shrink(state, found)


def _is_in_doubt(state: RunState, found: TokenEstimate) -> bool:
    """True if the API should count the prompt: at most once a turn, so not for a retry or after a
    budget wait."""
    counted = state.context.counted
    is_counted = counted is not None and counted.turns == state.turns
    if is_counted or state.model.tries or state.money.budget_waits:
        return False
    if state.context.measured is None:
        return found.tokens >= ESTIMATED_CLOSE * found.limit
    return abs(found.tokens - found.limit) <= CLOSE * found.limit


def _shrink(state: RunState, found: TokenEstimate) -> Step:
    """Compact what is sent, the cheapest way. A summary by a model comes before dropping turns
    without one."""
    made = cheapest(state, found, summaries=not state.context.summary_failed)
    if isinstance(made, SummaryQuestion):
        if (step := _summary(state, made)) is not None:
            return step
        made = cheapest(state, found, summaries=False)
    if made is None and (made := fitting(state, found)) is not None and made.kind == "prune":
        asked = None if state.context.summary_failed else summary_question(state)
        if asked is not None and (step := _summary(state, asked)) is not None:
            return step
    if isinstance(made, Compaction):
        return entries.ContextCompacted(made)
    if state.context.must_shrink:
        return _stopped(
            "the API found the prompt too long, and nothing of it can be made shorter: give the job "
            "smaller items, or the context.window that the model really has"
        )
    return _stopped(
        f"the window of {state.context.window:,} tokens has room for a prompt of {found.limit:,}, and the "
        "task, the tools and the last turn need more: give the job a larger context.window, a "
        "smaller context.reserve or a shorter prompt"
    )


def _summary(state: RunState, asked: SummaryQuestion) -> Step | None:
    """Return the call for a summary; None if it is over budget."""
    model = state.spec.summary_model
    prompt = prompt_bound(None, text_bytes(asked.system) + text_bytes(asked.text))
    call = _reserved(state, model, prompt, asked.most_output)
    if not isinstance(call, Reservation):
        return None
    match step := _start(state, model, call, "summary", asked.last):
        case entries.RunSettled(Ended() | Waiting() | Requeued(reason="cap")):
            return None
    return step


def _stopped(detail: str) -> Step:
    return end("stopped", "context_window", detail)
