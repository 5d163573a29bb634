"""The people who may log in to ``runner web``, their roles, and the hashes of their tokens.

A token is 256 random bits, so that a plain hash of it tells nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from runner.core.events import signed_event
from runner.core.run import Author
from runner.errors import NotFoundError, UsageError
from runner.store.database import Database, writes
from runner.store.tables import people

_SHOWN = ("name", "role", "created_at", "removed_at", "changes")


@writes
def add(
    connection: Connection, name: str, role: str, token_hash: str | None, now: float, author: Author
) -> None:
    """Let a person log in, also one who was removed. Raises ``UsageError`` if they can already."""
    query = select(people).where(people.c.name == name).with_for_update()
    before = connection.execute(query).one_or_none()
    if before is not None and before.removed_at is None:
        raise UsageError(
            f"{name!r} can log in already: for another role or token, first "
            f"`runner users remove {name}`"
        )
    values: dict[str, Any] = {"role": role, "token_hash": token_hash, "removed_at": None}
    changes = [] if before is None else before.changes
    values["changes"] = [*changes, _change("added", author, now, {"role": role})]
    if before is None:
        connection.execute(insert(people).values(name=name, created_at=now, **values))
    else:
        connection.execute(update(people).where(people.c.name == name).values(**values))


@writes
def remove(connection: Connection, name: str, now: float, author: Author) -> None:
    """Let a person log in no more. Raises ``NotFoundError``."""
    of_name = people.c.name == name
    query = select(people).where(of_name, people.c.removed_at.is_(None)).with_for_update()
    if (before := connection.execute(query).one_or_none()) is None:
        raise NotFoundError(f"nobody who can log in is named {name!r}: see `runner users list`")
    changes = [*before.changes, _change("removed", author, now, {})]
    values = {"token_hash": None, "removed_at": now, "changes": changes}
    connection.execute(update(people).where(of_name).values(**values))


def list_people(database: Database, *, removed: bool = False) -> list[dict[str, Any]]:
    """The people who can log in, by name; with ``removed`` also those who could."""
    query = select(*(people.c[name] for name in _SHOWN)).order_by(people.c.name)
    if not removed:
        query = query.where(people.c.removed_at.is_(None))
    return database.dicts(query)


def role_of(database: Database, name: str) -> str | None:
    """The role of a person; None: nobody who can log in has this name."""
    query = select(people.c.role).where(people.c.name == name, people.c.removed_at.is_(None))
    return next((row.role for row in database.rows(query)), None)


def person_of(database: Database, token_hash: str) -> tuple[str, str] | None:
    """The name and the role of the person whose token has this hash."""
    query = select(people.c.name, people.c.role).where(people.c.token_hash == token_hash)
    return next(((row.name, row.role) for row in database.rows(query)), None)


def _change(kind: str, author: Author, now: float, new: dict[str, Any]) -> dict[str, Any]:
    event = signed_event(kind, author, {}, old={}, new=new)
    return {"type": event.type, "at": now, "data": event.data}
