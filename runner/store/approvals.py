"""Answer the questions that runs wait with: by people, by remembered rules, by expiry.

One answer wins: it is stored only where there is none, with the run's row locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, exists, literal_column, select, true, update

from runner.core.commands import Answered, Question, Reply
from runner.core.events import INPUT_SUMMARY_LENGTH
from runner.core.run import ENDED, Author
from runner.core.spec import JobSpec
from runner.core.text import shorten
from runner.errors import NotFoundError, UsageError
from runner.permissions import AnswerEffect, Decision, Request, Rule, evaluate
from runner.permissions import rules as syntax
from runner.permissions.rules import REMEMBERED
from runner.store.conditions import IS_OPEN_APPROVAL
from runner.store.database import Database, to_json
from runner.store.jobs import is_storable
from runner.store.questions import Given, LockedRun, load_asked, lock_open, store_answers
from runner.store.rules import lock_rules, policy_for, remember_rules, rules_at
from runner.store.tables import approvals, jobs, runs

_MOST_JOBS = 200


@dataclass(frozen=True, slots=True)
class JobRules:
    """A job's spec and the rules of its newest snapshot."""

    spec: JobSpec
    snapshot: int
    rules: tuple[Rule, ...]

    def decide(self, asked: Question) -> Decision:
        """What they say of a call that was asked about: whether it may run. Whether one runs again
        of which nobody knows what it did is for a person to say."""
        types = asked.agent_types
        policy = policy_for(self.rules, asked.run_id, self.spec, self.snapshot, types)
        return evaluate(policy, Request(asked.tool, asked.input, asked.tool_context))


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of questions under new rules: how many were ``looked`` at, which of them were
    ``answered`` and how, and the runs that are ``queued`` again."""

    looked: int
    answered: tuple[tuple[Question, Given], ...]
    queued: tuple[str, ...]


def apply_new_rules(database: Database, now: float, most: int = 200) -> list[str]:
    """Look once more at questions that were asked before their job's rules changed, and answer those
    on which the rules decide now.

    Args:
        now: seconds since the epoch.
        most: how many questions to look at.

    Returns:
        The ids of the runs that are queued again.
    """
    return list(apply_rules(database, now, most).queued)


def apply_rules(database: Database, now: float, most: int, job_id: str | None = None) -> Applied:
    """``apply_new_rules``, of one job or all of them, that says what it did."""

    def look(connection: Connection) -> list[tuple[Question, Decision]]:
        changed = _jobs_with_older_questions(connection) if job_id is None else [job_id]
        if not changed:
            return []
        older = approvals.c.checked_snapshot < jobs.c.rules_snapshot
        found = load_asked(
            connection, IS_OPEN_APPROVAL & older & approvals.c.job_id.in_(changed), most
        )
        rules = {each: job_rules(connection, each) for each in {one.job_id for one in found}}
        return [(asked, _by_itself(asked, rules[asked.job_id])) for asked in found]

    looked = database.read(look)
    if not looked:
        return Applied(0, (), ())
    return database.write(partial(_store, looked={one.id: (one, d) for one, d in looked}, now=now))


def _by_itself(asked: Question, rules: JobRules) -> Decision:
    """What the rules answer without a person. What a hook asks they can only deny."""
    decision = rules.decide(asked)
    if asked.asked_again or (asked.by_hook and decision.effect != "deny"):
        return Decision("ask", snapshot=rules.snapshot)
    return decision


def _jobs_with_older_questions(connection: Connection) -> Sequence[str]:
    """Looks at nothing of the jobs whose rules never changed, however many of their runs wait."""
    older = exists().where(
        approvals.c.job_id == jobs.c.id,
        approvals.c.checked_snapshot < jobs.c.rules_snapshot,
        runs.c.id == approvals.c.run_id,
        IS_OPEN_APPROVAL,
    )
    changed = jobs.c.rules_snapshot > literal_column("1")  # a parameter would not meet the index
    query = select(jobs.c.id).where(changed, older).order_by(jobs.c.rules_snapshot)
    return connection.execute(query.limit(_MOST_JOBS)).scalars().all()


def job_rules(connection: Connection, job_id: str) -> JobRules:
    """A job's rules as they are now."""
    query = select(jobs.c.spec, jobs.c.rules_snapshot).where(jobs.c.id == job_id)
    job = connection.execute(query).one()
    rules = rules_at(connection, job_id, job.rules_snapshot)
    return JobRules(JobSpec.from_json(job.spec), job.rules_snapshot, rules)


