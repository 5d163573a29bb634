"""Instructions that a message told anew, and what a compaction leaves of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.context import Compaction, CompactionKind, Context
from runner.core.conversation import Message
from runner.core.entries import ContextCompacted, InstructionsRead, UserMessageAdded
from runner.core.fold import fold
from runner.core.workspace import Instructions
from tests.core.context.histories import a_state
from tests.core.story import a_spec, says

OLD = Instructions("AGENTS.md", "aa", "Be kind.")
NEW = Instructions("AGENTS.md", "bb", "Be brisk.")
SAID = tuple(Message(("user", "assistant")[n % 2], (says("word " * 50),)) for n in range(7))


@pytest.mark.parametrize(
    ("kind", "last", "forgotten"), [("summary", 6, True), ("summary", 5, False), ("clip", 6, False)]
)
def test_what_a_message_told_counts_until_it_is_compacted(
    kind: CompactionKind, last: int, forgotten: bool
) -> None:
    state = a_state(SAID, 20_000, Context(), 200)
    told = UserMessageAdded((NEW.text,), "instructions")
    entries = [InstructionsRead((OLD,)), InstructionsRead((NEW,)), told]
    *_, before = fold(replace(state, spec=a_spec(instructions="follow")), entries)
    assert before.after.files.in_prompt == (("AGENTS.md", "aa"),)
    assert (before.after.files.followed, before.after.files.followed_in) == (
        (("AGENTS.md", "bb"),),
        6,
    )
    compaction = ContextCompacted(Compaction(kind, 1, last, "So it went."))
    *_, after = fold(before.after, [compaction])
    assert (after.after.files.followed is None) == forgotten
