"""Runs whose MCP servers have changed their tools, forked, exported and imported."""

from __future__ import annotations

import pytest

from runner.core.conversation import Tool, ToolResult
from runner.core.entries import ToolFinished, ToolsListed
from runner.core.fold import context_of
from runner.errors import UsageError
from runner.queries.transcript import sent_request
from runner.store.database import Database
from runner.store.retry import say
from runner.store.tables import tool_lists
from tests.store.attempts import Attempt, claim, run_row, submit_one, text, tool_use
from tests.store.examples import SPEC
from tests.store.exchange.conftest import MakeDatabase
from tests.store.exchange.files import lines_of, signed
from tests.store.exchange.test_round_trip import brought, exported
from tests.store.forking import LATER, SAID, begun, copied, forked

EXTRA = Tool("mcp__ours__extra", "One more. " * 99, {"type": "object"}, source="mcp:ours:extra")
MORE, LESS = (*SPEC.tools, EXTRA), (EXTRA,)


def changed(database: Database) -> Attempt:
    """A run that has more tools after its first turn, and fewer after its third and last."""
    attempt = claim(database, submit_one(database))
    for number, listed in enumerate(([ToolsListed(MORE)], [], [ToolsListed(LESS)]), 1):
        attempt.reply(tool_use(number), stop="tool_use")
        attempt.append(ToolFinished(0, ToolResult("read")), *listed)
    return attempt.reply(text("Done."))


SENT = {1: SPEC.tools, 2: MORE, 3: MORE, 4: LESS}


def sent(database: Database, run_id: str) -> dict[int, tuple[Tool, ...]]:
    return {turn: sent_request(database, run_id, turn).tools for turn in SENT}


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_fork_has_the_tools_that_the_next_turn_had(database: Database, turn: int) -> None:
    fork_id = forked(database, changed(database), turn, **SAID)
    again = begun(database, fork_id)
    assert again.state.spec.tools == SENT[turn + 1]
    assert again.state.model.tool_lists == (0, 1, 1, 2)[turn]
    assert sent_request(database, fork_id, turn + 1).tools == SENT[turn + 1]
    assert again.state.context.estimate == context_of(again.state.spec, again.state.sent).estimate


def test_a_list_counts_towards_the_prompt(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply(tool_use(1), stop="tool_use").finish("one")
    before = attempt.state.context
    attempt.append(ToolsListed(MORE))
    after = attempt.state.context
    added = len(EXTRA.description)
    assert after.appended_bytes - before.appended_bytes > added
    assert after.tokens - before.tokens > added // 5
    attempt.append(ToolsListed(SPEC.tools))
    assert attempt.state.context.tokens == before.tokens
    assert attempt.state.context.appended_bytes == after.appended_bytes, "an upper bound"


def test_a_run_that_goes_on_has_its_last_tools(database: Database) -> None:
    run_id = changed(database).lease.run_id
    say(database, run_id, "Go on.", LATER)
    assert begun(database, run_id).state.spec.tools == LESS
    assert sent(database, run_id) == SENT


@pytest.mark.parametrize(("here", "there"), [("sqlite", "postgresql"), ("postgresql", "sqlite")])
def test_an_import_was_sent_the_same_tools(
    make_database: MakeDatabase, here: str, there: str
) -> None:
    first, second = make_database(here), make_database(there)
    run_id = changed(first).lease.run_id
    content = exported(first, run_id=run_id)
    assert brought(second, content) == [("imported", "succeeded")]
    assert exported(second, run_id=run_id) == content
    assert copied(second, tool_lists, run_id) == copied(first, tool_lists, run_id)
    assert sent(second, run_id) == SENT


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("sha256", "0" * 64, "sha256 is not that of the tools"),
        ("tools", [{"name": "a"}], "tool_lists.tools are none"),
        ("tools", 7, "tool_lists.tools are none"),
    ],
)
def test_a_list_that_is_none_is_refused(
    make_database: MakeDatabase, column: str, value: object, expected: str
) -> None:
    first, second = make_database("sqlite"), make_database("sqlite")
    run_id = changed(first).lease.run_id
    lines = lines_of(first, run_row(first, run_id).job_id)
    for line in lines:
        if line.get("table") == "tool_lists":
            line["row"][column] = value
    with pytest.raises(UsageError, match=expected):
        brought(second, signed(lines))
