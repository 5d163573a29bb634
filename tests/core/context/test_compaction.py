"""What several compactions come to, and what is sent after them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.context import (
    Compacted,
    Compaction,
    TruncatedResult,
    difference,
    sent_messages,
    tokens_of,
)
from runner.core.conversation import Message, text_block
from tests.core.context.histories import result
from tests.core.story import says, uses

SAID = (
    Message("user", (says("The task."),)),
    *(
        message
        for number in range(6)
        for message in (
            Message("assistant", (says("So. " * 9), uses("Bash", f"t{number}"))),
            Message("user", (result(f"t{number}", "x" * 90), says("Hm."))),
        )
    ),
)


@st.composite
def compactions(draw):
    """In an order in which a run can make them."""
    made, last = [], 0
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()) and last < 10:
            last = draw(st.sampled_from([n for n in (2, 4, 6, 8, 10) if n > last]))
            kind = draw(st.sampled_from(["summary", "prune"]))
        else:
            kind = "clip"
        numbers = draw(st.lists(st.sampled_from([n for n in range(2, 13, 2) if n > last])))
        results = tuple(TruncatedResult(number, 0, f"shorter {number}") for number in numbers)
        text = "" if kind == "clip" else draw(st.text(min_size=1, max_size=200))
        made.append(Compaction(kind, 1, last, text, results))
    return made


@pytest.mark.slow
@given(compactions(), st.sampled_from([1.0, 3.5, 4.0]))
def test_the_difference_is_what_counting_all_messages_gives(made, per_token):
    compacted = Compacted()
    for compaction in made:
        before = tokens_of(sent_messages(SAID, compacted), per_token)
        change = difference(SAID, compacted, compaction, per_token)
        compacted = compacted.after(compaction)
        assert tokens_of(sent_messages(SAID, compacted), per_token) == before + change


@pytest.mark.slow
@given(compactions())
def test_what_is_sent_is_the_task_the_last_text_and_the_rest_with_truncated_results(made):
    compacted = Compacted()
    for compaction in made:
        compacted = compacted.after(compaction)
    sent = sent_messages(SAID, compacted)
    assert sent[0] == SAID[0]
    texts = [one.text for one in made if one.kind != "clip"]
    assert sent[1:2] == ((Message("user", (text_block(texts[-1]),)),) if texts else SAID[1:2])
    rest = sent[2:] if texts else sent[1:]
    assert [m.role for m in rest] == [m.role for m in SAID[compacted.last + 1 :]]
    assert compacted.count == len(made)
    assert all(message > compacted.last for message, _ in compacted.truncated)


def test_a_truncation_changes_the_content_of_its_result_and_nothing_else():
    compacted = Compacted().after(
        Compaction("clip", 2, 2, truncated=(TruncatedResult(2, 0, "short"),))
    )
    sent = sent_messages(SAID, compacted)
    assert sent[2].blocks == (result("t0", "short"), says("Hm."))
    assert (*sent[:2], *sent[3:]) == (*SAID[:2], *SAID[3:])
    failed = {**result("t0", "x"), "is_error": True}
    said = (*SAID[:2], Message("user", (failed,)))
    assert sent_messages(said, compacted)[2].blocks == ({**failed, "content": "short"},)


def test_without_a_compaction_the_messages_are_sent_as_they_are():
    assert sent_messages(SAID, Compacted()) == SAID


def test_what_compactions_changed_ends_where_a_breakpoint_is_of_use():
    def clip(number):
        return Compaction("clip", number, number, "", (TruncatedResult(number, 0, "short"),))

    once = Compacted().after(clip(4))
    twice = once.after(clip(8))
    assert (Compacted().stable, once.stable, twice.stable) == ((), (4,), (4, 8))
    assert sent_messages(SAID, once)[:5] == sent_messages(SAID, twice)[:5]
    summarised = twice.after(Compaction("summary", 1, 8, "So far."))
    assert summarised.stable == (1,), "the summary"
    again = summarised.after(clip(12))
    assert again.stable == (1, 5)
    assert sent_messages(SAID, again)[5].blocks[0]["content"] == "short"
