"""Whatever was said and printed, what is sent is valid and fits, or the run ends and says why."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.compaction import STAND_IN, cuts, gauge, summarised, tail_start
from runner.core.context import Context, estimate, tokens_of
from runner.core.conversation import ModelReply, Usage
from runner.core.entries import ContextCompacted, ModelCallStarted, RunSettled
from runner.core.fold import apply
from runner.core.model_calls import fit_context, summary_request
from runner.core.run import Ended
from runner.core.state import Counted
from runner.core.steps import CountTokens, Record
from tests.core.context.histories import a_view, estimated, messages
from tests.core.sendable import faults
from tests.core.story import says

WINDOWS = st.sampled_from([800, 4_000, 20_000, 100_000])
SUMMARIES = st.sampled_from(["", "All is well.", "Very. " * 100, "So it went. " * 20_000])
REASONS = st.sampled_from(["end_turn", "end_turn", "max_tokens", "refusal", "out_of_cheese"])


@st.composite
def views(draw):
    context = Context(
        chars_per_token=draw(st.sampled_from([1.0, 2.5, 4.0, 32.0])),
        keep_messages=draw(st.sampled_from([1, 2, 4, 8])),
        reserve=draw(st.sampled_from([None, 100])),
    )
    view = a_view(draw(messages()), draw(WINDOWS), context, draw(st.sampled_from([200, 32_000])))
    fullness = replace(
        view.progress.fullness,
        correction=draw(st.sampled_from([1.0, 0.5, 2.0])),
        measured=draw(st.none() | st.integers(0, 2 * view.window)),
        refused=draw(st.sampled_from([0, 0, 1, 2])),
    )
    fullness = replace(fullness, must_shrink=fullness.refused > 0)
    return replace(view, progress=replace(view.progress, fullness=fullness))


def shrunk(draw, view):
    """The run once its context fits, or when it is about to end because it does not; and that end."""
    for _ in range(6):
        match fit_context(view):
            case None:
                return view, None
            case CountTokens():
                tokens = draw(st.none() | st.integers(0, 2 * view.window))
                assert view.counted is None
                counted = Counted(tokens, view.progress.fullness.sent, view.progress.turns)
                view = replace(view, counted=counted)
            case Record(ModelCallStarted(purpose="summary") as entry):
                view = answered(draw, apply(view, entry))
            case Record(ContextCompacted(compaction) as entry):
                assert compaction.tokens_after < compaction.tokens_before
                assert compaction.tokens_after <= gauge(view).room
                view = apply(view, entry)
            case Record(RunSettled(outcome)):
                return view, outcome
    raise AssertionError("the context is never done")


def answered(draw, view):
    call = view.progress.open_call
    request = summary_request(view, call)
    assert not faults(request.messages)
    assert not request.tools
    usage = Usage(input_tokens=draw(st.integers(0, 1_000)), output_tokens=5)
    reply = ModelReply((says(draw(SUMMARIES)),), draw(REASONS), usage, "a-model")
    entry = summarised(view, reply)
    if entry.compaction is not None:
        assert entry.compaction.tokens_after < entry.compaction.tokens_before
    return apply(view, entry)


@settings(max_examples=100)
@given(st.data(), views())
def test_any_history_gives_a_valid_request_that_fits_or_a_definite_end(data, view):
    before = view
    assert not faults(view.messages), "the history itself is wrong"
    view, end = shrunk(data.draw, view)
    assert view.messages == before.messages
    assert view.progress.fullness.sent == estimated(view)
    assert not faults(view.sent, view.compacted)
    assert view.sent[0] == before.messages[0]
    if view.compacted.last:  # neither a call and its result are parted nor a paused turn
        kept = view.messages[view.compacted.last : view.compacted.last + 2]
        assert [message.role for message in kept] == ["user", "assistant"]
    if end is None:
        assert gauge(view).tokens <= gauge(view).room
        assert not view.progress.fullness.must_shrink
    else:
        assert end == Ended("stopped", "context_window", end.detail)
        assert least_tokens(view) > gauge(view).room


def least_tokens(view):
    """What the prompt has at the least: all but the last exchange left out, and nothing of its results
    sent. The notes that are in place of it are given as much as they can take."""
    starts = [number for number in cuts(view) if number > view.compacted.last] or [1]
    kept = [view.messages[0], *view.messages[starts[-1] :]]
    blocks = [block for message in kept for block in message.blocks]
    bare = [{**block, "content": ""} if "content" in block else block for block in blocks]
    per_token, sent = view.spec.context.chars_per_token, view.progress.fullness.sent
    least = sent - tokens_of(view.sent, per_token) + sum(estimate(b, per_token) for b in bare)
    notes = [*view.messages[1 : starts[-1]], *view.compacted.stand_in]
    spoken = [b for m in notes if m.role == "user" for b in m.blocks if b["type"] == "text"]
    slack = sum(min(estimate(b, per_token), 4_200 / per_token) for b in spoken)
    slack += (1_000 * len(bare) + 500) / per_token
    return (least + slack) * gauge(view).per_estimated


@settings(max_examples=50)
@given(st.data(), views())
def test_recent_messages_stay_whole_where_leaving_out_older_ones_is_enough(data, view):
    fullness = replace(view.progress.fullness, summary_failed=True)
    before = replace(view, progress=replace(view.progress, fullness=fullness))
    view, end = shrunk(data.draw, before)
    recent = before.messages[tail_start(before) :]
    if end is not None or view.sent[len(view.sent) - len(recent) :] == recent:
        return
    # Some were touched: they are too long beside what may stand in for all that is older.
    per_token, found, counted = view.spec.context.chars_per_token, gauge(before), view.counted
    fixed = found.sent - tokens_of(before.messages, per_token)
    kept = fixed + tokens_of((before.messages[0], *recent, *view.compacted.stand_in), per_token)
    scale = found.per_estimated
    if counted is not None and counted.tokens is not None:
        scale = max(scale, counted.tokens / counted.sent)
    assert (kept + 500 / per_token) * scale > found.room * (1 - STAND_IN)


@given(st.data(), views())
def test_a_context_that_fits_is_left_alone(data, view):
    fullness = replace(view.progress.fullness, measured=0, refused=0, must_shrink=False)
    view = replace(view, progress=replace(view.progress, fullness=fullness))
    assert fit_context(view) is None


@settings(max_examples=50)
@given(st.data(), views())
def test_with_compaction_off_nothing_is_ever_made_shorter(data, view):
    context = replace(view.spec.context, compaction="off")
    view = replace(view, spec=replace(view.spec, context=context))
    step = fit_context(view)
    if not view.progress.fullness.must_shrink:
        assert step is None
        return
    assert isinstance(step, Record)
    assert step.entry.outcome.reason == "context_window"
