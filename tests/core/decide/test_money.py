"""Rules about money and work: ceilings of a run, and the budget of its job."""

from dataclasses import replace
from decimal import Decimal

import pytest

from runner.core.budget import DayCap, JobBudget, Limits, Reservation
from runner.core.context import Compaction, Context, TruncatedResult
from runner.core.conversation import ModelReply, ToolResult, Usage
from runner.core.entries import (
    ContextCompacted,
    ModelCallStarted,
    SummaryReplied,
    TimeWorked,
    ToolFinished,
)
from runner.core.fold import apply
from runner.core.model_calls import BUDGET_WAIT_SECONDS
from runner.core.prices import FREE, Rates, Tariff
from runner.core.run import Ended, Requeued, Waiting
from runner.core.steps import CallModel
from tests.core.story import Story, a_run, a_spec, changed, outcome_of, says, uses

TEN_USD = Tariff(Rates(*[Decimal(10)] * 5))  # for a million tokens of whatever kind


def paid(job_budget=None, tariff=TEN_USD, **limits):
    """A run whose model has this price."""
    limits = {"max_output_tokens": 4_000, **limits}
    state = a_run(a_spec(), Limits(**limits))
    return Story(changed(state, budget=job_budget, tariffs={"a-model": tariff} if tariff else {}))


def starts(story):
    return [entry for entry in story.entries if isinstance(entry, ModelCallStarted)]


# --- the cost ceiling of a run ---


def test_a_summary_is_charged_at_the_price_of_the_model_that_wrote_it():
    state = a_run(a_spec(context=Context(summary_model="another")), Limits())
    hundred = Tariff(TEN_USD.standard.times(Decimal(10)))
    state = changed(state, tariffs={"a-model": TEN_USD, "another": hundred})
    call = Reservation(1_000, 5_000, False)
    state = apply(state, ModelCallStarted(1, call, 0.0, "summary"))
    reply = ModelReply((says("Useless."),), "end_turn", Usage(2_000, 0, 0, 500), "another")
    assert apply(state, SummaryReplied(reply, None)).money.charged_cost == 2_500 * 100_000


def test_what_stands_in_for_messages_is_counted_in_the_bound_of_the_next_prompt():
    story = paid()
    story.reply("tool_use", uses("Bash"), prompt=3_000)
    story.finish_all()
    before = story.state
    made = Compaction("summary", 1, 2, "x" * 9_000, (TruncatedResult(2, 0, "y" * 700),))
    after = apply(before, ContextCompacted(made)).context
    assert after.last_prompt_tokens == before.context.last_prompt_tokens
    assert after.appended_bytes >= before.context.appended_bytes + 9_700


def test_a_call_reserves_what_it_can_cost_and_is_charged_what_it_did():
    story = paid()
    effect = story.go_on()
    reservation = effect.call.reservation
    assert reservation.worst_cost == reservation.worst_case * 10_000
    story.reply("tool_use", uses("Bash"), prompt=3_000, output=500)
    assert story.state.money.charged_cost == 3_500 * 10_000
    assert story.state.money.charged_tokens == 3_500


def test_a_lost_call_is_charged_what_it_can_have_cost():
    story = paid()
    worst = story.go_on().call.reservation.worst_cost
    assert isinstance(story.claim(), CallModel)
    assert story.state.money.charged_cost == worst


def test_a_call_that_the_api_refused_costs_nothing():
    story = paid()
    story.break_off(retry_at=story.now)
    assert story.state.money.charged_cost == 0


def test_output_is_lowered_to_what_the_money_is_for():
    story = paid(cost_ceiling_usd=0.05)
    reservation = story.go_on().call.reservation
    assert reservation.lowered
    assert reservation.lowered_by == "cost_ceiling"
    assert reservation.worst_cost <= 50_000_000


def test_a_reply_cut_by_the_money_stops_the_run_and_says_so():
    story = paid(cost_ceiling_usd=0.05)
    outcome = outcome_of(story.reply("max_tokens", says("Half")))
    assert (outcome.state, outcome.reason) == ("stopped", "cost_ceiling")
    assert "of $0.0500" in outcome.detail


