"""A record in which every view and every question finds something."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import insert, select, text, update

from runner.core.budget import Limits
from runner.core.commands import Reply, Target
from runner.core.context import Context
from runner.core.conversation import ModelReply, Tool, ToolResult, Usage
from runner.core.entries import ToolFinished
from runner.core.hooks import Hook
from runner.core.network import Connection
from runner.core.run import Author
from runner.core.spec import Asking, JobSpec
from runner.core.steps import RunTools
from runner.permissions import Rule
from runner.store import jobs as jobs_store
from runner.store.approvals import answer
from runner.store.control import cancel
from runner.store.database import Database
from runner.store.fork import fork
from runner.store.questions import waiting
from runner.store.tables import events, hook_runs, jobs, metadata, run_workspaces, runs, tool_calls
from tests.core.story import replied
from tests.docs.happenings import play
from tests.store.asked import BASH, run_ids
from tests.store.attempts import Attempt, claim, run_row, submit_one, tool_use
from tests.store.attempts import text as says
from tests.store.compacting import ask_for_summary, stand_in, summarise
from tests.store.examples import NOW, SPEC, submission
from tests.store.family import end_child, parent_with_two, start_child, work_child

HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
USAGE = Usage(
    input_tokens=1_000, cache_read_tokens=60_000, cache_creation_tokens=9_000, output_tokens=700
)
LONG = replace(USAGE, cache_read_tokens=250_000)
# What neither database can hold in a column of text, or give as one.
ODD = (
    "nul \u0000 here",
    "half \ud83d of a pair",
    "half \udc00 and a whole 😀",
    "whole 😀",
    "a back\\slash, a \\u0000 and a \\ud83d that are only written so, \\",
    "\\\u0000\\\\\ud800",
    "é\n\t\x1b[31m\"quoted\" 'q' %s $1 :a",
    "",
)


def tell(database: Database) -> None:
    """Let it happen."""
    play(database)
    mend(database)
    fork_in_the_middle(database)
    ask(database)
    say_odd_things(database)
    pay(database)
    delegate(database)
    connect(database)


def mend(database: Database) -> None:
    """Runs of two items that read, change and run things; one fails."""
    spec = replace(
        SPEC,
        name="mend-tests",
        model="claude-opus-5",
        tools=(
            *SPEC.tools,
            BASH,
            Tool("Edit", "Edits a file.", {"type": "object"}, read_only=False),
        ),
        rules=(
            Rule("allow", "Read"),
            Rule("allow", "Edit"),
            Rule("allow", "Bash"),
            Rule("deny", "Bash(rm *)", why="nothing is deleted"),
        ),
        limits=Limits(max_turns=30),
    )
    job_id = jobs_store.submit(
        database,
        submission("src/a.py", "src/b.py", spec=spec),
        NOW,
        author=Author("ada", "nightly"),
    )
    for number, run_id in enumerate(run_ids(database, job_id)):
        attempt = claim(database, run_id, NOW + 60 * number)
        think = {"type": "thinking", "thinking": "Let me look.", "signature": "s"}
        use(attempt, think, says("I shall look."), tool_use(1, "Read", file_path="/src/a.py"))
        attempt.now += 2.5
        finish(attempt, ToolResult("def a(): ...", duration=0.25))
        more = [tool_use(2, "Bash", command="make test"), tool_use(3, "Bash", command="rm -rf /")]
        use(attempt, *more)
        failure = ToolResult("2 failed", "failed", duration=12.5, containment="bubblewrap")
        finish(attempt, replace(failure, output=b"2 failed\n" * 1_000))
        use(attempt, tool_use(4, "Edit", file_path="/src/a.py", old_string="a", new_string="b"))
        finish(attempt, ToolResult("edited", duration=0.1))
        use(attempt, tool_use(5, "Edit", file_path="/src/link.py", old_string="", new_string="b"))
        finish(attempt, ToolResult("the link leads out of the workspace", "denied"))
        if number:
            attempt.fail("invalid_request_error", "No.")
        else:
            use(attempt, says("Done."), stop="end_turn")
            place = {"path": "/w/1", "branch": "runner/mend", "store_id": "store_1"}
            row = {"run_id": run_id, **place, "commit_id": "c0ffee", "created_at": NOW}
            database.write(lambda c, row=row: c.execute(insert(run_workspaces).values(row)))  # type: ignore[misc]


def connect(database: Database) -> None:
    """The first call of a sub-agent reached a host; an imported event has data of another shape."""
    first = select(tool_calls.c.run_id, tool_calls.c.turn, tool_calls.c.position)
    first = first.join(runs, runs.c.id == tool_calls.c.run_id).where(runs.c.depth > 0)
    call = database.read(lambda c: c.execute(first.order_by(*tool_calls.primary_key)).first())
    assert call is not None
    made = asdict(
        Connection("packages.example.org", 443, NOW + 0.5, "failed", "no such name", 12, 3_400, 2)
    )
    made |= {"turn": call.turn, "call_index": call.position}
    odd = {
        "host": "\u0000",
        "port": "x",
        "at": "y",
        "turn": 1.5,
        "count": 10**30,
        "why": "half \ud83d",
    }
    for number, data in enumerate((made, odd, [], "x", {"verification": 1}), 900):
        row = {"run_id": call.run_id, "number": number, "at": NOW, "attempt": 1}
        row |= {"type": "connection", "data": data}
        database.write(lambda c, row=row: c.execute(insert(events).values(**row)))  # type: ignore[misc]


def use(attempt: Attempt, *blocks: Any, stop: str = "tool_use", usage: Usage = USAGE) -> None:
    reply = ModelReply(blocks, stop, usage, "claude-opus-5", "req_1", latency=1.5)
    attempt.append(replied(reply))


def finish(attempt: Attempt, result: ToolResult) -> None:
    """The calls that run end alike."""
    while isinstance(attempt.effect, RunTools):
        attempt.append(ToolFinished(attempt.effect.calls[0].index, result))


def fork_in_the_middle(database: Database) -> None:
    """A run goes on from the second turn of another, of whose calls it has copies."""
    query = select(runs.c.id).join(jobs, jobs.c.id == runs.c.job_id)
    query = query.where(jobs.c.name == "mend-tests", runs.c.item_key == "src/a.py")
    run_id = database.read(lambda connection: connection.execute(query).scalar_one())
    again = fork(database, run_id, 2, NOW + 500, text="Try again.", author=Author("ada")).id
    attempt = claim(database, again, NOW + 600)
    use(attempt, tool_use(6, "Bash", command="rm b"), tool_use(7, "Bash", command="make test"))
    finish(attempt, ToolResult("all passed", duration=3.5))
    use(attempt, says("Passed."), stop="end_turn")


def ask(database: Database) -> None:
    """Two commands are asked about: a person approves one and denies the other."""
    spec = replace(
        SPEC,
        name="release",
        tools=(*SPEC.tools, BASH),
        rules=(Rule("ask", "Bash(git push *)", why="it leaves this machine"),),
        asking=Asking(default="ask"),
    )
    run_id = submit_one(database, spec=spec)
    calls = [tool_use(n, "Bash", command=f"git push origin v{n}") for n in (1, 2)]
    claim(database, run_id).reply(*calls, stop="tool_use")
    first, second = waiting(database, Target("run", run_id))
    answer(
        database,
        [first.id],
        Reply("approved", "ada", "it is time", edited={"command": "git push v1"}),
        NOW + 30,
    )
    answer(database, [second.id], Reply("denied", "bo", "not on a Friday"), NOW + 3_600)
    cancel(database, Target("run", run_id), NOW + 4_000, author=Author("cy", "enough"))


def say_odd_things(database: Database) -> None:
    """Texts of every kind that a column of text does not take."""
    spec = replace(SPEC, tools=(*SPEC.tools, BASH), rules=(Rule("allow", "*"),))
    attempt = claim(database, submit_one(database, spec=spec))
    for number, odd in enumerate(ODD):
        attempt.reply(
            says(f"said {odd}"), tool_use(number, "Bash", command=odd, path=[odd]), stop="tool_use"
        )
        finish(attempt, ToolResult(odd))
    attempt.reply(tool_use(99, "Bash", command=True, file_path=5, path="p"), stop="tool_use")
    finish(attempt, ToolResult("no"))
    attempt.reply(says("Done."))


def delegate(database: Database) -> None:
    """A run has two sub-agents, and hooks run at what one of them does."""
    _, first, second = parent_with_two(database)
    work_child(database, start_child(database, second, 1, message=None, position=None))
    end_child(database, first)
    hook = {
        "run_id": first,
        "hook": 0,
        "turn": 1,
        "attempt": 1,
        "started_at": NOW,
        "ended_at": NOW + 2,
        "duration": 2.0,
        "outcome": "succeeded",
        "exit_code": 0,
    }
    about = {"message": 1, "position": 1, "decision": "allow", "reason": "It is safe."}
    trees = {"tree_before": "aaa", "tree_after": "bbb"}
    said = {"context": "Mind the gap.", "output": "{}", "errors": "one\n", "stops": True}
    rows = (
        {**hook, "number": 1, "event": "PreToolUse", "name": "check.sh", **about},
        {**hook, "number": 2, "hook": 1, "event": "RunEnd", "name": "module:done", **trees, **said},
    )
    changed = update(tool_calls).where(tool_calls.c.run_id == first, tool_calls.c.position == 1)
    of_job = jobs.c.id == run_row(database, first).job_id
    hooks = [Hook("PreToolUse", command="check.sh"), Hook("RunEnd", function="module:done@/there")]

    def work(connection: Any) -> None:
        spec = connection.execute(select(jobs.c.spec).where(of_job)).scalar_one()
        hooked = spec | {"hooks": [*map(asdict, hooks)]}
        connection.execute(update(jobs).where(of_job).values(spec=hooked))
        for row in rows:
            connection.execute(insert(hook_runs).values(row))
        connection.execute(changed.values(updated_input={"file_path": "b"}))

    database.write(work)


def pay(database: Database) -> None:
    """Jobs that are billed on all kinds of terms."""
    for options in (
        {},
        HOUR,
        {"extra_body": {"speed": "fast"}},
        {"speed": "fast", "extra_body": {"speed": "slow", "inference_geo": "us"}},
        {"speed": "fast", "extra_body": {"speed": None}},
        {"inference_geo": "us", **HOUR},
        {"cache_control": {"type": "ephemeral"}, "extra_body": {**HOUR}},
    ):
        for model in ("claude-opus-5", "claude-test"):
            bill(database, replace(SPEC, model=model, model_options=options))
    bill(database, replace(SPEC, provider="scripted", script={}))
    context = Context(summary_model="claude-cheap")
    for summary in (context, Context()):
        spec = replace(SPEC, model_options={"speed": "fast"}, context=summary)
        attempt = ask_for_summary(claim(database, submit_one(database, spec=spec)))
        summarise(attempt, stand_in(2), model=spec.summary_model, usage=USAGE)
        attempt.reply(says("Done."), usage=USAGE)
        lost = submit_one(database, spec=spec)
        ask_for_summary(claim(database, lost))
        cancel(database, Target("run", lost), NOW)


def bill(database: Database, spec: JobSpec) -> None:
    """A run with a short call, a long one, and one of which nobody knows what it used."""
    run_id = submit_one(database, spec=spec)
    attempt = claim(database, run_id, NOW + 86_400)
    names = (spec.model, f"{spec.model}-20261122", f"{spec.model}-latest", "claude-nobody")
    for number, model in enumerate(names):
        for usage in (USAGE, LONG):
            reply = ModelReply((tool_use(number),), "tool_use", usage, model, "req_1")
            attempt.append(replied(reply))
            finish(attempt, ToolResult("ok"))
    cancel(database, Target("run", run_id), NOW + 90_000)


def copy(database: Database, other: Database) -> None:
    """Give another database, which holds nothing, the same rows."""
    for table in metadata.sorted_tables:
        rows = database.read(lambda c, t=table: c.execute(select(t)).mappings().all())  # type: ignore[misc]
        if rows:
            other.write(lambda c, t=table, r=rows: _insert(c, t, r))  # type: ignore[misc]


def _insert(connection: Any, table: Any, rows: Any) -> None:
    if connection.dialect.name == "postgresql":  # runs refer to runs, rules to runs
        connection.execute(text("SET session_replication_role = replica"))
    connection.execute(insert(table), [dict(row) for row in rows])
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET session_replication_role = DEFAULT"))
