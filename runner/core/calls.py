"""The tool calls of a reply: which are decided, which start next and together, which wait for an
answer, which have a result without running, and what becomes of those that a crash cut off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from runner.core.agents import AGENT_SOURCE, SPLIT_SOURCE
from runner.core.children import (
    begins_with_shared,
    cannot_start,
    children_of,
    joined,
    next_children,
    refused_split,
    waiting_for_room,
)
from runner.core.conversation import UNREADABLE_INPUT, Tool, ToolResult
from runner.core.entries import (
    CallsDecided,
    ChildrenStarted,
    OutcomeAsked,
    ToolFinished,
    ToolsStarted,
)
from runner.core.hook_decisions import (
    after_calls,
    before_call,
    end_turn,
    refused_edit,
    tightened,
    undoes_hook,
)
from runner.core.run import Ended, Waiting
from runner.core.state import Call, RunState
from runner.core.steps import LocateCalls, Record, RecordShared, Step, settle, stop_at_deadline
from runner.core.workspace import RESULT_SOURCE
from runner.permissions import Decision, Request, evaluate
from runner.permissions.decisions import any_rule_matches

OUTCOME_UNKNOWN = "its worker died while it ran, and whether it took effect is not known"

_NOT_UNDONE = "; it was not undone, as nothing is recorded of {}"
_BUILTIN = "builtin"


def in_doubt(state: RunState) -> tuple[Call, ...]:
    """The calls that an earlier attempt started and that have no result. One of which a person was
    asked what becomes of it is no longer among them: what it left has been put back."""
    return tuple(call for call in _left(state) if not call.asked_again)


def is_external(state: RunState, call: Call) -> bool:
    """Whether the job says that a call's effects may leave the workspace: one part of it that a rule
    matches is enough. Where its paths lead is not looked up: it is asked before there is a workspace."""
    workspace, tool = state.spec.workspace, state.spec.tool(call.name)
    if workspace is None or not workspace.external or tool is None or tool.read_only:
        return False
    arguments = call.input_to_run
    if not isinstance(arguments, Mapping):
        return False
    return any_rule_matches(workspace.external, Request(call.name, arguments))


def runs_again(state: RunState, call: Call) -> bool:
    """Whether a call in doubt is run again by itself; else its outcome is unknown. The workspace is
    as it was before the call by then, if its trees are recorded: a call in ``state.files.unrecorded``
    may have changed what is in none of them."""
    tool = state.spec.tool(call.name)
    if tool is None or tool.read_only:
        return tool is not None
    if is_external(state, call):
        return False
    if tool.repeatable:
        return True
    stays_inside = state.spec.is_recorded and tool.source == _BUILTIN
    return stays_inside and call.index not in state.files.unrecorded


def asks_about(state: RunState, call: Call) -> bool:
    """Whether a person is to say what becomes of a call in doubt."""
    workspace = state.spec.workspace
    asks = workspace is not None and workspace.on_unknown == "ask"
    return asks and not runs_again(state, call)


def outcome_question(state: RunState, unrecorded: str) -> Decision:
    """The decision to ask a person what becomes of a call of unknown outcome.

    Args:
        unrecorded: what it may have changed that is in no tree.
    """
    reason = f"{OUTCOME_UNKNOWN}{_NOT_UNDONE.format(unrecorded) if unrecorded else ''}"
    return Decision("ask", (), state.policy.snapshot, reason)


def was_put_back(state: RunState, call: Call) -> bool:
    """Whether the files were put back before a person was asked about a call."""
    asked = call.decision.reason if call.decision is not None else ""
    return state.spec.is_recorded and asked == OUTCOME_UNKNOWN


def undo_needed(state: RunState) -> bool:
    """Whether the workspace is to be put back to the tree that was recorded last: what may have
    written was cut off, and it is done again, or a person decides whether it is, or it may change
    nothing at all. Never while sub-agents are waited for, as what they have done would go with it."""
    if not state.spec.is_recorded or state.awaits_children:
        return False
    return (
        _is_verifying(state)
        or undoes_hook(state)
        or any(
            not _is_harmless(state, call)
            and call.index not in state.files.unrecorded
            and (runs_again(state, call) or asks_about(state, call))
            for call in in_doubt(state)
        )
    )


def edits_left(state: RunState) -> tuple[Call, ...]:
    """The calls left without a result that would not do the same again to a file which no tree holds:
    their files are to be looked up for ``state.files.unrecorded``."""
    return tuple(call for call in _left(state) if _is_recorded(state, call, "Edit"))


def commands_left(state: RunState) -> tuple[Call, ...]:
    """The calls left without a result that may have changed anything in the workspace: whether there is
    what no tree holds is to be looked up for ``state.files.unrecorded``."""
    return tuple(call for call in _left(state) if _is_recorded(state, call, "Bash"))


def _left(state: RunState) -> tuple[Call, ...]:
    """The calls that an earlier attempt started and that have no result: what a sub-agent does is not
    cut off with its parent's worker."""
    return tuple(
        call
        for call in state.calls
        if call.result is None
        and call.started_by not in (None, state.attempt)
        and not call.interrupted
        and not state.spec.starts_children(call.name)
    )


