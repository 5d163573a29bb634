"""Answering the questions that runs wait with: by people, by what they remember, by time.

One answer wins: it is stored only where there is none, with the run's row locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from runner.core.events import INPUT_SUMMARY_LENGTH, shorten
from runner.core.permissions import Rule, syntax
from runner.core.run import ENDED
from runner.errors import NotFoundError, UsageError
from runner.store.database import Database, to_json
from runner.store.rules import insert_rules, lock_rules, new_snapshot
from runner.store.steer.jobs import is_storable
from runner.store.steer.new_rules import JobRules, apply_new_rules, apply_rules, job_rules
from runner.store.steer.notices import Notice, take_notices
from runner.store.steer.questions import (
    IS_OPEN,
    Asked,
    Given,
    LockedRun,
    load_asked,
    lock_open,
    store_answers,
    waiting,
)
from runner.store.tables import approvals, runs

__all__ = [
    "Answered",
    "Asked",
    "Notice",
    "Reply",
    "answer",
    "apply_new_rules",
    "expire",
    "take_notices",
    "waiting",
]

_BATCH = 200
_EFFECTS: dict[str, Literal["allow", "deny"]] = {"approved": "allow", "denied": "deny"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a person says. ``edited`` is the input to run with instead. ``remember`` says for what it
    holds: this call, its run or its job; for the last two a rule is stored, ``rule`` or (None) the
    one that each question suggests. On a denial, ``reason`` reaches the model."""

    effect: Literal["approved", "denied"]
    by: str
    reason: str = ""
    edited: Mapping[str, Any] | None = None
    remember: Literal["call", "run", "job"] = "call"
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one question: whether anything ``changed``, a line that says it, and whether a
    rule answered it that was remembered with the answer to another."""

    id: str
    run_id: str
    item_key: str
    changed: bool
    detail: str
    by_rule: bool = False


# A rule to be remembered, and the job whose it is.
_Key = tuple[str, Rule]


def answer(
    database: Database, approval_ids: Sequence[str], reply: Reply, now: float
) -> list[Answered]:
    """Answer questions, and with what is remembered of it all others that it answers.

    Args:
        approval_ids: of the questions; one that is answered already, or whose run has ended, stays as
            it is.
        now: seconds since the epoch.

    Returns:
        First these questions, by run; then those that a remembered rule answered.

    Raises:
        NotFoundError: there is no such question.
        UsageError: the reply makes no sense, or a rule to remember is none, or does not cover what
            was asked. Nothing is stored then.
    """
    _refuse_reply(reply)
    while _expire_some(database, now, _BATCH).found:  # an answer that comes too late is none
        continue
    ids = list(dict.fromkeys(approval_ids))
    wanted, still_open = database.read(partial(_load, approval_ids=ids))
    to_remember = _rules_to_remember(still_open, reply)
    database.read(partial(_refuse_calls, asked=still_open, reply=reply, rules=to_remember))
    stored: dict[_Key, int] = {}
    results: list[Answered] = []
    for lot in _lots(wanted):
        work = partial(
            _answer_lot, lot=lot, reply=reply, rules=to_remember, stored=dict(stored), now=now
        )
        answered, positions = database.write(work)
        results += answered
        stored |= positions
    for job_id in sorted({job_id for job_id, _ in stored}):
        while (applied := apply_rules(database, now, _BATCH, job_id)).looked:
            results += [_by_rule(asked, given) for asked, given in applied.answered]
    return results


def expire(database: Database, now: float, most: int = _BATCH) -> list[str]:
    """Answer the questions that have waited for too long.

    Args:
        now: seconds since the epoch.
        most: how many questions at most, and those that are late of the same runs.

    Returns:
        The ids of the runs that are queued again.
    """
    return list(_expire_some(database, now, most).queued)


@dataclass(frozen=True, slots=True)
class _Expired:
    found: int = 0
    queued: tuple[str, ...] = ()


def _expire_some(database: Database, now: float, most: int) -> _Expired:
    late = (
        select(approvals.c.id, approvals.c.run_id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN, approvals.c.expires_at <= now)
        .order_by(approvals.c.expires_at, approvals.c.id)
        .limit(most)
    )
    found = database.read(lambda connection: connection.execute(late).all())
    if not found:
        return _Expired()
    expired = Given("expired", "timeout", reason="nobody answered in time")

    def work(connection: Connection) -> _Expired:
        queued = []
        for run in lock_open(connection, sorted({row.run_id for row in found})):
            # All that are late of a run, though ``most`` parts them: one of them may end it.
            given = {question.id: expired for question in run.questions if _is_late(question, now)}
            if given and store_answers(connection, run, given, now):
                queued.append(run.row.id)
        return _Expired(len(found), tuple(queued))

    return database.write(work)


def _is_late(question: Row[Any], now: float) -> bool:
    return question.expires_at is not None and question.expires_at <= now


def _load(connection: Connection, approval_ids: Sequence[str]) -> tuple[list[Asked], list[Asked]]:
    """The questions of these ids by run, and those of them that can be answered."""
    found: list[Asked] = []
    still_open: list[Asked] = []
    for start in range(0, len(approval_ids), _BATCH):
        these = approvals.c.id.in_(approval_ids[start : start + _BATCH])
        found += load_asked(connection, these)
        still_open += load_asked(connection, these & IS_OPEN)
    missing = set(approval_ids) - {asked.id for asked in found}
    if missing:
        raise NotFoundError(f"no question is named {min(missing)[:60]!a}: see `runner approvals`")
    found.sort(key=lambda asked: (asked.run_id, asked.message, asked.position))
    return found, still_open


def _lots(wanted: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Questions in lots of whole runs that one transaction can answer."""
    run_ids = sorted({asked.run_id for asked in wanted})
    for start in range(0, len(run_ids), _BATCH):
        lot = set(run_ids[start : start + _BATCH])
        yield [asked for asked in wanted if asked.run_id in lot]


