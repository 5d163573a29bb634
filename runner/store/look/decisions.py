"""Why calls were allowed, asked about or denied, and what became of the questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, and_, func, or_, select

from runner.core.run import ENDED
from runner.store import ids
from runner.store.connection.database import Database
from runner.store.look.family.places import ROOT
from runner.store.look.find import call_key
from runner.store.tables import approvals, permission_rules, runs, tool_calls

_MOST_PARAMETERS = 500

IS_ABOUT_CALL = and_(
    approvals.c.run_id == tool_calls.c.run_id,
    approvals.c.message == tool_calls.c.message,
    approvals.c.position == tool_calls.c.position,
)
_ITS_RULE = and_(
    permission_rules.c.job_id == runs.c.job_id,
    permission_rules.c.position == tool_calls.c.rule_position,
)
# A run waits for answers about its last message alone.
IS_OPEN = and_(
    approvals.c.answer.is_(None),
    runs.c.state.not_in(ENDED),
    approvals.c.message == runs.c.message_count - 1,
)
# A fork has copies of the calls of the turns that it goes on from.
IS_ITS_OWN = or_(runs.c.fork_turn.is_(None), tool_calls.c.turn > runs.c.fork_turn)


def was_denied(answer: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a tool call was denied: by its outcome, which ``runs.denials`` counts; or it will have
    that as soon as the run goes on.

    Args:
        answer: that of the question about it, null without one.
    """
    return or_(
        tool_calls.c.outcome == "denied",
        and_(
            tool_calls.c.ended_at.is_(None),
            tool_calls.c.interrupted.is_(False),
            tool_calls.c.asked_again.is_(False),  # that one may have taken effect
            or_(tool_calls.c.decision == "deny", answer == "denied"),
        ),
    )


_WAS_DENIED = was_denied(approvals.c.answer)

_WHY_COLUMNS = (
    tool_calls.c.decision,
    tool_calls.c.rule,
    permission_rules.c.why,
    permission_rules.c.origin,
    tool_calls.c.matched,
    tool_calls.c.decision_reason,
    tool_calls.c.denial,
)
_ANSWER_COLUMNS = (
    approvals.c.answer,
    approvals.c.answered_by,
    approvals.c.answered_via,
    approvals.c.reason,
    approvals.c.remembered,
)
_APPROVAL_COLUMNS = (
    approvals.c.id,
    approvals.c.summary,
    approvals.c.group_key,
    approvals.c.suggested_rule,
    approvals.c.asked_at,
    approvals.c.expires_at,
    *_ANSWER_COLUMNS,
    approvals.c.answered_at,
    approvals.c.edited_input,
)


class Why(TypedDict):
    """What decided on a call: a rule with its ``why``, who wrote it (``origin``) and the text that it
    matched; without a rule the job's default did. ``decision_reason`` says more where there is more
    to say. ``denial`` says why the call was denied although this, or the answer, allowed it."""

    decision: str | None
    rule: str | None
    why: str | None
    origin: str | None
    matched: str | None
    decision_reason: str | None
    denial: str | None


class DeniedCall(Why):
    """A call that may not run: its rule said so, or the answer to a question did, or (``denial``) the
    rules did when it was about to run, by where its path led then."""

    id: str
    run_id: str
    item_key: str
    turn: int
    tool: str
    answer: str | None
    answered_by: str | None
    answered_via: str | None
    reason: str | None
    remembered: int | None


class DeniedKind(Why):
    """Denied calls for the same reason: how many, in how many runs."""

    tool: str
    answer: str | None
    answered_by: str | None
    answered_via: str | None
    reason: str | None
    remembered: int | None
    calls: int
    runs: int


def denied_calls(database: Database, run_id: str) -> list[DeniedCall]:
    """The calls of a run that were denied, in order; of a fork, not those that it was copied with."""
    query = _of_calls(
        tool_calls.c.run_id,
        tool_calls.c.position,
        tool_calls.c.turn,
        tool_calls.c.name.label("tool"),
        runs.c.item_key,
        *_WHY_COLUMNS,
        *_ANSWER_COLUMNS,
    )
    query = query.where(tool_calls.c.run_id == run_id, IS_ITS_OWN, _WAS_DENIED)
    query = query.order_by(tool_calls.c.message, tool_calls.c.position)
    rows = database.read(lambda connection: connection.execute(query).all())
    return [DeniedCall(**_with_call_id(row)) for row in rows]  # type: ignore[typeddict-item]


