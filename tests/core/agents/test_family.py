"""Runs with sub-agents in a world where everything goes wrong: they come to an end, each call has one
result, no child is started twice, and together they never use more than their parent may."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.agents import AGENT_TOOL, Coordinator
from runner.core.budget import Limits
from runner.core.prices import Rates, Tariff
from runner.core.spec import Asking
from runner.permissions import Rule
from tests.core.agents.family import (
    HOOKS,
    NAMES_OF_COORDINATORS,
    SPLIT,
    TYPES,
    WITH_AGENTS,
    Family,
    Hooked,
)
from tests.core.story import RULES, a_run, a_spec, changed

TARIFFS = {"a-model": Tariff(Rates(*[Decimal(10)] * 5))}


TOKENS = st.sampled_from([5_000_000, 400_000, 60_000])
USD = st.sampled_from([None, 30.0, 2.0])
MODES = st.sampled_from(["safe", "all", "off"])


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.data(),
    MODES,
    st.integers(0, 14),
    st.integers(2, 5),
    TOKENS,
    USD,
    st.sets(st.sampled_from(["Read", "Bash", AGENT_TOOL])),
    st.sampled_from([(3, 8, 50), (3, 8, 50), (1, 1, 2), (5, 3, 9)]),
    st.sampled_from([None, None, None, 1, 0]),
    st.sampled_from([None, None, 3, 0]),
)
def test_whatever_becomes_of_its_children_a_run_ends_and_keeps_its_promises(
    data, mode, mischief, turns, tokens, usd, asked, most, above, left
):
    """Also where it is itself ``above`` the greatest depth by so much, or so many are ``left`` in its
    tree."""
    limits = Limits(
        max_turns=turns,
        token_ceiling=tokens,
        cost_ceiling_usd=usd,
        max_agent_depth=most[0],
        max_agents_at_once=most[1],
        max_agents=most[2],
    )
    depth = 0 if above is None else most[0] - above
    others = 0 if left is None else max(0, most[2] - left)
    rules = (*RULES, *(Rule("ask", name) for name in sorted(asked)))
    spec = a_spec(tools=WITH_AGENTS, agents=TYPES, rules=rules, parallel_tools=mode)
    state = changed(a_run(spec, limits), tariffs=TARIFFS, depth=depth, tree_size=others)
    family = Family(data.draw, state, mischief)
    family.drive()
    check_end(family)
    assert depth < limits.max_agent_depth or not family.grown
    assert len(family.grown) <= limits.max_agents - others


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), MODES, st.integers(0, 14), st.integers(2, 5), TOKENS, USD)
def test_whatever_becomes_of_its_parts_a_coordinator_ends_and_keeps_its_promises(
    data, mode, mischief, turns, tokens, usd
):
    limits = Limits(max_turns=turns, token_ceiling=tokens, cost_ceiling_usd=usd)
    spec = a_spec(
        tools=(*WITH_AGENTS, SPLIT),
        agents=TYPES,
        coordinator=Coordinator("tester"),
        parallel_tools=mode,
    )
    state = changed(a_run(spec, limits), tariffs=TARIFFS)
    family = Family(data.draw, state, mischief, names=NAMES_OF_COORDINATORS)
    family.drive()
    check_end(family)


@settings(max_examples=100)
@given(
    st.data(),
    MODES,
    st.integers(0, 12),
    st.integers(2, 4),
    st.sets(st.sampled_from(HOOKS), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_hooks_around_agents_run_once_and_what_they_deny_starts_nothing(
    data, mode, mischief, turns, hooks, asked, impatient
):
    spec = a_spec(
        tools=WITH_AGENTS,
        agents=TYPES,
        parallel_tools=mode,
        hooks=tuple(sorted(hooks, key=HOOKS.index)),
        rules=(*RULES, *([Rule("ask", AGENT_TOOL)] if asked else [])),
        asking=Asking(on_timeout="stop" if impatient else "deny"),
    )
    state = changed(a_run(spec, Limits(max_turns=turns)), tariffs=TARIFFS)
    hooked = Hooked(data.draw, state, mischief, most_calls=4)
    hooked.drive()
    check_end(hooked)


def check_end(family: Family) -> None:
    assert family.state.outcome is not None
    results = Counter(
        block["tool_use_id"]
        for message in family.state.messages
        for block in message.blocks
        if block["type"] == "tool_result"
    )
    assert max(results.values(), default=1) == 1
    assert set(results) <= set(family.finished)
    unanswered = {call.id for call in family.state.calls if call.result is None}
    assert set(family.asked_for) <= set(family.finished) | unanswered