def _is_verifying(state: RunState) -> bool:
    verification = state.ending.verification
    return (
        verification is not None
        and verification.passed is None
        and verification.is_of(state.turns, state.files.tree)
    )


def _is_harmless(state: RunState, call: Call) -> bool:
    tool = state.spec.tool(call.name)
    return tool is None or tool.read_only


def _is_recorded(state: RunState, call: Call, name: str) -> bool:
    """Whether a call is of Runner's own tool of that name, in a workspace that is recorded."""
    tool = state.spec.tool(name) if state.spec.is_recorded and call.name == name else None
    return tool is not None and tool.source == _BUILTIN


MOST_PARALLEL_READS = 8

_UNKNOWN = (
    "The outcome of this call is unknown: the worker died while it ran. "
    "It may have taken effect in part or in whole; check before doing it again."
)
_PUT_BACK = " The files of the workspace are as they were before it."
_NOT_RECORDED = " It may have changed {}, of which nothing is recorded: that could not be undone."
_NOT_ANSWERED = "Whether it should run again was asked, and nobody answered in time."
_NOT_AGAIN = "The person who was asked does not want it run again"

_ACCEPTED = "The result is accepted."
_SUBMITTED_BEFORE = "Another call of the same reply has submitted the result: that one stands."

_EDITED = "{} changed its input: {}. What follows is of that.\n\n"
_BY_PERSON = "The person who approved this call"
_BY_HOOK = "A hook that looked at this call"
_BY_BOTH = "A hook that looked at this call and the person who approved it"
_MOST_EDIT_CHARACTERS = 1_000


def answer_calls(state: RunState) -> Step | None:
    """The next step towards a result for every call of the last reply; None when all have theirs."""
    pending = [call for call in state.calls if call.result is None]
    if (hook := after_calls(state)) is not None:
        return hook
    if not pending:
        return end_turn(state) if state.calls else None
    if state.spec.asking.on_timeout == "stop" and any(map(_expired, pending)):
        return settle(Ended("stopped", "approval_timeout", "nobody answered in time"))
    if approved := tuple(call for call in pending if _approved(call) and call.tool_context is None):
        return LocateCalls(approved)
    for call in pending:
        if (result := _result_without_running(state, call)) is not None:
            return Record(ToolFinished(call.index, result, _tree_left_by(state, call)))
    if doubtful := [call for call in in_doubt(state) if asks_about(state, call)]:
        return _ask_about(state, doubtful)
    if undecided := [call for call in pending if _is_undecided(state, call)]:
        return _decide(state, undecided)
    if (hook := _look_at_edits(state, pending)) is not None:
        return hook
    return _begin_next(state, pending)


def given_by_children(state: RunState) -> Step | None:
    """The next result of a call whose sub-agents have ended, for a run that ends before it goes on with
    its calls; None when all of them are recorded."""
    for call in state.calls:
        has_given = call.result is None and children_of(state, call)
        if has_given and (result := _result_without_running(state, call)) is not None:
            return Record(ToolFinished(call.index, result, _tree_left_by(state, call)))
    return None


def _look_at_edits(state: RunState, pending: Sequence[Call]) -> Step | None:
    """The next hook that looks at what a person has made of a call before that runs. What can only run
    after sub-agents is looked at after them."""
    for call in pending:
        if state.awaits_children and not state.spec.starts_children(call.name):
            continue
        is_to_run = _approved(call) and (call.started_by is None or call.asked_again)
        if is_to_run and call.is_edited and (hook := before_call(state, call)) is not None:
            return hook
    return None


