"""Answer the questions that runs wait with: by people, by remembered rules, by expiry.

One answer wins: it is stored only where there is none, with the run's row locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, exists, literal_column, select, true, update

from runner.core.commands import Answered, Question, Reply
from runner.core.events import INPUT_SUMMARY_LENGTH, summarise_input
from runner.core.run import ENDED, Author
from runner.core.spec import JobSpec
from runner.core.text import shorten
from runner.errors import NotFoundError, UsageError
from runner.permissions import REMEMBERED, Decision, Request, Rule
from runner.permissions import rules as syntax
from runner.permissions.decisions import evaluate
from runner.store import ids
from runner.store.conditions import IS_OPEN_APPROVAL
from runner.store.database import MOST_AT_ONCE, Database, in_lots, to_json
from runner.store.jobs import refuse_unstorable
from runner.store.questions import Given, LockedRun, load_asked, lock_open, store_answers
from runner.store.rules import add_standing, lock_rules, policy_for, remember_rules, rules_at
from runner.store.tables import approvals, jobs, runs

BATCH = MOST_AT_ONCE
MOST_JOBS = 200
_EFFECTS: dict[str, Literal["allow", "deny"]] = {"approved": "allow", "denied": "deny"}


class _JobRules(NamedTuple):
    """A job's spec and the rules of its newest snapshot."""

    spec: JobSpec
    snapshot: int
    rules: tuple[Rule, ...]

    @classmethod
    def load(cls, connection: Connection, job_id: str) -> _JobRules:
        query = select(jobs.c.spec, jobs.c.rules_snapshot).where(jobs.c.id == job_id)
        spec, snapshot = connection.execute(query).one()
        return cls(JobSpec.from_json(spec), snapshot, rules_at(connection, job_id, snapshot))

    def decide(self, asked: Question) -> Decision:
        """Decide whether a call that was asked about may run (not whether a call with an unknown outcome
        runs again: a person says that)."""
        types = asked.agent_types
        policy = policy_for(self.rules, asked.run_id, self.spec, self.snapshot, types)
        return evaluate(policy, Request(asked.tool, asked.input, asked.tool_context))


class Applied(NamedTuple):
    """The outcome of looking at questions under new rules."""

    looked: int = 0  # questions
    answered: Sequence[tuple[Question, Given]] = ()
    queued: Sequence[str] = ()  # the runs that are queued again


def apply_new_rules(
    database: Database, now: float, most: int = BATCH, job_id: str | None = None
) -> Applied:
    """Answer at most ``most`` questions that changed rules now decide, of one job or of all."""

    def look(connection: Connection) -> dict[str, tuple[Question, Decision]]:
        changed = _jobs_with_older_questions(connection) if job_id is None else [job_id]
        if not changed:
            return {}
        older = approvals.c.checked_snapshot < jobs.c.rules_snapshot
        condition = IS_OPEN_APPROVAL & older & approvals.c.job_id.in_(changed)
        found = load_asked(connection, condition, most)
        rules = {each: _JobRules.load(connection, each) for each in _jobs_of(found)}
        return {asked.id: (asked, by_itself(asked, rules[asked.job_id])) for asked in found}

    def by_itself(asked: Question, rules: _JobRules) -> Decision:
        """Decide without a person. Rules can only deny what a hook asks about."""
        decision = rules.decide(asked)
        if asked.asked_again or (asked.by_hook and decision.effect != "deny"):
            return Decision("ask", snapshot=rules.snapshot)
        return decision

    def store(connection: Connection) -> Applied:
        """Store the decisions of rules that are still the newest; locked, they cannot change now."""
        locked = lock_open(connection, {asked.run_id for asked, _ in looked.values()})
        newest = _lock_jobs(connection, [asked for asked, _ in looked.values()])
        given: dict[str, Given] = {}
        undecided: dict[int, list[str]] = {}
        for question in (question for run in locked for question in run.questions):
            decision = looked[question.id][1] if question.id in looked else None
            if decision is None or decision.snapshot != newest[question.job_id]:
                continue
            if decision.effect == "ask":
                undecided.setdefault(decision.snapshot, []).append(question.id)
            else:
                given[question.id] = _given_by_rules(decision)
        for snapshot, unclear in undecided.items():  # the rules of the snapshot ask as well
            stamped = update(approvals).where(approvals.c.id.in_(unclear))
            connection.execute(stamped.values(checked_snapshot=snapshot))
        queued = store_answers(connection, locked, given, now)
        return Applied(len(looked), [(looked[id_][0], one) for id_, one in given.items()], queued)

    looked = database.read(look)
    return database.write(store) if looked else Applied()


