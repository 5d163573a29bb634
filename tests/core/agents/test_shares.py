"""What children may use comes out of what their parent has left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.agents import AgentType
from runner.core.budget import BILLIONTHS, Charged, Limits
from runner.core.children import new_child
from runner.core.entries import ModelCallStarted, RunSettled
from runner.core.fold import apply
from runner.core.model_calls import start_turn
from runner.core.run import Ended
from tests.core.story import a_run, a_spec, changed

ANY = AgentType("any", "Anything.")


NOTHING = Charged(0)


def share_of(state, agent, together):
    """One of several children that start together."""
    state = replace(state, spec=replace(state.spec, agents=(agent,)))
    arguments = {"agent_type": agent.name, "prompt": "Look."}
    return new_child(state, arguments, number=1, index=0, together=together)


def parent(
    limits: Limits, tokens: int = 0, cost: int = 0, reserved: Charged = NOTHING, now: float = 0.0
):
    state = a_run(a_spec(limits=limits), limits)
    return changed(state, charged_tokens=tokens, charged_cost=cost, reserved=reserved, now=now)


def test_children_that_start_together_get_equal_shares_and_one_stays_with_the_parent():
    state = parent(Limits(token_ceiling=100_000), tokens=10_000, reserved=Charged(30_000))
    assert share_of(state, ANY, 2).tokens == 20_000


def test_a_type_with_less_gets_what_its_type_says():
    agent = replace(ANY, token_ceiling=500, cost_ceiling_usd=0.25, deadline=60.0)
    state = parent(Limits(token_ceiling=100_000, cost_ceiling_usd=10.0, deadline=900.0), now=100.0)
    share = share_of(state, agent, 1)
    assert (share.tokens, share.cost, share.deadline) == (500, BILLIONTHS // 4, 60.0)


def test_money_is_shared_where_the_parent_has_a_ceiling_of_it():
    state = parent(Limits(cost_ceiling_usd=3.0), cost=BILLIONTHS, reserved=Charged(0, BILLIONTHS))
    assert share_of(state, ANY, 3).cost == BILLIONTHS // 4


def test_without_a_ceiling_of_money_a_type_keeps_its_own_or_has_none():
    state = parent(Limits())
    assert share_of(state, ANY, 1).cost is None
    assert share_of(state, replace(ANY, cost_ceiling_usd=2.0), 1).cost == 2 * BILLIONTHS


def test_a_child_has_no_later_deadline_than_its_parent():
    state = parent(Limits(deadline=900.0), now=800.0)
    assert share_of(state, ANY, 1).deadline == 100.0
    assert share_of(state, replace(ANY, deadline=5_000.0), 1).deadline == 100.0
    assert share_of(parent(Limits(), now=800.0), ANY, 1).deadline is None


def test_a_ceiling_that_was_raised_for_the_run_is_no_more_for_a_child():
    state = parent(Limits(token_ceiling=10_000))
    raised = replace(state, limits=Limits(token_ceiling=10_000_000))
    assert share_of(raised, ANY, 1).tokens == 10_000


@pytest.mark.slow
@given(
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.none() | st.integers(0, 10**10),
    st.integers(1, 8),
    st.none() | st.integers(1, 10**7),
)
def test_all_children_together_never_get_more_than_is_left(
    ceiling, charged, held, cost, together, own
):
    usd = None if cost is None else cost / BILLIONTHS
    state = parent(
        Limits(token_ceiling=ceiling, cost_ceiling_usd=usd), charged, 7, Charged(held, 5)
    )
    share = share_of(state, replace(ANY, token_ceiling=own), together)
    assert 0 <= together * share.tokens <= max(0, ceiling - charged - held)
    if cost is not None:
        assert share.cost is not None
        assert 0 <= together * share.cost <= max(0, cost - 12)


def test_what_children_hold_is_not_there_for_the_parents_own_calls():
    limits = Limits(token_ceiling=100_000, max_output_tokens=32_000)
    free = start_turn(parent(limits))
    assert isinstance(free, ModelCallStarted)
    assert not free.reservation.lowered
    less = start_turn(parent(limits, reserved=Charged(80_000)))
    assert isinstance(less, ModelCallStarted)
    assert less.reservation.worst_case <= 20_000
    none = start_turn(parent(limits, reserved=Charged(99_500)))
    assert isinstance(none, RunSettled)
    outcome = apply(parent(limits), none).outcome
    assert isinstance(outcome, Ended)
    assert outcome.reason == "token_ceiling"
    assert outcome.detail.startswith("99,500 of 100,000 tokens are used")
