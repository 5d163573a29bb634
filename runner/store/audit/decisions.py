"""What was allowed, asked about and denied: by which rule, and by whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    or_,
    select,
)

from runner.core.rows import Column, Rows
from runner.store import ids
from runner.store.audit.filters import Filters
from runner.store.audit.finding.calls import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    call_conditions,
    of_calls,
    run_conditions,
    with_answers,
)
from runner.store.audit.finding.shown import at_most, cut, labelled
from runner.store.connection.database import Database
from runner.store.look.decisions import was_denied
from runner.store.tables import approvals, permission_rules, runs, tool_calls

GROUPS = (
    Column("verdict"),
    Column("decision"),
    Column("tool"),
    Column("calls", "integer"),
    Column("answer"),
    Column("answered_by"),
    Column("rule_by"),
    Column("rule_from"),
    Column("rule"),
    Column("why"),
)
CALLS = (
    Column("call_id"),
    Column("at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("tool"),
    Column("verdict"),
    Column("decision"),
    Column("answer"),
    Column("answered_by"),
    Column("rule_by"),
    Column("rule_from"),
    Column("rule"),
    Column("why"),
    Column("snapshot", "integer"),
    Column("matched"),
)
_MOST_JOBS = 500

_BETWEEN = "\x1e"  # no tool's name has it


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is stored of a rule: who added it (``by``), and where it is from."""

    text: str | None = None
    by: str | None = None
    origin: str | None = None
    why: str | None = None


_NO_RULE = _Rule()
_Rules = Mapping[tuple[str, int | None], _Rule]  # by job and position


def decisions(
    database: Database, filters: Filters, *, each: bool = False, limit: int | None = None
) -> Rows:
    """How calls were decided on: those together that were decided alike, the most frequent first.

    ``verdict`` is what became of it: ``allowed``, ``denied``, ``waiting`` for an answer,
    ``undecided``, or ``interrupted`` as the run ended or went on first. ``decision`` is what the rules
    said (allow, ask, deny), ``rule`` the one that did (None: no rule matched, so the job's default
    did), ``rule_by`` the person who added it, and ``rule_from`` where it is from: ``job`` (the job
    file), a settings file, or ``remembered`` (an answer). ``answered_by`` answered what was asked.

    Args:
        each: every call by itself instead, the newest first, with the text that the rule matched.
    """
    if each:
        found = database.read(partial(_each, filters=filters, limit=limit))
        return labelled(database, cut(CALLS, found, limit, "the newest"))
    groups = database.read(partial(_groups, filters=filters))
    rows = sorted(
        ((*key[:3], calls, *key[3:]) for key, calls in groups.items()),
        key=lambda row: (-row[3], *map(str, row)),
    )
    return cut(GROUPS, rows, limit, "the most frequent")


def _groups(connection: Connection, filters: Filters) -> Counter[tuple[Any, ...]]:
    """How many calls were decided on alike, by the columns of ``GROUPS`` but their number."""
    allowed, others = _allowed(connection, filters), _others(connection, filters)
    rules = _rules(connection, {key[0] for key in allowed} | {row.job_id for row in others})
    groups: Counter[tuple[Any, ...]] = Counter()
    for (job_id, position, tool), calls in allowed.items():
        rule = rules.get((job_id, position), _NO_RULE)
        key = ("allowed", "allow", tool, None, None)
        groups[*key, rule.by, rule.origin, rule.text, rule.why] += calls
    for row in others:
        rule = rules.get((row.job_id, row.rule_position), _NO_RULE)
        key = (row.verdict, row.decision, row.name, row.answer, row.answered_by)
        groups[*key, rule.by, rule.origin, row.rule, rule.why] += row.calls
    return groups


_IS_ALLOWED = and_(
    tool_calls.c.decision == "allow",
    func.coalesce(tool_calls.c.outcome, "") != "denied",
    tool_calls.c.rule_position.is_not(None),
)


