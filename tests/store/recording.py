"""Drives a run whose workspace is recorded through the store: trees, cut off calls that people are
asked about, a result, verifications, commits."""

from __future__ import annotations

from dataclasses import replace

from runner.core.calls import changes_files, undo_needed
from runner.core.conversation import ToolResult
from runner.core.entries import Delivered, Entry, SnapshotRecorded, ToolFinished, Verified
from runner.core.spec import JobSpec, ParallelTools
from runner.core.state import RunState
from runner.core.steps import Deliver, Effect, RunTools, RunVerify
from runner.core.workspace import RESULT_TOOL, Verify, Workspace, result_tool
from runner.permissions import Rule
from runner.store.database import Database
from tests.store.driving import SPEC, Driver

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
