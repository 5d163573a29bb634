"""What a job's runs may use together: whatever they start and however it ends, a cap is never passed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.budget import JobBudget, Reservation

CAPS = st.none() | st.integers(0, 1_000)


@st.composite
def reservations(draw):
    tokens = draw(st.integers(0, 400))
    return Reservation(1, tokens, lowered=False, worst_cost=draw(st.integers(0, 400)))


def within(job_budget):
    tokens = job_budget.spent_tokens + job_budget.reserved_tokens
    cost = job_budget.spent_cost + job_budget.reserved_cost
    return (job_budget.most_tokens is None or tokens <= job_budget.most_tokens) and (
        job_budget.most_cost is None or cost <= job_budget.most_cost
    )


@pytest.mark.slow
@given(st.data(), CAPS, CAPS)
def test_spent_and_reserved_never_pass_a_cap_whatever_starts_and_ends(data, tokens, cost):
    job_budget, open_calls = JobBudget(tokens, cost), []
    for _ in range(data.draw(st.integers(0, 20))):
        if open_calls and data.draw(st.booleans()):
            call = open_calls.pop(data.draw(st.integers(0, len(open_calls) - 1)))
            used = data.draw(st.integers(0, call.worst_case))
            paid = data.draw(st.integers(0, call.worst_cost))
            job_budget = job_budget.with_spent(call, used, paid)
        else:
            call = data.draw(reservations())
            if job_budget.verdict(call) == "fits":
                job_budget = job_budget.with_reserved(call)
                open_calls.append(call)
        assert within(job_budget)
        assert job_budget.reserved_tokens == sum(call.worst_case for call in open_calls)
        assert job_budget.reserved_cost == sum(call.worst_cost for call in open_calls)


@pytest.mark.slow
@given(st.data(), CAPS, CAPS, reservations())
def test_a_call_waits_for_others_only_when_it_fits_once_they_gave_back(data, tokens, cost, call):
    others = data.draw(reservations())
    spent = st.integers(0, 500)
    job_budget = JobBudget(tokens, cost, data.draw(spent), data.draw(spent)).with_reserved(others)
    alone = job_budget.with_spent(others, 0, 0).verdict(call)
    match job_budget.verdict(call):
        case "fits":
            assert alone == "fits"
            assert within(job_budget.with_reserved(call))
        case "later":
            assert alone == "fits"
            assert not within(job_budget.with_reserved(call))
        case "never":
            assert alone == "never"


@pytest.mark.slow
@given(reservations(), st.integers(0, 500), st.integers(0, 500))
def test_raising_the_caps_never_takes_room_away(call, tokens, cost):
    order = ["never", "later", "fits"]
    before = JobBudget(tokens, cost, 100, 100, 50, 50).verdict(call)
    after = JobBudget(tokens + 100, cost + 100, 100, 100, 50, 50).verdict(call)
    assert order.index(after) >= order.index(before)


def test_without_caps_everything_fits():
    assert JobBudget().verdict(Reservation(1, 10**12, lowered=False, worst_cost=10**15)) == "fits"