def _allowed(connection: Connection, filters: Filters) -> Counter[tuple[str, int, str]]:
    """How many calls a rule simply allowed, as nearly all are: by job, position of the rule, and tool.

    To group all calls the database would sort them, which takes several times what it takes to string
    those of each run together.
    """
    code = cast(tool_calls.c.rule_position, Text) + "/" + tool_calls.c.name
    codes = (
        select(func.aggregate_strings(code, _BETWEEN))
        .where(tool_calls.c.run_id == runs.c.id, _IS_ALLOWED, *call_conditions(filters))
        .correlate(runs)
        .scalar_subquery()
    )
    query = select(runs.c.job_id, codes.label("codes")).where(*run_conditions(filters))
    found: Counter[tuple[str, int, str]] = Counter()
    for row in connection.execute(query):
        for one, calls in Counter((row.codes or "").split(_BETWEEN)).items():
            position, _, tool = one.partition("/")
            if one:
                found[row.job_id, int(position), tool] += calls
    return found


def _others(connection: Connection, filters: Filters) -> Sequence[Any]:
    calls = with_answers(_decided(filters)).where(~_IS_ALLOWED).subquery()
    query = select(*calls.c, func.count().label("calls")).group_by(*calls.c)
    return connection.execute(query).all()


# ``denied`` is what ``look.decisions`` counts, and so the report and ``runner show``.
_VERDICT: ColumnElement[str] = case(
    (was_denied(approvals.c.answer), "denied"),
    (or_(tool_calls.c.decision == "allow", approvals.c.answer == "approved"), "allowed"),
    (tool_calls.c.decision.is_(None), "undecided"),
    (and_(approvals.c.answer.is_(None), tool_calls.c.interrupted.is_(False)), "waiting"),
    else_="interrupted",
)


def _decided(filters: Filters, *columns: Any) -> Select[Any]:
    """Calls with the decisions on them."""
    return of_calls(
        filters,
        runs.c.job_id,
        tool_calls.c.name,
        tool_calls.c.decision,
        tool_calls.c.rule,
        tool_calls.c.rule_position,
        _VERDICT.label("verdict"),
        approvals.c.answer,
        approvals.c.answered_by,
        *columns,
    )


def _rules(connection: Connection, job_ids: Collection[str]) -> _Rules:
    table = permission_rules.c
    names = ("job_id", "position", "rule", "author", "origin", "why")
    query = select(*(table[name] for name in names))
    found: dict[tuple[str, int | None], _Rule] = {}
    wanted = sorted(job_ids)
    for start in range(0, len(wanted), _MOST_JOBS):
        some = query.where(table.job_id.in_(wanted[start : start + _MOST_JOBS]))
        for row in connection.execute(some):
            known = _Rule(row.rule, row.author or None, row.origin, row.why or None)
            found[row.job_id, row.position] = known
    return found


def _each(connection: Connection, filters: Filters, limit: int | None) -> list[tuple[Any, ...]]:
    query = with_answers(
        _decided(
            filters,
            *KEY,
            CALLED_AT.label("at"),
            tool_calls.c.turn,
            tool_calls.c.matched,
            tool_calls.c.decision_snapshot,
            tool_calls.c.decision_reason,
            tool_calls.c.denial,
            runs.c.item_key,
        )
    )
    calls = connection.execute(query.order_by(*NEWEST_FIRST).limit(at_most(limit))).all()
    rules = _rules(connection, {call.job_id for call in calls})
    return [_call_row(call, rules) for call in calls]


def _call_row(call: Row[Any], rules: _Rules) -> tuple[Any, ...]:
    rule = rules.get((call.job_id, call.rule_position), _NO_RULE)
    return (
        ids.call_id(call.run_id, call.turn, call.position),
        call.at,
        call.run_id,
        call.item_key,
        call.turn,
        call.name,
        call.verdict,
        call.decision,
        call.answer,
        call.answered_by,
        rule.by,
        rule.origin,
        call.rule,
        call.denial or call.decision_reason or rule.why,
        call.decision_snapshot,
        call.matched,
    )
