"""A run's messages, and what is known of the calls of its last reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, bindparam, select

from runner.core.conversation import Message, tool_uses
from runner.core.journal.view import Call
from runner.permissions import Answer, Decision, MatchedRule, Rule
from runner.store.connection.statement import find
from runner.store.job.rules import tool_context_from_json
from runner.store.tables import approvals, blocks, tool_calls

_BLOCKS = (
    select(blocks.c.message, blocks.c.position, blocks.c.role, blocks.c.content)
    .where(blocks.c.run_id == bindparam("run"))
    .order_by(blocks.c.message, blocks.c.position)
)
_CALLS = (
    select(tool_calls)
    .where(tool_calls.c.run_id == bindparam("run"), tool_calls.c.message == bindparam("reply"))
    .order_by(tool_calls.c.position)
)
_ANSWERS = select(
    approvals.c.position,
    approvals.c.answer,
    approvals.c.input_digest,
    approvals.c.answered_by,
    approvals.c.reason,
    approvals.c.edited_input,
    approvals.c.setting,
).where(
    approvals.c.run_id == bindparam("run"),
    approvals.c.message == bindparam("reply"),
    approvals.c.answer != "cancelled",  # the calls of a cancelled run are interrupted
)

# Gives the rules of a snapshot by its number.
RulesOf = Callable[[int], tuple[Rule, ...]]


def load_conversation(
    connection: Connection, run_id: str, rules_of: RulesOf, closed: int | None = None
) -> tuple[tuple[Message, ...], tuple[Call, ...]]:
    """The whole messages of a run, and the last reply's calls while any of them has no result.

    Args:
        rules_of: finds the rules that calls were decided on by.
        closed: the last turn whose hooks are through; None: its turns have no hooks.
    """
    contents: dict[int, dict[int, Any]] = {}
    roles: dict[int, Any] = {}
    for row in find(connection, _BLOCKS, {"run": run_id}):
        contents.setdefault(row.message, {})[row.position] = row.content
        roles[row.message] = row.role
    reply = max((number for number, role in roles.items() if role == "assistant"), default=None)
    calls: tuple[Call, ...] = ()
    if reply is not None:
        calls = _open_calls(connection, run_id, reply, contents, rules_of, closed)
    whole = [n for n in contents if not (calls and reply is not None and n > reply)]
    return tuple(Message(roles[n], tuple(contents[n].values())) for n in whole), calls


def _open_calls(
    connection: Connection,
    run_id: str,
    reply: int,
    contents: dict[int, dict[int, Any]],
    rules_of: RulesOf,
    closed: int | None,
) -> tuple[Call, ...]:
    rows = find(connection, _CALLS, {"run": run_id, "reply": reply})
    is_closed = not rows or closed is None or closed >= rows[0].turn
    if is_closed and all(row.ended_at is not None for row in rows):
        return ()
    uses = tool_uses(contents[reply].values())
    answers = answers_to(connection, run_id, reply)
    results = contents.get(reply + 1, {})
    return tuple(
        Call(
            index=row.position,
            id=use["id"],
            name=use["name"],
            input=use["input"],
            decision=_decision(row, rules_of) if row.decision else None,
            answer=answers.get(row.position),
            started_by=row.started_attempt,
            interrupted=row.interrupted,
            asked_again=row.asked_again,
            result=results.get(row.position),
            outcome=row.outcome,
            updated_input=row.updated_input,
        )
        for row, use in zip(rows, uses, strict=True)
    )


def _decision(row: Any, rules_of: RulesOf) -> Decision:
    snapshot = row.decision_snapshot or 1
    matched_rules = tuple(
        MatchedRule(rule, "") for rule in rules_of(snapshot) if _decided(row, rule)
    )
    return Decision(row.decision, matched_rules[:1], snapshot, row.decision_reason or "")


def _decided(row: Any, rule: Rule) -> bool:
    """Whether a decision rests on a rule: the job's have a place in it, those of a type of sub-agent are
    known by what they say."""
    if row.rule_position is not None:
        return bool(rule.position == row.rule_position)
    return rule.position is None and bool((rule.text, rule.effect) == (row.rule, row.decision))


def answers_to(connection: Connection, run_id: str, reply: int) -> dict[int, Answer]:
    """The answers to questions about the calls of a reply (a message's number), by position."""
    rows = find(connection, _ANSWERS, {"run": run_id, "reply": reply})
    return {
        row.position: Answer(
            effect=row.answer,
            input_digest=row.input_digest,
            by=row.answered_by or "",
            reason=row.reason,
            input=row.edited_input,
            places=_places(row),
        )
        for row in rows
    }


def _places(row: Any) -> tuple[str, ...]:
    """Where the call leads that was asked about. Where an edited one does is looked up before it runs."""
    if row.edited_input is not None:
        return ()
    return tuple(place.real for place in tool_context_from_json(row.setting).places.values())
