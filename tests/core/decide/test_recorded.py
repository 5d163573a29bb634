"""Runs with workspaces of their own, in a world where everything goes wrong: files and conversation
say the same."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.budget import Limits
from runner.core.workspace import Verify, Workspace
from runner.permissions import Rule
from tests.core.story import RULES, a_run, a_spec
from tests.core.workshop import TOOLS, Workshop

VERIFY = st.none() | st.builds(
    Verify, st.just(("pytest",)), st.sampled_from(["feedback", "fail"]), st.integers(0, 2)
)


@settings(max_examples=150)
@given(
    st.data(),
    st.sampled_from(["safe", "all", "off"]),
    st.integers(0, 14),
    st.integers(1, 8),
    st.sets(st.sampled_from(["Make", "Push"])),
    st.sampled_from(["tell", "ask"]),
    VERIFY,
    st.booleans(),
)
def test_the_files_are_always_what_the_conversation_says_was_done(
    data, mode, mischief, turns, asked, on_unknown, verify, with_result
):
    spec = a_spec(
        tools=TOOLS if with_result else TOOLS[:-1],
        parallel_tools=mode,
        rules=(*RULES, *(Rule("ask", name) for name in sorted(asked))),
        workspace=Workspace("/repo", "git", external=(Rule("ask", "Push"),), on_unknown=on_unknown),
        verify=verify,
    )
    limits = Limits(max_turns=turns, token_ceiling=5_000_000)
    workshop = Workshop(data.draw, a_run(spec, limits), mischief)
    outcome = workshop.drive()
    workshop.check_end(outcome)
    check_files(workshop)


def check_files(workshop):
    """Each call that has a result of its own is in the files once and whole; one that was cut off has
    left half of it only if its effects were not to be undone."""
    done = Counter(workshop.files)
    results = {
        block["tool_use_id"]: block
        for message in workshop.state.messages
        for block in message.blocks
        if block["type"] == "tool_result"
    }
    names = {
        block["id"]: block["name"]
        for message in workshop.state.messages
        for block in message.blocks
        if block["type"] == "tool_use"
    }
    assert "what the tests left" not in done
    for call_id, block in results.items():
        assert done[call_id] <= 1
        if block["content"] == "done":
            assert done[call_id] == (names[call_id] in ("Make", "Push"))
            assert not done[f"{call_id}?"]
        if done[f"{call_id}?"]:
            assert "unknown" in block["content"] or block["content"].startswith("Interrupted")
