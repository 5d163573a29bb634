"""The workspace's instructions in the prompts of a run."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from sqlalchemy import select

from runner.core.commands import Reply
from runner.core.entries import UserMessageAdded
from runner.core.run import Ended, Lease, Waiting
from runner.core.spec import Asking
from runner.engine.attempt_workspace import AttemptWorkspace
from runner.permissions import Rule
from runner.queries.transcript import sent_request
from runner.store import leases
from runner.store.journal import StoredJournal
from runner.store.tables import model_calls, run_instructions, runs
from tests.engine.hooks.bench import Bench, bash, texts
from tests.engine.test_attempt import claim

SUCCEEDED = Ended("succeeded", "end_turn")
READ = "instructions_read"


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


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def next_attempt(bench: Bench, lease: Lease) -> Lease:
    leases.give_back(bench.database, lease, bench.ports.clock.now())
    return claim(bench.database)


def sent_texts(bench: Bench, request: int) -> list[str]:
    """The texts that are new in a request to the model, after the last reply."""
    last = bench.model.requests[request].messages[-1]
    return [block["text"] for block in last.blocks if block["type"] == "text"]


def test_changed_instructions_are_told_once_before_the_next_turn(bench: Bench) -> None:
    (bench.folder / "AGENTS.md").write_text("Be kind.\n")
    replies = ("echo Be brisk. > AGENTS.md", "true", "rm AGENTS.md", "true")
    bench.work(bench.run_with([], *map(bash, replies), instructions="follow"))
    assert {request.system for request in bench.model.requests} == {
        "Be brief.\n\n# AGENTS.md of the workspace\n\nBe kind."
    }
    first, changed, same, gone, still = (sent_texts(bench, number) for number in range(5))
    assert changed[-1].endswith("# AGENTS.md of the workspace\n\nBe brisk.")
    assert "has changed" in changed[-1]
    assert gone[-1].startswith("AGENTS.md of the workspace is gone")
    assert (len(first), same, still) == (1, [], [])
    digests = [[file["sha256"] for file in read["files"]] for read in bench.happened(READ)]
    assert digests == [[sha256(b"Be kind.\n")], [sha256(b"Be brisk.\n")], []]
    assert [each["cause"] for each in bench.happened("message_added")] == ["instructions"] * 2
    bench.check_requests()


def test_followed_instructions_keep_to_the_rules_and_the_size(bench: Bench) -> None:
    (bench.folder / "AGENTS.md").write_text("Be kind.\n")
    (bench.folder / ".env").write_text("TOKEN=hunter2")
    (bench.folder / "link.sh").write_text("ln -sf .env AGENTS.md")
    replies = ("sh link.sh", "head -c 70000 /dev/zero | tr '\\0' x > CLAUDE.md")
    rules = [Rule("allow", "Bash"), Rule("deny", "Read(.env)")]
    bench.work(bench.run_with([], *map(bash, replies), instructions="follow", rules=rules))
    assert "hunter2" not in "".join(map(texts, bench.model.requests))
    (told,) = sent_texts(bench, 1)
    assert told.startswith("AGENTS.md of the workspace is gone, or may not be read")
    assert sent_texts(bench, 2) == []
    assert "leads to .env" in bench.happened(READ)[-1]["left_out"][0]


def test_a_worker_killed_between_reading_and_committing_tells_it_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*arguments: object) -> None:
        raise Killed

    (bench.folder / "AGENTS.md").write_text("Be kind.\n")
    lease = bench.run_with(
        [], bash("echo Be brisk. > AGENTS.md"), bash("true"), instructions="follow"
    )
    with monkeypatch.context() as patch:
        patch.setattr(AttemptWorkspace, "reread_instructions", die)
        with pytest.raises(Killed):
            bench.work(lease)
    commit = StoredJournal.commit

    def cut(self: StoredJournal, *arguments: Any) -> Any:
        if any(isinstance(entry, UserMessageAdded) for entry in arguments[2]):
            raise Killed
        return commit(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StoredJournal, "commit", cut)
        with pytest.raises(Killed):
            bench.work(lease := next_attempt(bench, lease))
    assert bench.happened("message_added") == []
    assert bench.work(next_attempt(bench, lease)) == SUCCEEDED
    assert [each["cause"] for each in bench.happened("message_added")] == ["instructions"]
    assert len(bench.happened(READ)) == 2
    bench.check_requests()
