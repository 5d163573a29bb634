"""Why tool calls were allowed, asked about or denied, and how people answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    or_,
    select,
    tuple_,
)

from runner.queries.filters import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    Filters,
    between,
    call_conditions,
    of_calls,
    run_conditions,
    turns_of_model,
    with_answers,
)
from runner.queries.find import call_key
from runner.queries.rows import Column, Rows, at_most, cut, labelled
from runner.store import ids
from runner.store.conditions import APPROVAL_OF_CALL, IS_OPEN_APPROVAL, IS_OWN_CALL, ROOT_RUN
from runner.store.database import Database
from runner.store.tables import approvals, permission_rules, runs, tool_calls

_MOST_PARAMETERS = 500

_ITS_RULE = and_(
    permission_rules.c.job_id == runs.c.job_id,
    permission_rules.c.position == tool_calls.c.rule_position,
)


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
    query = _decided_calls(
        tool_calls.c.run_id,
        tool_calls.c.position,
        tool_calls.c.turn,
        tool_calls.c.name.label("tool"),
        runs.c.item_key,
        *_WHY_COLUMNS,
        *_ANSWER_COLUMNS,
    )
    query = query.where(tool_calls.c.run_id == run_id, IS_OWN_CALL, _WAS_DENIED)
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
        _decided_calls(
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
    query = _decided_calls(*counts).where(*_denied_in(job_id))
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


def decision_on_call(database: Database, call_id: str) -> dict[str, Any]:
    """What is known of the decision on a call beside its own row: the rule's ``why`` and ``origin``,
    and ``approval``, the question about it with its answer (None: it was not asked about)."""
    query = _decided_calls(permission_rules.c.why, permission_rules.c.origin, *_APPROVAL_COLUMNS)
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


def approvals_of_run(database: Database, run_id: str) -> list[dict[str, Any]]:
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


def open_approval_counts(database: Database, job_id: str) -> dict[str, int]:
    """How many questions wait for an answer, by the run of the item in whose tree they were asked; runs
    without one are left out."""
    query = (
        select(ROOT_RUN, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, IS_OPEN_APPROVAL)
        .group_by(ROOT_RUN)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


def is_approval_open(database: Database, approval_id: str) -> bool:
    """Whether a question still waits for its answer."""
    query = (
        select(approvals.c.id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.id == approval_id, IS_OPEN_APPROVAL)
    )
    return database.read(lambda connection: connection.execute(query).first()) is not None


def find_approval(database: Database, name: str) -> str | None:
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
    return runs.c.job_id == job_id, ROOT_RUN.not_in(begun_afresh), IS_OWN_CALL, _WAS_DENIED


def _decided_calls(*columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(tool_calls)
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .outerjoin(approvals, APPROVAL_OF_CALL)
        .outerjoin(permission_rules, _ITS_RULE)
    )


def _whys(connection: Connection, approval_ids: Sequence[str]) -> Sequence[RowMapping]:
    query = _decided_calls(approvals.c.id, *_WHY_COLUMNS).where(approvals.c.id.in_(approval_ids))
    return connection.execute(query).mappings().all()


def _with_call_id(row: Row[Any]) -> Mapping[str, Any]:
    call = dict(row._mapping)
    position = call.pop("position")
    return {"id": ids.call_id(call["run_id"], call["turn"], position), **call}


def answer_counts(database: Database, job_id: str) -> dict[str, dict[tuple[str, str], int]]:
    """How the questions of each tree of a job were answered and how often: by the id of the item's run,
    then by the answer and what it came from (``approved`` by a ``person``). Open ones are left out."""
    query = (
        select(ROOT_RUN, approvals.c.answer, approvals.c.answered_via, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, approvals.c.answer.is_not(None))
        .group_by(ROOT_RUN, approvals.c.answer, approvals.c.answered_via)
    )
    found: dict[str, dict[tuple[str, str], int]] = {}
    for run_id, answer, via, count in database.read(
        lambda connection: connection.execute(query).all()
    ):
        found.setdefault(run_id, {})[answer, via] = count
    return found


def unknown_outcome_counts(database: Database, job_id: str) -> Mapping[str, int]:
    """How many tool calls of each tree of a job have an outcome that nobody knows, by the id of the
    item's run; those without one are left out."""
    query = (
        select(ROOT_RUN, func.count())
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .where(runs.c.job_id == job_id, IS_OWN_CALL, tool_calls.c.outcome == "unknown")
        .group_by(ROOT_RUN)
    )
    rows: Any = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


_GROUPS = (
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
_CALLS = (
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


def decision_rows(
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
        return labelled(database, cut(_CALLS, found, limit, "the newest"))
    groups = database.read(partial(_groups, filters=filters))
    rows = sorted(
        ((*key[:3], calls, *key[3:]) for key, calls in groups.items()),
        key=lambda row: (-row[3], *map(str, row)),
    )
    return cut(_GROUPS, rows, limit, "the most frequent")


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


# ``denied`` is what ``was_denied`` says, and so the report and ``runner show``.
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


_APPROVAL_ROWS = (
    Column("approval_id"),
    Column("asked_at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("call_id"),
    Column("tool"),
    Column("answer"),
    Column("answered_by"),
    Column("via"),
    Column("answered_at", "time"),
    Column("waited", "seconds"),
    Column("edited", "boolean"),
    Column("remembered"),
    Column("reason"),
    Column("about"),
)
_ANSWER = case(
    (approvals.c.answer.is_not(None), approvals.c.answer),
    (IS_OPEN_APPROVAL, "waiting"),
    else_="unanswered",
)


def approval_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The questions that were asked about tool calls, the newest first.

    ``answer`` is ``approved``, ``denied``, ``expired``, ``cancelled``, ``waiting``, or ``unanswered``
    where the run went on or ended without one. ``via`` is what answered: a ``person``, a ``rule`` that
    a person had remembered, the ``timeout``, or the run's ``cancel`` or ``end``. ``remembered`` is the rule
    that was stored with the answer, or that gave it, ``about`` a line of the input.
    """
    query = (
        select(
            approvals,
            runs.c.item_key,
            permission_rules.c.rule.label("its_rule"),
            _ANSWER.label("shown"),
        )
        .join(runs, runs.c.id == approvals.c.run_id)
        .outerjoin(
            permission_rules,
            (permission_rules.c.job_id == approvals.c.job_id)
            & (permission_rules.c.position == approvals.c.remembered),
        )
        .where(*_approval_conditions(filters))
        .order_by(approvals.c.asked_at.desc(), approvals.c.id.desc())
        .limit(at_most(limit))
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return labelled(
        database, cut(_APPROVAL_ROWS, [_approval_row(row) for row in rows], limit, "the newest")
    )


def _approval_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    yield from run_conditions(filters)
    yield from between(approvals.c.asked_at, filters)
    if filters.tool is not None:
        yield approvals.c.tool == filters.tool
    if filters.model is not None:
        yield tuple_(approvals.c.run_id, approvals.c.turn).in_(turns_of_model(filters.model))


def _approval_row(row: Any) -> tuple[Any, ...]:
    waited = None if row.answered_at is None else row.answered_at - row.asked_at
    return (
        row.id,
        row.asked_at,
        row.run_id,
        row.item_key,
        row.turn,
        ids.call_id(row.run_id, row.turn, row.position),
        row.tool,
        row.shown,
        row.answered_by,
        row.answered_via,
        row.answered_at,
        waited,
        row.edited_input is not None,
        row.its_rule,
        row.reason or None,
        row.summary,
    )
