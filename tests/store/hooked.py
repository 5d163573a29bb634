"""Drives a run with hooks and instructions through the store: hooks that say whatever hooks can say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.core.entries import Entry, HookFinished, InstructionsRead
from runner.core.hooks import Hook, Said, read_answer
from runner.core.state import RunState
from runner.core.steps import Effect, RunHook
from runner.core.workspace import Instructions
from runner.store.database import Database
from tests.store.driving import SPEC, Driver
from tests.store.recording import RecordedDriver

HOOKS = (
    Hook("RunStart", command="start"),
    Hook("PreToolUse", command="first \u202e\x1b[31m"),
    Hook("PreToolUse", ("Bash(ship *)", "Read(*.txt)"), command="ships", on_failure="continue"),
    Hook("PreToolUse", ("Ship",), function="ours:hook@/there", repeatable=True),
    Hook("PostToolUse", ("Read(a.txt)", "Bash"), command="after", repeatable=True),
    Hook("PostToolUse", command="after all"),
    Hook("TurnEnd", command="turn", repeatable=True),
    Hook("TurnEnd", command="turn again"),
    Hook("RunEnd", command="end"),
)

_PRINTED = (
    b"",
    b"plain \x1b[31m\0 text",
    b"{not json",
    b'{"decision": "block", "reason": "no\\n\\u202e\\ud800\\u0000"}',
    b'{"hookSpecificOutput": {"additionalContext": "so\\n\\u2028"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "x\\ny"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "deny"}}',
    b'{"hookSpecificOutput": {"permissionDecision": "allow"}}',
    b'{"hookSpecificOutput": {"updatedInput": {"command": "ls", "n": 1}}}',
    b'{"hookSpecificOutput": {"updatedInput": {"file_path": "a.txt", "command": "ship it"}}}',
    b'{"hookSpecificOutput": {"permissionDecision": "ask", "updatedInput": {"command": "ls"}}}',
)


class HookedDriver(Driver):
    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database, seed, replace(SPEC, hooks=HOOKS, instructions=True))

    def begin(self, state: RunState) -> list[Entry]:
        return [*super().begin(state), *instructed(self, state)]

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        if isinstance(effect, RunHook):
            return [ended(self, effect, None)]
        return super().happen(effect, state)

    def risk(self, effect: Effect) -> float:
        return 0.3 if isinstance(effect, RunHook) else super().risk(effect)


class RecordedHookedDriver(RecordedDriver):
    def spec_of(self, seed: int) -> Any:
        return replace(super().spec_of(seed), hooks=HOOKS, instructions=True)

    def begin(self, state: RunState) -> list[Entry]:
        return [*super().begin(state), *instructed(self, state)]

    def happen(self, effect: Effect, state: RunState) -> list[Entry]:
        if isinstance(effect, RunHook):
            changed = effect.run.event != "RunEnd" and self.random.random() < 0.3
            return [ended(self, effect, self.tree() if changed else None)]
        return super().happen(effect, state)

    def risk(self, effect: Effect) -> float:
        return 0.3 if isinstance(effect, RunHook) else super().risk(effect)


def instructed(driver: Driver, state: RunState) -> list[Entry]:
    if state.files.instructed:
        return []
    files = (Instructions("AGENTS.md", "12" * 32, "Be kind.\n"), Instructions("C", "0" * 64, "é"))
    chosen = files[: driver.random.randint(0, 2)]
    return [InstructionsRead(chosen, ("X: it is empty",))]


def ended(driver: Driver, step: RunHook, tree: str | None) -> Entry:
    if driver.random.random() < 0.2:
        code = driver.random.choice([1, 2, -9])
        said = Said("exited", code, errors=b"no \x07\nreason", duration=0.5)
    elif driver.random.random() < 0.1:
        said = Said(driver.random.choice(["timed_out", "lost", "shut_down", "not_started"]))  # type: ignore[arg-type]
    else:
        said = Said("exited", output=driver.random.choice(_PRINTED))
    return HookFinished(step.run.number, read_answer(step.run.event, said, 60.0), tree)
