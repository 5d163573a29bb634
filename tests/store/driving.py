"""Drives one run through the store with a model, tools and people that do random things."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from runner.core.budget import Limits, Reservation
from runner.core.commands import Reply, Target
from runner.core.context import Compaction, TruncatedResult
from runner.core.conversation import ModelReply, ModelRequest, Tool, ToolResult, Usage
from runner.core.entries import (
    ContextCompacted,
    Delivered,
    Entry,
    HookFinished,
    InstructionsRead,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    SnapshotRecorded,
    SummaryReplied,
    TimeWorked,
    ToolFinished,
    ToolsListed,
    Verified,
)
from runner.core.fold import fold
from runner.core.hooks import Hook, Said, read_answer
from runner.core.model_calls import turn_request
from runner.core.run import Lease, Waiting
from runner.core.spec import JobSpec, ParallelTools
from runner.core.state import Call, RunState
from runner.core.steps import (
    CallModel,
    Deliver,
    Done,
    Effect,
    LocateCalls,
    RunHook,
    RunTools,
    RunVerify,
    Sleep,
)
from runner.core.tool_calls import changes_files, undo_needed
from runner.core.workspace import RESULT_TOOL, Instructions, Verify, Workspace, result_tool
from runner.permissions import ResolvedPath, Rule, ToolContext
from runner.permissions.accesses import paths_of
from runner.store import due_runs, jobs
from runner.store.approvals import answer
from runner.store.database import Database
from runner.store.journal import StoredJournal
from runner.store.questions import waiting
from runner.store.tables import queued_messages
from runner.store.tables import runs as run_table
from tests.store.asked import run_ids
from tests.store.attempts import decide, free
from tests.store.examples import NOW, submission

TOOLS = tuple(
    Tool(name, "A tool.", {"type": "object"}, read_only=name == "Read", repeatable=name == "Read")
    for name in ("Read", "Bash", "Deploy", "Ship")
)
SPEC = JobSpec(
    name="random",
    model="claude-test",
    tools=TOOLS,
    rules=(
        Rule("allow", "*"),
        Rule("deny", "Deploy"),
        Rule("ask", "Ship", why="it is public"),
        Rule("ask", "Bash(ship *)"),
        Rule("deny", "Bash(rm *)", why="it deletes"),
    ),
    limits=Limits(max_turns=12, token_ceiling=400_000, max_output_tokens=5_000),
)


INPUTS = {
    "Bash": [
        {"command": "ship 'a\nb' \u202e\x1b[31m > out"},
        {"command": "ship it"},
        {"command": "rm -rf 'x\ny'"},
        {"command": "ls | wc -l"},
        {"command": 7},
    ],
    "Read": [{"file_path": "a.txt"}, {}],
}


def located(tool: str, arguments: dict[str, Any]) -> ToolContext:
    places = {
        path: ResolvedPath(f"/work/{path}", f"/elsewhere/{path}")
        for path in paths_of(tool, arguments)
    }
    return ToolContext("/work", "/outputs", "/home/ann", places)


class Driver:
    names: tuple[str, ...] = ("Read", "Bash", "Deploy", "Ship", "Nothing")

    def __init__(self, database: Database, seed: int, spec: JobSpec = SPEC) -> None:
        self.random = random.Random(seed)
        self.database = database
        self.now = NOW
        job = jobs.submit(database, submission("one", spec=spec), NOW)
        (self.run_id,) = run_ids(database, job)
        self.journal = StoredJournal(database, lambda: self.now, free)

    def claim(self) -> tuple[Lease, RunState]:
        run = due_runs.look_at(self.database, self.run_id, self.now)
        assert run is not None
        lease = due_runs.claim(self.database, run, "worker_a", self.now)
        assert lease is not None
        return lease, self.journal.load(lease)

    def crash(self) -> None:
        def work(connection: Any) -> None:
            connection.execute(
                run_table.update()
                .where(run_table.c.id == self.run_id)
                .values(state="queued", worker_id=None, due_at=self.now)
            )

        self.database.write(work)

    def say(self) -> None:
        def work(connection: Any) -> None:
            connection.execute(
                queued_messages.insert().values(
                    run_id=self.run_id, text="By the way \u2028\x1b[31m.", created_at=self.now
                )
            )
            connection.execute(
                run_table.update()
                .where(run_table.c.id == self.run_id)
                .values(queued_count=run_table.c.queued_count + 1)
            )

        self.database.write(work)

    def reply_to_a_question(self) -> None:
        """The first one, so that the run goes on."""
        (question, *_) = waiting(self.database, Target("run", self.run_id))
        reply = Reply(
            self.random.choice(["approved", "denied"]),
            by="ann",
            edited=self.random.choice([None, {"command": "ship 'x\ny' > there", "n": 99}]),
            remember=self.random.choice(["call", "run", "job"]),
        )
        if question.asked_again or question.by_hook:
            reply = replace(reply, remember="call", edited=None)
        if reply.effect == "denied":
            reply = replace(reply, edited=None)
        elif reply.edited is not None:
            reply = replace(reply, remember="call")
        if reply.remember != "call":
            reply = replace(reply, rule=question.tool)
        (answered, *_) = answer(self.database, [question.id], reply, self.now)
        assert answered.changed

    def end_wait(self, effect: Done) -> bool:
        """Let what the run waits for come; False when it does not wait."""
        if effect != Done(Waiting("approval")):
            return False
        self.reply_to_a_question()
        return True

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        match effect:
            case CallModel(call) if call.purpose == "summary":
                return [self.sum_up(state)]
            case CallModel():
                return [self.answer(state)]
            case RunTools(calls):
                call = self.random.choice(calls)
                output = b"x" * 70_000 if self.random.random() < 0.2 else None
                text = self.random.choice(["ok", "é\u0000\ud800", ""]) or "(no output)"
                result = ToolResult(text, "succeeded", output, 0.25, details={"line": text})
                return [ToolFinished(call.index, result), *self.listed(state)]
            case Sleep(until):
                self.now = until
                return []
            case LocateCalls() | RunVerify() | Deliver() | Done():
                raise AssertionError(effect)

    def listed(self, state: RunState) -> list[Entry]:
        """The tools that the run has from now on, if an MCP server has changed its own."""
        if self.random.random() < 0.8:
            return []
        said = self.random.choice(["Less.", "é\u0000\ud800", ""])
        at = self.random.randrange(len(state.spec.tools))
        tools = list(state.spec.tools)
        tools[at] = replace(tools[at], description=said)
        return [ToolsListed(tuple(tools))]

    def compact(self, state: RunState, happened: list[Entry]) -> list[Entry]:
        """A compaction, or the beginning of a call for one, where no other call is under way."""
        if self.random.random() < 0.6:
            return []
        state = fold(state, happened)[-1].after
        if state.calls or state.model.open_call or len(state.messages) < 2:
            return []
        kind = self.random.choice(["clip", "prune", "summary"])
        if kind == "summary":
            reservation = Reservation(1_000, 5_000, False, worst_cost=7, hour_cache=True)
            number = state.model.calls + 1
            return [ModelCallStarted(number, reservation, self.now, "summary")]
        return [ContextCompacted(self.compaction(state, kind))]

    def compaction(self, state: RunState, kind: Any) -> Compaction:
        said = self.random.choice(["Less.", "é\u0000\ud800", ""])
        first = max(1, state.context.compacted.last)
        last = self.random.randint(first, max(first, len(state.messages) - 1))
        results = [
            (number, position)
            for number, message in enumerate(state.messages)
            for position, block in enumerate(message.blocks)
            if block["type"] == "tool_result"
        ]
        places = self.random.sample(results, k=len(results) // 2) if kind != "summary" else []
        return Compaction(
            kind,
            first,
            last,
            said,
            tuple(TruncatedResult(*place, said) for place in places),
            900,
            400,
        )

    def sum_up(self, state: RunState) -> Entry:
        if self.random.random() < 0.2:
            retry_at = self.random.choice([None, self.now + 2])
            return ModelCallFailed("api_error", "no", 500, "req_1", 0, self.now, retry_at)
        reply = ModelReply(
            ({"type": "text", "text": "S."},), "end_turn", Usage(9, 8, 7, 6), "claude-test"
        )
        is_used = self.random.random() < 0.7
        return SummaryReplied(reply, self.compaction(state, "summary") if is_used else None, "no")

    def answer(self, state: RunState) -> Entry:
        if self.random.random() < 0.2:
            return ModelCallFailed(
                "overloaded_error", "busy", 529, "req_1", 0, self.now, self.now + 2
            )
        names = self.random.choices(self.names, k=self.random.randint(0, 4))
        uses = tuple(
            {
                "type": "tool_use",
                "id": f"toolu_{state.turns}_{n}",
                "name": name,
                "input": self.random.choice(INPUTS.get(name, [{"n": n}])),
            }
            for n, name in enumerate(names)
        )
        reason = self.random.choice(["tool_use" if uses else "end_turn", "max_tokens", "end_turn"])
        text = ({"type": "text", "text": "I look."},) if self.random.random() < 0.8 else ()
        usage = Usage(100, 10, 5, 7)
        cut = {"type": "tool_use", "partial_json": '{"a'} if reason == "max_tokens" else None
        reply = ModelReply(text + uses, reason, usage, "claude-test", "req_2", 0.5, cut)
        return ModelReplied(reply, tuple(located(use["name"], use["input"]) for use in uses))

    def drive(self) -> dict[int, ModelRequest]:
        """Take the run to its end, comparing all the way what is loaded with what was folded; what
        each turn sent."""
        lease, state = self.claim()
        happened = self.begin(state)
        sent: dict[int, ModelRequest] = {}
        while True:
            if self.random.random() < 0.1:
                self.say()
            state, effect = self.journal.commit(lease, state, happened, decide)
            if isinstance(effect, Done):
                if not self.end_wait(effect):
                    return sent
                waited = state
                lease, state = self.claim()
                assert _unanswered(state) == _unanswered(waited)
                happened = self.begin(state)
                continue
            assert self.journal.load(lease) == state
            if isinstance(effect, CallModel) and effect.call.purpose == "turn":
                sent[state.turns + 1] = turn_request(state, effect.call)
            if self.random.random() < self.risk(effect):
                self.crash()
                lease, state = self.claim()
                happened = self.begin(state)
                continue
            if isinstance(effect, LocateCalls):
                calls = tuple(replace(call, tool_context=ToolContext()) for call in state.calls)
                state, happened = replace(state, calls=calls), []
                continue
            happened = [TimeWorked(0.1), *self.happen(effect, state)]
            happened += self.compact(state, happened)
            self.now += 0.5

    def risk(self, effect: Effect) -> float:
        """How likely its worker is to die now."""
        return 0.1

    def begin(self, state: RunState) -> list[Entry]:
        """What an attempt finds when it begins."""
        return []


def _unanswered(state: RunState) -> list[Call]:
    """The calls of a run, less what people answered meanwhile."""
    return [replace(call, answer=None) for call in state.calls]


RECORDED = replace(
    SPEC,
    tools=(*SPEC.tools, result_tool({"type": "object"})),
    workspace=Workspace(
        "/repo",
        "git",
        external=(Rule("ask", "Ship"), Rule("ask", "Bash(ship *)")),
        on_unknown="ask",
    ),
    verify=Verify(("ruff check", "pytest -q")),
)


class RecordedDriver(Driver):
    names = (*Driver.names, RESULT_TOOL)

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database, seed, self.spec_of(seed))
        self.trees = 0

    def spec_of(self, seed: int) -> JobSpec:
        parallel: tuple[ParallelTools, ...] = ("safe", "all")
        return replace(RECORDED, parallel_tools=parallel[seed % 2])

    def tree(self) -> str:
        self.trees += 1
        return f"tree {self.trees}"

    def begin(self, state: RunState) -> list[Entry]:
        if state.files.tree is None:
            return [SnapshotRecorded(self.tree(), "created")]
        if undo_needed(state):
            return [SnapshotRecorded(state.files.tree, "restored", self.tree())]
        return [SnapshotRecorded(self.tree(), "changed")] if self.random.random() < 0.2 else []

    def risk(self, effect: Effect) -> float:
        return 0.4 if isinstance(effect, RunTools) else super().risk(effect)

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        match effect:
            case RunTools(calls) if changes_files(state, calls):
                tree, output = self.tree(), self.random.choice([None, b"x" * 70_000])
                result = ToolResult("ok \u0000", "succeeded", output, 0.25)
                return [ToolFinished(call.index, result, tree) for call in calls]
            case RunVerify(number):
                outcome = self.random.choice(["succeeded", "failed", "timed_out"])
                output = self.random.choice([None, b"x" * 70_000])
                result = ToolResult("{é\u0000\ud800", outcome, output, 0.25)
                return [Verified(number, "pytest -q", result)]
            case Deliver():
                return [Delivered(f"commit of {state.files.tree}")]
            case _:
                return super().happen(effect, state)


HOOKS = (
    Hook("RunStart", command="start"),
    Hook("PreToolUse", command="first \u202e\x1b[31m"),
    Hook("PreToolUse", ("Bash(ship *)", "Read(*.txt)"), command="ships", on_failure="continue"),
    Hook("PreToolUse", ("Ship",), function="ours:hook@/there", repeatable=True),
    Hook("PostToolUse", ("Read(a.txt)", "Bash"), command="after", repeatable=True),
    Hook("PostToolUse", command="after all"),
    Hook("TurnEnd", command="turn", repeatable=True),
    Hook("TurnEnd", command="turn again"),
    Hook("RunEnd", command="end"),
)

_PRINTED = (
    b"",
    b"plain \x1b[31m\0 text",
    b"{not json",
    b'{"decision": "block", "reason": "no\\n\\u202e\\ud800\\u0000"}',
    b'{"hookSpecificOutput": {"additionalContext": "so\\n\\u2028"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "x\\ny"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "deny"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "allow"}}',
    b'{"hookSpecificOutput": {"updatedInput": {"command": "ls", "n": 1}}}',
    b'{"hookSpecificOutput": {"updatedInput": {"file_path": "a.txt", "command": "ship it"}}}',
    b'{"hookSpecificOutput": {"permissionDecision": "ask", "updatedInput": {"command": "ls"}}}',
)


class HookedDriver(Driver):
    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database, seed, replace(SPEC, hooks=HOOKS, instructions=True))

    def begin(self, state: RunState) -> list[Entry]:
        return [*super().begin(state), *instructed(self, state)]

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        if isinstance(effect, RunHook):
            return [ended(self, effect, None)]
        return super().happen(effect, state)

    def risk(self, effect: Effect) -> float:
        return 0.3 if isinstance(effect, RunHook) else super().risk(effect)


class RecordedHookedDriver(RecordedDriver):
    def spec_of(self, seed: int) -> Any:
        return replace(super().spec_of(seed), hooks=HOOKS, instructions=True)

    def begin(self, state: RunState) -> list[Entry]:
        return [*super().begin(state), *instructed(self, state)]

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        if isinstance(effect, RunHook):
            changed = effect.run.event != "RunEnd" and self.random.random() < 0.3
            return [ended(self, effect, self.tree() if changed else None)]
        return super().happen(effect, state)

    def risk(self, effect: Effect) -> float:
        return 0.3 if isinstance(effect, RunHook) else super().risk(effect)


def instructed(driver: Driver, state: RunState) -> list[Entry]:
    if state.files.instructed:
        return []
    files = (Instructions("AGENTS.md", "12" * 32, "Be kind.\n"), Instructions("C", "0" * 64, "é"))
    chosen = files[: driver.random.randint(0, 2)]
    return [InstructionsRead(chosen, ("X: it is empty",))]


def ended(driver: Driver, step: RunHook, tree: str | None) -> Entry:
    if driver.random.random() < 0.2:
        code = driver.random.choice([1, 2, -9])
        said = Said("exited", code, errors=b"no \x07\nreason", duration=0.5)
    elif driver.random.random() < 0.1:
        said = Said(driver.random.choice(["timed_out", "lost", "shut_down", "not_started"]))  # type: ignore[arg-type]
    else:
        said = Said("exited", output=driver.random.choice(_PRINTED))
    return HookFinished(step.run.number, read_answer(step.run.event, said, 60.0), tree)
