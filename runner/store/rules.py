"""The permission rules of a job, in numbered snapshots: each change makes a new one. Standing rules are
copied into each new job; removed ones stay on record.

A change of rules locks runs first, if any, then the job (order of locks: ``store.budgets``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, func, insert, select, update

from runner.core.agents import lineage
from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.core.text import shorten
from runner.errors import NotFoundError, UsageError
from runner.permissions import REMEMBERED, STANDING, Rule
from runner.permissions import rules as syntax
from runner.settings import user_home
from runner.store import ids
from runner.store.changes import tell_of_job
from runner.store.database import Database, writes
from runner.store.specs import JobReader
from runner.store.statements import insert_or
from runner.store.tables import approvals, jobs, permission_rules, standing_rules

if TYPE_CHECKING:
    from runner.permissions.decisions import Policy

_RULE_SUMMARY_LENGTH = 300
_COLUMNS = [column for column in permission_rules.c if column.name != "job_id"]
_STANDS = standing_rules.c.removed_at.is_(None)


def insert_rules(
    connection: Connection,
    job_id: str,
    rules: Sequence[Rule],
    author: Author,
    now: float,
    snapshot: int = 1,
) -> list[int]:
    """Store rules that hold from ``snapshot`` on after the job's others, and return their
    positions."""
    if not rules:
        return []
    last = select(func.max(permission_rules.c.position)).where(permission_rules.c.job_id == job_id)
    newest = connection.execute(last).scalar()
    first = 0 if newest is None else newest + 1
    added = {"author": author.name or "", "created_at": now, "added_in": snapshot}
    rows = [
        {
            "job_id": job_id,
            "position": position,
            "effect": rule.effect,
            "rule": rule.text,
            "why": rule.why,
            "origin": rule.origin,
            "run_id": rule.run_id,
            **added,
        }
        for position, rule in enumerate(rules, first)
    ]
    connection.execute(insert(permission_rules), rows)
    return list(range(first, first + len(rows)))


def rules_at(connection: Connection, job_id: str, snapshot: int) -> tuple[Rule, ...]:
    """Return the rules of a snapshot in order: the job's and each run's."""
    table = permission_rules.c
    query = (
        select(table.effect, table.rule, table.why, table.origin, table.run_id, table.position)
        .where(
            table.job_id == job_id,
            table.added_in <= snapshot,
            table.revoked_in.is_(None) | (table.revoked_in > snapshot),
        )
        .order_by(table.position)
    )
    return tuple(Rule(*row) for row in connection.execute(query))


def policy_for(
    rules: Sequence[Rule], run_id: str, spec: JobSpec, snapshot: int, types: Sequence[str] = ()
) -> Policy:
    """Return the policy of a run: the ``rules`` of its job (of ``rules_at``), its own, its
    parents', and the job's default; a sub-agent's ``types`` (of ``agent_types``) restrict it."""
    from runner.permissions.decisions import Policy  # late: most commands decide nothing

    line = (None, *lineage(run_id))
    own = tuple(rule for rule in rules if rule.run_id in line)
    policy = Policy(own, spec.asking.default, snapshot, trusts_contained=spec.trusts_contained)
    for name in types:
        agent = spec.agent(name)
        assert agent is not None, name
        policy = policy.restricted(name, agent.rules)
    return policy


def rules_of(jobs_read: JobReader, job_id: str, snapshot: int) -> tuple[Rule, ...]:
    """``rules_at``, cached."""
    return jobs_read.once(
        ("rules", job_id, snapshot), lambda connection: rules_at(connection, job_id, snapshot)
    )


def rules_in(jobs_read: JobReader, job_id: str, run_id: str, snapshot: int) -> tuple[Rule, ...]:
    """Return a snapshot's rules for a run: the job's and the rules of the run's types."""
    policy = policy_of(jobs_read, job_id, run_id, snapshot)
    of_types = (rule for each in policy.restrictions for rule in each.rules)
    return (*rules_of(jobs_read, job_id, snapshot), *of_types)