def _begin_next(state: RunState, pending: Sequence[Call]) -> Step:
    """Start what is next among calls that are decided on, or wait for what they wait for."""
    is_over = state.ends_at is not None and state.ends_at <= state.now
    if children := next_children(state, pending):
        if not is_over and begins_with_shared(state, children):
            return RecordShared()
        return stop_at_deadline(state) if is_over else Record(ChildrenStarted(children))
    if state.awaits_children:
        # While somebody is asked the end of a child changes nothing, unless another may start then.
        asked = any(call.waits for call in pending) and not waiting_for_room(state, pending)
        return settle(Waiting("approval" if asked else "children"))
    if group := _next_group(state, pending):
        if is_over and any(call.answer is not None for call in group):
            return stop_at_deadline(state)
        return Record(ToolsStarted(tuple(call.index for call in group)))
    return settle(Waiting("approval"))


def changes_tree(state: RunState, calls: Sequence[Call]) -> bool:
    """Whether the workspace may have another tree after calls that run together. Their results are
    stored at once then, with one tree: the calls are done together or not at all."""
    return state.spec.is_recorded and not all(_only_reads(state, call) for call in calls)


def with_edit_told(call: Call, result: ToolResult) -> ToolResult:
    """The result of a call, with what a hook or a person changed of its input said in front of it."""
    if not call.is_edited and call.updated_input is None:
        return result
    who = _BY_PERSON if call.updated_input is None else _BY_BOTH if call.is_edited else _BY_HOOK
    given, edited = call.input, call.input_to_run
    changed = {name: edited.get(name) for name in {**given, **edited}}
    changed = {name: new for name, new in changed.items() if given.get(name) != new}
    told = json.dumps(changed, ensure_ascii=False)
    if len(told) > _MOST_EDIT_CHARACTERS:
        told = told[:_MOST_EDIT_CHARACTERS] + "…"
    return replace(result, content=_EDITED.format(who, told) + result.content)


def _with_update_told(call: Call, result: ToolResult) -> ToolResult:
    """The result of a call that did not run, with what a hook changed of its input."""
    return result if call.is_edited else with_edit_told(call, result)


def _decide(state: RunState, undecided: Sequence[Call]) -> Step:
    if unlocated := tuple(call for call in undecided if call.tool_context is None):
        return LocateCalls(unlocated)
    decisions = {call.index: _by_rules(state, call) for call in undecided}
    for call in undecided:
        if (
            decisions[call.index].effect != "deny"
            and (hook := before_call(state, call)) is not None
        ):
            return hook
    return Record(
        CallsDecided(
            {call.index: tightened(state, call, decisions[call.index]) for call in undecided}
        )
    )


def _by_rules(state: RunState, call: Call) -> Decision:
    assert call.tool_context is not None, "a call is located before it is decided on"
    return evaluate(state.policy, Request(call.name, call.input_to_run, call.tool_context))


def _ask_about(state: RunState, doubtful: Sequence[Call]) -> Step:
    """A person is asked whether a call runs again: about where it would run, as with any question."""
    if unlocated := tuple(call for call in doubtful if call.tool_context is None):
        return LocateCalls(unlocated)
    index = doubtful[0].index
    return Record(OutcomeAsked(index, state.files.unrecorded.get(index, "")))


def _is_undecided(state: RunState, call: Call) -> bool:
    """Whether the rules are to be asked about a call, or, for a split, its schema."""
    needs_no_rule = state.spec.splits(call.name) and (
        call.tool_context is not None or call.started_by is not None
    )
    return call.decision is None and not needs_no_rule


def _result_without_running(state: RunState, call: Call) -> ToolResult | None:
    if children := children_of(state, call):
        result = joined(state, call, children)
        return None if result is None else with_edit_told(call, result)
    if call.interrupted:
        text = "Interrupted: the run ended before this call had a result."
        return ToolResult(text, "interrupted")
    tool = state.spec.tool(call.name)
    if tool is None:
        names = ", ".join(tool.name for tool in state.spec.tools) or "none"
        return ToolResult(f"Unknown tool {call.name!r}. Available tools: {names}.", "unknown_tool")
    if tool.source == SPLIT_SOURCE:
        return refused_split(state, call)
    if not isinstance(call.input, dict) or list(call.input) == [UNREADABLE_INPUT]:
        return ToolResult("The arguments must be a JSON object.", "invalid_input")
    if call.decision is None and call.tool_context is not None and call.tool_context.problem:
        return _with_update_told(call, ToolResult(call.tool_context.problem, "invalid_input"))
    if tool.source == RESULT_SOURCE:
        return _submission(state, call, tool)
    if tool.source == AGENT_SOURCE and not call.waits:
        refused = cannot_start(state, call)
        if refused is not None:
            return with_edit_told(call, refused)
    if call.asked_again:
        return _outcome_by_person(state, call)
    if (refusal := _refusal(state, call)) is not None:
        return _with_update_told(call, ToolResult(f"Permission {refusal.rstrip('.')}.", "denied"))
    if _is_unknown(state, call) and not asks_about(state, call):
        return with_edit_told(
            call, ToolResult(f"{_UNKNOWN}{_not_recorded(state, call)}", "unknown")
        )
    return None