def _store(
    connection: Connection, looked: Mapping[str, tuple[Question, Decision]], now: float
) -> Applied:
    """What the rules said is stored if they are still the newest: they cannot change meanwhile."""
    locked = lock_open(connection, sorted({asked.run_id for asked, _ in looked.values()}))
    newest = {
        job_id: lock_rules(connection, job_id)
        for job_id in sorted({asked.job_id for asked, _ in looked.values()})
    }
    answered: list[tuple[Question, Given]] = []
    queued = []
    for run in locked:
        decided = _decided(run, looked, newest[run.row.job_id])
        given = {
            id_: given
            for id_, decision in decided.items()
            if (given := _given_by_rules(decision)) is not None
        }
        if undecided := [id_ for id_ in decided if id_ not in given]:
            _stamp(connection, undecided, newest[run.row.job_id])
        if given:
            answered += [(looked[id_][0], one) for id_, one in given.items()]
            if store_answers(connection, run, given, now):
                queued.append(run.row.id)
    return Applied(len(looked), tuple(answered), tuple(queued))


def _decided(
    run: LockedRun, looked: Mapping[str, tuple[Question, Decision]], newest: int
) -> dict[str, Decision]:
    return {
        question.id: looked[question.id][1]
        for question in run.questions
        if question.id in looked and looked[question.id][1].snapshot == newest
    }


def _stamp(connection: Connection, question_ids: Sequence[str], snapshot: int) -> None:
    """The rules of the snapshot ask as well."""
    connection.execute(
        update(approvals).where(approvals.c.id.in_(question_ids)).values(checked_snapshot=snapshot)
    )


def _given_by_rules(decision: Decision) -> Given | None:
    """The answer that a decision is; None while it still asks."""
    if decision.effect == "ask":
        return None
    effect: AnswerEffect = "approved" if decision.effect == "allow" else "denied"
    if not decision.matched_rules:
        return Given(effect, "rule", "the job's default", decision.reason)
    rules = [matched.rule for matched in decision.matched_rules]
    rule = next((rule for rule in rules if rule.origin == REMEMBERED), rules[0])
    return Given(effect, "rule", rule.text, rule.why, rule=rule.text, remembered=rule.position)


_BATCH = 200


def expire(database: Database, now: float, most: int = _BATCH) -> list[str]:
    """Answer the questions that have waited for too long.

    Args:
        now: seconds since the epoch.
        most: how many questions at most, and with them all that are late of the same runs.

    Returns:
        The ids of the runs that are queued again.
    """
    return _expire(database, true(), now, most)


def expire_these(database: Database, approval_ids: Sequence[str], now: float) -> None:
    """Answer those of these questions that have waited for too long, and with them all that are late
    of their runs."""
    for start in range(0, len(approval_ids), _BATCH):
        some = approval_ids[start : start + _BATCH]
        _expire(database, approvals.c.id.in_(some), now, _BATCH)


def _expire(database: Database, condition: ColumnElement[bool], now: float, most: int) -> list[str]:
    late = (
        select(approvals.c.run_id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN_APPROVAL, approvals.c.expires_at <= now, condition)
        .order_by(approvals.c.expires_at, approvals.c.id)
        .limit(most)
    )
    run_ids = database.read(lambda connection: connection.execute(late).scalars().all())
    if not run_ids:
        return []
    expired = Given("expired", "timeout", reason="nobody answered in time")

    def work(connection: Connection) -> list[str]:
        queued = []
        for run in lock_open(connection, sorted(set(run_ids))):
            given = {
                question.id: expired
                for question in run.questions
                if question.expires_at is not None and question.expires_at <= now
            }
            if given and store_answers(connection, run, given, now):
                queued.append(run.row.id)
        return queued

    return database.write(work)


