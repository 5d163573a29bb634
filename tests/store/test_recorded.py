"""What is stored of a run's workspace and of its end: trees beside calls, verifications, its own model."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select, update

from runner.core.commands import Target
from runner.core.conversation import ToolResult
from runner.core.entries import SnapshotRecorded, ToolFinished, Verified
from runner.core.model_calls import turn_request
from runner.core.run import Ended
from runner.core.spec import JobSpec
from runner.core.steps import CallModel, Done, RunTools, RunVerify
from runner.core.workspace import Verify, Workspace
from runner.permissions import Rule
from runner.store import retry
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.tables import events, runs, tool_calls, verifications
from tests.store.asked import BASH
from tests.store.attempts import claim, run_row, submit_one, text, tool_use
from tests.store.examples import NOW, SPEC

RECORDED = replace(
    SPEC,
    tools=(*SPEC.tools, BASH),
    rules=(Rule("allow", "*"),),
    workspace=Workspace("/repo", "copy"),
    verify=Verify(("ruff check", "pytest -q")),
)


def calls_of(database: Database, run_id: str) -> list[Row[Any]]:
    query = select(tool_calls).where(tool_calls.c.run_id == run_id)
    query = query.order_by(tool_calls.c.message, tool_calls.c.position)
    return list(database.read(lambda connection: connection.execute(query).all()))


def verifications_of(database: Database, run_id: str) -> list[Row[Any]]:
    query = select(verifications).where(verifications.c.run_id == run_id)
    query = query.order_by(verifications.c.number)
    return list(database.read(lambda connection: connection.execute(query).all()))


def test_the_tree_before_is_stored_with_the_start_and_the_one_after_with_the_result(
    database: Database,
) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    assert isinstance(attempt.effect, RunTools)
    (started,) = calls_of(database, run_id)
    assert (started.tree_before, started.tree_after) == ("tree 1", None)
    attempt.append(ToolFinished(0, ToolResult("ok"), "tree 2"))
    (finished,) = calls_of(database, run_id)
    assert (finished.tree_before, finished.tree_after) == ("tree 1", "tree 2")
    assert run_row(database, run_id).progress["files"]["tree"] == "tree 2"


def test_what_contained_a_call_is_stored_and_told_with_its_result(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1, "Bash", command="make"), stop="tool_use")
    attempt.append(ToolFinished(0, ToolResult("ok", containment="bubblewrap"), "tree 2"))
    (finished,) = calls_of(database, run_id)
    assert finished.containment == "bubblewrap"
    query = select(events.c.data).where(events.c.type == "tool_done")
    assert database.read(lambda c: c.execute(query).scalar_one())["containment"] == "bubblewrap"


@pytest.mark.parametrize("spec", [SPEC, RECORDED])
def test_calls_that_only_read_have_no_trees(database: Database, spec: JobSpec) -> None:
    run_id = submit_one(database, spec=spec)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1), stop="tool_use").finish("read")
    (call,) = calls_of(database, run_id)
    assert (call.tree_before, call.tree_after) == (None, None)


def test_all_calls_of_a_unit_have_the_trees_of_the_unit(database: Database) -> None:
    run_id = submit_one(database, spec=replace(RECORDED, parallel_tools="all"))
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(tool_use(1), tool_use(2, "Bash", command="make"), stop="tool_use")
    attempt.append(*(ToolFinished(n, ToolResult("ok"), "tree 2") for n in (0, 1)))
    trees = [(call.tree_before, call.tree_after) for call in calls_of(database, run_id)]
    assert trees == [("tree 1", "tree 2")] * 2


def test_the_first_tree_of_a_run_stays_its_start(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.append(SnapshotRecorded("tree 2", "changed"))
    run = run_row(database, run_id)
    assert (run.start_tree, run.progress["files"]["tree"]) == ("tree 1", "tree 2")


def test_a_verification_is_stored_as_it_begins_and_as_it_ends(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).append(SnapshotRecorded("tree 1", "created"))
    attempt.reply(text("Done."))
    assert attempt.effect == RunVerify(1)
    (begun,) = verifications_of(database, run_id)
    assert (begun.turn, begun.tree, begun.attempt) == (1, "tree 1", 1)
    assert (begun.started_at, begun.ended_at, begun.outcome) == (NOW, None, None)

    whole = b"1 failed \xc3\xa9 " * 1_000
    attempt.now += 7
    attempt.append(Verified(1, "pytest\x00 -q", ToolResult("1 failed …", "failed", whole, 6.5)))
    (ended,) = verifications_of(database, run_id)
    assert (ended.started_at, ended.ended_at, ended.duration) == (NOW, NOW + 7, 6.5)
    assert (ended.outcome, ended.command, ended.content) == ("failed", "pytest␀ -q", "1 failed …")
    assert ended.size == len(whole)
    assert zlib.decompress(ended.compressed) == whole


def test_a_short_output_of_a_verification_is_stored_once(database: Database) -> None:
    run_id = submit_one(database, spec=RECORDED)
    attempt = claim(database, run_id).reply(text("Done."))
    attempt.append(Verified(1, "pytest -q", ToolResult("12 passed")))
    assert attempt.effect == Done(Ended("succeeded", "end_turn"))
    (verification,) = verifications_of(database, run_id)
    assert (verification.content, verification.compressed) == ("12 passed", None)
    progress = run_row(database, run_id).progress
    assert progress["ending"]["verification"]["passed"]
    assert progress["ending"]["verification"]["output"] == ""


def test_a_run_that_was_cancelled_while_it_was_verified_goes_on_with_a_new_one(
    database: Database,
) -> None:
    run_id = submit_one(database, spec=RECORDED)
    claim(database, run_id).reply(text("Done."))
    cancel(database, Target("run", run_id), NOW)
    retry.retry(database, Target("run", run_id), NOW)
    attempt = claim(database, run_id).reply(text("Done again."))
    assert attempt.effect == RunVerify(2)
    attempt.append(Verified(2, "pytest -q", ToolResult("ok")))
    outcomes = [(one.number, one.outcome) for one in verifications_of(database, run_id)]
    assert outcomes == [(1, None), (2, "succeeded")]


def test_a_run_taken_up_again_commits_again(database: Database) -> None:
    spec = replace(RECORDED, workspace=Workspace("/repo", "git"), verify=None)
    run_id = submit_one(database, spec=spec)

    def work(connection: Any) -> None:
        progress = run_row(database, run_id).progress
        progress["ending"]["delivered"] = "c0ffee"
        connection.execute(update(runs).where(runs.c.id == run_id).values(progress=progress))

    cancel(database, Target("run", run_id), NOW)
    database.write(work)
    retry.retry(database, Target("run", run_id), NOW)
    assert run_row(database, run_id).progress["ending"]["delivered"] is None


def test_a_run_with_a_model_of_its_own_calls_that_one(database: Database) -> None:
    run_id = submit_one(database)

    def work(connection: Any) -> None:
        connection.execute(update(runs).where(runs.c.id == run_id).values(model="claude-other"))

    database.write(work)
    attempt = claim(database, run_id)
    assert isinstance(attempt.effect, CallModel)
    assert turn_request(attempt.state, attempt.effect.call).model == "claude-other"