def _submission(state: RunState, call: Call, tool: Tool) -> ToolResult | None:
    """The result of submitting a result: no rule is asked, and nothing runs. None while it has not
    been looked whether it fits the schema."""
    if call.tool_context is None:
        return None
    others = (
        other for other in state.calls if other.name == tool.name and other.result is not None
    )
    if any(not (other.result or {}).get("is_error") for other in others):
        return ToolResult(_SUBMITTED_BEFORE, "failed")
    return ToolResult(_ACCEPTED)


def _is_unknown(state: RunState, call: Call) -> bool:
    return call in in_doubt(state) and not runs_again(state, call)


def _outcome_by_person(state: RunState, call: Call) -> ToolResult | None:
    """What is known of a call that a person was asked about; None while it waits, or runs again."""
    if call.answer is None:
        return None
    if _approved(call):
        denial = _denial_since(state, call)
        if denial is None:
            return None
        said = f"It cannot run again: {denial}"
    elif _expired(call):
        said = _NOT_ANSWERED
    else:
        said = _NOT_AGAIN + (f": {call.answer.reason}" if call.answer.reason else "")
    files = _PUT_BACK if was_put_back(state, call) else _not_recorded(state, call)
    text = f"{_UNKNOWN}{files} {said.rstrip('.')}."
    return with_edit_told(call, ToolResult(text, "unknown"))


def _not_recorded(state: RunState, call: Call) -> str:
    """Why a call was not undone, when that is for what no tree holds."""
    what = state.files.unrecorded.get(call.index)
    return _NOT_RECORDED.format(what) if what else ""


def _tree_left_by(state: RunState, call: Call) -> str | None:
    """A call of unknown outcome may have changed files: the tree after it is the one that was found."""
    was_started = call.started_by is not None and not call.interrupted
    return state.files.tree if was_started and state.spec.is_recorded else None


def _refusal(state: RunState, call: Call) -> str | None:
    if call.decision is not None and call.decision.effect == "deny":
        return call.decision.explain()
    if call.answer is None:
        return None
    if _approved(call):
        return _denial_since(state, call)
    if _expired(call):
        return "denied: nobody answered in time"
    reason = f": {call.answer.reason}" if call.answer.reason else ""
    return f"denied by the person who was asked{reason}"


def _denial_since(state: RunState, call: Call) -> str | None:
    """A rule that denies holds for what a person approved, too: it may be newer than the question,
    and what they made of the call may be another one. So does a hook that is against that."""
    if call.tool_context is None or (call.started_by is not None and not call.asked_again):
        return None
    decision = evaluate(state.policy, Request(call.name, call.input_to_run, call.tool_context))
    return decision.explain() if decision.is_final else refused_edit(state, call)


def _approved(call: Call) -> bool:
    return call.answer is not None and call.answer.effect == "approved"


def _expired(call: Call) -> bool:
    expired = call.answer is not None and call.answer.effect == "expired"
    return expired and not call.interrupted


def _next_group(state: RunState, pending: Sequence[Call]) -> Sequence[Call]:
    """The calls to start together, in the order asked up to the first that waits for an answer: by
    default neighbouring read-only ones, the others alone. A call that only reads may pass one that
    waits when that, and all between, only read too. One whose effects leave the workspace is always
    alone: the others may have to run again when it may not."""
    mode = state.spec.parallel_tools
    pending = list(takewhile(lambda call: not state.spec.starts_children(call.name), pending))
    in_order = list(takewhile(lambda call: not call.waits, pending))
    if mode == "all" and in_order:
        return list(takewhile(lambda call: not is_external(state, call), in_order)) or in_order[:1]
    reads = takewhile(lambda call: _only_reads(state, call), pending)
    ready = [call for call in reads if not call.waits] or in_order[:1]
    return ready[: 1 if mode == "off" else MOST_PARALLEL_READS]


def _only_reads(state: RunState, call: Call) -> bool:
    tool = state.spec.tool(call.name)
    return tool is not None and tool.read_only