def test_without_money_for_a_call_the_run_stops():
    story = paid(cost_ceiling_usd=0.01)
    outcome = outcome_of(story.go_on())
    assert (outcome.state, outcome.reason) == ("stopped", "cost_ceiling")
    assert not starts(story)


def test_a_raised_cost_ceiling_goes_on():
    story = paid(cost_ceiling_usd=0.01)
    story.go_on()
    assert isinstance(story.claim(limits=Limits(cost_ceiling_usd=10.0)), CallModel)


@pytest.mark.parametrize("capped", ["run", "job"])
def test_a_limited_cost_without_a_price_ends_the_run(capped):
    story = paid(
        tariff=None,
        job_budget=JobBudget(most_cost=10**12) if capped == "job" else None,
        cost_ceiling_usd=1_000.0 if capped == "run" else None,
    )
    outcome = outcome_of(story.go_on())
    assert (outcome.state, outcome.reason) == ("failed", "no_price")
    assert "RUNNER_PRICES" in outcome.detail


def test_a_limit_of_tokens_needs_no_price():
    story = paid(tariff=None, job_budget=JobBudget(most_tokens=10**9))
    assert isinstance(story.go_on(), CallModel)


# --- the budget of a job ---


def test_a_call_takes_from_the_budget_and_gives_back_what_it_did_not_use():
    story = paid(job_budget=JobBudget(10**6, 10**12))
    reservation = story.go_on().call.reservation
    assert story.state.money.budget.reserved_tokens == reservation.worst_case
    assert story.state.money.budget.reserved_cost == reservation.worst_cost
    story.reply("end_turn", says(), prompt=3_000, output=500)
    assert story.state.money.budget == JobBudget(10**6, 10**12, 3_500, 3_500 * 10_000)


def test_a_lost_call_leaves_nothing_reserved_and_its_worst_case_spent():
    story = paid(job_budget=JobBudget(10**6, 10**12))
    reservation = story.go_on().call.reservation
    effect = story.claim()
    assert story.state.money.budget.spent_tokens == reservation.worst_case
    assert story.state.money.budget.reserved_tokens == effect.call.reservation.worst_case


def test_a_run_waits_shortly_for_what_others_have_reserved():
    story = paid(job_budget=JobBudget(100_000, None, reserved_tokens=99_000))
    outcome = outcome_of(story.go_on())
    assert outcome == Requeued(story.now + BUDGET_WAIT_SECONDS, "budget")
    assert not starts(story)
    freed = replace(story.state.money.budget, reserved_tokens=0)
    assert isinstance(story.claim(budget=freed), CallModel)


def test_a_run_that_waits_for_others_asks_less_and_less_often():
    story = paid(job_budget=JobBudget(100_000, None, reserved_tokens=99_000))
    outcomes = [outcome_of(story.go_on())]
    outcomes += [outcome_of(story.claim(budget=story.state.money.budget)) for _ in range(5)]
    assert [outcome.due_at - story.now for outcome in outcomes] == [2, 4, 8, 16, 20, 20]


@pytest.mark.parametrize("spent", [{"spent_tokens": 99_000}, {"spent_cost": 10**9 - 1}])
def test_a_run_waits_for_its_budget_when_the_rest_could_never_cover_its_call(spent):
    story = paid(job_budget=JobBudget(100_000, 10**9, **spent, reserved_tokens=500))
    assert outcome_of(story.go_on()) == Waiting("budget")
    assert not starts(story)
    raised = replace(story.state.money.budget, most_tokens=10**6, most_cost=10**10)
    assert isinstance(story.claim(budget=raised), CallModel)


def test_ceilings_of_the_run_stop_it_before_its_job_is_asked():
    story = paid(job_budget=JobBudget(most_tokens=0), token_ceiling=10)
    assert outcome_of(story.go_on()).reason == "token_ceiling"


# --- after a compaction ---


def truncate_text(**more):
    """A run whose last prompt had 50,000 tokens, all but a few of which are left out by now."""
    story = paid(**more)
    for number in (1, 2):
        story.reply("tool_use", uses("Bash", f"t{number}"), prompt=50_000 * (number - 1) + 100)
        if number == 1:
            story.finish(0, "x" * 50_000)
    left_out = Compaction("prune", 1, 2, "Looked around.", tokens_after=500)
    return story, story.go_on(ToolFinished(0, ToolResult("ok")), ContextCompacted(left_out))


