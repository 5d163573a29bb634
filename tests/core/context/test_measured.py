"""How full the context is after replies, among them those that count something else than their prompt."""

import pytest

from runner.core.conversation import CONTEXT_EXCEEDED, ModelReply, Usage
from runner.core.entries import ModelReplied
from runner.core.fold import apply
from tests.core.story import Story, says, uses

LONG = {"command": "x" * 4_000}


def talked(*prompts):
    """A run whose replies say that their prompts had so many tokens."""
    story = Story()
    for number, prompt in enumerate(prompts):
        story.reply("tool_use", uses("Bash", f"t{number}", LONG), prompt=prompt)
        story.finish(0)
    return story.state.context


def test_a_reply_says_how_long_its_prompt_was():
    before, after = talked(200), talked(200, 1_500)
    assert (before.measured, after.measured) == (200, 1_500)
    assert after.estimate_since == before.estimate_since, (
        "what was appended since is the last exchange alone"
    )


@pytest.mark.parametrize("counted", [0, 100_000])
def test_a_reply_that_cannot_have_counted_its_prompt_measures_nothing(counted):
    before, after = talked(200), talked(200, counted)
    assert after.measured == before.measured == 200
    assert after.estimate_since == 2 * before.estimate_since
    assert after.correction == before.correction


def test_without_any_measurement_the_estimate_goes_on_growing():
    once, twice = talked(0), talked(0, 0)
    assert (once.measured, twice.measured) == (None, None)
    assert twice.tokens == twice.estimate > once.tokens + 1_000


def test_a_refusal_counts_though_its_reply_measures_nothing():
    story = Story()
    story.reply("tool_use", uses("Bash"), prompt=200)
    story.finish(0)
    reply = ModelReply((says("Half"),), CONTEXT_EXCEEDED, Usage(0, output_tokens=5), "a-model")
    context = apply(story.state, ModelReplied(reply)).context
    assert (context.refusals, context.must_shrink, context.measured) == (1, True, 200)
