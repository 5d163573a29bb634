"""Standing rules: permission rules copied into each new job. Removed ones stay on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, update

from runner.core.run import Author
from runner.core.spec import JobSpec
from runner.errors import NotFoundError, UsageError
from runner.permissions import STANDING, Rule
from runner.permissions import rules as syntax
from runner.settings import user_home
from runner.store.database import Database, writes
from runner.store.statements import insert_or
from runner.store.tables import standing_rules

_IN_FORCE = standing_rules.c.removed_at.is_(None)


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
        index_elements=["effect", "rule"], index_where=_IN_FORCE
    )
    added = connection.execute(unless_there.values(values).returning(standing_rules.c.id))
    return added.scalar_one_or_none()


@writes
def remove(connection: Connection, id: int, author: Author, now: float) -> dict[str, Any]:
    """Stop copying a standing rule into new jobs, and return its row. Raises
    ``NotFoundError`` if there is no such rule, ``UsageError`` if it was removed before."""
    this = standing_rules.c.id == id
    changes = {"removed_at": now, "removed_by": author.name or "", "removed_why": author.why}
    removed = update(standing_rules).where(this, _IN_FORCE).values(changes)
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
    return database.dicts(query if removed else query.where(_IN_FORCE))


def standing_for(connection: Connection, spec: JobSpec) -> list[tuple[Row[Any], Sequence[Rule]]]:
    """Return the standing rules that a job gets now: rows, each with its rules. A
    row becomes several rules if its path leads into a workspace that is copied for each run."""
    query = select(standing_rules).where(_IN_FORCE).order_by(standing_rules.c.id)
    if not spec.asking.standing:
        query = query.where(standing_rules.c.effect != "allow")
    folders = spec.workspace.copied if spec.workspace is not None else ()
    return [
        (row, syntax.with_copies([_rule_of(row)], folders, user_home()))
        for row in connection.execute(query)
    ]


def _rule_of(row: Row[Any]) -> Rule:
    return Rule(row.effect, row.rule, row.why, STANDING)
