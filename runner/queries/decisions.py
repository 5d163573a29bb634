"""Decisions on tool calls: the grounds to allow, ask or deny, and the answers of people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from runner.core.events import summarise_input
from runner.permissions.danger import danger_of
from runner.queries.filters import CALLED_AT, KEY, NEWEST_FIRST, Filters, answer, has_id
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.conditions import (
    APPROVAL_OF_CALL,
    CALL_BLOCKS,
    IS_OPEN_APPROVAL,
    IS_OWN_CALL,
    ROOT_RUN,
    superseded_runs,
)
from runner.store.database import Database, in_lots, reads
from runner.store.tables import approvals, blocks, permission_rules, runs, tool_calls

_GROUP_COLUMNS = columns(
    "verdict decision tool calls:integer answer answered_by rule_by rule_from rule why"
)
_CALL_COLUMNS = columns(
    "call_id label at:time run_id item turn:integer tool verdict decision answer answered_by "
    "rule_by rule_from rule why snapshot:integer matched"
)
_APPROVAL_COLUMNS = columns(
    "approval_id asked_at:time run_id item turn:integer call_id label tool answer answered_by via "
    "answered_at:time waited:seconds edited:boolean remembered reason about"
)

# A call was denied if its outcome says so, which ``runs.denials`` counts, or if it is going to be
# denied as soon as its run continues. One that may have taken effect (``asked_again``) is not.
_WAS_DENIED = or_(
    tool_calls.c.outcome == "denied",
    and_(
        tool_calls.c.ended_at.is_(None),
        tool_calls.c.interrupted.is_(False),
        tool_calls.c.asked_again.is_(False),
        or_(tool_calls.c.decision == "deny", approvals.c.answer == "denied"),
    ),
)
_VERDICT: ColumnElement[str] = sa.case(
    (_WAS_DENIED, "denied"),
    (or_(tool_calls.c.decision == "allow", approvals.c.answer == "approved"), "allowed"),
    (tool_calls.c.decision.is_(None), "undecided"),
    (and_(approvals.c.answer.is_(None), tool_calls.c.interrupted.is_(False)), "waiting"),
    else_="interrupted",
)
_RULE_OF_CALL = and_(
    permission_rules.c.job_id == runs.c.job_id,
    permission_rules.c.position == tool_calls.c.rule_position,
)

# What decided on a tool call: ``decision`` (allow, ask or deny), ``rule`` (None: the job's default
# decided), ``why`` (what the rule says of itself), ``origin`` (who wrote the rule), ``matched`` (the
# text that the rule matched), ``decision_reason`` (more about the decision) and ``denial`` (why the
# call was denied although the decision or the answer allowed it).
Why: TypeAlias = dict[str, Any]
_WHY = (
    *(tool_calls.c[name] for name in ("decision", "rule", "decision_reason", "denial")),
    *(permission_rules.c.why, permission_rules.c.origin),
)
_ANSWER = tuple(
    approvals.c[name] for name in ("answer", "answered_by", "answered_via", "reason", "remembered")
)
_APPROVAL = (
    *(approvals.c[name] for name in ("id", "summary", "group_key", "suggested_rule", "asked_at")),
    *(approvals.c.expires_at, *_ANSWER, approvals.c.answered_at, approvals.c.edited_input),
)
# A denied call with ``tool``, its answer and what decided on it, and calls denied for the same reason.
DeniedCall: TypeAlias = dict[str, Any]
DeniedKind: TypeAlias = dict[str, Any]


def denied_calls(
    database: Database, run_id: str, turns: tuple[int, int] | None = None
) -> list[DeniedCall]:
    """Return the denied calls of a run (of the turns from the first number to the last) in order, without
    calls that a fork copied: with ``id``, ``run_id``, ``item_key``, ``turn``, ``tool``, and the keys of
    ``Why`` and of the answer."""
    call = (*(tool_calls.c[name] for name in ("run_id", "position", "turn")), runs.c.item_key)
    why = (tool_calls.c.name.label("tool"), *_WHY, tool_calls.c.matched)
    query = (
        _calls_with_reasons(*call, *why, *_ANSWER)
        .where(tool_calls.c.run_id == run_id, IS_OWN_CALL, _WAS_DENIED)
        .order_by(tool_calls.c.message, tool_calls.c.position)
    )
    if turns is not None:
        query = query.where(tool_calls.c.turn.between(*turns))
    rows = database.dicts(query)
    return [
        {"id": ids.call_id(row["run_id"], row["turn"], row.pop("position")), **row} for row in rows
    ]


def denied_kinds(database: Database, job_id: str) -> list[DeniedKind]:
    """Return the denials in a job's runs and sub-agents by ``tool`` and the keys of ``Why`` and of
    the answer, with the number of ``calls`` and ``runs``; the most frequent first. The most dangerous
    call of each is its example: ``call_id``, ``item_key``, ``summary`` and what it does (``danger``), with
    its ``level`` (higher is worse); ``alike`` is True if all calls have this summary. Runs that were
    started afresh are left out, as in ``jobs.current_runs``."""
    alike = (tool_calls.c.name.label("tool"), *_WHY, *_ANSWER)
    names = ("run_id", "turn", "message", "position", "matched")
    of_call = (tool_calls.c[name] for name in names)
    query = _calls_with_reasons(*alike, *of_call, runs.c.item_key, blocks.c.content)
    query = query.join(blocks, CALL_BLOCKS).where(*_denied_in(job_id))
    call = attrgetter("run_id", "message", "position")
    query = query.order_by(*call(tool_calls.c), blocks.c.position)
    found: dict[tuple[Any, ...], DeniedKind] = {}
    in_runs: dict[tuple[Any, ...], set[str]] = {}
    for (_, _, position), of_reply in groupby(database.rows(query), call):
        row = next(islice(of_reply, position, None))  # the block that asks for this call
        key = tuple(row[: len(alike)])
        in_runs.setdefault(key, set()).add(row.run_id)
        given = row.content.get("input")
        level, danger = danger_of(row.tool, given if isinstance(given, dict) else {})
        summary = summarise_input(given)
        first = {"calls": 0, "level": -1, "summary": summary, "alike": True}
        kind = found.setdefault(key, first)
        kind["calls"] += 1
        kind["alike"] = kind["alike"] and kind["summary"] == summary
        if level > kind["level"]:
            kind |= {name.key: value for name, value in zip(alike, key, strict=True)}
            kind["call_id"] = ids.call_id(row.run_id, row.turn, row.position)
            kind |= {"item_key": row.item_key, "matched": row.matched, "level": level}
            kind |= {"summary": summary, "danger": danger}
    kinds = [kind | {"runs": len(in_runs[key])} for key, kind in found.items()]
    return sorted(kinds, key=lambda kind: (-kind["calls"], kind["tool"], kind["rule"] or ""))


def denied_counts(database: Database, job_id: str) -> tuple[int, int]:
    """Return the number of calls in ``denied_kinds``, and of their runs."""
    ((calls, in_runs),) = database.rows(_calls_with_reasons(*_COUNTS).where(*_denied_in(job_id)))
    return calls, in_runs


_COUNTS = (func.count().label("calls"), func.count(tool_calls.c.run_id.distinct()).label("runs"))


def _denied_in(job_id: str) -> tuple[ColumnElement[bool], ...]:
    is_current = ROOT_RUN.not_in(superseded_runs(job_id))
    return runs.c.job_id == job_id, is_current, IS_OWN_CALL, _WAS_DENIED


def _calls_with_reasons(*columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(tool_calls)
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .outerjoin(approvals, APPROVAL_OF_CALL)
        .outerjoin(permission_rules, _RULE_OF_CALL)
    )


def whys(database: Database, approval_ids: Sequence[str]) -> dict[str, Why]:
    query = _calls_with_reasons(approvals.c.id, *_WHY, tool_calls.c.matched)
    found = database.rows_in(query, approvals.c.id, approval_ids)
    return {row.id: dict(row._mapping) for row in found}


def decision_on_call(database: Database, call_id: str) -> dict[str, Any]:
    """Return ``rule_why``, ``rule_origin`` and the question with its answer (``approval``)."""
    query = _calls_with_reasons(permission_rules.c.why, permission_rules.c.origin, *_APPROVAL)
    ((why, origin, *approval),) = database.rows(query.where(has_id(call_id)))
    asked = dict(zip((column.name for column in _APPROVAL), approval, strict=True))
    return {"rule_why": why, "rule_origin": origin, "approval": asked if asked["id"] else None}


def approvals_of_run(
    database: Database, run_id: str, turns: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """The questions of a run (of the turns from the first number to the last) with their answers, in order;
    ``call_id`` names the call."""
    names = ("run_id", "message", "position", "turn", "tool")
    query = (
        select(*(approvals.c[name] for name in names), *_APPROVAL)
        .where(approvals.c.run_id == run_id)
        .order_by(approvals.c.message, approvals.c.position)
    )
    if turns is not None:
        query = query.where(approvals.c.turn.between(*turns))
    return [
        {"call_id": ids.call_id(row.run_id, row.turn, row.position), **row._mapping}
        for row in database.rows(query)
    ]


def text_before(database: Database, run_id: str, message: int) -> str:
    """Return what the model wrote in the reply that made a call, in that ``message`` of a run."""
    of_reply = blocks.c.run_id == run_id, blocks.c.message == message, blocks.c.type == "text"
    query = select(blocks.c.content).where(*of_reply).order_by(blocks.c.position)
    return "\n".join(row.content["text"] for row in database.rows(query))


def is_approval_open(database: Database, approval_id: str) -> bool:
    query = select(approvals.c.id).join(runs, runs.c.id == approvals.c.run_id)
    return bool(database.rows(query.where(approvals.c.id == approval_id, IS_OPEN_APPROVAL)))


def find_approval(database: Database, name: str) -> str | None:
    """The id of an approval, answered or not, by its whole id or by the id of its call."""
    is_named = has_id(name) if name.startswith("call_") else approvals.c.id == name
    query = select(approvals.c.id).outerjoin(tool_calls, APPROVAL_OF_CALL).where(is_named)
    return next((row.id for row in database.rows(query)), None)


def open_approval_counts(database: Database, job_id: str) -> dict[str, int]:
    """Return the number of open questions in the tree of each item's run."""
    query = _count_by_tree(approvals).where(approvals.c.job_id == job_id, IS_OPEN_APPROVAL)
    return dict(database.rows(query))


