"""The tool calls of a reply: deciding them, grouping calls that start together, approvals, results
without running, and calls that a crash cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from runner.core import children, entries, hook_decisions
from runner.core.agents import AGENT_SOURCE, SPLIT_SOURCE
from runner.core.conversation import UNREADABLE_INPUT, Tool, ToolResult
from runner.core.mcp import source_parts
from runner.core.run import Ended, Waiting
from runner.core.state import Call, RunState
from runner.core.steps import RecordShared, Step, end, locate, stop_at_deadline
from runner.core.workspace import RESULT_SOURCE
from runner.permissions import Decision, Request
from runner.permissions.decisions import any_rule_matches, evaluate

OUTCOME_UNKNOWN = "its worker died while it ran, and whether it took effect is not known"
MOST_PARALLEL_READS = 8

_BUILTIN = "builtin"
_UNKNOWN = (
    "The outcome of this call is unknown: the worker died while it ran. "
    "It may have taken effect in part or in whole; check before doing it again."
)
_PUT_BACK = " The files of the workspace are as they were before it."
_NOT_RECORDED = " It may have changed {}, which is not recorded and was not undone."
_MOST_EDIT_CHARACTERS = 1_000


def in_doubt(state: RunState) -> tuple[Call, ...]:
    """Return calls that an earlier attempt started and that have no result. Calls that a person was
    asked about are not among them: their changes were undone."""
    return tuple(call for call in _left(state) if not call.asked_again)


def is_external(state: RunState, call: Call) -> bool:
    """True if a call may have effects outside the workspace: it is of an MCP server, or a rule of the
    job says so of any part of it. Paths are not resolved, because there may be no workspace yet."""
    workspace, tool = state.spec.workspace, state.spec.tool(call.name)
    if tool is None or tool.read_only:
        return False
    if source_parts(tool.source) is not None:
        return True
    if workspace is None or not workspace.external:
        return False
    arguments = call.input_to_run
    return isinstance(arguments, Mapping) and any_rule_matches(
        workspace.external, Request(call.name, arguments)
    )


def runs_again(state: RunState, call: Call) -> bool:
    """True if a call in doubt runs again without asking; else its outcome is unknown. A recorded
    workspace has been restored by then, but calls in ``state.files.unrecorded`` may have changed
    files that no snapshot holds."""
    tool = state.spec.tool(call.name)
    if tool is None or tool.read_only:
        return tool is not None
    if is_external(state, call):
        return False
    stays_inside = state.spec.is_recorded and tool.source == _BUILTIN
    return tool.repeatable or (stays_inside and call.index not in state.files.unrecorded)


def asks_about(state: RunState, call: Call) -> bool:
    """True if a person must decide on a call in doubt."""
    workspace = state.spec.workspace
    asks = workspace is not None and workspace.on_unknown == "ask"
    return asks and not runs_again(state, call)


def outcome_question(state: RunState, unrecorded: str) -> Decision:
    """Return the decision to ask a person about a call of unknown outcome, which may have changed
    files that no snapshot holds (``unrecorded``)."""
    left = (
        f"; its changes to {unrecorded} are not recorded and were not undone" if unrecorded else ""
    )
    return Decision("ask", (), state.policy.snapshot, OUTCOME_UNKNOWN + left)


def undo_needed(state: RunState) -> bool:
    """True if the workspace must be restored to its last snapshot: a call that may have written was
    cut off, and it runs again, a person decides, or it must change nothing. Never while the run
    waits for sub-agents, because their work would be undone too."""
    if not state.spec.is_recorded or state.awaits_children:
        return False
    verification = state.current_verification
    return (
        (verification is not None and verification.passed is None)
        or hook_decisions.undoes_hook(state)
        or any(
            state.spec.tool(call.name) is not None
            and not state.spec.only_reads(call.name)
            and call.index not in state.files.unrecorded
            and (runs_again(state, call) or asks_about(state, call))
            for call in in_doubt(state)
        )
    )


def left_by(state: RunState, name: Literal["Edit", "Bash"]) -> tuple[Call, ...]:
    """Return calls of this built-in tool without a result, if the workspace is recorded: no
    snapshot may hold their changes, and an edit cannot be repeated on such a file."""
    if not state.spec.is_recorded or state.spec.source_of(name) != _BUILTIN:
        return ()
    return tuple(call for call in _left(state) if call.name == name)


def _left(state: RunState) -> tuple[Call, ...]:
    """Return calls that an earlier attempt started and that have no result, without sub-agents: the
    end of the parent's worker does not cut them off."""
    return tuple(
        call
        for call in state.calls
        if call.result is None
        and call.started_by not in (None, state.attempt)
        and not call.interrupted
        and not state.spec.starts_children(call.name)
    )


def interrupted_by(outcome: Ended, call: Call) -> bool:
    """True if the end of its run leaves a call interrupted: it does not run any more. One whose
    workspace failed it stays in doubt: what it did may be complete and not recorded, so the next
    attempt puts the files back and runs it again."""
    is_in_doubt = outcome.reason == "workspace" and call.started_by is not None and not call.waits
    return call.result is None and not is_in_doubt