def _refuse_reply(reply: Reply) -> None:
    for what, text in (("reason", reply.reason), ("name", reply.by), ("rule", reply.rule or "")):
        if not is_storable(text):
            raise UsageError(f"the {what} has a character that cannot be stored: leave it out")
    if reply.rule is not None and reply.remember == "call":
        raise UsageError("a rule is remembered for a run or a job: say --remember run or job")
    if reply.rule is not None and (problem := syntax.problem(reply.rule)) is not None:
        raise UsageError(
            f"the rule {shorten(reply.rule, INPUT_SUMMARY_LENGTH)!r} is none: {problem}"
        )
    if reply.edited is None:
        return
    if reply.effect == "denied":
        raise UsageError("a call that is denied does not run: leave out the edited input")
    try:
        to_json(dict(reply.edited))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the edited input cannot be stored as JSON ({error})") from error


def _rules_to_remember(asked: Sequence[Asked], reply: Reply) -> dict[str, Rule]:
    """The rule that the reply to each question stores, by the question's id."""
    if reply.remember == "call":
        return {}
    rules = {}
    for one in asked:
        text = one.suggested_rule if reply.rule is None else reply.rule
        if not text:
            raise UsageError(
                f"no rule can be suggested for `{one.summary}`: give one with --rule, or answer "
                "this call only"
            )
        if (problem := syntax.problem(text)) is not None:
            raise UsageError(f"the rule {shorten(text, INPUT_SUMMARY_LENGTH)!r} is none: {problem}")
        run_id = one.run_id if reply.remember == "run" else None
        effect = _EFFECTS[reply.effect]
        rules[one.id] = Rule(effect, text, reply.reason, "remembered", run_id)
    return rules


def _refuse_calls(
    connection: Connection, asked: Sequence[Asked], reply: Reply, rules: Mapping[str, Rule]
) -> None:
    """A rule that is remembered must answer what it was remembered for, and an edited input must not
    be one that the job denies.

    Raises:
        UsageError: it is not so.
    """
    if reply.edited is not None and len({(one.tool, one.input_digest) for one in asked}) > 1:
        raise UsageError("calls with different inputs are not edited alike: answer one at a time")
    found: dict[str, JobRules] = {}
    added = {job_id: _rules_of(job_id, asked, rules) for job_id in {one.job_id for one in asked}}
    for one in asked:
        if not rules and reply.edited is None:
            continue
        if one.job_id not in found:
            before = job_rules(connection, one.job_id)
            found[one.job_id] = replace(before, rules=before.rules + added[one.job_id])
        _refuse_call(one, reply, found[one.job_id], rules.get(one.id))


def _rules_of(job_id: str, asked: Sequence[Asked], rules: Mapping[str, Rule]) -> tuple[Rule, ...]:
    return tuple(
        dict.fromkeys(rules[one.id] for one in asked if one.job_id == job_id and one.id in rules)
    )