def policy_of(jobs_read: JobReader, job_id: str, run_id: str, snapshot: int) -> Policy:
    """The policy of a run: one value for all runs of a job with the same types and no own rules."""
    rules, types = rules_of(jobs_read, job_id, snapshot), jobs_read.types(run_id)
    named = {rule.run_id for rule in rules}
    owners = tuple(each for each in lineage(run_id) if each in named)
    spec = jobs_read.spec(job_id)
    return jobs_read.once(
        ("policy", job_id, snapshot, owners, types),
        lambda _: policy_for(rules, run_id, spec, snapshot, types),
    )


def list_rules(database: Database, job_id: str) -> Sequence[Row[Any]]:
    """The rows of all rules that a job has or had, in order, without the job's id."""
    query = select(*_COLUMNS).where(permission_rules.c.job_id == job_id)
    return database.rows(query.order_by(permission_rules.c.position))


def asked_for(database: Database, job_id: str) -> dict[int, str]:
    """The tool calls whose answers stored rules, by the rules' positions."""
    query = (
        select(approvals.c.remembered, approvals.c.run_id, approvals.c.turn, approvals.c.position)
        .where(
            approvals.c.job_id == job_id,
            approvals.c.remembered.is_not(None),
            approvals.c.answered_via == "person",
        )
        .order_by(approvals.c.asked_at.desc(), approvals.c.id.desc())
    )
    return {position: ids.call_id(*call) for position, *call in database.rows(query)}


def remember_rules(
    connection: Connection, job_id: str, rules: Sequence[Rule], author: Author, now: float
) -> list[int]:
    """Add rules to a job, whose rules are locked, in a new snapshot. Returns their positions."""
    snapshot = new_snapshot(connection, job_id)
    positions = insert_rules(connection, job_id, rules, author, now, snapshot)
    for rule, position in zip(rules, positions, strict=True):
        new = _told(replace(rule, position=position), snapshot)
        tell_of_job(connection, job_id, now, "rule_added", author, new=new)
    return positions


def _told(rule: Rule, snapshot: int) -> dict[str, Any]:
    """A rule as an event shows it. ``snapshot`` is the first that it holds in."""
    return {
        "position": rule.position,
        "effect": rule.effect,
        "rule": shorten(rule.text, _RULE_SUMMARY_LENGTH),
        "origin": rule.origin,
        "run_id": rule.run_id,
        "snapshot": snapshot,
    }


@writes
def revoke(
    connection: Connection,
    job_id: str,
    position: int,
    author: Author,
    now: float,
    *,
    force: bool = False,
) -> Row[Any]:
    """Revoke a rule, and return its row as ``list_rules`` does. Earlier decisions stand.

    Args:
        force: also a rule that the job was submitted with.

    Raises:
        NotFoundError: there is no such job.
        UsageError: the job has no rule at that position, or it is revoked already, or it needs
            ``force``.
    """
    this = (permission_rules.c.job_id == job_id) & (permission_rules.c.position == position)
    lock_rules(connection, job_id)
    rule = connection.execute(select(*_COLUMNS).where(this)).one_or_none()
    if rule is None:
        raise UsageError(
            f"{job_id} has no rule at position {position}: see `runner rules list {job_id}`"
        )
    what = f"the rule {rule.effect} {rule.rule!r} of {job_id}"
    if rule.revoked_in is not None:
        by = f", by {rule.revoked_by}" if rule.revoked_by else ""
        raise UsageError(f"{what} is already revoked{by}")
    if rule.origin != REMEMBERED and not force:
        raise UsageError(
            f"{what} was submitted with the job, not remembered: use --force to revoke it for good"
        )
    snapshot = new_snapshot(connection, job_id)
    changes = {"revoked_in": snapshot, "revoked_by": author.name or "", "revoked_at": now}
    revoked = update(permission_rules).where(this).values(**changes).returning(*_COLUMNS)
    held = Rule(rule.effect, rule.rule, rule.why, rule.origin, rule.run_id, position)
    old = _told(held, rule.added_in)
    in_snapshot = {"snapshot": snapshot}
    tell_of_job(connection, job_id, now, "rule_revoked", author, in_snapshot, old=old)
    return connection.execute(revoked).one()


