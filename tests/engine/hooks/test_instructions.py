"""The workspace's instructions in the prompts of a run."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from runner.core.commands import Reply
from runner.core.run import Ended, Waiting
from runner.core.spec import Asking
from runner.permissions import Rule
from runner.queries.transcript import sent_request
from runner.store.tables import model_calls, run_instructions, runs
from tests.engine.hooks.bench import Bench, bash

SUCCEEDED = Ended("succeeded", "end_turn")


@pytest.mark.slow
def test_instructions_are_read_once_and_join_every_prompt(bench: Bench) -> None:
    (bench.folder / "AGENTS.md").write_text("Be kind.\n")
    lease = bench.run_with(
        [],
        bash("echo Be rude. > AGENTS.md"),
        bash("true"),
        instructions=True,
        rules=[Rule("ask", "Bash(true)"), Rule("allow", "Bash")],
        asking=Asking("ask"),
    )
    assert bench.work(lease) == Waiting("approval")
    bench.answer(Reply("approved", "ann"))
    assert bench.work() == SUCCEEDED
    systems = {request.system for request in bench.model.requests}
    assert systems == {"Be brief.\n\n# AGENTS.md of the workspace\n\nBe kind."}
    assert sent_request(bench.database, lease.run_id, 3).system in systems
    (read,) = bench.happened("instructions_read")
    (file,) = read["files"]
    assert (file["path"], file["characters"], read["left_out"]) == ("AGENTS.md", 9, [])
    query = select(run_instructions)
    (row,) = bench.database.read(lambda connection: connection.execute(query).all())
    assert (row.run_id, row.sha256, row.text) == (lease.run_id, file["sha256"], "Be kind.\n")


def test_a_link_shows_the_model_no_file_that_the_rules_deny(bench: Bench) -> None:
    (bench.folder / ".env").write_text("TOKEN=hunter2")
    (bench.folder / "AGENTS.md").symlink_to(".env")
    (bench.folder / "CLAUDE.md").write_text("Be kind.")
    rules = [Rule("allow", "Read"), Rule("deny", "Read(.env)")]
    assert bench.work(bench.run_with([], instructions=True, rules=rules)) == SUCCEEDED
    assert bench.model.requests[0].system == (
        "Be brief.\n\n# CLAUDE.md of the workspace\n\nBe kind."
    )
    (read,) = bench.happened("instructions_read")
    assert read["left_out"] == [
        "AGENTS.md: it leads to .env: Read is denied by the rule deny 'Read(.env)'"
    ]


def test_they_count_towards_what_the_first_call_may_use(bench: Bench) -> None:
    (bench.folder / "CLAUDE.md").write_text("word " * 10_000)

    def worst_case(*, instructions: bool) -> int:
        assert bench.work(bench.run_with([], instructions=instructions)) == SUCCEEDED
        query = select(model_calls.c.worst_case).join(runs, runs.c.id == model_calls.c.run_id)
        newest = query.order_by(runs.c.created_at.desc()).limit(1)
        return int(bench.database.read(lambda connection: connection.execute(newest).scalar_one()))

    assert worst_case(instructions=True) - worst_case(instructions=False) >= 49_999


def test_a_job_that_does_not_ask_for_them_reads_none(bench: Bench) -> None:
    (bench.folder / "AGENTS.md").write_text("Be kind.\n")
    assert bench.work(bench.run_with([])) == SUCCEEDED
    assert bench.model.requests[0].system == "Be brief."
    assert bench.happened("instructions_read") == []
