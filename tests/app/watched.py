"""Looks at a job that somebody watches, as the database would give them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from runner.app.watch import Look, Money, Progress

NOW = 1_700_000_000.0
JOB_ID = "job_01hf8zw6000000000000abcdef"


def event(number: int, type_: str, when: float = NOW, **data: Any) -> Any:
    return SimpleNamespace(number=number, type=type_, at=when, data=data)


def run(key: str, state: str = "running", **columns: Any) -> dict[str, Any]:
    """A run of an item that began a minute ago."""
    defaults = {
        "id": f"run_{key}",
        "item_key": key,
        "state": state,
        "reason": "end_turn" if state == "succeeded" else "",
        "detail": "",
        "created_at": NOW - 60,
        "started_at": None if state == "queued" else NOW - 60,
        "ended_at": NOW if state in ("succeeded", "failed", "cancelled", "stopped") else None,
        "due_at": NOW if state == "queued" else None,
        "turns": 0 if state == "queued" else 4,
        "max_turns": 50,
        "depth": 0,
        "label": "",
        "agent_type": None,
        "parent": None,
        "below": 0,
        "fresh_run": None,
        "pause_requested": False,
        "input_tokens": 100,
        "cache_read_tokens": 300,
        "cache_creation_tokens": 0,
        "denials": 0,
    }
    return {**defaults, **columns}


def look(runs: Sequence[dict[str, Any]], at: float = NOW, **more: Any) -> Look:
    """A look at a job of these runs, which one worker works."""
    job = {
        "id": JOB_ID,
        "name": "refactor",
        "created_at": NOW - 725,
        "charged_tokens": 123_456,
        "unknown_tokens": 0,
        "spent_tokens": 123_456,
        "budget_usd": 5.0,
        "budget_tokens": None,
        **more.pop("job", {}),
    }
    money = Money(cost="$1.23", ends_at=NOW + 480, expected="about $4.10 ($3.50 to $5.20)")
    return Look(at=at, job=job, progress=Progress(runs), **{"workers": 1, "money": money, **more})