def _jobs_with_older_questions(connection: Connection) -> Sequence[str]:
    """Return jobs that changed their rules since a question; reads nothing of jobs that never did."""
    older = exists().where(
        approvals.c.job_id == jobs.c.id,
        approvals.c.checked_snapshot < jobs.c.rules_snapshot,
        runs.c.id == approvals.c.run_id,
        IS_OPEN_APPROVAL,
    )
    changed = jobs.c.rules_snapshot > literal_column("1")  # a parameter would not meet the index
    query = select(jobs.c.id).where(changed, older).order_by(jobs.c.rules_snapshot)
    return connection.execute(query.limit(MOST_JOBS)).scalars().all()


def _given_by_rules(decision: Decision) -> Given:
    effect: Literal["approved", "denied"] = "approved" if decision.effect == "allow" else "denied"
    if not decision.matched_rules:
        return Given(effect, "rule", "the job's default", decision.reason)
    rules = [matched.rule for matched in decision.matched_rules]
    rule = next((rule for rule in rules if rule.origin == REMEMBERED), rules[0])
    return Given(effect, "rule", rule.text, rule.why, rule=rule.text, remembered=rule.position)


def _jobs_of(asked: Sequence[Question]) -> list[str]:
    return sorted({one.job_id for one in asked})


def _lock_jobs(connection: Connection, asked: Sequence[Question]) -> dict[str, int]:
    """Lock the rules of the questions' jobs. Returns the newest snapshot of each."""
    return {job_id: lock_rules(connection, job_id) for job_id in _jobs_of(asked)}


def expire(
    database: Database,
    now: float,
    most: int = BATCH,
    *,
    of: ColumnElement[bool] | None = None,
    job_id: str | None = None,
) -> list[str]:
    """Answer at most ``most`` questions (and the same runs' others) that have waited too long, only
    those of a job, or that meet the condition ``of``. Returns the ids of the runs that are queued again."""
    late = (
        select(approvals.c.run_id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN_APPROVAL, approvals.c.expires_at <= now, true() if of is None else of)
        .order_by(approvals.c.expires_at, approvals.c.id)
        .limit(most)
    )
    if job_id is not None:
        late = late.where(approvals.c.job_id == job_id)
    run_ids = {row.run_id for row in database.rows(late)}
    expired = Given("expired", "timeout", reason="nobody answered in time")

    def work(connection: Connection) -> list[str]:
        locked = lock_open(connection, run_ids)
        given = {
            question.id: expired
            for run in locked
            for question in run.questions
            if question.expires_at is not None and question.expires_at <= now
        }
        return store_answers(connection, locked, given, now)

    return database.write(work) if run_ids else []


# The positions of the rules that were remembered, by job and rule.
_Positions = Mapping[tuple[str, Rule], int]


def answer(
    database: Database, approval_ids: Sequence[str], reply: Reply, now: float
) -> list[Answered]:
    """Answer questions, and the other questions that a remembered rule answers.

    Args:
        approval_ids: questions already answered, expired or of ended runs do not change.

    Returns:
        First these questions, by run; then the questions that a remembered rule answered.

    Raises:
        NotFoundError: there is no such question.
        UsageError: the reply makes no sense, or a rule to remember is none, or does not cover what
            was asked, or the rules deny what is approved. No answer is stored then.
    """
    _refuse_reply(reply)
    ids = list(dict.fromkeys(approval_ids))
    for some in in_lots(ids, BATCH):
        expire(database, now, of=approvals.c.id.in_(some))
    wanted, still_open = database.read(partial(_load, approval_ids=ids))
    answering = _Answering(reply, _rules_to_remember(still_open, reply), now)
    if reply.edited is not None and len({(one.tool, one.input_digest) for one in still_open}) > 1:
        raise UsageError("the calls have different inputs: edit one at a time")
    snapshots, problems = database.read(partial(answering.look, asked=still_open))
    for problem in problems.values():
        raise UsageError(problem)
    stored: dict[tuple[str, Rule], int] = {}
    results: list[Answered] = []
    for run_ids in map(set, in_lots(sorted({asked.run_id for asked in wanted}), BATCH)):
        lot = [asked for asked in wanted if asked.run_id in run_ids]
        work = partial(answering.answer, lot=lot, looked=snapshots, stored=dict(stored))
        answered, positions = database.write(work)
        results += answered
        stored |= positions
    for job_id in sorted({job_id for job_id, _ in stored}):
        while (applied := apply_new_rules(database, now, BATCH, job_id)).looked:
            results += [
                _result(asked, f"{given.answer} by {given.by}", by_rule=True)
                for asked, given in applied.answered
            ]
    return results


