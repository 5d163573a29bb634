"""Why tool calls were allowed, asked about or denied, and how people answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

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

from runner.queries.filters import (
    CALLED_AT,
    KEY,
    NEWEST_FIRST,
    Filters,
    at_most,
    cut,
    in_batches,
    with_labels,
)
from runner.queries.find import call_key
from runner.queries.rows import Rows, columns
from runner.store import ids
from runner.store.conditions import (
    APPROVAL_OF_CALL,
    IS_OPEN_APPROVAL,
    IS_OWN_CALL,
    ROOT_RUN,
    superseded_runs,
)
from runner.store.database import Database
from runner.store.tables import approvals, permission_rules, runs, tool_calls

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
_VERDICT: ColumnElement[str] = case(
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
_REASONS = (
    tool_calls.c.decision,
    tool_calls.c.rule,
    permission_rules.c.why,
    permission_rules.c.origin,
    tool_calls.c.matched,
    tool_calls.c.decision_reason,
    tool_calls.c.denial,
)
_ANSWER = (
    approvals.c.answer,
    approvals.c.answered_by,
    approvals.c.answered_via,
    approvals.c.reason,
    approvals.c.remembered,
)
_APPROVAL = (
    approvals.c.id,
    approvals.c.summary,
    approvals.c.group_key,
    approvals.c.suggested_rule,
    approvals.c.asked_at,
    approvals.c.expires_at,
    *_ANSWER,
    approvals.c.answered_at,
    approvals.c.edited_input,
)


class Why(TypedDict):
    """What decided on a tool call."""

    decision: str | None  # allow, ask or deny
    rule: str | None  # None: the job's default decided
    why: str | None  # what the rule says of itself
    origin: str | None  # who wrote the rule
    matched: str | None  # the text that the rule matched
    decision_reason: str | None  # more about the decision
    denial: str | None  # why the call was denied although the decision or the answer allowed it


class _Denied(Why):
    tool: str
    answer: str | None
    answered_by: str | None
    answered_via: str | None
    reason: str | None
    remembered: int | None


class DeniedCall(_Denied):
    """A call that was denied by a rule, by the answer to a question, or (``denial``) by the rules when it
    was about to run, because its path led elsewhere by then."""

    id: str
    run_id: str
    item_key: str
    turn: int


class DeniedKind(_Denied):
    """Calls that were denied for the same reason: how many, in how many runs."""

    calls: int
    runs: int


def denied_calls(database: Database, run_id: str) -> list[DeniedCall]:
    """The denied calls of a run, in order, without those that a fork is a copy of."""
    query = (
        _calls_with_reasons(
            tool_calls.c.run_id,
            tool_calls.c.position,
            tool_calls.c.turn,
            tool_calls.c.name.label("tool"),
            runs.c.item_key,
            *_REASONS,
            *_ANSWER,
        )
        .where(tool_calls.c.run_id == run_id, IS_OWN_CALL, _WAS_DENIED)
        .order_by(tool_calls.c.message, tool_calls.c.position)
    )
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    found = []
    for row in map(dict, rows):
        call_id = ids.call_id(row["run_id"], row["turn"], row.pop("position"))
        found.append(DeniedCall(id=call_id, **row))  # type: ignore[typeddict-item]
    return found


def denied_kinds(database: Database, job_id: str) -> list[DeniedKind]:
    """What was denied in a job's runs and to their sub-agents, by reason; the most frequent first. Runs
    that were started afresh are left out, as in ``jobs.current_runs``."""
    shared = (
        tool_calls.c.name.label("tool"),
        *(column for column in _REASONS if column is not tool_calls.c.matched),
        *_ANSWER,
    )
    count = func.count()
    query = (
        _calls_with_reasons(
            *shared,
            func.min(tool_calls.c.matched).label("matched"),
            count.label("calls"),
            func.count(tool_calls.c.run_id.distinct()).label("runs"),
        )
        .where(*_denied_in(job_id))
        .group_by(*shared)
        .order_by(count.desc(), tool_calls.c.name, tool_calls.c.rule)
    )
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [DeniedKind(**row) for row in rows]  # type: ignore[typeddict-item]


def denied_counts(database: Database, job_id: str) -> tuple[int, int]:
    """How many calls ``denied_kinds`` covers, and in how many runs."""
    counts = func.count(), func.count(tool_calls.c.run_id.distinct())
    query = _calls_with_reasons(*counts).where(*_denied_in(job_id))
    calls, in_runs = database.read(lambda connection: connection.execute(query).one())
    return calls, in_runs


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
    """Why each of these questions was asked, by the approval's id."""
    query = _calls_with_reasons(approvals.c.id, *_REASONS)

    def work(connection: Connection) -> dict[str, Why]:
        found = {}
        for some in in_batches(approval_ids):
            rows = connection.execute(query.where(approvals.c.id.in_(some))).mappings()
            for row in map(dict, rows):
                found[row.pop("id")] = Why(**row)  # type: ignore[typeddict-item]
        return found

    return database.read(work)


