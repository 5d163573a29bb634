"""Where a conversation may be cut, and what stays whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.compaction import cut_points, tail_starts
from runner.core.context import Compacted, Context
from runner.core.conversation import Message
from tests.core.context.histories import a_state, messages, result
from tests.core.sendable import faults
from tests.core.story import changed, says, uses

PAUSED = Message("assistant", ({"type": "server_tool_use", "id": "s"},))
SAID = (
    Message("user", (says("The task."),)),
    Message("assistant", (uses("Bash", "t1"),)),
    Message("user", (result("t1", "x"),)),
    PAUSED,
    Message("assistant", ({"type": "web_search_tool_result", "tool_use_id": "s"}, says())),
    Message("user", (says("Go on."),)),
    Message("assistant", (uses("Bash", "t2"),)),
    Message("user", (result("t2", "x"), says("Hm."))),
)


def state_of(said, keep=2):
    return a_state(said, 100_000, Context(keep_messages=keep), 1_000)


def test_a_cut_parts_no_call_from_its_result_and_no_paused_turn():
    assert cut_points(state_of(SAID)) == [3, 6]


@pytest.mark.parametrize(("keep", "start"), [(1, 6), (2, 6), (3, 3), (5, 3), (6, 1), (99, 1)])
def test_at_least_as_many_messages_stay_whole_as_the_job_wants(keep, start):
    assert tail_starts(state_of(SAID, keep))[0] == start


@pytest.mark.parametrize(
    ("keep", "starts"), [(8, [13, 17, 19]), (16, [5, 13, 17, 19]), (3, [17, 19]), (1, [19])]
)
def test_fewer_messages_stay_whole_by_halves_down_to_the_last_exchange(keep, starts):
    said = SAID[:1] + 10 * SAID[1:3]
    assert tail_starts(state_of(said, keep)) == starts


def test_what_has_been_left_out_is_not_cut_again():
    state = changed(state_of(SAID), compacted=Compacted(5, "So far.", {}, 1))
    assert cut_points(state) == [6]


@pytest.mark.slow
@given(messages(lengths=st.just(5)))
def test_whatever_is_cut_off_the_rest_is_a_valid_request(said):
    for cut in cut_points(state_of(said)):
        compacted = Compacted(cut - 1, "So far.", {}, 1)
        sent = (said[0], *compacted.replacement, *said[cut:])
        assert not faults(sent, compacted)
        assert [message.role for message in said[cut - 1 : cut + 1]] == ["user", "assistant"]