def _result(
    asked: Question, detail: str, *, changed: bool = True, by_rule: bool = False
) -> Answered:
    return Answered(asked.id, asked.run_id, asked.item_key, changed, detail, by_rule)


def _load(
    connection: Connection, approval_ids: Sequence[str]
) -> tuple[list[Question], list[Question]]:
    """Return the questions with these ids by run, and the ones that can be answered."""
    found: list[Question] = []
    still_open: list[Question] = []
    for some in in_lots(approval_ids, BATCH):
        these = approvals.c.id.in_(some)
        found += load_asked(connection, these)
        still_open += load_asked(connection, these & IS_OPEN_APPROVAL)
    missing = set(approval_ids) - {asked.id for asked in found}
    if missing:
        raise NotFoundError(f"no question is named {min(missing)[:60]!a}: see `runner approvals`")
    found.sort(key=lambda asked: (asked.run_id, asked.message, asked.position))
    return found, still_open


def _refuse_reply(reply: Reply) -> None:
    for what, text in (("reason", reply.reason), ("name", reply.by), ("rule", reply.rule or "")):
        refuse_unstorable(f"the {what}", text)
    if reply.rule is not None and reply.remember == "call":
        raise UsageError(
            "a rule is remembered for a run, a job or always: give --remember run, job or always"
        )
    if reply.rule is not None:
        _refuse_rule(reply.rule, reply)
    if reply.edited is None:
        return
    if reply.effect == "denied":
        raise UsageError("a denied call does not run: leave out the edited input")
    try:
        to_json(dict(reply.edited))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the edited input cannot be stored as JSON ({error})") from error


def _refuse_rule(text: str, reply: Reply) -> None:
    if (problem := syntax.problem(text, _EFFECTS[reply.effect])) is not None:
        raise UsageError(f"the rule {shorten(text, INPUT_SUMMARY_LENGTH)!r} is bad: {problem}")


def _rules_to_remember(asked: Sequence[Question], reply: Reply) -> dict[str, Rule]:
    """The rule that the reply to each question stores, by the question's id."""
    if reply.remember == "call":
        return {}
    rules = {}
    for one in asked:
        if one.asked_again:
            raise UsageError(
                f"a rule cannot say how `{one.summary}` ended before: answer this call only"
            )
        if one.by_hook and reply.effect == "approved":
            raise UsageError(
                f"a hook asks about `{one.summary}`, and no rule answers a hook: answer this call only"
            )
        text = one.suggested_rule if reply.rule is None else reply.rule
        if not text:
            raise UsageError(
                f"no rule can be suggested for `{one.summary}`: give one with --rule, or answer "
                "this call only"
            )
        _refuse_rule(text, reply)
        run_id = one.run_id if reply.remember == "run" else None
        rules[one.id] = Rule(_EFFECTS[reply.effect], text, reply.reason, REMEMBERED, run_id)
    return rules