def decision_on_call(database: Database, call_id: str) -> dict[str, Any]:
    """What is known of the decision on a call beside its own row.

    Returns:
        ``rule_why``, ``rule_origin``, and ``approval``: the question with its answer, or None.
    """
    query = _calls_with_reasons(permission_rules.c.why, permission_rules.c.origin, *_APPROVAL)
    parsed = ids.parse_call_id(call_id)
    assert parsed is not None, call_id
    run_id, turn, position = parsed
    query = query.where(
        tool_calls.c.run_id == run_id, tool_calls.c.turn == turn, tool_calls.c.position == position
    )
    row = dict(database.read(lambda connection: connection.execute(query).mappings().one()))
    why, origin = row.pop("why"), row.pop("origin")
    return {"rule_why": why, "rule_origin": origin, "approval": row if row["id"] else None}


def approvals_of_run(database: Database, run_id: str) -> list[dict[str, Any]]:
    """All questions of a run with their answers, in order; ``call_id`` names the call."""
    names = ("run_id", "message", "position", "turn", "tool")
    query = (
        select(*(approvals.c[name] for name in names), *_APPROVAL)
        .where(approvals.c.run_id == run_id)
        .order_by(approvals.c.message, approvals.c.position)
    )
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [
        {"call_id": ids.call_id(row["run_id"], row["turn"], row["position"]), **row} for row in rows
    ]


def is_approval_open(database: Database, approval_id: str) -> bool:
    """True if a question still waits for its answer."""
    query = (
        select(approvals.c.id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.id == approval_id, IS_OPEN_APPROVAL)
    )
    return database.read(lambda connection: connection.execute(query).first()) is not None


def find_approval(database: Database, name: str) -> str | None:
    """The id of an approval, answered or not, by its whole id or by the id of its call."""

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


