"""The questions about tool calls that one transaction asks, or that nobody will answer any more."""

from __future__ import annotations

from typing import Any

from runner.core.hooks.verdict import asks
from runner.core.journal.events import summarise_input
from runner.core.journal.view import Call, RunView
from runner.core.text.plain import visible
from runner.permissions import Decision, Request, digest_of
from runner.permissions.suggestions import suggest
from runner.store import ids
from runner.store.connection.statement import Writes
from runner.store.job.rules import tool_context_to_json
from runner.store.tables import approvals

# A question about what became of a call is no question about such calls: the two are not answered
# together, and no rule answers it.
_OF_OUTCOME = " (outcome unknown)"
# Nor does a rule answer what a hook asks.
_OF_HOOK = " (a hook asks)"

_UNANSWERED: dict[str, Any] = {
    "answer": None,
    "answered_at": None,
    "answered_by": None,
    "answered_via": None,
    "reason": "",
}

_Key = tuple[int, int]


class Questions:
    """Rows of ``approvals``: new ones, and changes of those that are there.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, run_id: str, job_id: str, now: float) -> None:
        self._run_id = run_id
        self._job_id = job_id
        self._now = now
        self._new: dict[_Key, dict[str, Any]] = {}
        self._changed: dict[_Key, dict[str, Any]] = {}

    def ask(self, view: RunView, call: Call, decision: Decision) -> None:
        """Whether a call may run."""
        question = self._question(view, call, decision)
        if asks(view, call):
            key = question["group_key"] + _OF_HOOK
            question |= {"group_key": key, "suggested_rule": "", "by_hook": True}
        self._insert(view, call, question)

    def ask_again(self, view: RunView, call: Call, decision: Decision) -> None:
        """Whether a call runs again of which nobody knows what it did. It had one question at most
        before; what a person had changed of its input stays so."""
        question = self._question(view, call, decision)
        question |= {"group_key": question["group_key"] + _OF_OUTCOME, "suggested_rule": ""}
        if call.decision is not None and call.decision.effect == "ask":
            self._change(_key(view, call), {**question, **_UNANSWERED})
        else:
            self._insert(view, call, question)

    def close(self, view: RunView, call: Call) -> None:
        """Nobody is asked any more: the run has ended."""
        closing = {"answer": "cancelled", "answered_at": self._now, "answered_via": "end"}
        self._change(_key(view, call), closing)

    def add_to(self, writes: Writes) -> None:
        """Have all of it written with the rest."""
        writes.insert(approvals, [*self._new.values()])
        for (message, position), changes in self._changed.items():
            writes.change(
                approvals, changes, run_id=self._run_id, message=message, position=position
            )

    def _insert(self, view: RunView, call: Call, question: dict[str, Any]) -> None:
        message, position = _key(view, call)
        named = {"run_id": self._run_id, "message": message, "position": position}
        owner = {"job_id": self._job_id, "turn": view.progress.turns, "tool": call.name}
        self._new[message, position] = {**named, **owner, **question}

    def _change(self, key: _Key, changes: dict[str, Any]) -> None:
        rows = self._new if key in self._new else self._changed  # one statement writes a row once
        rows.setdefault(key, {}).update(changes)

    def _question(self, view: RunView, call: Call, decision: Decision) -> dict[str, Any]:
        assert call.tool_context is not None, "a call is located before it is asked about"
        arguments = call.input_to_run
        suggestion = suggest(view.policy, Request(call.name, arguments, call.tool_context))
        return {
            "id": ids.new("apr", self._now),
            "input_digest": digest_of(arguments),
            "setting": tool_context_to_json(call.tool_context),
            "checked_snapshot": decision.snapshot,
            "summary": summarise_input(arguments),
            "group_key": visible(suggestion.key),
            "suggested_rule": suggestion.rule,
            "asked_at": self._now,
            "expires_at": _expires_at(view, self._now),
            "notified_at": self._now if view.spec.asking.notify is None else None,
        }


def _key(view: RunView, call: Call) -> _Key:
    return len(view.messages) - 1, call.index


def _expires_at(view: RunView, now: float) -> float | None:
    """When a question is answered by itself: the job's patience or its deadline has run out."""
    times = []
    if view.spec.asking.timeout is not None:
        times.append(now + view.spec.asking.timeout)
    if view.limits.deadline is not None:
        times.append(view.submitted_at + view.limits.deadline)
    return min(times, default=None)