def lock_rules(connection: Connection, job_id: str) -> int:
    """Lock the job's rules until the transaction ends, and return the number of their newest snapshot.
    Workers wait for this lock only if the job has a budget. Raises ``NotFoundError``."""
    query = select(jobs.c.rules_snapshot).where(jobs.c.id == job_id).with_for_update(key_share=True)
    snapshot: int | None = connection.execute(query).scalar()
    if snapshot is None:
        raise NotFoundError(f"no job is named {job_id}")
    return snapshot


def new_snapshot(connection: Connection, job_id: str) -> int:
    """Begin a snapshot of the job's rules, which are locked, and return its number."""
    raised = (
        update(jobs).where(jobs.c.id == job_id).values(rules_snapshot=jobs.c.rules_snapshot + 1)
    )
    return int(connection.execute(raised.returning(jobs.c.rules_snapshot)).scalar_one())


def add_standing(
    connection: Connection, rule: Rule, author: Author, now: float, call_id: str | None = None
) -> int | None:
    """Store a standing rule, and return its id; None if the same is in force already.

    Args:
        rule: its effect, text and reason count.
        call_id: the tool call whose answer it was.

    Raises:
        UsageError: no job file could have this rule.
    """
    if (wrong := syntax.problem(rule.text, rule.effect)) is not None:
        raise UsageError(wrong)
    named = {"effect": rule.effect, "rule": rule.text, "why": rule.why, "call_id": call_id}
    values = {**named, "author": author.name or "", "created_at": now}
    unless_there = insert_or(connection, standing_rules).on_conflict_do_nothing(
        index_elements=["effect", "rule"], index_where=_STANDS
    )
    added = connection.execute(unless_there.values(values).returning(standing_rules.c.id))
    return added.scalar_one_or_none()


@writes
def remove_standing(connection: Connection, id: int, author: Author, now: float) -> dict[str, Any]:
    """Stop copying a standing rule into new jobs, and return its row. Raises
    ``NotFoundError`` if there is no such rule, ``UsageError`` if it was removed before."""
    this = standing_rules.c.id == id
    changes = {"removed_at": now, "removed_by": author.name or "", "removed_why": author.why}
    removed = update(standing_rules).where(this, _STANDS).values(changes)
    connection.execute(removed)
    row = connection.execute(select(standing_rules).where(this)).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no standing rule {id}: see `runner rules standing list`")
    if (row["removed_at"], row["removed_by"]) != (now, changes["removed_by"]):
        raise UsageError(f"the standing rule {id} was removed before, by {row['removed_by']}")
    return dict(row)


def list_standing(database: Database, *, removed: bool = False) -> list[dict[str, Any]]:
    """The standing rules in the order of their ids; with ``removed`` also those that were removed."""
    query = select(standing_rules).order_by(standing_rules.c.id)
    return database.dicts(query if removed else query.where(_STANDS))


def standing_for(connection: Connection, spec: JobSpec) -> list[tuple[Row[Any], Sequence[Rule]]]:
    """Return the standing rules that a job gets now: rows, each with its rules. A
    row becomes several rules if its path leads into a workspace that is copied for each run."""
    query = select(standing_rules).where(_STANDS).order_by(standing_rules.c.id)
    if not spec.asking.standing:
        query = query.where(standing_rules.c.effect != "allow")
    folders = spec.workspace.copied if spec.workspace is not None else ()
    return [
        (row, syntax.with_copies([_standing_rule(row)], folders, user_home()))
        for row in connection.execute(query)
    ]


def _standing_rule(row: Row[Any]) -> Rule:
    return Rule(row.effect, row.rule, row.why, STANDING)
