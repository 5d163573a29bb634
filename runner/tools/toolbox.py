"""The tools port of the engine: runs any call, and makes a result of each outcome."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.core.conversation import Tool, ToolResult
from runner.core.entries import InstructionsRead
from runner.core.hooks import Said
from runner.core.mcp import Usable
from runner.core.sandbox import Sandbox
from runner.errors import HostFaultError
from runner.permissions import ToolContext, digest_of
from runner.permissions.decisions import Policy
from runner.ports import Command, HookCall, Interrupt, Surroundings, ToolCall
from runner.settings import Secrets, tool_environment
from runner.tools import file_access, files, search, shell
from runner.tools.checking import has_patterns, input_problem, problem_found_apart
from runner.tools.file_access import Places, ToolFailure
from runner.tools.functions import run_own
from runner.tools.hooks import read_instructions, run_hook
from runner.tools.host import WATCHDOG_SECONDS, ToolHost
from runner.tools.mcp import McpServers
from runner.tools.output import present, restore_output
from runner.tools.own import OwnSource
from runner.tools.sandbox import Contained, Sandboxes

BUILTIN_SOURCE = "builtin"
_OUTPUT_SUFFIX = ".txt"
# Faults of this host, which no tool reports to the model. A read-only folder is not among them.
_HOST_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_WRITING_TOOLS = {"Write": files.write, "Edit": files.edit}
_SEARCH_TOOLS = {"Glob": search.glob, "Grep": search.grep}


class LocalTools:
    """``runner.ports.Tools`` that run on this machine: Read, Write and Edit in this process, all others
    in processes that end with their call, with this worker, and with its lease (``dropped``).

    Args:
        home: RUNNER_HOME, which file tools leave alone (workspaces in it excepted).
        lock_dir: a folder local to this machine, where runs with live tools are marked
            (``runner.tools.host_process``); made when it is missing.
        secrets: what no tool may find in its environment.
        stored_output: the whole output of a call by its run and its id, Runner's or the model's, from
            the store; None when there is none.
        job_of: returns the id of a run's job.
        schema_problem: returns why the API takes no such ``input_schema``, or None.
        watchdog_seconds: tools are killed when ``alive`` was not called for so long.

    ``host`` starts every process, in ``environment``; other programs in a run's workspace are
    started by it too.
    """

    def __init__(
        self,
        home: Path,
        lock_dir: Path,
        secrets: Secrets | None = None,
        stored_output: Callable[[str, str], bytes | None] = lambda run_id, name: None,
        job_of: Callable[[str], str] = lambda run_id: run_id,
        schema_problem: Callable[[Any], str | None] = lambda schema: None,
        watchdog_seconds: float = WATCHDOG_SECONDS,
    ) -> None:
        lock_dir.mkdir(parents=True, exist_ok=True)
        self._home = home
        self.environment = tool_environment(os.environ, secrets)
        # Git in a copied workspace must not find the repository that RUNNER_HOME lies in.
        above = self.environment.get("GIT_CEILING_DIRECTORIES", "")
        self.environment["GIT_CEILING_DIRECTORIES"] = f"{home}:{above}".rstrip(":")
        self._stored_output = stored_output
        self.host = ToolHost(self.environment, lock_dir, watchdog_seconds)
        self.sandboxes = Sandboxes(home, self.environment, job_of, lock_dir)
        path = self.environment.get("PATH", os.defpath)
        self.servers = McpServers(lambda: os.environ, path, job_of, schema_problem)

    def require(self, sandbox: Sandbox) -> None:
        self.sandboxes.require(sandbox)

    def problem(self, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
        schema = tool.input_schema
        if has_patterns(schema):
            return problem_found_apart(self.host, tool.name, schema, arguments)
        return input_problem(tool.name, schema, arguments)

    def locate(self, paths: Sequence[str], surroundings: Surroundings) -> ToolContext:
        return file_access.locate(paths, surroundings, Places.of(surroundings, self._home))

    def run(self, call: ToolCall, interrupt: Interrupt) -> ToolResult:
        """Run one call to its end; whatever goes wrong with the tool is in the result. There is no
        other way to a tool, and none without an authorization for this very call.

        Raises:
            ValueError: the authorization is for another input; nothing was run.
            HostFaultError: this host has no space, no memory, no shell …; nothing was done.
            Interrupted: ``interrupt`` was set, or the watchdog cut the call (``dropped``); all
                processes of the call are gone.
        """
        if call.authorization.input_digest != digest_of(call.input):
            raise ValueError(f"{call.id}: its authorization is for another input than the call has")
        interrupt.check()
        inside = self._contained(call, call.authorization.policy)

        def work() -> ToolResult:
            problem = self.problem(call.tool, call.input)
            if problem is not None:
                raise ToolFailure(problem, "invalid_input")
            return self._dispatch(call, inside, interrupt)

        return _timed(work, inside, call.surroundings.outputs / f"{call.id}{_OUTPUT_SUFFIX}")

    def command(self, command: Command, interrupt: Interrupt) -> ToolResult:
        interrupt.check()
        inside = self._contained(command, command.policy)
        return _timed(
            lambda: shell.run(command, inside, self.environment, interrupt),
            inside,
            command.surroundings.outputs / f"{command.name}{_OUTPUT_SUFFIX}",
        )

    def hook(self, call: HookCall, interrupt: Interrupt) -> Said:
        interrupt.check()
        inside = self._contained(call, call.policy)
        said = run_hook(call, inside, self.environment, interrupt)
        containment = inside.containment if call.sandbox is not None else None
        return replace(said, connections=inside.connections, containment=containment)

    def instructions(self, surroundings: Surroundings, policy: Policy) -> InstructionsRead:
        return read_instructions(Places.of(surroundings, self._home), policy)

    def listed(self, run_id: str, *, again: bool) -> Mapping[str, Usable]:
        return self.servers.listed(run_id, again=again)

    def alive(self) -> None:
        """Say that this worker holds its leases. While calls are in hand this has to be said more
        often than every ``watchdog_seconds``, or their tools are killed. Never waits."""
        self.host.alive()

    def close(self) -> None:
        """End the tool host and every tool process that is left."""
        self.servers.close()
        self.host.close()
        self.sandboxes.close()

    def _contained(self, call: ToolCall | Command | HookCall, policy: Policy | None) -> Contained:
        sandbox = call.sandbox
        if isinstance(call, ToolCall) and call.server is not None and call.server.scope == "job":
            sandbox = None  # all runs share the server's process: no run's rules can contain it
        about = (sandbox, policy, call.surroundings, call.about)
        return Contained(self.host, self.sandboxes, *about)

    def _dispatch(self, call: ToolCall, inside: Contained, interrupt: Interrupt) -> ToolResult:
        name, source = call.tool.name, call.tool.source
        if call.server is not None:
            return self.servers.call(call, inside, self.host, interrupt)
        if source != BUILTIN_SOURCE:
            own = OwnSource.stored(source)
            if own is None:
                raise ToolFailure(f"{name} comes from {source!r}, which this worker does not know")
            return run_own(call, own, inside, interrupt)
        places = Places.of(call.surroundings, self._home)
        if name == "Bash":
            file_access.require_command(call, places)
            return shell.bash(call, inside, self.environment, interrupt)
        if name == "Read" or name in _WRITING_TOOLS:
            self._restore(call, call.input["file_path"], places)
            if name == "Read":
                return files.read(call, places, interrupt, self.host)
            return _WRITING_TOOLS[name](call, places, interrupt)
        if name in _SEARCH_TOOLS:
            self._restore(call, call.input.get("path") or ".", places)
            return _SEARCH_TOOLS[name](call, places, self.host, interrupt)
        raise ToolFailure(
            f"this worker has no builtin tool with the name {name}: it is older than the job"
        )

    def _restore(self, call: ToolCall, path: str, places: Places) -> None:
        """Write the output that a path names to its copy, which may be gone: a result that was shown
        whole has none."""
        if not path.endswith(_OUTPUT_SUFFIX):
            return
        real = places.find(path)
        folder, _, name = real.rpartition("/")
        if folder != places.outputs or os.path.lexists(real):
            return
        file_access.require(call, places, path, real)
        output = self._stored_output(call.run_id, name.removesuffix(_OUTPUT_SUFFIX))
        if output is None:
            return
        try:
            restore_output(Path(real), output)
        except OSError as error:
            raise ToolFailure(
                f"{path}: the output is kept, but its copy cannot be made again: {error.strerror}"
            ) from error


def _timed(work: Callable[[], ToolResult], inside: Contained, copy: Path) -> ToolResult:
    """Return what came of some work, with how long it took and what contained it; ``copy`` is for a
    long failure."""
    began = time.monotonic()
    try:
        result = work()
    except ToolFailure as failure:
        if isinstance(cause := failure.__cause__, OSError) and cause.errno in _HOST_ERRORS:
            raise HostFaultError(str(failure)) from failure
        content, output = present(str(failure).encode("utf-8", "surrogatepass"), copy)
        result = ToolResult(content, failure.outcome, output)
    hint = inside.network_hint(result.content) if result.is_error else ""
    return replace(
        result,
        content=f"{result.content}\n{hint}" if hint else result.content,
        duration=time.monotonic() - began,
        containment=inside.containment,
        connections=inside.connections,
    )
