"""Bash: a command in the workspace, in processes that end with the call."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from runner.core.conversation import ToolOutcome, ToolResult
from runner.errors import HostFaultError
from runner.ports import Command, Interrupt, ToolCall
from runner.tools.file_access import ToolFailure
from runner.tools.host import Ended, Start, Starter
from runner.tools.output import present

LONGEST_TIMEOUT = 600.0
_MOST_SIGNALS = 64
_LONGEST_COMMAND = 100_000  # bytes; Linux takes 128 KiB in one argument (execve(2))


def bash(
    call: ToolCall, host: Starter, environment: Mapping[str, str], interrupt: Interrupt
) -> ToolResult:
    """Run a command with bash. ``call.timeout`` (seconds) is for a call without a ``timeout``
    (milliseconds) in its input and, if it is longer, for one that asks for the most, 600 s. Raises
    like ``run``."""
    asked = call.input.get("timeout")
    timeout = call.timeout if asked is None else asked / 1000
    longest, hint = max(LONGEST_TIMEOUT, call.timeout), ""
    if timeout >= LONGEST_TIMEOUT:
        timeout = longest
    elif longest > LONGEST_TIMEOUT:
        hint = f" Without a timeout it may take {longest:g} s."
    else:
        hint = f" A longer timeout (at most {longest * 1000:.0f} ms) can be given."
    command = Command(call.id, call.run_id, call.input["command"], call.surroundings, timeout)
    return run(command, host, environment, interrupt, hint)


def run(
    command: Command,
    host: Starter,
    environment: Mapping[str, str],
    interrupt: Interrupt,
    hint: str = "",
) -> ToolResult:
    """Run a command with bash, for as long as it says; its output and errors in one, in order.

    Args:
        hint: what someone can do whose command was killed for its time.

    Raises:
        ToolFailure: it could not be started.
        HostFaultError: nothing can be started on this host.
        Interrupted: it was cut.
    """
    text = checked(command.command)
    workspace = command.surroundings.workspace
    if workspace is None:
        raise ToolFailure("this job has no workspace, so there is no folder to run commands in")
    arguments = [bash_path(environment), "-c", text]
    start = Start(arguments, workspace, command.run_id, command.timeout, merge=True)
    ended = host.call(start, interrupt)
    if ended.end == "not_started":
        reason = ended.output.decode("utf-8", "replace")
        raise ToolFailure(f"the command could not be started: {reason}")
    if ended.end == "lost":
        raise ToolFailure(
            "the process that watched over the command was killed, and the command with it; "
            "what it did until then is not known",
            "interrupted",
        )
    outcome, ending = _outcome(ended, command.timeout, hint)
    copy = command.surroundings.outputs / f"{command.name}.txt"
    content, output = present(ended.output, copy, cut=ended.cut, ending=ending)
    return ToolResult(content, outcome, output)


def _outcome(ended: Ended, timeout: float, hint: str) -> tuple[ToolOutcome, str]:
    """Return the outcome of a command, and what is said of it behind its output."""
    if ended.end == "timed_out":
        return "timed_out", f"The command was killed: it took more than {timeout:g} s.{hint}"
    if ended.end == "limited":
        return "failed", f"The command was ended: {ended.limit}. Use less."
    if ended.exit_code == 0:
        return "succeeded", ""
    if ended.exit_code < 0:
        return "failed", f"Killed by signal {-ended.exit_code}"
    ending = f"Exit code {ended.exit_code}"
    if 0 < (signal := ended.exit_code - 128) <= _MOST_SIGNALS:  # told so by a sandbox or a shell
        ending += f": killed by signal {signal}, or ended with this code"
    return "failed", ending


def bash_path(environment: Mapping[str, str]) -> str:
    """Return where bash is. Raises ``HostFaultError`` when it is not there."""
    path = shutil.which("bash", path=environment.get("PATH"))
    if path is None:
        raise HostFaultError("bash is not on the PATH of this worker: install it there")
    return path


def checked(command: str) -> str:
    """Return the command. Raises ``ToolFailure`` when it cannot be passed to a process."""
    wrong = ""
    size = len(command.encode("utf-8", "surrogatepass"))
    if "\0" in command:
        wrong = "the command contains a NUL character: leave it out"
    elif size > _LONGEST_COMMAND:
        wrong = (
            f"the command has {size:,} bytes, more than the {_LONGEST_COMMAND:,} that can be passed: "
            "put the content in a file with Write first"
        )
    elif surrogate := re.search("[\ud800-\udfff]", command):
        at = surrogate.start()
        wrong = f"the command has a lone surrogate at character {at}: leave it out"
    if wrong:
        raise ToolFailure(wrong, "invalid_input")
    return command
