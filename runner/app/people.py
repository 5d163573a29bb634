"""The people who may log in to ``runner web``: add, remove and recognise them."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Literal, cast, get_args

from runner.app.handle import App
from runner.core.run import Author
from runner.store import people

# ``look`` reads everything, ``answer`` also answers what runs ask, ``operate`` also changes runs.
Role = Literal["look", "answer", "operate"]
ROLES: tuple[Role, ...] = get_args(Role)


def add(app: App, name: str, role: Role, author: Author, *, with_token: bool) -> str | None:
    """Let a person log in, and return their token, which is stored nowhere; None: a proxy vouches for
    them. Raises ``UsageError`` if they can log in already."""
    token = secrets.token_urlsafe(32) if with_token else None
    hashed = None if token is None else hash_of(token)
    app.change(lambda now: people.add(app.database, name, role, hashed, now, author))
    return token


def remove(app: App, name: str, author: Author) -> None:
    """Let a person log in no more: what they have open ends with their next click."""
    app.change(lambda now: people.remove(app.database, name, now, author))


def list_people(app: App, *, removed: bool) -> list[dict[str, Any]]:
    return people.list_people(app.database, removed=removed)


def role_of(app: App, name: str) -> Role | None:
    """Return the role of a person; None: nobody who can log in has this name."""
    return cast("Role | None", people.role_of(app.database, name))


def person_of(app: App, token_hash: str) -> tuple[str, Role] | None:
    """Return the name and the role of the person whose token has this hash."""
    return cast("tuple[str, Role] | None", people.person_of(app.database, token_hash))


def may(role: Role, needed: Role) -> bool:
    return ROLES.index(role) >= ROLES.index(needed)


def hash_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
