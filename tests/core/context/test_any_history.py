"""Whatever was said and printed, what is sent is valid and fits, or the run ends and says why."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.compaction import (
    MOST_REPLACEMENT,
    cut_points,
    summarised,
    tail_starts,
    token_estimate,
)
from runner.core.context import Context, estimate, tokens_of
from runner.core.conversation import ModelReply, Usage
from runner.core.entries import ContextCompacted, ModelCallStarted, RunSettled
from runner.core.fold import apply
from runner.core.model_calls import fit_context, summary_request
from runner.core.run import Ended
from runner.core.state import CountedPrompt
from runner.core.steps import CountTokens
from tests.core.context.histories import a_state, estimated, messages
from tests.core.sendable import faults
from tests.core.story import changed, says

WINDOWS = st.sampled_from([800, 4_000, 20_000, 100_000])
SUMMARIES = st.sampled_from(["", "All is well.", "Very. " * 100, "So it went. " * 20_000])
REASONS = st.sampled_from(["end_turn", "end_turn", "max_tokens", "refusal", "out_of_cheese"])


@st.composite
def states(draw):
    context = Context(
        chars_per_token=draw(st.sampled_from([1.0, 2.5, 4.0, 32.0])),
        keep_messages=draw(st.sampled_from([1, 2, 4, 8])),
        reserve=draw(st.sampled_from([None, 100])),
    )
    state = a_state(draw(messages()), draw(WINDOWS), context, draw(st.sampled_from([200, 32_000])))
    refusals = draw(st.sampled_from([0, 0, 1, 2]))
    return changed(
        state,
        correction=draw(st.sampled_from([1.0, 0.5, 2.0])),
        measured=draw(st.none() | st.integers(0, 2 * state.context.window)),
        refusals=refusals,
        must_shrink=refusals > 0,
    )


def shrunk(draw, state):
    """The run once its context fits, or when it is about to end because it does not; and that end."""
    for _ in range(6):
        match fit_context(state):
            case None:
                return state, None
            case CountTokens():
                tokens = draw(st.none() | st.integers(0, 2 * state.context.window))
                assert state.context.counted is None
                counted = CountedPrompt(tokens, state.context.estimate, state.turns)
                state = changed(state, counted=counted)
            case ModelCallStarted(purpose="summary") as entry:
                state = answered(draw, apply(state, entry))
            case ContextCompacted(compaction) as entry:
                assert compaction.tokens_after < compaction.tokens_before
                assert compaction.tokens_after <= token_estimate(state).limit
                state = apply(state, entry)
            case RunSettled(outcome):
                return state, outcome
    raise AssertionError("the context is never done")


def answered(draw, state):
    call = state.model.open_call
    request = summary_request(state, call)
    assert not faults(request.messages)
    assert not request.tools
    usage = Usage(input_tokens=draw(st.integers(0, 1_000)), output_tokens=5)
    reply = ModelReply((says(draw(SUMMARIES)),), draw(REASONS), usage, "a-model")
    entry = summarised(state, reply)
    if entry.compaction is not None:
        assert entry.compaction.tokens_after < entry.compaction.tokens_before
    return apply(state, entry)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), states())
def test_any_history_gives_a_valid_request_that_fits_or_a_definite_end(data, state):
    before = state
    assert not faults(state.messages), "the history itself is wrong"
    state, end = shrunk(data.draw, state)
    assert state.messages == before.messages
    assert state.context.estimate == estimated(state)
    assert not faults(state.sent, state.context.compacted)
    assert state.sent[0] == before.messages[0]
    if state.context.compacted.last:  # neither a call and its result are parted nor a paused turn
        kept = state.messages[state.context.compacted.last : state.context.compacted.last + 2]
        assert [message.role for message in kept] == ["user", "assistant"]
    if end is None:
        assert token_estimate(state).tokens <= token_estimate(state).limit
        assert not state.context.must_shrink
    else:
        assert end == Ended("stopped", "context_window", end.detail)
        assert least_tokens(state) > token_estimate(state).limit


def least_tokens(state):
    """What the prompt has at the least: all but the last exchange left out, and nothing of its results
    sent. The notes that are in place of it are given as much as they can take."""
    starts = [number for number in cut_points(state) if number > state.context.compacted.last] or [
        1
    ]
    kept = [state.messages[0], *state.messages[starts[-1] :]]
    blocks = [block for message in kept for block in message.blocks]
    bare = [{**block, "content": ""} if "content" in block else block for block in blocks]
    per_token, sent = state.spec.context.chars_per_token, state.context.estimate
    least = sent - tokens_of(state.sent, per_token) + sum(estimate(b, per_token) for b in bare)
    notes = [*state.messages[1 : starts[-1]], *state.context.compacted.replacement]
    spoken = [b for m in notes if m.role == "user" for b in m.blocks if b["type"] == "text"]
    slack = sum(min(estimate(b, per_token), 4_200 / per_token) for b in spoken)
    slack += (1_000 * len(bare) + 500) / per_token
    return (least + slack) * token_estimate(state).per_estimated


@settings(max_examples=50)
@given(st.data(), states())
def test_the_last_exchange_stays_whole_where_leaving_out_older_messages_is_enough(data, state):
    before = changed(state, summary_failed=True)
    state, end = shrunk(data.draw, before)
    newest = before.messages[tail_starts(before)[-1] :]
    if end is not None or state.sent[len(state.sent) - len(newest) :] == newest:
        return
    recent = before.messages[tail_starts(before)[0] :]
    # Some were touched: they are too long beside what may stand in for all that is older.
    per_token, found, counted = (
        state.spec.context.chars_per_token,
        token_estimate(before),
        state.context.counted,
    )
    fixed = found.estimate - tokens_of(before.messages, per_token)
    kept = fixed + tokens_of(
        (before.messages[0], *recent, *state.context.compacted.replacement), per_token
    )
    scale = found.per_estimated
    if counted is not None and counted.tokens is not None:
        scale = max(scale, counted.tokens / counted.estimate)
    assert (kept + 500 / per_token) * scale > found.limit * (1 - MOST_REPLACEMENT)


@pytest.mark.slow
@given(st.data(), states())
def test_a_context_that_fits_is_left_alone(data, state):
    assert fit_context(changed(state, measured=0, refusals=0, must_shrink=False)) is None


@pytest.mark.slow
@settings(max_examples=50)
@given(st.data(), states())
def test_with_compaction_off_nothing_is_ever_made_shorter(data, state):
    context = replace(state.spec.context, compaction="off")
    state = replace(state, spec=replace(state.spec, context=context))
    step = fit_context(state)
    if not state.context.must_shrink:
        assert step is None
        return
    assert isinstance(step, RunSettled)
    assert step.outcome.reason == "context_window"