def test_as_long_as_there_is_room_the_last_prompt_bounds_the_next_one():
    _, effect = truncate_text()
    assert effect.call.reservation.worst_case > 50_000


@pytest.mark.parametrize(
    "job_budget", [None, JobBudget(most_tokens=64_000), JobBudget(most_cost=640_000_000)]
)
def test_what_was_left_out_is_not_reserved_for_where_that_stands_in_the_way(job_budget):
    ceiling = {} if job_budget else {"token_ceiling": 61_000}
    _, effect = truncate_text(job_budget=job_budget, **ceiling)
    reservation = effect.call.reservation
    assert not reservation.lowered
    assert 6_000 < reservation.worst_case < 9_000


def test_it_does_not_wait_for_what_others_have_reserved_when_it_needs_less():
    _, effect = truncate_text(job_budget=JobBudget(most_tokens=120_000, reserved_tokens=55_000))
    assert isinstance(effect, CallModel)


# --- working time ---


def test_only_work_counts_as_working_time():
    story = paid(working_time=60.0)
    story.go_on(TimeWorked(59.0))
    story.now += 10_000.0
    story.reply("tool_use", uses("Bash"))
    assert isinstance(story.finish(0), CallModel)


def test_used_up_working_time_stops_the_next_call():
    story = paid(working_time=60.0)
    story.reply("tool_use", uses("Bash"))
    story.go_on(TimeWorked(60.0))
    outcome = outcome_of(story.finish(0))
    assert outcome == Ended("stopped", "working_time", "the working time of 60 s")
    assert isinstance(story.claim(limits=Limits(working_time=90.0)), CallModel)


# --- the cache ---


def test_a_run_whose_turns_are_far_apart_has_its_cache_live_for_an_hour():
    story = paid()
    kept = []
    for gap in (1.0, 60.0, 400.0, 400.0, 10_000.0, *[1.0] * 12):
        story.reply("tool_use", uses("Bash", f"t{story.now}"))
        story.now += gap
        kept.append(story.finish(0).call.reservation.hour_cache)
    assert kept[:5] == [False, False, True, True, True]
    assert not kept[-1], "once its turns follow each other closely it lives for five minutes again"


def test_what_the_job_says_of_the_cache_holds():
    for ttl, expected in (("1h", True), ("5m", False)):
        options = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        story = Story(model_options=options)
        for _ in range(3):
            story.reply("tool_use", uses("Bash", f"t{story.now}"))
            story.now += 600.0
            assert story.finish(0).call.reservation.hour_cache is expected


def test_an_hour_in_the_cache_is_paid_for_in_advance():
    dear = Tariff(Rates(*map(Decimal, (1, 2, 4, 0, 0))))
    state = changed(a_run(a_spec()), tariffs={"a-model": dear})
    short = Story(state).go_on().call.reservation
    options = {"cache_control": {"ttl": "1h"}}
    long = Story(replace(state, spec=a_spec(model_options=options))).go_on().call.reservation
    assert long.worst_cost == 2 * short.worst_cost


# --- the cap of the day ---

MIDNIGHT = 50_000.0


def capped(tariff=TEN_USD, most=10_000, **limits):
    """A run on a day whose cap is ``most`` billionths of a USD, all of which is spent."""
    story = paid(tariff=tariff, **limits)
    cap = DayCap("2026-11-24 UTC", MIDNIGHT, JobBudget(most_cost=most, spent_cost=10_001))
    story.state = changed(story.state, cap=cap)
    return story


def test_a_run_waits_for_the_next_day_but_not_past_its_deadline():
    assert outcome_of(capped().go_on()) == Requeued(MIDNIGHT, "cap")
    assert outcome_of(capped(deadline=2_000.0).go_on()) == Requeued(2_000.0, "cap")


def test_a_call_that_costs_nothing_begins_whatever_the_cap():
    assert isinstance(capped(FREE).go_on(), CallModel)


def test_a_cap_that_was_removed_asks_for_no_price_and_counts_no_calls():
    effect = capped(tariff=None, most=None).go_on()
    assert effect.call.reservation.day == ""