_EFFECTS: dict[str, Literal["allow", "deny"]] = {"approved": "allow", "denied": "deny"}


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the rules say to a reply: the snapshots that were looked at, by job, and what stands in its
    way, by question."""

    snapshots: Mapping[str, int]
    problems: Mapping[str, str]


# A rule to be remembered, and the job whose it is.
_Key = tuple[str, Rule]


def answer(
    database: Database, approval_ids: Sequence[str], reply: Reply, now: float
) -> list[Answered]:
    """Answer questions, and with what is remembered of it all others that it answers.

    Args:
        approval_ids: of the questions; one that is answered already, or too late, or whose run has
            ended, stays as it is.
        now: seconds since the epoch.

    Returns:
        First these questions, by run; then those that a remembered rule answered.

    Raises:
        NotFoundError: there is no such question.
        UsageError: the reply makes no sense, or a rule to remember is none, or does not cover what
            was asked, or the rules deny what is approved. No answer is stored then.
    """
    _refuse_reply(reply)
    ids = list(dict.fromkeys(approval_ids))
    expire_these(database, ids, now)
    wanted, still_open = database.read(partial(_load, approval_ids=ids))
    to_remember = _rules_to_remember(still_open, reply)
    if reply.edited is not None and len({(one.tool, one.input_digest) for one in still_open}) > 1:
        raise UsageError("calls with different inputs are not edited alike: answer one at a time")
    looked = database.read(partial(_look, asked=still_open, reply=reply, rules=to_remember))
    for problem in looked.problems.values():
        raise UsageError(problem)
    stored: dict[_Key, int] = {}
    results: list[Answered] = []
    for lot in _lots(wanted):
        work = partial(
            _answer_lot,
            lot=lot,
            reply=reply,
            rules=to_remember,
            looked=looked.snapshots,
            stored=dict(stored),
            now=now,
        )
        answered, positions = database.write(work)
        results += answered
        stored |= positions
    for job_id in sorted({job_id for job_id, _ in stored}):
        while (applied := apply_rules(database, now, _BATCH, job_id)).looked:
            results += [_by_rule(asked, given) for asked, given in applied.answered]
    return results


def _load(
    connection: Connection, approval_ids: Sequence[str]
) -> tuple[list[Question], list[Question]]:
    """The questions of these ids by run, and those of them that can be answered."""
    found: list[Question] = []
    still_open: list[Question] = []
    for start in range(0, len(approval_ids), _BATCH):
        these = approvals.c.id.in_(approval_ids[start : start + _BATCH])
        found += load_asked(connection, these)
        still_open += load_asked(connection, these & IS_OPEN_APPROVAL)
    missing = set(approval_ids) - {asked.id for asked in found}
    if missing:
        raise NotFoundError(f"no question is named {min(missing)[:60]!a}: see `runner approvals`")
    found.sort(key=lambda asked: (asked.run_id, asked.message, asked.position))
    return found, still_open


def _lots(wanted: Sequence[Question]) -> Iterator[list[Question]]:
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


def _rules_to_remember(asked: Sequence[Question], reply: Reply) -> dict[str, Rule]:
    """The rule that the reply to each question stores, by the question's id."""
    if reply.remember == "call":
        return {}
    rules = {}
    for one in asked:
        if one.asked_again:
            raise UsageError(
                f"no rule says what became of `{one.summary}`, which ran before: answer this call only"
            )
        if one.by_hook and reply.effect == "approved":
            raise UsageError(
                f"a hook asks about `{one.summary}`, and no rule answers for it: answer this call only"
            )
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
        rules[one.id] = Rule(effect, text, reply.reason, REMEMBERED, run_id)
    return rules


def _look(
    connection: Connection, asked: Sequence[Question], reply: Reply, rules: Mapping[str, Rule]
) -> _Looked:
    """A rule that is remembered must answer what it was remembered for, and what is approved must not
    be denied by the newest rules."""
    found: dict[str, JobRules] = {}
    problems: dict[str, str] = {}
    for one in asked:
        if one.job_id not in found:
            before = job_rules(connection, one.job_id)
            added = _rules_of(one.job_id, asked, rules)
            found[one.job_id] = replace(before, rules=before.rules + added)
        problem = _problem(one, reply, found[one.job_id], rules.get(one.id))
        if problem is not None:
            problems[one.id] = problem
    return _Looked({job_id: each.snapshot for job_id, each in found.items()}, problems)


def _jobs_of(asked: Sequence[Question]) -> set[str]:
    return {one.job_id for one in asked}


def _rules_of(
    job_id: str, asked: Sequence[Question], rules: Mapping[str, Rule]
) -> tuple[Rule, ...]:
    return tuple(
        dict.fromkeys(rules[one.id] for one in asked if one.job_id == job_id and one.id in rules)
    )