def _refuse_call(asked: Asked, reply: Reply, rules: JobRules, rule: Rule | None) -> None:
    changed = asked if reply.edited is None else replace(asked, input=reply.edited)
    decision = rules.decide(changed)
    if reply.effect == "approved" and decision.effect == "deny" and decision.grounds:
        raise UsageError(f"`{asked.summary}` cannot be approved so: it is {decision.explain()}")
    if rule is not None and decision.effect != rule.effect:
        why = f" ({decision.reason})" if decision.reason else ""
        raise UsageError(
            f"the rule {rule.text!r} does not cover `{asked.summary}`{why}: give another with "
            "--rule, or answer this call only"
        )


def _answer_lot(
    connection: Connection,
    lot: Sequence[Asked],
    reply: Reply,
    rules: Mapping[str, Rule],
    stored: Mapping[_Key, int],
    now: float,
) -> tuple[list[Answered], dict[_Key, int]]:
    """Answer questions of runs that are locked together. Gives what became of them, and where the
    rules are that were stored with it."""
    if rules:
        for job_id in sorted({asked.job_id for asked in lot}):
            lock_rules(connection, job_id)
    locked = lock_open(connection, sorted({asked.run_id for asked in lot}))
    still_open = {question.id for run in locked for question in run.questions}
    answered = [asked for asked in lot if asked.id in still_open]
    positions = _remember(connection, answered, reply, rules, stored, now)
    given = {
        asked.id: _given(reply, rule, positions[asked.job_id, rule])
        if (rule := rules.get(asked.id)) is not None
        else _given(reply, None, None)
        for asked in answered
    }
    queued = {
        run.row.id
        for run in locked
        if any(question.id in given for question in run.questions)
        and store_answers(connection, run, given, now)
    }
    unanswered = _why_not(connection, [asked.id for asked in lot if asked.id not in given])
    results = []
    for asked in lot:
        detail = unanswered.get(asked.id) or _detail(reply, asked, locked, queued)
        results.append(Answered(asked.id, asked.run_id, asked.item_key, asked.id in given, detail))
    return results, positions


def _remember(
    connection: Connection,
    answered: Sequence[Asked],
    reply: Reply,
    rules: Mapping[str, Rule],
    stored: Mapping[_Key, int],
    now: float,
) -> dict[_Key, int]:
    """Store the rules of these answers that are not ``stored`` yet, in a new snapshot of each job.
    Gives the positions of all of them."""
    positions = dict(stored)
    for job_id in sorted({asked.job_id for asked in answered}):
        new = [rule for rule in _rules_of(job_id, answered, rules) if (job_id, rule) not in stored]
        if new:
            snapshot = new_snapshot(connection, job_id)
            added = insert_rules(connection, job_id, new, reply.by, now, snapshot)
            positions |= {
                (job_id, rule): position for rule, position in zip(new, added, strict=True)
            }
    return positions


def _given(reply: Reply, rule: Rule | None, position: int | None) -> Given:
    return Given(
        reply.effect,
        "person",
        reply.by,
        reply.reason,
        reply.edited,
        rule.text if rule else None,
        position,
    )


def _detail(reply: Reply, asked: Asked, locked: Sequence[LockedRun], queued: set[str]) -> str:
    if asked.run_id in queued:
        return f"{reply.effect}: the run goes on"
    run = next(run.row for run in locked if run.row.id == asked.run_id)
    if run.state == "waiting" and run.reason == "approval":
        return f"{reply.effect}: the run waits for another answer"
    if run.state == "waiting":
        return f"{reply.effect}: the run is waiting ({run.reason})"
    return f"{reply.effect}: the run is {run.state}"


def _why_not(connection: Connection, approval_ids: Sequence[str]) -> dict[str, str]:
    """Why these questions were not answered."""
    query = (
        select(approvals.c.id, approvals.c.answer, approvals.c.answered_by, runs.c.state)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.id.in_(approval_ids))
    )
    reasons = {}
    for row in connection.execute(query):
        if row.answer is None:
            assert row.state in ENDED, row
            reasons[row.id] = f"its run has ended: {row.state}"
        else:
            by = f" by {row.answered_by}" if row.answered_by else ""
            reasons[row.id] = f"was answered before: {row.answer}{by}"
    return reasons


def _by_rule(asked: Asked, given: Given) -> Answered:
    detail = f"{given.answer} by {given.by}"
    return Answered(asked.id, asked.run_id, asked.item_key, True, detail, by_rule=True)