def answer_calls(state: RunState) -> Step | None:
    """Return the next step towards the results of the last reply's calls; None if all have one."""
    if (hook := hook_decisions.after_calls(state)) is not None:
        return hook
    pending = [call for call in state.calls if call.result is None]
    if not pending:
        return hook_decisions.end_turn(state) if state.calls else None
    if state.spec.asking.on_timeout == "stop" and any(map(_expired, pending)):
        return end("stopped", "approval_timeout", "nobody answered in time")
    return (
        locate([call for call in pending if call.is_approved])
        or _next_result(state, pending)
        or _ask_about_unknown(state)
        or _decide(state, pending)
        or _look_at_edits(state, pending)
        or _begin_next(state, pending)
    )


def given_by_children(state: RunState) -> Step | None:
    """Return the next result of ended sub-agents' calls for a run about to end, or None."""
    pending = (call for call in state.calls if call.result is None)
    return _next_result(state, (call for call in pending if children.children_of(state, call)))


def _next_result(state: RunState, calls: Iterable[Call]) -> Step | None:
    """Return the first result that needs no run. A call of unknown outcome may have changed files:
    the snapshot after it is the one found."""
    for call in calls:
        if (result := _result_without_running(state, call)) is not None:
            was_started = call.started_by is not None and not call.interrupted
            found = state.files.tree if was_started and state.spec.is_recorded else None
            return entries.ToolFinished(call.index, result, found)
    return None


def _ask_about_unknown(state: RunState) -> Step | None:
    doubtful = [call for call in in_doubt(state) if asks_about(state, call)]
    if not doubtful:
        return None
    index = doubtful[0].index
    return locate(doubtful) or entries.OutcomeAsked(index, state.files.unrecorded.get(index, ""))


def _decide(state: RunState, pending: Sequence[Call]) -> Step | None:
    """Decide on calls by the rules and hooks. A split is only checked against its schema."""
    undecided = [
        call
        for call in pending
        if call.decision is None
        and not (
            state.spec.splits(call.name)
            and (call.tool_context is not None or call.started_by is not None)
        )
    ]
    if not undecided:
        return None
    if (step := locate(undecided)) is not None:
        return step
    decisions = {call.index: _by_rules(state, call) for call in undecided}
    for call in undecided:
        allowed = decisions[call.index].effect != "deny"
        if allowed and (hook := hook_decisions.before_call(state, call)) is not None:
            return hook
    tighten = hook_decisions.tightened
    tight = {call.index: tighten(state, call, decisions[call.index]) for call in undecided}
    return entries.CallsDecided(tight)


def _by_rules(state: RunState, call: Call) -> Decision:
    assert call.tool_context is not None, "a call is located before it is decided on"
    return evaluate(state.policy, Request(call.name, call.input_to_run, call.tool_context))


def _look_at_edits(state: RunState, pending: Sequence[Call]) -> Step | None:
    """Return the next hook for a call that a person edited, before the call runs. A call that waits
    for sub-agents is checked after them."""
    for call in pending:
        is_to_run = call.is_approved and (call.started_by is None or call.asked_again)
        is_held_up = state.awaits_children and not state.spec.starts_children(call.name)
        looks = is_to_run and call.is_edited and not is_held_up
        if looks and (hook := hook_decisions.before_call(state, call)) is not None:
            return hook
    return None


def _begin_next(state: RunState, pending: Sequence[Call]) -> Step:
    if new := children.next_children(state, pending):
        if state.is_overdue:
            return stop_at_deadline(state)
        shared = children.begins_with_shared(state, new)
        return RecordShared() if shared else entries.ChildrenStarted(new)
    if state.awaits_children:
        # While a person is asked, a child's end changes nothing unless another child may start.
        asked = any(call.waits for call in pending) and not children.waiting_for_room(
            state, pending
        )
        return entries.RunSettled(Waiting("approval" if asked else "children"))
    if group := _next_group(state, pending):
        if state.is_overdue and any(call.answer is not None for call in group):
            return stop_at_deadline(state)
        return entries.ToolsStarted(tuple(call.index for call in group))
    return entries.RunSettled(Waiting("approval"))