def waiting_by_job(database: Database) -> dict[str, int]:
    """Return the number of open questions of each job that has any."""
    query = select(approvals.c.job_id, func.count()).where(IS_OPEN_APPROVAL)
    query = query.join(runs, runs.c.id == approvals.c.run_id).group_by(approvals.c.job_id)
    return dict(database.rows(query))


def unknown_outcome_counts(database: Database, job_id: str) -> dict[str, int]:
    """Return the number of calls of unknown outcome in the tree of each item's run."""
    is_unknown = and_(runs.c.job_id == job_id, IS_OWN_CALL, tool_calls.c.outcome == "unknown")
    return dict(database.rows(_count_by_tree(tool_calls).where(is_unknown)))


def answer_counts(database: Database, job_id: str) -> dict[str, dict[tuple[str, str], int]]:
    """Return the number of answers in each tree: by the item's run, then by the answer and its
    source (``approved`` by a ``person``). Open questions are left out."""
    query = _count_by_tree(approvals, approvals.c.answer, approvals.c.answered_via)
    query = query.where(approvals.c.job_id == job_id, approvals.c.answer.is_not(None))
    found: dict[str, dict[tuple[str, str], int]] = {}
    for run_id, said, via, count in database.rows(query):
        found.setdefault(run_id, {})[said, via] = count
    return found