def denied_kinds(database: Database, job_id: str) -> list[DeniedKind]:
    """What was denied in a job's runs and to their sub-agents, by reason; the most frequent first.
    Runs that were begun afresh are left out, as in ``queries.current_runs``."""
    columns = (
        tool_calls.c.name.label("tool"),
        *(column for column in _WHY_COLUMNS if column is not tool_calls.c.matched),
        *_ANSWER_COLUMNS,
    )
    count = func.count()
    query = (
        _of_calls(
            *columns,
            func.min(tool_calls.c.matched).label("matched"),
            count.label("calls"),
            func.count(tool_calls.c.run_id.distinct()).label("runs"),
        )
        .where(*_denied_in(job_id))
        .group_by(*columns)
        .order_by(count.desc(), tool_calls.c.name, tool_calls.c.rule)
    )
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [DeniedKind(**row) for row in rows]  # type: ignore[typeddict-item]


def denied_counts(database: Database, job_id: str) -> tuple[int, int]:
    """How many calls of a job were denied, of those that ``denied_kinds`` lists, and in how many
    runs."""
    counts = func.count(), func.count(tool_calls.c.run_id.distinct())
    query = _of_calls(*counts).where(*_denied_in(job_id))
    calls, in_runs = database.read(lambda connection: connection.execute(query).one())
    return calls, in_runs


def whys(database: Database, approval_ids: Sequence[str]) -> dict[str, Why]:
    """Why each of these questions was asked, by the approval's id."""
    found: dict[str, Why] = {}
    for start in range(0, len(approval_ids), _MOST_PARAMETERS):
        some = approval_ids[start : start + _MOST_PARAMETERS]
        for row in database.read(partial(_whys, approval_ids=some)):
            why = dict(row)
            found[why.pop("id")] = Why(**why)  # type: ignore[typeddict-item]
    return found


def why_of(database: Database, call_id: str) -> dict[str, Any]:
    """What is known of the decision on a call beside its own row: the rule's ``why`` and ``origin``,
    and ``approval``, the question about it with its answer (None: it was not asked about)."""
    query = _of_calls(permission_rules.c.why, permission_rules.c.origin, *_APPROVAL_COLUMNS)
    parsed = ids.parse_call_id(call_id)
    assert parsed is not None, call_id
    run_id, turn, position = parsed
    query = query.where(
        tool_calls.c.run_id == run_id,
        tool_calls.c.turn == turn,
        tool_calls.c.position == position,
    )
    row = dict(database.read(lambda connection: connection.execute(query).mappings().one()))
    why, origin = row.pop("why"), row.pop("origin")
    return {"rule_why": why, "rule_origin": origin, "approval": row if row["id"] else None}


def approvals_of(database: Database, run_id: str) -> list[dict[str, Any]]:
    """All questions of a run with their answers, in order; ``call_id`` names the call."""
    query = (
        select(
            approvals.c.run_id,
            approvals.c.message,
            approvals.c.position,
            approvals.c.turn,
            approvals.c.tool,
            *_APPROVAL_COLUMNS,
        )
        .where(approvals.c.run_id == run_id)
        .order_by(approvals.c.message, approvals.c.position)
    )
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [
        {"call_id": ids.call_id(row["run_id"], row["turn"], row["position"]), **row} for row in rows
    ]


def open_counts(database: Database, job_id: str) -> dict[str, int]:
    """How many questions wait for an answer, by the run of the item in whose tree they were asked; runs
    without one are left out."""
    query = (
        select(ROOT, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, IS_OPEN)
        .group_by(ROOT)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


def is_open(database: Database, approval_id: str) -> bool:
    """Whether a question still waits for its answer."""
    query = (
        select(approvals.c.id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.id == approval_id, IS_OPEN)
    )
    return database.read(lambda connection: connection.execute(query).first()) is not None


def approval_named(database: Database, name: str) -> str | None:
    """The id of an approval, answered or not, by its whole id or by that of its call."""

    def work(connection: Connection) -> str | None:
        condition = approvals.c.id == name
        if (key := call_key(connection, name)) is not None:
            condition = and_(
                approvals.c.run_id == key.run_id,
                approvals.c.message == key.message,
                approvals.c.position == key.position,
            )
        return connection.execute(select(approvals.c.id).where(condition)).scalar()

    return database.read(work)


def _denied_in(job_id: str) -> tuple[ColumnElement[bool], ...]:
    begun_afresh = select(runs.c.fresh_of).where(
        runs.c.job_id == job_id, runs.c.fresh_of.is_not(None)
    )
    return runs.c.job_id == job_id, ROOT.not_in(begun_afresh), IS_ITS_OWN, _WAS_DENIED


def _of_calls(*columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(tool_calls)
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .outerjoin(approvals, IS_ABOUT_CALL)
        .outerjoin(permission_rules, _ITS_RULE)
    )


def _whys(connection: Connection, approval_ids: Sequence[str]) -> Sequence[RowMapping]:
    query = _of_calls(approvals.c.id, *_WHY_COLUMNS).where(approvals.c.id.in_(approval_ids))
    return connection.execute(query).mappings().all()


def _with_call_id(row: Row[Any]) -> Mapping[str, Any]:
    call = dict(row._mapping)
    position = call.pop("position")
    return {"id": ids.call_id(call["run_id"], call["turn"], position), **call}
