"""Statements that were compiled in one test are used in the next ones, which open databases of their
own: compiling takes more of a processor than all else that a test of the store does."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.util import LRUCache

_MOST = 3_000


class _Shared:
    """Where SQLAlchemy looks a statement up: for it, each engine has a dialect of its own."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Any, Any] = LRUCache(_MOST)

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._compiled.get(_of_any_engine(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[_of_any_engine(key)] = compiled


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect: Dialect = key[0]
    serializer = getattr(dialect, "_json_serializer", None)
    return dialect.name, dialect.driver, dialect.server_version_info, serializer, *key[1:]


_shared = _Shared()


def share() -> None:
    """Have all engines of this process share them (https://docs.sqlalchemy.org/en/21/core/connections.html
    has the option ``compiled_cache``)."""
    event.listen(Engine, "engine_connect", _use_shared)


def _use_shared(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_shared)  # type: ignore[typeddict-item]
