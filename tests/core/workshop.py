"""The world of runs whose workspaces are recorded: files that calls change by and by, people who change
them too, a check of the work, and a branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from runner.core.conversation import Tool, ToolResult
from runner.core.entries import (
    Delivered,
    Entry,
    RunSettled,
    SnapshotRecorded,
    ToolFinished,
    Verified,
)
from runner.core.run import Ended, Requeued
from runner.core.state import Call
from runner.core.steps import CallModel, Deliver, Done, Effect, RunTools, RunVerify
from runner.core.tool_calls import changes_files, is_external, runs_again, undo_needed
from runner.core.workspace import RESULT_TOOL, result_tool
from tests.core.story import DEPLOY, GREP, READ, changed
from tests.core.world import World

# Make changes the workspace and nothing else; Push reaches beyond it.
MAKE = Tool("Make", "Change files.", {"type": "object"})
PUSH = Tool("Push", "Change files, and send them away.", {"type": "object"})
TOOLS = (READ, GREP, DEPLOY, MAKE, PUSH, result_tool({"type": "object"}))
NAMES = ("Read", "Make", "Push", "Push", "Nothing", RESULT_TOOL)

# What is done to the files, in order: by a call (its id), or half of it (its id and "?"), or by others.
Files = tuple[str, ...]


@dataclass
class Workshop(World):
    """``files`` is the workspace; its recorded trees are texts of it."""

    names: tuple[str, ...] = NAMES
    files: Files = ()
    commits: list[tuple[Ended, Files]] = field(default_factory=list)
    passed: list[Files] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prepare()

    @property
    def tree(self) -> str:
        return " ".join(self.files)

    # --- what a worker does ---

    def die(self) -> None:
        super().die()
        if self.chance():
            self.files += ("someone's",)
        self.prepare()

    def prepare(self) -> None:
        """The workspace at the start of an attempt; its worker may die before it says so."""
        recorded = self.state.files.tree
        while True:
            found, cause = self.tree, None
            if recorded is None:
                cause = "created"
            elif undo_needed(self.state):
                self.files = tuple(recorded.split())
                cause = "restored" if found != recorded else None
            elif found != recorded:
                cause = "changed"
            if not self.chance():
                break
            super().die()
        if cause is not None:
            self.append(SnapshotRecorded(self.tree, cause, found if cause == "restored" else None))

    def run_tools(self, step: RunTools) -> None:
        if not changes_files(self.state, step.calls):
            super().run_tools(step)
            return
        assert not self.draining
        assert self.tree == self.state.files.tree, "a call runs on files that are not recorded"
        for call in self.draw(st.permutations(step.calls)):
            if self.chance():
                self.files += (f"{call.id}?",)
                self.cut(step.calls)
                return
            if call.name in ("Make", "Push"):
                self.files += (call.id,)
        if self.chance():
            self.die()
            return
        result = ToolResult("done", self.draw(st.sampled_from(["succeeded", "failed"])))
        self.append(*(ToolFinished(call.index, result, self.tree) for call in step.calls))

    def cut(self, calls: Sequence[Call]) -> None:
        """Calls are cut in the middle: by the end of their worker, or by its shutdown."""
        if not self.draw(st.booleans()):
            self.die()
        elif all(runs_again(self.state, call) for call in calls):
            shut_down = Requeued(self.now, "shutdown")
            self.append(RunSettled(shut_down))
            self.take_up(Done(shut_down))
        else:
            result = ToolResult("Interrupted by shutdown of the worker.", "interrupted")
            self.append(*(ToolFinished(call.index, result, self.tree) for call in calls))

    def do(self, effect: Effect) -> None:
        match effect:
            case RunVerify(number):
                self.verify(number)
            case Deliver(outcome):
                self.deliver(outcome)
            case _:
                super().do(effect)

    def verify(self, number: int) -> None:
        assert not self.draining
        recorded = self.files
        assert self.tree == self.state.files.tree
        self.files += ("what the tests left",)
        if self.chance():
            self.die()
            return
        self.files = recorded
        if self.draw(st.booleans()):
            self.passed.append(recorded)
            self.append(Verified(number, "pytest", ToolResult("ok")))
        else:
            self.append(Verified(number, "pytest", ToolResult("no", "failed")))

    def deliver(self, outcome: Ended) -> None:
        assert not self.draining
        if self.chance():
            self.die()
            return
        self.commits.append((outcome, self.files))
        if self.chance():
            self.die()
            return
        self.append(Delivered(f"commit {len(self.commits)}"))

    def call_model(self, step: CallModel) -> None:
        assert self.tree == self.state.files.tree, "the model goes on without what it did"
        super().call_model(step)

    def take_up(self, done: Done) -> None:
        if isinstance(done.outcome, Ended):
            self.check_end(done.outcome)
            self.state = changed(self.state, delivered=None)  # as ``runner retry`` does
        super().take_up(done)

    # --- what is promised ---

    def watch(self, entry: Entry) -> None:
        super().watch(entry)
        if isinstance(entry, ToolFinished):
            call = self.state.calls[entry.index]
            if entry.result.outcome == "unknown":
                assert is_external(self.state, call)

    def may_start_again(self, call: Call) -> bool:
        approved = call.asked_again and call.answer is not None
        return super().may_start_again(call) or approved or not is_external(self.state, call)

    def check_end(self, outcome: Ended) -> None:
        """What holds at every end that was decided."""
        assert self.commits
        assert self.commits[-1] == (outcome, self.files)
        verify = self.state.spec.verify
        if outcome.state == "succeeded":
            assert verify is None or self.passed[-1] == self.files
            assert (outcome.reason == "submitted") == (self.state.spec.result_tool is not None)
        assert verify is None or self.state.ending.verify_failures <= verify.rounds
