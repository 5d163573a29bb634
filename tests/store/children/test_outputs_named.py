"""A sub-agent that has its parent's conversation is told where the outputs are that this names."""

from __future__ import annotations

import pytest

from runner.core.context import Compaction
from runner.core.entries import ContextCompacted
from runner.core.run import Ended
from runner.core.steps import Done
from runner.store.database import Database
from runner.store.fork import fork
from tests.store.attempts import Attempt, claim, run_row, text, tool_use
from tests.store.children.family import asks, said_in, submit_parent
from tests.store.compacting import stand_in, truncation
from tests.store.examples import NOW

LONG = "a line\n" * 300


def told(database: Database, run_id: str) -> list[str]:
    """What a run is told of outputs in the last of its messages."""
    texts = [block.get("text", "") for block in said_in(database, run_id)[-1][1]]
    return [each for each in texts if "What the paths of outputs above say" in each]


def read_all(database: Database, run_id: str) -> Attempt:
    """A turn whose result is shown whole, and kept as well."""
    parent = claim(database, run_id).reply(tool_use(1, "Read", file_path="a"), stop="tool_use")
    return parent.finish(LONG, LONG.encode())


@pytest.mark.parametrize(
    "compaction",
    [
        lambda named: truncation(2, said=f"a line … all of it is in {named}"),
        lambda named: stand_in(2, f"The file is in {named}"),
    ],
    ids=["clip", "summary"],
)
def test_a_snapshot_is_told_where_the_outputs_are_that_only_a_compaction_names(
    database: Database, compaction: object
) -> None:
    run_id = submit_parent(database)
    assert callable(compaction)
    made = compaction(f"/home/outputs/{run_id}/toolu_1.txt")
    assert isinstance(made, Compaction)
    parent = read_all(database, run_id).append(ContextCompacted(made))
    parent.reply(asks(2, snapshot=True), asks(3, snapshot=False), stop="tool_use")
    (where,) = told(database, f"{run_id}.1")
    assert f"outputs/{run_id} is for you in outputs/{run_id}.1," in where
    assert told(database, f"{run_id}.2") == []


@pytest.mark.slow
def test_a_snapshot_of_a_conversation_that_names_no_outputs_is_told_of_none(
    database: Database,
) -> None:
    run_id = submit_parent(database)
    read_all(database, run_id).reply(asks(2, snapshot=True), stop="tool_use")
    assert told(database, f"{run_id}.1") == []


@pytest.mark.slow
def test_a_snapshot_of_a_snapshot_is_told_where_its_own_are(database: Database) -> None:
    run_id = submit_parent(database)
    named = f"all of it is in /home/outputs/{run_id}/toolu_1.txt"
    parent = claim(database, run_id).reply(tool_use(1, "Read", file_path="a"), stop="tool_use")
    parent.finish(named, b"all of it").reply(asks(2, snapshot=True), stop="tool_use")
    claim(database, f"{run_id}.1").reply(asks(3, snapshot=True), stop="tool_use")
    (where,) = told(database, f"{run_id}.1.1")
    assert f"outputs/{run_id}.1 is for you in outputs/{run_id}.1.1," in where


def test_a_snapshot_of_a_fork_is_told_where_its_own_are(database: Database) -> None:
    run_id = submit_parent(database)
    named = f"all of it is in /home/outputs/{run_id}/toolu_1.txt"
    parent = claim(database, run_id).reply(tool_use(1, "Read", file_path="a"), stop="tool_use")
    parent.finish(named, b"all of it").reply(text("Done."))
    assert parent.effect == Done(Ended("succeeded", "end_turn"))
    fork_id = fork(database, run_id, 1, NOW).id
    claim(database, fork_id).reply(asks(3, snapshot=True), stop="tool_use")
    assert run_row(database, f"{fork_id}.1").state == "queued"
    (where,) = told(database, f"{fork_id}.1")
    assert f"outputs/{fork_id} is for you in outputs/{fork_id}.1," in where
