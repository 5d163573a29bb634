"""Runs of which there is a lot to tell: rows as the engine leaves them, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, insert, update

from runner.core.conversation import Block, Tool
from runner.permissions import Rule
from runner.store.database import Database
from runner.store.tables import blocks, events, model_calls, runs, tool_calls
from tests.store.attempts import submit_one
from tests.store.examples import NOW, SPEC

TOLD = replace(
    SPEC,
    model="claude-opus-5",
    tools=(Tool("Bash", "Runs a command.", {"type": "object"}),),
    rules=(Rule("allow", "Bash(pytest *)"), Rule("deny", "Bash(rm *)", why="Nothing is deleted.")),
)


@dataclass
class Told:
    """A run that is written to, turn by turn; ``store`` puts it into the database."""

    run_id: str
    rows: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)
    message: int = 1
    turn: int = 0
    events: int = 1

    def _add(self, table: Any, **row: Any) -> None:
        self.rows.setdefault(table, []).append({"run_id": self.run_id, **row})

    def event(self, type: str, **data: Any) -> Told:
        self.events += 1
        at = NOW + self.turn * 10 + 5
        self._add(events, number=self.events, at=at, attempt=1, type=type, data=data)
        return self

    def say(self, role: str, *content: Block) -> Told:
        for position, block in enumerate(content):
            self._add(
                blocks,
                message=self.message,
                position=position,
                role=role,
                type=block["type"],
                turn=self.turn,
                content=block,
                created_at=NOW + self.turn * 10,
            )
        self.message += 1
        return self

    def reply(self, *content: Block) -> Told:
        """The next turn begins, and the model answers."""
        self.turn += 1
        self._add(
            model_calls,
            number=self.turn,
            attempt=1,
            turn=self.turn,
            model="claude-opus-5",
            max_tokens=32_000,
            worst_case=100_000,
            started_at=NOW + self.turn * 10,
            ended_at=NOW + self.turn * 10 + 4,
            latency=4.2,
            stop_reason="end_turn",
            input_tokens=120,
            cache_read_tokens=20_000 + self.turn,
            cache_creation_tokens=400,
            output_tokens=310,
            charged_tokens=1_000,
        )
        self.event("model_call_ended", call=self.turn, turn=self.turn, stop_reason="end_turn")
        self.say("assistant", *content)
        if not any(block["type"] == "tool_use" for block in content):
            self.event("turn_ended", turn=self.turn)
        return self

    def work(
        self,
        arguments: Any,
        output: Any,
        *words: Block,
        name: str = "Bash",
        outcome: str = "succeeded",
        decision: str = "allow",
        rule: tuple[int, str] | None = (0, "Bash(pytest *)"),
    ) -> Told:
        """A turn with one tool call and its result."""
        use = f"toolu_{self.turn + 1}"
        self.reply(*words, {"type": "tool_use", "id": use, "name": name, "input": arguments})
        self._add(
            tool_calls,
            message=self.message - 1,
            position=0,
            turn=self.turn,
            tool_use_id=use,
            name=name,
            decision=decision,
            decision_snapshot=1,
            rule=rule and rule[1],
            rule_position=rule and rule[0],
            started_at=NOW,
            ended_at=NOW + 1,
            duration=1.25,
            outcome=outcome,
            interrupted=False,
        )
        result = {"type": "tool_result", "tool_use_id": use, "content": output}
        self.say("user", result | {"is_error": outcome != "succeeded"})
        return self.event("turn_ended", turn=self.turn)

    def store(self, database: Database, **row: Any) -> str:
        """Write it all, as a run that has ended; its id."""
        self.event("done", state="succeeded", reason="end_turn", detail="")
        values = {
            "state": "succeeded",
            "reason": "end_turn",
            "due_at": None,
            "started_at": NOW,
            "ended_at": NOW + 4_000,
            "turns": self.turn,
            "message_count": self.message,
            "event_count": self.events,
        }

        def work(connection: Connection) -> None:
            for table, found in self.rows.items():
                names = {name for each in found for name in each}
                connection.execute(insert(table), [dict.fromkeys(names) | each for each in found])
            change = update(runs).where(runs.c.id == self.run_id)
            connection.execute(change.values(**values | row))

        database.write(work)
        return self.run_id


def told(database: Database, key: str = "one") -> Told:
    """A run that was submitted with its prompt."""
    return Told(submit_one(database, key, spec=TOLD))


def outputs(turns: int) -> Iterator[str]:
    """An output for each turn, some long."""
    for number in range(turns):
        lines = 300 if number % 7 == 0 else 6
        yield "\n".join(f"tests/test_{number}.py::test_{line} PASSED" for line in range(lines))


def long_run(database: Database, turns: int) -> str:
    """A run of many turns; its id."""
    run = told(database)
    for number, output in enumerate(outputs(turns - 1)):
        words = {"type": "text", "text": f"Now I look at part {number}."}
        run.work({"command": f"pytest tests/test_{number}.py"}, output, words)
    return run.reply({"type": "text", "text": "All is well."}).store(database)