def _count_by_tree(table: sa.Table, *columns: ColumnElement[Any]) -> Select[Any]:
    query = select(ROOT_RUN, *columns, func.count()).select_from(table)
    return query.join(runs, runs.c.id == table.c.run_id).group_by(ROOT_RUN, *columns)


def decision_rows(database: Database, filters: Filters, *, each: bool = False) -> Rows:
    """Return the decisions on tool calls, grouped; the most frequent first.

    ``verdict`` is what became of a call: ``allowed``, ``denied``, ``waiting`` for an answer,
    ``undecided``, or ``interrupted`` when its run ended or continued first. ``decision`` is what the
    rules said (allow, ask, deny) and ``rule`` the rule that did, None where ``why`` names another cause:
    the job's default, a hook, Claude Code. ``rule_by`` is the person who added the rule, ``rule_from``
    its origin: ``job`` (the job file), a settings file, ``remembered`` (an answer), ``agent`` …
    ``answered_by`` answered the question, if any. With ``each`` every call has a row, the newest
    first, with the text that the rule matched.
    """
    if each:
        calls = _each_call(database, filters)
        return answer(database, _CALL_COLUMNS, calls, filters, "the newest")
    counts = _groups(database, filters)
    names = [column.name for column in _GROUP_COLUMNS]
    rows = sorted(
        ((*key[:3], calls, *key[3:]) for key, calls in counts.items()),
        key=lambda row: (-row[3], *map(str, row)),
    )
    groups = [dict(zip(names, row, strict=True)) for row in rows]
    return answer(database, _GROUP_COLUMNS, groups, filters, "the most frequent")


