"""What an attempt does where its run works: the workspace is made ready, tools run in it, what they
leave is recorded, verified and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from runner.core.agents.starting import children_work_in, is_busy
from runner.core.calls import changes_tree, with_edit_told
from runner.core.conversation import ToolResult
from runner.core.files.doubt import commands_left, edits_left, in_doubt, runs_again, undo_needed
from runner.core.journal.entries import (
    Delivered,
    Entry,
    InstructionsRead,
    ToolFinished,
    TreeRecorded,
    Verified,
)
from runner.core.journal.view import Call, RunView
from runner.core.run import Ended, Lease
from runner.errors import Interrupted
from runner.permissions import Authorization, ToolContext, digest_of, paths_of
from runner.ports import Command, Interrupt, Surroundings, ToolCall, Tools, Workspaces

_MOST_TOOLS_AT_ONCE = 32
_MOST_NAMED = 5
_ALL_FILES = "the files of the workspace"

_SHUT_DOWN = ToolResult("Interrupted by shutdown of the worker.", "interrupted")

T = TypeVar("T")


class Insist(Protocol):
    def __call__(self, work: Callable[[], T]) -> T:
        """Do it until the database, when it is away, is there again."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """What came of a call that a shutdown cut."""

    call: Call


@dataclass(slots=True)
class Workplace:
    """The workspace of an attempt's run, and the tools in it. Every method but those that look up
    places raises ``WorkspaceError`` when the workspace is of no use any more, and ``Interrupted``.

    Args:
        call_id: names a tool call by run, turn and index.
    """

    lease: Lease
    tools: Tools
    workspaces: Workspaces
    call_id: Callable[[str, int, int], str]
    interrupt: Interrupt
    insist: Insist
    surroundings: Surroundings = field(init=False)

    def prepare(self, view: RunView) -> tuple[list[Entry], Mapping[int, str]]:
        """Have the workspace ready, as it was before what an earlier attempt left half done.

        Returns:
            What is to be stored of it; and what ``RunView.unrecorded`` is.

        Raises:
            WorkspaceElsewhere: what was recorded of it is not here.
        """
        tree = view.progress.tree
        if tree is None and view.spec.is_recorded:  # of before an upgrade
            unrecorded = {call.index: _ALL_FILES for call in in_doubt(view)}
        else:
            unrecorded = self._beside(view, commands_left(view), self.interrupt)
        undo = undo_needed(replace(view, unrecorded=unrecorded))
        busy = is_busy(view)
        prepared = self.insist(
            lambda: self.workspaces.prepare(self.lease, tree, self.interrupt, undo=undo, busy=busy)
        )
        self.surroundings = prepared.surroundings
        for call in edits_left(view):
            path = str(call.input_to_run.get("file_path"))
            if not self.workspaces.holds(self.lease, path):
                unrecorded[call.index] = path
        if prepared.tree is None or prepared.cause is None:
            return [], unrecorded
        cause = prepared.cause
        if cause == "changed" and children_work_in(view):
            cause = "children"
        return [TreeRecorded(prepared.tree, cause, prepared.found)], unrecorded

    def instructions(self, view: RunView) -> InstructionsRead:
        """What the workspace says to agents."""
        return self.tools.instructions(self.surroundings, view.policy)

    def _beside(
        self, view: RunView, commands: Sequence[Call], interrupt: Interrupt
    ) -> dict[int, str]:
        """What commands may have changed that is in no tree, by their indexes."""
        tree = view.progress.tree
        if not commands or tree is None:
            return {}
        found = self.insist(lambda: self.workspaces.unrecorded(self.lease, tree, interrupt))
        names = ", ".join(found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
        return {call.index: names for call in commands} if found else {}

    def tool_context(self, view: RunView, name: str, arguments: Any) -> ToolContext:
        """Where a call would run, and what is wrong with its input."""
        tool = view.spec.tool(name)
        if tool is None or not isinstance(arguments, dict):
            return ToolContext()
        located = self.tools.locate(paths_of(name, arguments), self.surroundings)
        return replace(located, problem=self.tools.problem(tool, arguments) or "")

    def located(self, view: RunView, call: Call) -> Call:
        """The call, with where it would run."""
        tool_context = self.tool_context(view, call.name, call.input_to_run)
        if call.answer is None or not call.is_edited:
            return replace(call, tool_context=tool_context)
        places = tuple(place.real for place in tool_context.places.values())
        return replace(call, tool_context=tool_context, answer=replace(call.answer, places=places))

    def run(
        self, view: RunView, calls: Sequence[Call], append: Callable[[Entry], None]
    ) -> list[Entry]:
        """Run calls side by side. What changes the workspace is done together or not at all: all
        results are returned, with the tree after them. Otherwise each is appended as it comes, save
        the last, which is returned so that it is stored with what follows."""
        if changes_tree(view, calls):
            return self._run_as_one(view, calls)
        if len(calls) == 1:
            return [*self._ended(view, calls, [self._run_tool(view, calls[0])])]
        with self._side_by_side(view, calls) as running:
            ended = as_completed(running)
            for _ in running[1:]:
                (entry,) = self._ended(view, calls, [next(ended).result()])
                append(entry)
            return [*self._ended(view, calls, [next(ended).result()])]

    def verify(self, view: RunView, number: int) -> list[Entry]:
        """Run the commands that verify the run's work, up to the first that fails; what they change
        is put back."""
        verify = view.spec.verify
        assert verify is not None, "only a job that says how is verified"
        for position, text in enumerate(verify.commands, 1):
            command = Command(
                name=f"verify_{number}_{position}",
                run_id=view.run_id,
                command=text,
                surroundings=self.surroundings,
                timeout=verify.timeout,
            )
            result = self.tools.command(command, self.interrupt)
            if (
                result.outcome == "interrupted"
            ):  # it was killed from outside, and says nothing of the work
                self._put_back(view)
                result = self.tools.command(command, self.interrupt)
            if result.is_error:
                break
        self._put_back(view)
        return [Verified(number, command.command, result)]

    def record_shared(self) -> str:
        """Record the folder that the run shares with one above it; empty when none is recorded of it."""
        record = self.workspaces.record_shared
        return self.insist(lambda: record(self.lease, self.interrupt)) or ""

    def _put_back(self, view: RunView) -> None:
        if (tree := view.progress.tree) is not None:
            self.insist(lambda: self.workspaces.restore(self.lease, tree, self.interrupt))

    def deliver(self, outcome: Ended) -> list[Entry]:
        """Commit what the run leaves."""
        commit = self.insist(lambda: self.workspaces.deliver(self.lease, outcome, self.interrupt))
        return [Delivered(commit)]

    def _run_as_one(self, view: RunView, calls: Sequence[Call]) -> list[Entry]:
        with self._side_by_side(view, calls) as running:
            finished = self._ended(view, calls, [future.result() for future in running])
        with self.interrupt.past_shutdown() as interrupt:
            tree = self.insist(lambda: self.workspaces.record(self.lease, interrupt))
        return [replace(entry, tree=tree) for entry in finished]

    def _ended(
        self, view: RunView, calls: Sequence[Call], finished: Sequence[ToolFinished | _Cut]
    ) -> list[ToolFinished]:
        """What is stored of calls that ran together. What a shutdown cut has no result where it would
        run again after a crash: the next attempt does as after one.

        Raises:
            Interrupted: so it is.
        """
        if any(isinstance(entry, _Cut) for entry in finished) and self._run_again(view, calls):
            raise Interrupted("shutdown")
        return [
            ToolFinished(entry.call.index, with_edit_told(entry.call, _SHUT_DOWN))
            if isinstance(entry, _Cut)
            else entry
            for entry in finished
        ]

    def _run_again(self, view: RunView, calls: Sequence[Call]) -> bool:
        """Whether all the calls would run again after a crash, on the files as they were."""
        if not view.spec.is_recorded or not all(runs_again(view, call) for call in calls):
            return False
        commands = [call for call in calls if call.name == "Bash"]
        with self.interrupt.past_shutdown() as interrupt:
            return not self._beside(view, commands, interrupt)

    @contextmanager
    def _side_by_side(
        self, view: RunView, calls: Sequence[Call]
    ) -> Iterator[list[Future[ToolFinished | _Cut]]]:
        with ThreadPoolExecutor(min(len(calls), _MOST_TOOLS_AT_ONCE)) as pool:
            try:
                yield [pool.submit(self._run_tool, view, call) for call in calls]
            except Interrupted:  # and so the others are
                raise
            except BaseException:
                self.interrupt.set("dropped")
                raise

    def _run_tool(self, view: RunView, call: Call) -> ToolFinished | _Cut:
        tool = view.spec.tool(call.name)
        assert tool is not None, "the decision answers unknown tools itself"
        assert call.decision is not None, "a call is decided on before it starts"
        arguments = call.input_to_run
        request = ToolCall(
            id=self.call_id(view.run_id, view.progress.turns, call.index),
            run_id=view.run_id,
            tool=tool,
            input=arguments,
            authorization=Authorization(
                call.decision, call.answer, digest_of(arguments), view.policy
            ),
            surroundings=self.surroundings,
            timeout=view.limits.tool_timeout,
        )
        try:
            result = self.tools.run(request, self.interrupt)
        except Interrupted as cut:
            if cut.reason == "dropped":
                raise
            return _Cut(call)
        return ToolFinished(call.index, with_edit_told(call, result))
