"""The whole output of every call, by either of its names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.entries import HookFinished
from runner.core.hooks import Hook, HookAnswer, HookResult
from runner.core.steps import RunHook
from runner.queries.transcript import show_call, tool_output
from runner.store import ids
from runner.store.database import Database
from tests.store.attempts import Attempt, claim, submit_one, text, tool_use
from tests.store.examples import SPEC
from tests.store.forking import forked

LONG = "é".encode() * 100_000


@pytest.fixture
def worked(database: Database) -> Attempt:
    """A run with a short and a long output in turn 2, and a call that is refused in turn 3."""
    attempt = claim(database, submit_one(database))
    attempt.reply(text("Let me see."), stop="max_tokens")
    attempt.reply(tool_use(1), tool_use(2), stop="tool_use")
    attempt.finish("short é\udc80").finish("the head … the tail", LONG)
    return attempt.reply(tool_use(3, "Bash", command="ls"), stop="tool_use")


def found(attempt: Attempt, name: str, run_id: str | None = None) -> bytes | None:
    return tool_output(attempt.database, run_id or attempt.lease.run_id, name)


def test_every_result_can_be_had_whole(worked: Attempt) -> None:
    assert found(worked, "toolu_1") == "short é?".encode()
    assert found(worked, "toolu_2") == LONG
    refused = found(worked, "toolu_3")
    assert refused is not None
    assert refused.startswith(b"Unknown tool 'Bash'")


def test_both_names_of_a_call_mean_the_same(worked: Attempt) -> None:
    for turn, position, other in ((2, 0, "toolu_1"), (2, 1, "toolu_2"), (3, 0, "toolu_3")):
        name = ids.call_id(worked.lease.run_id, turn, position)
        assert found(worked, name) == found(worked, other) is not None


def test_call_without_a_result_has_no_output(database: Database) -> None:
    attempt = claim(database, submit_one(database))
    attempt.reply(tool_use(1), stop="tool_use")
    assert found(attempt, "toolu_1") is None


@pytest.mark.parametrize("name", ["", "toolu_9", "toolu_1.txt", "call_x", "call_1_1_1", "%"])
def test_name_of_no_call_has_no_output(worked: Attempt, name: str) -> None:
    assert found(worked, name) is None


def test_outputs_of_another_run_are_not_to_be_had(worked: Attempt) -> None:
    other = submit_one(worked.database, "two")
    assert found(worked, "toolu_1", other) is None
    assert found(worked, ids.call_id(worked.lease.run_id, 2, 0), other) is None
    assert found(worked, ids.call_id(other, 2, 0)) is None


def test_output_whose_result_a_hook_replaced_is_only_shown_to_people(database: Database) -> None:
    spec = replace(SPEC, hooks=(Hook("PostToolUse", command="redact"),))
    attempt = claim(database, submit_one(database, spec=spec))
    attempt.reply(tool_use(1), stop="tool_use").finish("the head … the tail", LONG)
    assert isinstance(attempt.effect, RunHook)
    result = HookResult(HookAnswer("succeeded"), updated_output="a walnut")
    attempt.append(HookFinished(attempt.effect.run.number, result))
    for run_id in (attempt.lease.run_id, forked(database, attempt, 1)):
        name = ids.call_id(run_id, 1, 0)
        assert found(attempt, name, run_id) == found(attempt, "toolu_1", run_id) == b"a walnut"
        assert show_call(database, name)["output"] == LONG.decode()