def _next_group(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """Return the calls to start together, in order, up to the first that waits for an answer: by
    default neighbouring read-only calls, and others alone. A read-only call may pass a waiting one
    if that and all calls between only read. A call with effects outside the workspace is always
    alone: others may have to run again when it may not."""
    mode = state.spec.parallel_tools
    pending = list(takewhile(lambda call: not state.spec.starts_children(call.name), pending))
    in_order = list(takewhile(lambda call: not call.waits, pending))
    if mode == "all" and in_order:
        return list(takewhile(lambda call: not is_external(state, call), in_order)) or in_order[:1]
    reads = takewhile(lambda call: state.spec.only_reads(call.name), pending)
    ready = [call for call in reads if not call.waits] or in_order[:1]
    return ready[: 1 if mode == "off" else MOST_PARALLEL_READS]


def changes_files(state: RunState, calls: Sequence[Call]) -> bool:
    """True if calls that run together may change recorded files. They are an atomic batch then:
    their results are stored at once, with one snapshot."""
    return state.spec.is_recorded and not all(state.spec.only_reads(call.name) for call in calls)


def with_edit_told(call: Call, result: ToolResult) -> ToolResult:
    """Return a call's result, preceded by the changes that a hook or a person made to its input."""
    if not call.is_edited and call.updated_input is None:
        return result
    who = "A hook that looked at this call"
    if call.is_edited and call.updated_input is not None:
        who += " and the person who approved it"
    elif call.is_edited:
        who = "The person who approved this call"
    given, edited = call.input, call.input_to_run
    changed = {name: edited.get(name) for name in {**given, **edited}}
    changed = {name: new for name, new in changed.items() if given.get(name) != new}
    told = json.dumps(changed, ensure_ascii=False)
    if len(told) > _MOST_EDIT_CHARACTERS:
        told = told[:_MOST_EDIT_CHARACTERS] + "…"
    said = f"{who} changed its input: {told}. {hook_decisions.EDIT_TOLD}"
    return replace(result, content=said + result.content)


def _with_update_told(call: Call, result: ToolResult) -> ToolResult:
    return result if call.is_edited else with_edit_told(call, result)


def _result_without_running(state: RunState, call: Call) -> ToolResult | None:
    if started := children.children_of(state, call):
        result = children.joined(state, call, started)
        return result and with_edit_told(call, result)
    if call.interrupted:
        text = "Interrupted: the run ended before this call had a result."
        return ToolResult(text, "interrupted")
    tool = state.spec.tool(call.name)
    if tool is None:
        names = ", ".join(tool.name for tool in state.spec.tools) or "none"
        return ToolResult(f"Unknown tool {call.name!r}. Available tools: {names}.", "unknown_tool")
    if tool.source == SPLIT_SOURCE:
        return children.refused_split(state, call)
    if not isinstance(call.input, dict) or list(call.input) == [UNREADABLE_INPUT]:
        return ToolResult("The arguments must be a JSON object.", "invalid_input")
    if call.decision is None and call.tool_context is not None and call.tool_context.problem:
        return _with_update_told(call, ToolResult(call.tool_context.problem, "invalid_input"))
    if tool.source == RESULT_SOURCE:
        return _submission(state, call, tool)
    starts = tool.source == AGENT_SOURCE and not call.waits
    if starts and (refused := children.cannot_start(state, call)) is not None:
        return with_edit_told(call, refused)
    refusal = _refusal(state, call)
    if call.asked_again:
        if refusal is None:
            return None
        asked = call.decision.reason if call.decision is not None else ""
        was_put_back = state.spec.is_recorded and asked == OUTCOME_UNKNOWN
        files = _PUT_BACK if was_put_back else _not_recorded(state, call)
        text = f"{_UNKNOWN}{files} {refusal.rstrip('.')}."
        return with_edit_told(call, ToolResult(text, "unknown"))
    if refusal is not None:
        return _with_update_told(call, ToolResult(f"Permission {refusal.rstrip('.')}.", "denied"))
    is_unknown = call in in_doubt(state) and not runs_again(state, call)
    if is_unknown and not asks_about(state, call):
        text = _UNKNOWN + _not_recorded(state, call)
        return with_edit_told(call, ToolResult(text, "unknown"))
    return None


def _submission(state: RunState, call: Call, tool: Tool) -> ToolResult | None:
    """Return the result of submitting a result; None until its schema is checked."""
    if call.tool_context is None:
        return None
    results = (other.result for other in state.calls if other.name == tool.name)
    if any(result is not None and not result.get("is_error") for result in results):
        text = "Another call of the same reply has submitted the result: that one stands."
        return ToolResult(text, "failed")
    return ToolResult("The result is accepted.")


def _not_recorded(state: RunState, call: Call) -> str:
    """Return why a call was not undone, if it may have changed files that no snapshot holds."""
    what = state.files.unrecorded.get(call.index)
    return _NOT_RECORDED.format(what) if what else ""


def _refusal(state: RunState, call: Call) -> str | None:
    """Return why a call does not run or not again; None if it may, or while a person is asked."""
    if call.decision is not None and call.decision.effect == "deny":
        return call.decision.explain()
    if call.answer is None:
        return None
    again, denied = call.asked_again, "denied by the person who was asked"
    if call.is_approved:
        denial = _denial_since(state, call)
        return f"It cannot run again: {denial}" if denial and again else denial
    if _expired(call):
        asked = "Whether it should run again was asked, and nobody answered in time."
        return asked if again else "denied: nobody answered in time"
    if again:
        denied = "The person who was asked does not want it run again"
    return ": ".join(filter(None, (denied, call.answer.reason)))


def _denial_since(state: RunState, call: Call) -> str | None:
    """Return the denial of an approved call, or None: a deny rule may be newer than the question,
    or match the person's edit of the call, and a hook may object to the edit."""
    if call.tool_context is None or (call.started_by is not None and not call.asked_again):
        return None
    decision = _by_rules(state, call)
    return decision.explain() if decision.is_final else hook_decisions.refused_edit(state, call)


def _expired(call: Call) -> bool:
    return call.answer is not None and call.answer.effect == "expired" and not call.interrupted
