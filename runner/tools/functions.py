"""Own functions from outside their child: describing tools for a job, looking at hooks, and running a
call of a tool.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from runner.core.conversation import ToolResult
from runner.ports import Interrupt, ToolCall
from runner.tools.file_access import ToolFailure
from runner.tools.host import Start, Starter, boot, boot_needs, run_reporting
from runner.tools.own import OwnSource

_DESCRIBE_SECONDS = 60.0


class Undescribed(Exception):  # noqa: N818 - becomes a problem of the job file
    """An own tool cannot be used; the text says why, in one line."""


def ask_child(action: str, source: OwnSource, environment: Mapping[str, str]) -> str:
    """Return what a child process that imports a function says of it: ``describe``, or ``look`` if
    it can be a hook (called with the event). Raises ``Undescribed`` if it is not what was asked
    for."""
    try:
        child = subprocess.run(
            command_of(action, source),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environment),
            timeout=_DESCRIBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Undescribed(f"importing {source.module} took over {_DESCRIBE_SECONDS:g} s") from None
    outcome, _, text = child.stdout.decode("utf-8", "replace").partition("\n")
    if outcome == "succeeded":
        return text
    if outcome == "failed":
        raise Undescribed(f"{text} (imported from {source.folder})".replace("\n", " "))
    said = child.stderr.decode("utf-8", "replace").strip().splitlines()
    raise Undescribed(f"importing it ended the process ({child.returncode}) {' '.join(said[-1:])}")


def run_own(call: ToolCall, source: OwnSource, host: Starter, interrupt: Interrupt) -> ToolResult:
    """Call a function in a child. Raises ``ToolFailure`` if it exits, ``Interrupted`` if cut."""
    folder = call.surroundings.workspace or source.folder
    if not folder.is_dir():
        raise ToolFailure(f"the folder that {call.tool.name} is to run in does not exist: {folder}")
    try:
        given = json.dumps(call.input).encode()
    except RecursionError as error:
        raise ToolFailure(
            f"the input of {call.tool.name} is nested too deeply", "invalid_input"
        ) from error
    needs = [source.folder, *boot_needs()]
    start = Start(
        command_of("run", source), folder, call.run_id, call.timeout, stdin=given, needs=needs
    )
    return run_reporting(call, start, host, interrupt)


def command_of(action: str, source: OwnSource) -> list[str]:
    named = (action, str(source.folder), source.module, source.function)
    return boot("runner.tools.function_child", *named, site=True, isolated=False)