@dataclass(frozen=True)
class _Answering:
    reply: Reply
    rules: Mapping[str, Rule]  # to be remembered, by question
    now: float

    def look(
        self, connection: Connection, asked: Sequence[Question]
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Check that a remembered rule covers its question, and that the newest rules deny no approved
        call. Returns the snapshots that were looked at, by job; and the problems, by question."""
        found: dict[str, _JobRules] = {}
        for job_id in _jobs_of(asked):
            before = _JobRules.load(connection, job_id)
            found[job_id] = before._replace(rules=before.rules + self._rules_of(job_id, asked))
        problems = {one.id: self._problem(one, found[one.job_id]) for one in asked}
        snapshots = {job_id: each.snapshot for job_id, each in found.items()}
        return snapshots, {id_: problem for id_, problem in problems.items() if problem}

    def _problem(self, asked: Question, rules: _JobRules) -> str:
        reply, rule = self.reply, self.rules.get(asked.id)
        if reply.effect == "denied" and rule is None:
            return ""
        if reply.edited is not None:
            asked = replace(asked, input=reply.edited, summary=summarise_input(reply.edited))
        decision = rules.decide(asked)
        if reply.effect == "approved" and decision.is_final:
            return f"`{asked.summary}` cannot be approved so: it is {decision.explain()}"
        if rule is None or decision.effect == rule.effect:
            return ""
        why = f" ({decision.reason})" if decision.reason else ""
        return (
            f"the rule {rule.text!r} does not cover `{asked.summary}`{why}: give another with "
            "--rule, or answer this call only"
        )

    def _rules_of(self, job_id: str, asked: Sequence[Question]) -> tuple[Rule, ...]:
        of_job = (one.id for one in asked if one.job_id == job_id)
        return tuple(dict.fromkeys(self.rules[id_] for id_ in of_job if id_ in self.rules))

    def answer(
        self,
        connection: Connection,
        lot: Sequence[Question],
        looked: Mapping[str, int],
        stored: _Positions,
    ) -> tuple[list[Answered], _Positions]:
        """Answer questions of runs that are locked together.

        Args:
            looked: the snapshot that each job's questions were looked at with. They are looked at once
                more when there is a newer one.
            stored: the rules that the reply has stored.

        Returns:
            What became of the questions, and the rules that the reply has stored by now.
        """
        locked = lock_open(connection, {asked.run_id for asked in lot})
        newest = _lock_jobs(connection, lot)
        still_open = {question.id for run in locked for question in run.questions}
        left = [asked for asked in lot if asked.id in still_open]
        changed = [asked for asked in left if looked.get(asked.job_id) != newest[asked.job_id]]
        _, problems = self.look(connection, changed)
        answered = [asked for asked in left if asked.id not in problems]
        positions = self._remember(connection, answered, stored)
        given = {asked.id: self._given(asked, positions) for asked in answered}
        queued = store_answers(connection, locked, given, self.now)
        before = self._refused(connection, [asked for asked in lot if asked.id not in still_open])
        results = []
        for asked in lot:
            if asked.id in before:
                is_changed, detail = before[asked.id]
            else:
                is_changed = asked.id in given
                detail = problems.get(asked.id) or self._detail(asked, locked, queued)
            results.append(_result(asked, detail, changed=is_changed))
        return results, positions

    def _remember(
        self, connection: Connection, answered: Sequence[Question], stored: _Positions
    ) -> _Positions:
        """Store the rules of these answers that are not ``stored`` yet, in a new snapshot of each job.
        Returns the positions of all of them."""
        positions = dict(stored)
        author = Author(self.reply.by, self.reply.reason)
        for job_id in _jobs_of(answered):
            rules = self._rules_of(job_id, answered)
            if new := [rule for rule in rules if (job_id, rule) not in stored]:
                added = remember_rules(connection, job_id, new, author, self.now)
                positions |= zip(((job_id, rule) for rule in new), added, strict=True)
        if self.reply.remember == "always":
            self._stand(connection, answered, author)
        return positions

    def _stand(self, connection: Connection, answered: Sequence[Question], author: Author) -> None:
        """Store the rules of these answers as standing ones, in the same order in each process."""
        first = {self.rules[one.id].text: one for one in reversed(answered)}
        for _, one in sorted(first.items()):
            call_id = ids.call_id(one.run_id, one.turn, one.position)
            add_standing(connection, self.rules[one.id], author, self.now, call_id)

    def _given(self, asked: Question, positions: _Positions) -> Given:
        reply, rule = self.reply, self.rules.get(asked.id)
        given = Given(reply.effect, "person", reply.by, reply.reason, reply.edited)
        if rule is None:
            return given
        return replace(given, rule=rule.text, remembered=positions[asked.job_id, rule])

    def _detail(self, asked: Question, locked: Sequence[LockedRun], queued: Sequence[str]) -> str:
        run = next(run.row for run in locked if run.row.id == asked.run_id)
        if asked.run_id in queued:
            then = "pauses now, as requested" if run.pause_requested else "goes on"
        elif run.state == "waiting" and run.reason == "approval":
            then = "waits for another answer"
        else:
            then = f"is waiting ({run.reason})" if run.state == "waiting" else f"is {run.state}"
        return f"{self.reply.effect}: the run {then}"

    def _refused(
        self, connection: Connection, asked: Sequence[Question]
    ) -> dict[str, tuple[bool, str]]:
        """Return why questions could not be answered, by their ids; with True if the stored answer is this
        very reply: an earlier try committed it, and its confirmation was lost."""
        query = (
            select(approvals, runs.c.state)
            .join(runs, runs.c.id == approvals.c.run_id)
            .where(approvals.c.id.in_([one.id for one in asked]))
        )
        this = (self.reply.effect, "person", self.reply.by, self.now)
        found: dict[str, tuple[bool, str]] = {}
        for row in connection.execute(query):
            if (row.answer, row.answered_via, row.answered_by, row.answered_at) == this:
                found[row.id] = True, f"{row.answer} before: the run is {row.state}"
            else:
                found[row.id] = False, _why_not(row)
        return found


def _why_not(row: Row[Any]) -> str:
    if row.answer is None:
        ended = f"its run has ended: {row.state}"
        return ended if row.state in ENDED else "its run went on without an answer"
    if row.answer == "expired":
        return "came too late: the question had expired"
    by = f" by {row.answered_by}" if row.answered_by else ""
    return f"was answered before: {row.answer}{by}"