@reads
def _groups(connection: Connection, filters: Filters) -> Counter[tuple[Any, ...]]:
    reason = sa.case((tool_calls.c.rule.is_(None), tool_calls.c.decision_reason)).label("reason")
    calls = _decided_calls(filters, reason).where(~_IS_ALLOWED).subquery()
    query = select(*calls.c, func.count().label("calls")).group_by(*calls.c)
    allowed, others = _allowed(connection, filters), connection.execute(query).all()
    rules = _rules(connection, {key[0] for key in allowed} | {row.job_id for row in others})
    groups: Counter[tuple[Any, ...]] = Counter()
    for (job_id, position, tool), count in allowed.items():
        rule = rules.get((job_id, position), _NO_RULE)
        groups["allowed", "allow", tool, None, None, *rule] += count
    for row in others:
        by, origin, why = _rule_of(row, rules)
        decision = (row.verdict, row.decision, row.tool, row.answer, row.answered_by)
        why = why or _OF_DEFAULT.sub(r"\1 it", row.reason or "") or _default(row)
        groups[*decision, by, origin, row.rule, why] += row.calls
    return groups


_IS_ALLOWED = and_(
    tool_calls.c.decision == "allow",
    func.coalesce(tool_calls.c.outcome, "") != "denied",
    tool_calls.c.rule_position.is_not(None),
)
# A reason of the job's default, which quotes the part of the call that no rule allows.
_OF_DEFAULT = re.compile(r"^(no permission rule of .+? allows) .+$", re.DOTALL)
_NO_RULE_ALLOWS = "no permission rule of this job allows it"


def _default(call: Any) -> str | None:
    """The reason of a decision by the job's default that says no more."""
    is_default = call.rule is None and call.decision in ("ask", "deny")
    return _NO_RULE_ALLOWS if is_default else None


_SEPARATOR = "\x1e"  # not in any tool's name


def _allowed(connection: Connection, filters: Filters) -> Counter[tuple[str, int, str]]:
    """Return the number of calls that a rule simply allowed, by job, rule position and tool.
    Concatenates the calls of each run, because to group all calls the database would sort them,
    several times slower."""
    code = sa.cast(tool_calls.c.rule_position, sa.Text) + "/" + tool_calls.c.name
    codes = (
        select(func.aggregate_strings(code, _SEPARATOR))
        .where(tool_calls.c.run_id == runs.c.id, _IS_ALLOWED, *filters.of_tool_calls())
        .correlate(runs)
        .scalar_subquery()
    )
    query = select(runs.c.job_id, codes.label("codes")).where(*filters.of_runs())
    found: Counter[tuple[str, int, str]] = Counter()
    for row in connection.execute(query):
        for each, count in Counter((row.codes or "").split(_SEPARATOR)).items():
            position, _, tool = each.partition("/")
            if each:
                found[row.job_id, int(position), tool] += count
    return found


def _decided_calls(filters: Filters, *columns: Any) -> Select[Any]:
    return filters.tool_calls(
        *(runs.c.job_id, tool_calls.c.name.label("tool"), _VERDICT.label("verdict")),
        *(tool_calls.c[name] for name in ("decision", "rule", "rule_position")),
        *(approvals.c.answer, approvals.c.answered_by, *columns),
    ).outerjoin(approvals, APPROVAL_OF_CALL)