def _problem(asked: Question, reply: Reply, rules: JobRules, rule: Rule | None) -> str | None:
    if reply.effect == "denied" and rule is None:
        return None
    changed = asked if reply.edited is None else replace(asked, input=reply.edited)
    decision = rules.decide(changed)
    if reply.effect == "approved" and decision.is_final:
        return f"`{asked.summary}` cannot be approved so: it is {decision.explain()}"
    if rule is not None and decision.effect != rule.effect:
        why = f" ({decision.reason})" if decision.reason else ""
        return (
            f"the rule {rule.text!r} does not cover `{asked.summary}`{why}: give another with "
            "--rule, or answer this call only"
        )
    return None


def _answer_lot(
    connection: Connection,
    lot: Sequence[Question],
    reply: Reply,
    rules: Mapping[str, Rule],
    looked: Mapping[str, int],
    stored: Mapping[_Key, int],
    now: float,
) -> tuple[list[Answered], dict[_Key, int]]:
    """Answer questions of runs that are locked together. Gives what became of them, and where the
    rules are that were stored with it.

    Args:
        looked: the snapshot that each job's questions were looked at with. They are looked at once
            more when there is a newer one.
    """
    locked = lock_open(connection, sorted({asked.run_id for asked in lot}))
    newest = {job_id: lock_rules(connection, job_id) for job_id in sorted(_jobs_of(lot))}
    still_open = {question.id for run in locked for question in run.questions}
    left = [asked for asked in lot if asked.id in still_open]
    changed = [asked for asked in left if looked.get(asked.job_id) != newest[asked.job_id]]
    problems = _look(connection, changed, reply, rules).problems
    answered = [asked for asked in left if asked.id not in problems]
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
    before = _answers_before(connection, [asked for asked in lot if asked.id not in still_open])
    results = []
    for asked in lot:
        if (row := before.get(asked.id)) is not None:
            is_changed = _is_this_answer(row, reply, now)
            detail = f"{row.answer} before: the run is {row.state}" if is_changed else _why_not(row)
        else:
            is_changed = asked.id in given
            detail = problems.get(asked.id) or _detail(reply, asked, locked, queued)
        results.append(Answered(asked.id, asked.run_id, asked.item_key, is_changed, detail))
    return results, positions


def _remember(
    connection: Connection,
    answered: Sequence[Question],
    reply: Reply,
    rules: Mapping[str, Rule],
    stored: Mapping[_Key, int],
    now: float,
) -> dict[_Key, int]:
    """Store the rules of these answers that are not ``stored`` yet, in a new snapshot of each job.
    Gives the positions of all of them."""
    positions = dict(stored)
    for job_id in sorted(_jobs_of(answered)):
        new = [rule for rule in _rules_of(job_id, answered, rules) if (job_id, rule) not in stored]
        if new:
            author = Author(reply.by, reply.reason)
            added = remember_rules(connection, job_id, new, author, now)
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


def _detail(reply: Reply, asked: Question, locked: Sequence[LockedRun], queued: set[str]) -> str:
    run = next(run.row for run in locked if run.row.id == asked.run_id)
    if asked.run_id in queued:
        then = "pauses now, as it was told to" if run.pause_requested else "goes on"
        return f"{reply.effect}: the run {then}"
    if run.state == "waiting" and run.reason == "approval":
        return f"{reply.effect}: the run waits for another answer"
    if run.state == "waiting":
        return f"{reply.effect}: the run is waiting ({run.reason})"
    return f"{reply.effect}: the run is {run.state}"


def _answers_before(connection: Connection, asked: Sequence[Question]) -> dict[str, Row[Any]]:
    """The rows of questions that could not be answered, by their ids."""
    query = (
        select(approvals, runs.c.state)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.id.in_([one.id for one in asked]))
    )
    return {row.id: row for row in connection.execute(query)}


def _is_this_answer(row: Row[Any], reply: Reply, now: float) -> bool:
    """Whether the answer before was this very one, stored by a try whose end was not heard of."""
    stored = (row.answer, row.answered_via, row.answered_by, row.answered_at)
    return stored == (reply.effect, "person", reply.by, now)


def _why_not(row: Row[Any]) -> str:
    if row.answer is None:
        ended = f"its run has ended: {row.state}"
        return ended if row.state in ENDED else "its run went on without an answer"
    if row.answer == "expired":
        return "came too late: the question had expired"
    by = f" by {row.answered_by}" if row.answered_by else ""
    return f"was answered before: {row.answer}{by}"


def _by_rule(asked: Question, given: Given) -> Answered:
    detail = f"{given.answer} by {given.by}"
    return Answered(asked.id, asked.run_id, asked.item_key, True, detail, by_rule=True)