def open_approval_counts(database: Database, job_id: str) -> dict[str, int]:
    """How many questions wait for an answer in the tree of each item's run that has any."""
    query = (
        select(ROOT_RUN, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, IS_OPEN_APPROVAL)
        .group_by(ROOT_RUN)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


def unknown_outcome_counts(database: Database, job_id: str) -> dict[str, int]:
    """How many tool calls have an unknown outcome in the tree of each item's run that has any."""
    query = (
        select(ROOT_RUN, func.count())
        .join_from(tool_calls, runs, runs.c.id == tool_calls.c.run_id)
        .where(runs.c.job_id == job_id, IS_OWN_CALL, tool_calls.c.outcome == "unknown")
        .group_by(ROOT_RUN)
    )
    rows = database.read(lambda connection: connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


def answer_counts(database: Database, job_id: str) -> dict[str, dict[tuple[str, str], int]]:
    """How the questions of each tree were answered: by the item's run, then by the answer and what it
    came from (``approved`` by a ``person``). Open questions are left out."""
    query = (
        select(ROOT_RUN, approvals.c.answer, approvals.c.answered_via, func.count())
        .join_from(approvals, runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.job_id == job_id, approvals.c.answer.is_not(None))
        .group_by(ROOT_RUN, approvals.c.answer, approvals.c.answered_via)
    )
    found: dict[str, dict[tuple[str, str], int]] = {}
    rows = database.read(lambda connection: connection.execute(query).all())
    for run_id, answer, via, count in rows:
        found.setdefault(run_id, {})[answer, via] = count
    return found


def decision_rows(
    database: Database, filters: Filters, *, each: bool = False, limit: int | None = None
) -> Rows:
    """How tool calls were decided on, grouped by decision; the most frequent first.

    ``verdict`` is what became of a call: ``allowed``, ``denied``, ``waiting`` for an answer,
    ``undecided``, or ``interrupted`` when its run ended or continued first. ``decision`` is what the
    rules said (allow, ask, deny) and ``rule`` the rule that did, None for the job's default.
    ``rule_by`` is the person who added the rule, ``rule_from`` its origin: ``job`` (the job file), a
    settings file, or ``remembered`` (an answer). ``answered_by`` answered the question, if any.

    Args:
        each: a row for every call instead, the newest first, with the text that the rule matched.
    """
    if each:
        calls = database.read(partial(_each_call, filters=filters, limit=limit))
        return cut(_CALL_COLUMNS, with_labels(database, calls), limit, "the newest")
    groups = database.read(partial(_groups, filters=filters))
    rows = sorted(
        ((*key[:3], calls, *key[3:]) for key, calls in groups.items()),
        key=lambda row: (-row[3], *map(str, row)),
    )
    return cut(_GROUP_COLUMNS, rows, limit, "the most frequent")


def _groups(connection: Connection, filters: Filters) -> Counter[tuple[Any, ...]]:
    """The number of calls by ``_GROUP_COLUMNS`` without ``calls``."""
    calls = _decided_calls(filters).where(~_IS_ALLOWED).subquery()
    query = select(*calls.c, func.count().label("calls")).group_by(*calls.c)
    allowed, others = _allowed(connection, filters), connection.execute(query).all()
    rules = _rules(connection, {key[0] for key in allowed} | {row.job_id for row in others})
    groups: Counter[tuple[Any, ...]] = Counter()
    for (job_id, position, tool), count in allowed.items():
        text, by, origin, why = rules.get((job_id, position), _NO_RULE)
        groups["allowed", "allow", tool, None, None, by, origin, text, why] += count
    for row in others:
        _, by, origin, why = rules.get((row.job_id, row.rule_position), _NO_RULE)
        decision = (row.verdict, row.decision, row.name, row.answer, row.answered_by)
        groups[*decision, by, origin, row.rule, why] += row.calls
    return groups


_IS_ALLOWED = and_(
    tool_calls.c.decision == "allow",
    func.coalesce(tool_calls.c.outcome, "") != "denied",
    tool_calls.c.rule_position.is_not(None),
)
_SEPARATOR = "\x1e"  # not in any tool's name


def _allowed(connection: Connection, filters: Filters) -> Counter[tuple[str, int, str]]:
    """How many calls a rule simply allowed, as most are, by job, position of the rule, and tool.

    Concatenates the calls of each run: to group all calls the database would sort them, which takes
    several times as long.
    """
    code = cast(tool_calls.c.rule_position, Text) + "/" + tool_calls.c.name
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
        runs.c.job_id,
        tool_calls.c.name,
        tool_calls.c.decision,
        tool_calls.c.rule,
        tool_calls.c.rule_position,
        _VERDICT.label("verdict"),
        approvals.c.answer,
        approvals.c.answered_by,
        *columns,
    ).outerjoin(approvals, APPROVAL_OF_CALL)


# Its text, the person who added it, its origin, and what it says of itself.
_Rule = tuple[str | None, str | None, str | None, str | None]
_NO_RULE: _Rule = (None, None, None, None)


def _rules(
    connection: Connection, job_ids: Collection[str]
) -> Mapping[tuple[str, int | None], _Rule]:
    """The rules of jobs by job and position."""
    table = permission_rules.c
    names = ("job_id", "position", "rule", "author", "origin", "why")
    query = select(*(table[name] for name in names))
    return {
        (row.job_id, row.position): (row.rule, row.author or None, row.origin, row.why or None)
        for some in in_batches(sorted(job_ids))
        for row in connection.execute(query.where(table.job_id.in_(some)))
    }


def _each_call(
    connection: Connection, filters: Filters, limit: int | None
) -> list[tuple[Any, ...]]:
    query = _decided_calls(
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
    calls = connection.execute(query.order_by(*NEWEST_FIRST).limit(at_most(limit))).all()
    rules = _rules(connection, {call.job_id for call in calls})
    return [
        _call_row(call, rules.get((call.job_id, call.rule_position), _NO_RULE)) for call in calls
    ]


def _call_row(call: Row[Any], rule: _Rule) -> tuple[Any, ...]:
    _, by, origin, why = rule
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
        by,
        origin,
        call.rule,
        call.denial or call.decision_reason or why,
        call.decision_snapshot,
        call.matched,
    )


def approval_rows(database: Database, filters: Filters, *, limit: int | None = None) -> Rows:
    """The questions about tool calls and their answers, the newest first.

    ``answer`` is ``approved``, ``denied``, ``expired``, ``cancelled``, ``waiting``, or ``unanswered``
    where the run continued or ended without an answer. ``via`` is what answered: a ``person``, a
    ``rule`` that a person had remembered, the ``timeout``, or the run's ``cancel`` or ``end``.
    ``remembered`` is the rule that was stored with the answer, or that gave it; ``about`` is a line of
    the input.
    """
    answer = case(
        (approvals.c.answer.is_not(None), approvals.c.answer),
        (IS_OPEN_APPROVAL, "waiting"),
        else_="unanswered",
    )
    remembered = and_(
        permission_rules.c.job_id == approvals.c.job_id,
        permission_rules.c.position == approvals.c.remembered,
    )
    query = (
        select(
            approvals,
            runs.c.item_key,
            permission_rules.c.rule.label("its_rule"),
            answer.label("shown"),
        )
        .join(runs, runs.c.id == approvals.c.run_id)
        .outerjoin(permission_rules, remembered)
        .where(*_approval_conditions(filters))
        .order_by(approvals.c.asked_at.desc(), approvals.c.id.desc())
        .limit(at_most(limit))
    )
    found = database.read(lambda connection: connection.execute(query).all())
    rows = with_labels(database, [_approval_row(row) for row in found], at=5)
    return cut(_APPROVAL_COLUMNS, rows, limit, "the newest")


def _approval_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    yield from filters.of_runs()
    yield from filters.of_time(approvals.c.asked_at)
    yield from filters.of_turns(approvals.c.run_id, approvals.c.turn)
    if filters.tool is not None:
        yield approvals.c.tool == filters.tool


def _approval_row(row: Any) -> tuple[Any, ...]:
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
        None if row.answered_at is None else row.answered_at - row.asked_at,
        row.edited_input is not None,
        row.its_rule,
        row.reason or None,
        row.summary,
    )
