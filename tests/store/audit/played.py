"""Runs in which something happens for every question to tell of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select, update

from runner.core.commands import Reply
from runner.core.conversation import Block, Tool, ToolOutcome, ToolResult, Usage
from runner.core.entries import ToolFinished
from runner.core.run import Author
from runner.core.spec import Asking, JobSpec
from runner.core.steps import LocateCalls, RunTools
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.approvals import answer
from runner.store.database import Database
from runner.store.tables import approvals, model_calls, runs, tool_calls
from tests.store.asked import run_ids
from tests.store.attempts import Attempt, claim, text, tool_use
from tests.store.examples import NOW, SPEC, submission

TOOLS = tuple(
    Tool(name, "A tool.", {"type": "object"}, read_only=name in ("Read", "Grep"))
    for name in ("Read", "Grep", "Write", "Edit", "Bash")
)
PLAYED = replace(
    SPEC,
    tools=TOOLS,
    rules=(
        Rule("allow", "Read"),
        Rule("allow", "Grep"),
        Rule("allow", "Write"),
        Rule("allow", "Edit"),
        Rule("allow", "Bash(ls *)"),
        Rule("allow", "Bash(cd *)"),
        Rule("allow", "Bash(git *)"),
        Rule("ask", "Bash(make *)", why="it is slow"),
        Rule("deny", "Bash(rm *)", why="nothing is deleted"),
    ),
    asking=Asking(default="ask"),
)
USAGE = Usage(input_tokens=100, cache_read_tokens=600, output_tokens=10)


@dataclass(frozen=True)
class Job:
    id: str
    runs: tuple[str, ...]


def submit(database: Database, *keys: str, spec: JobSpec = PLAYED, by: str = "ada") -> Job:
    """A job with a run for each key."""
    job_id = jobs_store.submit(database, submission(*keys, spec=spec), NOW, author=Author(by))
    return Job(job_id, tuple(run_ids(database, job_id)))


def bash(*commands: str) -> list[Block]:
    return [tool_use(number, "Bash", command=each) for number, each in enumerate(commands)]


def turn(
    attempt: Attempt,
    *uses: Block,
    results: Sequence[tuple[str, ToolOutcome]] = (),
    at: float | None = None,
) -> Attempt:
    """A reply with these calls, at a time, and the results of those that run; ``ok`` by default."""
    attempt.now = attempt.now if at is None else at
    attempt.reply(text("So."), *uses, stop="tool_use", usage=USAGE)
    return finish(attempt, results)


def finish(attempt: Attempt, results: Sequence[tuple[str, ToolOutcome]] = ()) -> Attempt:
    """The calls that run have these results, the others ``ok``."""
    left = list(results)
    if isinstance(attempt.effect, LocateCalls):
        attempt.locate()
    while isinstance(attempt.effect, RunTools):
        call = attempt.effect.calls[0]
        content, outcome = left.pop(0) if left else ("ok", "succeeded")
        attempt.append(ToolFinished(call.index, ToolResult(content, outcome, duration=0.5)))
    return attempt


def questions(database: Database, run_id: str) -> list[str]:
    """The ids of what a run has asked, in order."""
    query = select(approvals.c.id).where(approvals.c.run_id == run_id)
    query = query.order_by(approvals.c.message, approvals.c.position)
    return list(database.read(lambda connection: connection.execute(query).scalars().all()))


def reply_to(database: Database, approval_id: str, now: float = NOW + 60, **options: Any) -> None:
    """A person answers."""
    given = {"effect": "approved", "by": "lena", **options}
    (answered, *_) = answer(database, [approval_id], Reply(**given), now)
    assert answered.changed, answered


def call_model_otherwise(database: Database, run_id: str, number: int, model: str) -> None:
    """A run's model call was of another model."""

    def work(connection: Any) -> None:
        change = update(model_calls).where(
            model_calls.c.run_id == run_id, model_calls.c.number == number
        )
        connection.execute(change.values(model=model))

    database.write(work)


def play(database: Database) -> Job:
    """Two runs: one that asks and is answered, one that fails."""
    job = submit(database, "a.py", "b.py")
    first, second = job.runs
    attempt = claim(database, first)
    turn(
        attempt,
        tool_use(0, "Read", file_path="a.py"),
        tool_use(1, "Grep", pattern="x", path="src"),
        tool_use(2, "Write", file_path="new.py", content="x"),
        results=[
            ("1\tx", "succeeded"),
            ("none", "succeeded"),
            ("Made new.py (1 bytes).", "succeeded"),
        ],
        at=NOW + 10,
    )
    turn(
        attempt,
        *bash("ls -l", "cd app && git push origin", "rm -rf build", "make all"),
        results=[("a.py", "succeeded"), ("fatal: no such remote 'origin'", "failed")],
        at=NOW + 20,
    )
    reply_to(database, questions(database, first)[0], NOW + 80, reason="go on")
    attempt = claim(database, first, NOW + 90)
    finish(attempt)
    attempt.reply(text("Done."), usage=USAGE)
    attempt = claim(database, second, NOW + 100)
    turn(attempt, *bash("git push", "make test"), at=NOW + 110)
    reply_to(database, questions(database, second)[0], NOW + 170, effect="denied", by="bo")
    attempt = claim(database, second, NOW + 180)
    attempt.fail("invalid_request_error", "No such model: 7.")
    return job


def call_rows(database: Database) -> list[Any]:
    """All rows of tool calls, with their runs'."""
    query = select(tool_calls, runs.c.job_id, runs.c.item_key, runs.c.fork_turn).join(
        runs, runs.c.id == tool_calls.c.run_id
    )
    return list(database.read(lambda connection: connection.execute(query).all()))
