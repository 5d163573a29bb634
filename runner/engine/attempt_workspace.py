"""An attempt's work in its run's workspace: prepare it, run tools and hooks, record, verify,
deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from runner.core import entries
from runner.core.children import children_work_in
from runner.core.conversation import ToolResult
from runner.core.entry_events import about_call, about_hook, about_verification
from runner.core.hook_decisions import hooks_of, in_folder, kept_as_edited, with_unusable_input
from runner.core.hooks import HookRun, Said, read_answer
from runner.core.mcp import is_chosen
from runner.core.network import Connection
from runner.core.run import Ended, Lease
from runner.core.state import Call, Files, RunState
from runner.core.steps import RunHook
from runner.core.tool_calls import changes_files, left_by, runs_again, undo_needed, with_edit_told
from runner.core.workspace import change_messages
from runner.errors import HostFaultError, Interrupted, ShutDown
from runner.permissions import ToolContext, digest_of
from runner.permissions.accesses import paths_of
from runner.permissions.decisions import Authorization
from runner.ports import (
    Command,
    HookCall,
    Interrupt,
    Prepared,
    Surroundings,
    ToolCall,
    Tools,
    Workspaces,
)

_MOST_TOOLS_AT_ONCE = 32
_MOST_NAMED = 5

_SHUT_DOWN = ToolResult("Interrupted by shutdown of the worker.", "interrupted")

T = TypeVar("T")


class Retry(Protocol):
    def __call__(self, work: Callable[[], T]) -> T:
        """Do ``work`` again until the database answers."""


@dataclass(slots=True)
class AttemptWorkspace:
    """The workspace of an attempt's run, and the tools in it. Methods that use the workspace raise
    ``WorkspaceError`` if the run cannot continue in its workspace, ``HostFaultError`` if this host
    cannot work it, and ``Interrupted``."""

    lease: Lease
    tools: Tools
    workspaces: Workspaces
    call_id: Callable[[str, int, int], str]
    interrupt: Interrupt
    retry: Retry
    surroundings: Surroundings = field(init=False)

    def prepare(self, state: RunState) -> tuple[list[entries.Entry], Files]:
        """Prepare the workspace, and undo what an earlier attempt left half done.

        Returns:
            The entries to store, and the files of the run with what only this attempt knows.
        """
        if state.spec.sandbox is not None and state.spec.sandbox.is_required:
            self.tools.require(state.spec.sandbox)
        if any(hooks_of(state.spec, "PostToolUse")):  # one that was cut off withholds its result
            self._hide_originals(state, (run for run in state.hooks.runs if run.answer is None))
        last, busy = state.files.tree, children_work_in(state, now=True)
        unrecorded = self._unrecorded_by(state, left_by(state, "Bash"), self.interrupt)
        undo = undo_needed(replace(state, files=replace(state.files, unrecorded=unrecorded)))
        asked = state.spec.workspace
        if state.depth or (asked is not None and asked.is_recorded):
            prepared = self.retry(
                lambda: self.workspaces.prepare(
                    self.lease, last, self.interrupt, undo=undo, busy=busy
                )
            )
        else:  # the job says where: nothing is looked up
            folder = Path(asked.path) if asked is not None and asked.path else None
            prepared = Prepared(self.workspaces.surroundings(self.lease, folder))
        self.surroundings = prepared.surroundings
        for call in left_by(state, "Edit"):
            path = str(call.input_to_run.get("file_path"))
            if not self.workspaces.holds(self.lease, path):
                unrecorded[call.index] = path
        happened: list[entries.Entry] = []
        if prepared.snapshot is not None and (cause := prepared.cause) is not None:
            if cause == "changed" and children_work_in(state):
                cause = "children"
            happened.append(entries.SnapshotRecorded(prepared.snapshot, cause, prepared.found))
        files = replace(state.files, outputs=str(self.surroundings.outputs), unrecorded=unrecorded)
        if state.spec.instructions and not state.files.instructed:
            happened.append(self.tools.instructions(self.surroundings, state.policy))
            files = replace(files, reread_at=state.turns)
        if not state.calls and state.model.open_call is None:
            happened += self.changed_tools(state)
        return happened, files

    def changed_tools(self, state: RunState) -> list[entries.Entry]:
        """The entry of the tools that the run has now, if MCP servers have changed theirs."""
        if not state.spec.mcp_choice:
            return []
        listed = self.tools.listed(state.run_id, again=state.model.tool_lists > 0)
        tools = state.spec.tools_when({name: tools for name, (tools, _) in listed.items()})
        if tools == state.spec.tools:
            return []
        left_out = (
            f"{name} {wrong}"
            for _, refused in listed.values()
            for name, wrong in refused.items()
            if is_chosen(state.spec.mcp_choice, name)
        )
        return [entries.ToolsListed(tools, tuple(left_out))]

    def reread_instructions(self, state: RunState) -> list[entries.Entry]:
        """Read the instructions again, and return entries that tell of changes, if any."""
        read, files = self.tools.instructions(self.surroundings, state.policy), state.files
        known = files.in_prompt if files.followed is None else files.followed
        told = change_messages(known, read.files)
        return [read, entries.UserMessageAdded(told, "instructions")] if told else []

    def _unrecorded_by(
        self, state: RunState, commands: Sequence[Call], interrupt: Interrupt
    ) -> dict[int, str]:
        """Return unrecorded paths that commands may have changed, by call index."""
        last = state.files.tree
        if not commands or last is None:
            return {}
        found = self.retry(lambda: self.workspaces.unrecorded(self.lease, last, interrupt))
        names = ", ".join(found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
        return {call.index: names for call in commands} if found else {}

    def tool_context(self, state: RunState, name: str, arguments: Any) -> ToolContext:
        """Return the folders that a call would run in, and the problem with its input."""
        tool = state.spec.tool(name)
        if tool is None or not isinstance(arguments, dict):
            return ToolContext()
        located = self.tools.locate(paths_of(name, arguments), self.surroundings)
        return replace(located, problem=self.tools.problem(tool, arguments) or "")

    def located(self, state: RunState, call: Call) -> Call:
        """The call, with where it would run."""
        tool_context, answer = self.tool_context(state, call.name, call.input_to_run), call.answer
        if answer is not None and call.is_edited:
            places = tuple(place.real for place in tool_context.places.values())
            answer = replace(answer, places=places)
        return replace(call, tool_context=tool_context, answer=answer)

    def run(
        self, state: RunState, calls: Sequence[Call], append: Callable[[entries.Entry], None]
    ) -> list[entries.Entry]:
        """Run calls side by side. What changes the workspace is done together or not at all: all
        results are returned, with the snapshot after them. Otherwise each is appended as it comes, save
        the last, which is returned so that it is stored with what follows."""
        as_one = changes_files(state, calls)
        if len(calls) == 1:  # to start a thread would cost a crowd of runs more than the call
            ended = self._ended(state, calls, [self._run_tool(state, *calls)])
            return self._recorded(as_one, ended)
        with ThreadPoolExecutor(min(len(calls), _MOST_TOOLS_AT_ONCE)) as pool:
            try:
                running = [pool.submit(self._run_tool, state, call) for call in calls]
                if as_one:
                    finished = self._ended(state, calls, [each.result() for each in running])
                else:
                    finished = self._one_by_one(state, calls, running, append)
            except Interrupted:  # and so the others are
                raise
            except BaseException:
                self.interrupt.set("dropped")
                raise
        return self._recorded(as_one, finished)

    def _one_by_one(
        self,
        state: RunState,
        calls: Sequence[Call],
        running: Sequence[Future[entries.ToolFinished | Call]],
        append: Callable[[entries.Entry], None],
    ) -> list[entries.ToolFinished]:
        """Append each call's result as it comes, save the last. A host fault that some of them met is
        raised when the others have ended."""
        fault: HostFaultError | None = None
        for count, each in enumerate(as_completed(running), 1):
            try:
                finished = self._ended(state, calls, [each.result()])
            except HostFaultError as error:
                error.unbegun += fault.unbegun if fault is not None else ()
                fault = error
                continue
            if count < len(calls) or fault is not None:
                append(finished[0])
        if fault is not None:
            raise fault
        return finished

    def _recorded(
        self, as_one: bool, finished: Sequence[entries.ToolFinished]
    ) -> list[entries.Entry]:
        if not as_one:
            return [*finished]
        snapshot = self._record()
        return [replace(entry, snapshot=snapshot) for entry in finished]

    def _ended(
        self,
        state: RunState,
        calls: Sequence[Call],
        finished: Sequence[entries.ToolFinished | Call],
    ) -> list[entries.ToolFinished]:
        """The entries of calls that ran together. A call that a shutdown cut is interrupted, unless the
        next attempt would run all of them again on the files as they were: then raise ``ShutDown``."""
        cut = [entry for entry in finished if isinstance(entry, Call)]
        if cut and state.spec.is_recorded and all(runs_again(state, call) for call in calls):
            commands = [call for call in calls if call.name == "Bash"]
            with self.interrupt.past_shutdown() as interrupt:
                if not self._unrecorded_by(state, commands, interrupt):
                    raise ShutDown
        ended = [entry for entry in finished if isinstance(entry, entries.ToolFinished)]
        for call in cut:
            ended.append(entries.ToolFinished(call.index, with_edit_told(call, _SHUT_DOWN)))
        return ended

    def _run_tool(self, state: RunState, call: Call) -> entries.ToolFinished | Call:
        """The entry of a call that has run; the call itself if a shutdown cut it."""
        tool, arguments = state.spec.tool(call.name), call.input_to_run
        assert tool is not None, "the decision answers unknown tools itself"
        assert call.decision is not None, "a call is decided on before it starts"
        request = ToolCall(
            id=self.call_id(state.run_id, state.turns, call.index),
            run_id=state.run_id,
            tool=tool,
            input=arguments,
            authorization=Authorization(
                call.decision, call.answer, digest_of(arguments), state.policy
            ),
            surroundings=self.surroundings,
            timeout=state.limits.tool_timeout,
            sandbox=state.spec.sandbox,
            about=about_call(state, call.index),
            server=state.spec.server_of(tool),
        )
        try:
            result = self.tools.run(request, self.interrupt)
        except ShutDown:
            return call
        except HostFaultError as fault:
            fault.unbegun = (call.index,)
            raise
        if not state.spec.hooks:  # nobody asks for them
            result = replace(result, details=None)
        return entries.ToolFinished(call.index, with_edit_told(call, result))

    def verify(self, state: RunState, number: int) -> list[entries.Entry]:
        """Run the commands that verify the run's work, up to the first that fails; what they change
        is put back."""
        verify = state.spec.verify
        assert verify is not None, "only a job that says how is verified"
        made: tuple[Connection, ...] = ()
        for position, text in enumerate(verify.commands, 1):
            name = f"verify_{number}_{position}"
            command = Command(
                *(name, state.run_id, text, self.surroundings, verify.timeout),
                sandbox=state.spec.sandbox,
                policy=state.policy,
                about=about_verification(state, number),
            )
            result = self.tools.command(command, self.interrupt)
            if result.outcome == "interrupted":  # killed from outside: says nothing of the work
                self._put_back(state, self.interrupt)
                result = self.tools.command(command, self.interrupt)
            made += result.connections
            if result.is_error:
                break
        self._put_back(state, self.interrupt)
        return [entries.Verified(number, text, replace(result, connections=made))]

    def record_shared(self) -> str:
        """Record the folder that the run shares with a parent; empty if it is not recorded."""
        record = self.workspaces.record_shared
        return self.retry(lambda: record(self.lease, self.interrupt)) or ""

    def deliver(self, outcome: Ended) -> list[entries.Entry]:
        """Commit the run's files to its branch."""
        commit = self.retry(lambda: self.workspaces.deliver(self.lease, outcome, self.interrupt))
        return [entries.Delivered(commit)]

    def run_hook(self, state: RunState, step: RunHook) -> list[entries.Entry]:
        """Run a hook once; what it changed in a recorded workspace is recorded with its end. What a
        RunEnd hook changes is put back: the verified files stay. While sub-agents change the files,
        nothing is recorded: the next attempt records what the hook did with their work."""
        run, hook = step.run, state.spec.hooks[step.run.hook]
        transcript = self.retry(lambda: self.workspaces.transcript(self.lease))
        folder = self.surroundings.workspace or self.surroundings.outputs
        told = {**in_folder(step.told, str(folder)), "transcript_path": str(transcript)}
        sandbox = state.spec.sandbox if state.spec.sandbox and state.spec.sandbox.hooks else None
        about = about_hook(state, run)
        call = HookCall(state.run_id, hook, told, self.surroundings, sandbox, state.policy, about)
        try:
            said = self.tools.hook(call, self.interrupt)
        except ShutDown:
            if hook.repeatable:
                raise
            said = Said("shut_down")
        answered = read_answer(hook.event, said, hook.timeout)
        if answered.updated_input == told.get("tool_input"):  # it changed nothing
            answered = replace(answered, updated_input=None)
        result = kept_as_edited(state, run, answered)
        if result.updated_input is not None and run.index is not None:
            with suppress(HostFaultError):  # it is checked again when the call is located
                arguments = dict(result.updated_input)
                name = state.calls[run.index].name
                if problem := self.tool_context(state, name, arguments).problem:
                    result = with_unusable_input(result, problem)
        snapshot: str | None = None
        if state.spec.is_recorded and not state.awaits_children and state.files.tree is not None:
            if hook.event == "RunEnd":
                with self.interrupt.past_shutdown() as interrupt:
                    self._put_back(state, interrupt)
            elif (recorded := self._record()) != state.files.tree:
                snapshot = recorded
        if result.updated_output is not None:
            self._hide_originals(state, [run])
        return [entries.HookFinished(run.number, result, snapshot)]

    def _hide_originals(self, state: RunState, runs: Iterable[HookRun]) -> None:
        """Remove the originals of results that hooks have replaced, or these runs of hooks will."""
        indexes = [run.index for run in runs if run.index is not None]
        calls = [self.call_id(state.run_id, state.turns, index) for index in indexes]
        self.retry(lambda: self.workspaces.hide_originals(self.lease, calls))

    def _record(self) -> str | None:
        """Record the workspace, though the worker shuts down."""
        with self.interrupt.past_shutdown() as interrupt:
            return self.retry(lambda: self.workspaces.record(self.lease, interrupt))

    def _put_back(self, state: RunState, interrupt: Interrupt) -> None:
        if (last := state.files.tree) is not None:
            self.retry(lambda: self.workspaces.restore(self.lease, last, interrupt))
