"""A run in a world where everything goes wrong: whatever happens, in whatever order, it comes to an
end, and what is promised of it holds after every single entry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.context import Context
from runner.core.spec import Asking
from runner.permissions import Rule
from tests.core.story import RULES, a_run, a_spec, changed
from tests.core.world import World


@settings(max_examples=150)
@given(
    st.data(),
    st.sampled_from(["safe", "all", "off"]),
    st.integers(0, 12),
    st.integers(1, 8),
    st.sampled_from([5_000_000, 100_000, 20_000, 0]),
    st.sampled_from([32_000, 4_000, 500]),
    st.sets(st.sampled_from(["Grep", "Edit", "Bash"])),
    st.sampled_from(["deny", "stop"]),
    st.sampled_from([200_000, 20_000, 5_000, 1_000]),
    st.sampled_from([1, 2, 8]),
)
def test_whatever_happens_the_run_ends_and_keeps_its_promises(
    data, mode, mischief, turns, ceiling, most, asked, on_timeout, window, kept
):
    limits = Limits(max_turns=turns, token_ceiling=ceiling, max_output_tokens=most)
    rules = (*RULES, *(Rule("ask", name) for name in sorted(asked)))
    spec = a_spec(
        parallel_tools=mode,
        rules=rules,
        asking=Asking(on_timeout=on_timeout),
        context=Context(keep_messages=kept),
    )
    world = World(data.draw, changed(a_run(spec, limits), window=window), mischief)
    outcome = world.drive()
    assert outcome.reason
    assert world.state.outcome == outcome
    assert not world.state.inbox.pause_requested
    if outcome.reason != "approval_timeout":  # which leaves what was cut off before it
        assert set(world.started) <= set(world.finished)


@pytest.mark.slow
@given(st.data(), st.integers(0, 20))
def test_a_call_is_finished_exactly_once_in_any_run_that_is_told_to_the_end(data, mischief):
    world = World(data.draw, a_run(limits=Limits(max_turns=6)), mischief)
    world.drive()
    asked = {
        block["id"]
        for message in world.state.messages
        for block in message.blocks
        if block["type"] == "tool_use"
    }
    open_calls = {call.id for call in world.state.calls if call.result is None}
    assert set(world.finished) == asked - open_calls
    assert not open_calls
