"""Runs with what they said and did, stored as rows at once."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, update

from runner.core.search import Query, parse
from runner.queries.filters import Filters
from runner.queries.search.search import Found, search
from runner.store.database import Database
from runner.store.tables import blocks, compactions, runs, tool_calls, tool_outputs
from tests.store.attempts import submit_one
from tests.store.examples import NOW


@dataclass
class Record:
    """A run, and how many messages it has."""

    database: Database
    run_id: str
    messages: int = 1
    revision: int = 0
    compactions: int = 0
    rows: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def say(
        self, text: str, role: str = "assistant", at: float = NOW, kind: str = "text"
    ) -> Record:
        """A message of one block."""
        name = "thinking" if kind == "thinking" else "text"
        self._block(0, role, {"type": kind, name: text}, at)
        return self._message()

    def call(
        self, tool: str, given: Any, answer: str, whole: bytes | None = None, at: float = NOW
    ) -> Record:
        """A call of a tool and its result; ``whole``: all of it, where the model was shown less."""
        use_id = f"toolu_{self.messages}"
        self._block(
            0, "assistant", {"type": "tool_use", "id": use_id, "name": tool, "input": given}, at
        )
        key = {"run_id": self.run_id, "message": self.messages, "position": 0}
        row = {**key, "turn": self.messages, "tool_use_id": use_id, "name": tool}
        self.rows.append((tool_calls, row))
        if whole is not None:
            packed = {"size": len(whole), "compressed": zlib.compress(whole)}
            self.rows.append((tool_outputs, key | packed))
        self._message()
        content = {"type": "tool_result", "tool_use_id": use_id, "content": answer}
        self._block(0, "user", content, at)
        return self._message()

    def store(self) -> Record:
        """Store what was added."""
        self.revision += 1
        self.compactions += sum(table is compactions for table, _ in self.rows)

        def work(connection: Any) -> None:
            for table, row in self.rows:
                connection.execute(insert(table).values(**row))
            counted = {
                "revision": self.revision,
                "message_count": self.messages,
                "compaction_count": self.compactions,
            }
            connection.execute(update(runs).where(runs.c.id == self.run_id).values(**counted))

        self.database.write(work)
        self.rows.clear()
        return self

    def _block(self, position: int, role: str, content: dict[str, Any], at: float) -> None:
        row = {
            "run_id": self.run_id,
            "message": self.messages,
            "position": position,
            "role": role,
            "type": content["type"],
            "turn": self.messages,
            "content": content,
            "created_at": at,
        }
        self.rows.append((blocks, row))

    def _message(self) -> Record:
        self.messages += 1
        return self


def record(database: Database, key: str = "one", **options: Any) -> Record:
    """A run that has only been submitted."""
    return Record(database, submit_one(database, key, **options))


def find(
    database: Database,
    text: str = "",
    exact: str | None = None,
    limit: int | None = 20,
    **more: Any,
) -> Found:
    """What a search finds; ``more``: filters, and what ``search`` takes."""
    names = Filters.__dataclass_fields__
    filters = Filters(**{name: more.pop(name) for name in list(more) if name in names})
    return search(database, parse(text, exact), filters, limit=limit, **more)


def excerpts(found: Found) -> list[str]:
    return [hit.excerpt.text for hit in found.hits]


def places(database: Database, query: Query) -> set[Any]:
    """Where all hits of a query are."""
    found = search(database, query, limit=None)
    assert len(found.hits) == found.total
    assert not found.is_least
    return {hit.place for hit in found.hits}
