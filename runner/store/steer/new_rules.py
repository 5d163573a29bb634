"""Rules that were remembered or revoked answer the questions that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, exists, literal_column, select, update

from runner.core.spec import JobSpec
from runner.permissions import AnswerEffect, Decision, Request, Rule, evaluate
from runner.permissions.rules import REMEMBERED
from runner.store.conditions import IS_OPEN_APPROVAL
from runner.store.connection.database import Database
from runner.store.job.rules import lock_rules, policy_for, rules_at
from runner.store.steer.questions import (
    Asked,
    Given,
    LockedRun,
    load_asked,
    lock_open,
    store_answers,
)
from runner.store.tables import approvals, jobs, runs

_MOST_JOBS = 200


@dataclass(frozen=True, slots=True)
class JobRules:
    """A job's spec and the rules of its newest snapshot."""

    spec: JobSpec
    snapshot: int
    rules: tuple[Rule, ...]

    def decide(self, asked: Asked) -> Decision:
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
    answered: tuple[tuple[Asked, Given], ...]
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

    def look(connection: Connection) -> list[tuple[Asked, Decision]]:
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


def _by_itself(asked: Asked, rules: JobRules) -> Decision:
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
    connection: Connection, looked: Mapping[str, tuple[Asked, Decision]], now: float
) -> Applied:
    """What the rules said is stored if they are still the newest: they cannot change meanwhile."""
    locked = lock_open(connection, sorted({asked.run_id for asked, _ in looked.values()}))
    newest = {
        job_id: lock_rules(connection, job_id)
        for job_id in sorted({asked.job_id for asked, _ in looked.values()})
    }
    answered: list[tuple[Asked, Given]] = []
    queued = []
    for run in locked:
        decided = _decided(run, looked, newest[run.row.job_id])
        given = {
            id_: given
            for id_, decision in decided.items()
            if (given := _given(decision)) is not None
        }
        if undecided := [id_ for id_ in decided if id_ not in given]:
            _stamp(connection, undecided, newest[run.row.job_id])
        if given:
            answered += [(looked[id_][0], one) for id_, one in given.items()]
            if store_answers(connection, run, given, now):
                queued.append(run.row.id)
    return Applied(len(looked), tuple(answered), tuple(queued))


def _decided(
    run: LockedRun, looked: Mapping[str, tuple[Asked, Decision]], newest: int
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


def _given(decision: Decision) -> Given | None:
    """The answer that a decision is; None while it still asks."""
    if decision.effect == "ask":
        return None
    effect: AnswerEffect = "approved" if decision.effect == "allow" else "denied"
    if not decision.matched_rules:
        return Given(effect, "rule", "the job's default", decision.reason)
    rules = [matched.rule for matched in decision.matched_rules]
    rule = next((rule for rule in rules if rule.origin == REMEMBERED), rules[0])
    return Given(effect, "rule", rule.text, rule.why, rule=rule.text, remembered=rule.position)
