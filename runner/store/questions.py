"""The questions about tool calls that wait for an answer, and the notices of new ones.

A transaction that answers locks the runs first, then, if rules change, the jobs, as the workers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, select, tuple_, update

from runner.core.agents import AGENT_TOOL
from runner.core.commands import Question, Target
from runner.core.events import INPUT_SUMMARY_LENGTH, Event, signed_event, summarise_input
from runner.core.run import ENDED, RUNNER, Author
from runner.core.spec import JobSpec
from runner.core.text import shorten
from runner.permissions import AnswerEffect
from runner.store.changes import locked_runs, queued, store_change
from runner.store.conditions import APPROVAL_OF_CALL, IS_OPEN_APPROVAL
from runner.store.database import Database, in_lots
from runner.store.notices import of_questions
from runner.store.run_state import tool_context_from_json
from runner.store.specs import agent_types
from runner.store.tables import approvals, blocks, jobs, runs, tool_calls

_INPUTS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Given:
    answer: AnswerEffect
    via: Literal["person", "rule", "timeout"]
    by: str = ""
    reason: str = ""
    edited: Mapping[str, Any] | None = None  # the input to run with instead
    rule: str | None = None  # the text of the rule that it stored or that answered
    remembered: int | None = None  # the position of that rule


class LockedRun(NamedTuple):
    """A run that has not ended, locked, and its open questions, in order."""

    row: Row[Any]
    questions: list[Row[Any]]


def waiting(database: Database, of: Target | None = None) -> list[Question]:
    """The questions that wait for an answer, oldest first; ``of``: a run's or a job's."""
    condition = IS_OPEN_APPROVAL
    if of is not None:
        column = approvals.c.run_id if of.kind == "run" else approvals.c.job_id
        condition &= column == of.id
    found = database.read(lambda connection: load_asked(connection, condition))
    return sorted(found, key=lambda one: (one.asked_at, one.run_id, one.message, one.position))


def load_asked(
    connection: Connection, condition: ColumnElement[bool], most: int | None = None
) -> list[Question]:
    """Questions, answered or not, by run and in its order. ``condition`` may use jobs and runs."""
    query = (
        select(
            approvals,
            runs.c.item_key,
            jobs.c.name.label("job_name"),
            tool_calls.c.asked_again,
            tool_calls.c.updated_input,
        )
        .join(tool_calls, APPROVAL_OF_CALL)
        .join(runs, runs.c.id == approvals.c.run_id)
        .join(jobs, jobs.c.id == approvals.c.job_id)
        .where(condition)
        .order_by(approvals.c.run_id, approvals.c.message, approvals.c.position)
        .limit(most)
    )
    rows = connection.execute(query).all()
    inputs = _inputs(connection, list(dict.fromkeys((row.run_id, row.message) for row in rows)))
    types = {run_id: agent_types(connection, run_id) for run_id in {row.run_id for row in rows}}
    questions = []
    for row in rows:
        arguments = inputs[row.run_id, row.message][row.position]
        if row.updated_input is not None:
            arguments = row.updated_input
        if row.answer is None and row.edited_input is not None:  # by who let it run the first time
            arguments = row.edited_input
        values = {name: getattr(row, name) for name in Question.__slots__ if hasattr(row, name)}
        values |= {"input": arguments, "tool_context": tool_context_from_json(row.setting)}
        questions.append(Question(**values, agent_types=types[row.run_id]))
    return questions


def _inputs(
    connection: Connection, replies: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[Any]]:
    found: dict[tuple[str, int], list[Any]] = {}
    for lot in in_lots(replies, _INPUTS_AT_ONCE):
        query = (
            select(blocks.c.run_id, blocks.c.message, blocks.c.content)
            .where(tuple_(blocks.c.run_id, blocks.c.message).in_(lot), blocks.c.type == "tool_use")
            .order_by(blocks.c.run_id, blocks.c.message, blocks.c.position)
        )
        for row in connection.execute(query):
            found.setdefault((row.run_id, row.message), []).append(row.content["input"])
    return found


def lock_open(connection: Connection, run_ids: set[str]) -> list[LockedRun]:
    """Lock runs, in order, and look which of their questions can still be answered."""
    found = locked_runs(connection, sorted(run_ids), runs.c.state.not_in(ENDED))
    query = (
        select(approvals)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.run_id.in_([run.id for run in found]), IS_OPEN_APPROVAL)
        .order_by(approvals.c.run_id, approvals.c.position)
    )
    locked = {run.id: LockedRun(run, []) for run in found}
    for row in connection.execute(query):
        locked[row.run_id].questions.append(row)
    return list(locked.values())


def store_answers(
    connection: Connection, locked: Sequence[LockedRun], given: Mapping[str, Given], now: float
) -> list[str]:
    """Answer open questions of locked runs, with an event each.

    Args:
        given: by the ids of the questions.

    Returns:
        The runs that are queued again: the answer was to the first of the run's questions, or about a
        sub-agent, which may start before the others are answered.
    """
    woken = []
    for run, questions in locked:
        answered = [question for question in questions if question.id in given]
        if not answered:
            continue
        for question in answered:
            _store_answer(connection, question, given[question.id], now)
        changes: dict[str, Any] = {"answer_count": run.answer_count + len(answered)}
        waits = run.state == "waiting" and run.reason == "approval"
        is_next = answered[0] is questions[0] or any(one.tool == AGENT_TOOL for one in answered)
        if waits and is_next:
            changes |= queued(now)
            woken.append(run.id)
        happened = [_event(question, given[question.id]) for question in answered]
        store_change(connection, run, now, happened, **changes)
    return woken


def _store_answer(connection: Connection, question: Row[Any], given: Given, now: float) -> None:
    """Keep the edited input of an earlier answer: the call was let run, and this answer says whether it
    runs again."""
    edited = question.edited_input if given.edited is None else given.edited
    remembered = question.remembered if given.remembered is None else given.remembered
    answer = {"answer": given.answer, "answered_via": given.via, "answered_by": given.by}
    stored = connection.execute(
        update(approvals)
        .where(approvals.c.id == question.id, approvals.c.answer.is_(None))
        .values(
            **answer,
            answered_at=now,
            reason=given.reason,
            edited_input=edited,
            remembered=remembered,
        )
    )
    assert stored.rowcount == 1, question.id  # nobody answers who does not hold the run's row


def _event(question: Row[Any], given: Given) -> Event:
    author = Author(given.by if given.via == "person" else RUNNER.name, given.reason)
    data = {
        "approval": question.id,
        "turn": question.turn,
        "call_index": question.position,
        "name": shorten(question.tool, INPUT_SUMMARY_LENGTH),
        "answer": given.answer,
        "via": given.via,
        "rule": None if given.rule is None else shorten(given.rule, INPUT_SUMMARY_LENGTH),
        "edited": given.edited is not None,
    }
    old: dict[str, Any] = {"answer": question.answer}
    new: dict[str, Any] = {"answer": given.answer}
    if given.edited is not None:
        old["input"], new["input"] = question.summary, summarise_input(given.edited)
    return signed_event("approval_answered", author, data, old=old, new=new)


def announce(database: Database, now: float, most: int = 200, job_id: str | None = None) -> None:
    """Store notices of new questions, one for each job: of one job, or of all jobs that want them. A
    question is announced once, and not if an announced one that asks for the same still waits: one answer
    settles both. A call looks at ``most`` of them."""
    untold = (
        select(approvals.c.id)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(IS_OPEN_APPROVAL, approvals.c.notified_at.is_(None))
        .order_by(approvals.c.asked_at, approvals.c.id)
        .limit(most)
    )
    if job_id is not None:
        untold = untold.where(approvals.c.job_id == job_id)
    if not database.rows(untold.limit(1)):
        return

    def work(connection: Connection) -> None:
        # An answer locks a run and then its questions: waiting for them here could be a deadlock.
        locked = untold.with_for_update(skip_locked=True, of=approvals)
        these = approvals.c.id.in_(connection.execute(locked).scalars().all())
        is_told = and_(IS_OPEN_APPROVAL, approvals.c.notified_at.is_not(None))
        request = select(approvals.c.job_id, approvals.c.tool, approvals.c.group_key).distinct()
        told = {tuple(row) for row in connection.execute(request.where(is_told))}
        connection.execute(update(approvals).where(these).values(notified_at=now))
        by_job: dict[str, list[Question]] = {}
        for asked in load_asked(connection, these):
            if asked.asked_again or (asked.job_id, asked.tool, asked.group_key) not in told:
                by_job.setdefault(asked.job_id, []).append(asked)
        query = select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(by_job))
        for job in connection.execute(query.order_by(jobs.c.id)).all():
            of_questions(connection, JobSpec.from_json(job.spec).notify, by_job[job.id], now)

    database.write(work)
