"""Calls that run in a child of Runner's own code: start it, and make a result of what it reports."""

from __future__ import annotations

from runner.core.conversation import ToolOutcome, ToolResult
from runner.core.text.plain import plain
from runner.ports import Interrupt, ToolCall
from runner.tools.failure import ToolFailure
from runner.tools.host.client import Start, ToolHost
from runner.tools.output import present

_OUTCOMES: dict[bytes, ToolOutcome] = {
    b"succeeded": "succeeded",
    b"failed": "failed",
    b"invalid_input": "invalid_input",
}
_LAST_WORDS = 2_000


def run_reporting(call: ToolCall, start: Start, host: ToolHost, interrupt: Interrupt) -> ToolResult:
    """Run a child that tells its outcome (``runner.tools.host.report``) to its end.

    Raises:
        ToolFailure: it ended without telling. Interrupted: it was cut.
    """
    name = call.tool.name
    ended = host.call(start, interrupt)
    if ended.end == "timed_out":
        raise ToolFailure(
            f"{name} was killed: it took more than {start.timeout:g} s. Ask for less, more simply.",
            "timed_out",
        )
    if ended.end == "not_started":
        raise ToolFailure(f"{name} could not be started: {ended.output.decode('utf-8', 'replace')}")
    if ended.end == "lost":
        raise ToolFailure(
            f"the process that watched over {name} was killed, and {name} with it", "interrupted"
        )
    word, newline, text = ended.output.partition(b"\n")
    outcome = _OUTCOMES.get(word)
    if not newline or outcome is None:
        said = plain(ended.errors.decode("utf-8", "replace")[-_LAST_WORDS:]).strip()
        how = (
            f"signal {-ended.exit_code}" if ended.exit_code < 0 else f"exit code {ended.exit_code}"
        )
        raise ToolFailure(f"{name} ended without a result ({how}). {said}".rstrip())
    copy = call.surroundings.outputs / f"{call.id}.txt"
    content, output = present(text, copy, cut=ended.cut)
    return ToolResult(content, outcome, output)
