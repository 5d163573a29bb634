"""Calls that were cut off in the middle: which run again from the tree before, and which may have
reached beyond the workspace, so that their outcome is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from runner.core.hooks.lookup import undoes_hook
from runner.core.journal.view import Call, RunView
from runner.permissions import Decision, Request
from runner.permissions.decisions import any_rule_matches

OUTCOME_UNKNOWN = "its worker died while it ran, and whether it took effect is not known"

_NOT_UNDONE = "; it was not undone, as nothing is recorded of {}"
_BUILTIN = "builtin"


def in_doubt(view: RunView) -> tuple[Call, ...]:
    """The calls that an earlier attempt started and that have no result. One of which a person was
    asked what becomes of it is no longer among them: what it left has been put back."""
    return tuple(call for call in _left(view) if not call.asked_again)


def is_external(view: RunView, call: Call) -> bool:
    """Whether the job says that a call's effects may leave the workspace: one part of it that a rule
    matches is enough. Where its paths lead is not looked up: it is asked before there is a workspace."""
    workspace, tool = view.spec.workspace, view.spec.tool(call.name)
    if workspace is None or not workspace.external or tool is None or tool.read_only:
        return False
    arguments = call.input_to_run
    if not isinstance(arguments, Mapping):
        return False
    return any_rule_matches(workspace.external, Request(call.name, arguments))


def runs_again(view: RunView, call: Call) -> bool:
    """Whether a call in doubt is run again by itself; else its outcome is unknown. The workspace is
    as it was before the call by then, if its trees are recorded: a call in ``RunView.unrecorded`` may
    have changed what is in none of them."""
    tool = view.spec.tool(call.name)
    if tool is None or tool.read_only:
        return tool is not None
    if is_external(view, call):
        return False
    if tool.repeatable:
        return True
    stays_inside = view.spec.is_recorded and tool.source == _BUILTIN
    return stays_inside and call.index not in view.unrecorded


def asks_about(view: RunView, call: Call) -> bool:
    """Whether a person is to say what becomes of a call in doubt."""
    workspace = view.spec.workspace
    asks = workspace is not None and workspace.on_unknown == "ask"
    return asks and not runs_again(view, call)


def outcome_question(view: RunView, unrecorded: str) -> Decision:
    """The decision to ask a person what becomes of a call of unknown outcome.

    Args:
        unrecorded: what it may have changed that is in no tree.
    """
    reason = f"{OUTCOME_UNKNOWN}{_NOT_UNDONE.format(unrecorded) if unrecorded else ''}"
    return Decision("ask", (), view.policy.snapshot, reason)


def was_put_back(view: RunView, call: Call) -> bool:
    """Whether the files were put back before a person was asked about a call."""
    asked = call.decision.reason if call.decision is not None else ""
    return view.spec.is_recorded and asked == OUTCOME_UNKNOWN


def undo_needed(view: RunView) -> bool:
    """Whether the workspace is to be put back to the tree that was recorded last: what may have
    written was cut off, and it is done again, or a person decides whether it is, or it may change
    nothing at all. Never while sub-agents are waited for, as what they have done would go with it."""
    if not view.spec.is_recorded or view.awaits_children:
        return False
    return (
        _is_verifying(view)
        or undoes_hook(view)
        or any(
            not _only_reads(view, call)
            and call.index not in view.unrecorded
            and (runs_again(view, call) or asks_about(view, call))
            for call in in_doubt(view)
        )
    )


def edits_left(view: RunView) -> tuple[Call, ...]:
    """The calls left without a result that would not do the same again to a file which no tree holds:
    their files are to be looked up for ``RunView.unrecorded``."""
    return tuple(call for call in _left(view) if _is_recorded(view, call, "Edit"))


def commands_left(view: RunView) -> tuple[Call, ...]:
    """The calls left without a result that may have changed anything in the workspace: whether there is
    what no tree holds is to be looked up for ``RunView.unrecorded``."""
    return tuple(call for call in _left(view) if _is_recorded(view, call, "Bash"))


def _left(view: RunView) -> tuple[Call, ...]:
    """The calls that an earlier attempt started and that have no result: what a sub-agent does is not
    cut off with its parent's worker."""
    return tuple(
        call
        for call in view.calls
        if call.result is None
        and call.started_by not in (None, view.attempt)
        and not call.interrupted
        and not view.spec.starts_children(call.name)
    )


def _is_verifying(view: RunView) -> bool:
    progress, verification = view.progress, view.progress.verification
    return (
        verification is not None
        and verification.passed is None
        and verification.is_of(progress.turns, progress.tree)
    )


def _only_reads(view: RunView, call: Call) -> bool:
    tool = view.spec.tool(call.name)
    return tool is None or tool.read_only


def _is_recorded(view: RunView, call: Call, name: str) -> bool:
    """Whether a call is of Runner's own tool of that name, in a workspace that is recorded."""
    tool = view.spec.tool(name) if view.spec.is_recorded and call.name == name else None
    return tool is not None and tool.source == _BUILTIN