# The person who added it, its origin, its text, and what it says of itself.
_Rule = tuple[str | None, ...]
_NO_RULE: _Rule = (None, None, None, None)


def _rules(
    connection: Connection, job_ids: Collection[str]
) -> Mapping[tuple[str, int | None], _Rule]:  # by job and position
    table = permission_rules.c
    query = select(
        *(table.job_id, table.position, func.nullif(table.author, ""), table.origin, table.rule),
        func.nullif(table.why, ""),
    )
    return {
        (job_id, position): tuple(rule)
        for some in in_lots(sorted(job_ids))
        for job_id, position, *rule in connection.execute(query.where(table.job_id.in_(some)))
    }


def _rule_of(
    call: Any, rules: Mapping[tuple[str, int | None], _Rule]
) -> tuple[str | None, str | None, str | None]:
    """Who added the rule that decided, its origin (``agent``: the rules of a sub-agent's type have no
    position in the job's), and what it says of itself."""
    if call.rule is not None and call.rule_position is None:
        return None, "agent", None
    by, origin, _, why = rules.get((call.job_id, call.rule_position), _NO_RULE)
    return by, origin, why


@reads
def _each_call(connection: Connection, filters: Filters) -> list[dict[str, Any]]:
    reason = func.coalesce(
        func.nullif(tool_calls.c.denial, ""), func.nullif(tool_calls.c.decision_reason, "")
    )
    query = _decided_calls(
        filters,
        *(*KEY, tool_calls.c.turn, CALLED_AT.label("at"), runs.c.item_key.label("item")),
        *(tool_calls.c.matched, tool_calls.c.decision_snapshot.label("snapshot")),
        reason.label("reason"),
    )
    found = connection.execute(query.order_by(*NEWEST_FIRST).limit(filters.most)).all()
    rules = _rules(connection, {call.job_id for call in found})
    calls = []
    for call in found:
        by, origin, why = _rule_of(call, rules)
        rule = {"rule_by": by, "rule_from": origin, "why": call.reason or why or _default(call)}
        calls.append({**call._mapping, **rule})
    return calls


def approval_rows(database: Database, filters: Filters) -> Rows:
    """The questions about tool calls and their answers, the newest first.

    ``answer`` is ``approved``, ``denied``, ``expired``, ``cancelled``, ``waiting``, or ``unanswered``
    where the run continued or ended without an answer. ``via`` is what answered: a ``person``, a
    ``rule`` that a person had remembered, the ``timeout``, or the run's ``cancel`` or ``end``.
    ``remembered`` is the rule that was stored with the answer, or that gave it; ``about`` is a line of
    the input.
    """
    asked = approvals.c
    outcome = sa.case(
        (asked.answer.is_not(None), asked.answer), (IS_OPEN_APPROVAL, "waiting"), else_="unanswered"
    )
    remembered = and_(
        permission_rules.c.job_id == asked.job_id, permission_rules.c.position == asked.remembered
    )
    query = (
        select(
            *(asked[name] for name in ("run_id", "turn", "position", "tool", "asked_at")),
            *(
                asked.id.label("approval_id"),
                runs.c.item_key.label("item"),
                outcome.label("answer"),
            ),
            *(asked.answered_by, asked.answered_via.label("via"), asked.answered_at),
            (asked.answered_at - asked.asked_at).label("waited"),
            asked.edited_input.is_not(None).label("edited"),
            permission_rules.c.rule.label("remembered"),
            *(func.nullif(asked.reason, "").label("reason"), asked.summary.label("about")),
        )
        .join(runs, runs.c.id == asked.run_id)
        .outerjoin(permission_rules, remembered)
        .where(*filters.of_runs(), *filters.of_calls(approvals, asked.tool, asked.asked_at))
        .order_by(asked.asked_at.desc(), asked.id.desc())
        .limit(filters.most)
    )
    rows = [row._mapping for row in database.rows(query)]
    return answer(database, _APPROVAL_COLUMNS, rows, filters, "the newest")
