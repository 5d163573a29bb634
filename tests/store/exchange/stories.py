"""Jobs with all that can be recorded of them, made up, as rows."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection, insert

from runner.core.state import Progress
from runner.core.text import json_line
from runner.permissions import ToolContext
from runner.store import ids
from runner.store.database import Database
from runner.store.exports import FORMATS
from runner.store.import_checks import check_event
from runner.store.run_state import progress_to_json
from tests.store.examples import SPEC

Rows = list[tuple[str, dict[str, Any]]]
ENDS = ("succeeded", "failed", "cancelled", "stopped")
UNENDED = ("queued", "running", "waiting")

# What a column of text holds in both databases: no NUL, no half of a surrogate pair.
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
# What JSON holds: anything.
any_text = st.text(st.characters(), max_size=12)
times = st.floats(0, 1e11, allow_nan=False)
counts = st.integers(0, 2**31 - 1)
long_counts = st.integers(0, 2**50)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(any_text, values, max_size=3)
_other_kinds = words.filter(lambda kind: kind not in ("text", "tool_use", "tool_result"))


def _is_event(of: tuple[str, dict[str, Any]]) -> bool:
    try:
        check_event("events", *of)
    except ValueError:
        return False
    return True


# A type and its data. What Runner's own events hold is not just anything.
_kinds = st.from_regex("[a-z][a-z_]{0,11}", fullmatch=True)
happenings = st.tuples(_kinds, objects).filter(_is_event)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def stories(draw: st.DrawFn, *, states: tuple[str, ...] = ENDS) -> tuple[str, Rows]:
    """A job of up to two runs: its id, and its rows in an order in which they can be stored."""
    job_id = ids.new("job", draw(st.floats(0, 2e9)))
    rows: Rows = [("jobs", draw(_job(job_id)))]
    if draw(st.booleans()):
        rows.append(("purses", draw(_job_budget(job_id))))
    run_ids: list[str] = []
    for _ in range(draw(st.integers(0, 2))):
        rows += draw(_run(job_id, tuple(run_ids), states))
        run_ids.append(rows_of(rows, "runs")[-1]["id"])
    for position in range(draw(st.integers(0, 3))):
        rows.append(("permission_rules", draw(_rule(job_id, position, tuple(run_ids)))))
    for number in range(draw(st.integers(0, 3))):
        row = {"job_id": job_id, "number": number * 2 + 1, "at": draw(times)}
        kind, data = draw(happenings)
        rows.append(("job_events", row | {"type": kind, "data": data}))
    return job_id, rows


def rows_of(rows: Rows, table: str) -> list[dict[str, Any]]:
    return [row for name, row in rows if name == table]


def store(database: Database, rows: Rows) -> None:
    def work(connection: Connection) -> None:
        for name, row in rows:
            connection.execute(insert(FORMATS[name].table).values(row))

    database.write(work)


@st.composite
def _job(draw: st.DrawFn, job_id: str) -> dict[str, Any]:
    return {
        "id": job_id,
        "key": draw(st.none() | st.just(f"key of {job_id}")),
        "name": draw(words),
        "source": draw(words),
        "spec_text": draw(words),
        "spec_digest": draw(words),
        "spec": SPEC.to_json() | {"system": draw(maybe(any_text))},
        "workspace_id": draw(maybe(words)),
        "created_at": draw(times),
        "rules_snapshot": draw(counts),
    }


@st.composite
def _job_budget(draw: st.DrawFn, job_id: str) -> dict[str, Any]:
    names = ("spent_tokens", "spent_cost", "reserved_tokens", "reserved_cost")
    sums = {name: draw(st.integers(0, 2**40)) for name in names}
    return {
        "job_id": job_id,
        "budget_usd": draw(maybe(times)),
        "budget_tokens": draw(maybe(long_counts)),
        **sums,
    }


@st.composite
def _rule(draw: st.DrawFn, job_id: str, position: int, run_ids: tuple[str, ...]) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "position": position,
        "effect": draw(st.sampled_from(("allow", "ask", "deny"))),
        "rule": draw(words),
        "why": draw(words),
        "origin": draw(words),
        "run_id": draw(st.sampled_from((None, *run_ids))),
        "author": draw(words),
        "created_at": draw(maybe(times)),
        "added_in": draw(counts),
        "revoked_in": draw(maybe(counts)),
        "revoked_by": draw(maybe(words)),
        "revoked_at": draw(maybe(times)),
    }


@st.composite
def _run(draw: st.DrawFn, job_id: str, before: tuple[str, ...], states: tuple[str, ...]) -> Rows:
    run_id = ids.new("run", 2e9 + len(before))
    state = draw(st.sampled_from(states))
    happened = draw(st.lists(st.tuples(happenings, times), max_size=3))
    fork_of = draw(st.sampled_from((None, *before)))
    names = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
    row = {
        "id": run_id,
        "job_id": job_id,
        "item_key": draw(words),
        "fresh_of": draw(st.sampled_from((None, *before))),
        "state": state,
        "reason": draw(words),
        "detail": draw(words),
        "created_at": draw(times),
        "started_at": draw(maybe(times)),
        "ended_at": draw(maybe(times)),
        "due_at": draw(times) if state == "queued" else None,
        "worker_id": "worker_1" if state == "running" else None,
        "attempt": draw(st.integers(0, 2**30)),
        "last_worker_id": draw(maybe(words)),
        "pause_requested": draw(st.booleans()),
        "max_turns": draw(counts),
        "token_ceiling": draw(long_counts),
        "event_count": len(happened),
        **{name: draw(st.integers(0, 2**40)) for name in names},
        "progress": progress_to_json(Progress(turns=draw(counts))),
        "cost_ceiling_usd": draw(maybe(times)),
        "fork_of": fork_of,
        "fork_turn": None if fork_of is None else draw(counts),
        "model": draw(maybe(words)),
    }
    rows: Rows = [("runs", row)]
    rows.append(("run_items", {"run_id": run_id, "item": draw(values), "commit_message": None}))
    rows += draw(_conversation(run_id, job_id, asks=state in UNENDED))
    rows += draw(_beside(run_id))
    for number, ((kind, data), at) in enumerate(happened, 1):
        event = {"run_id": run_id, "number": number, "at": at, "attempt": 1}
        rows.append(("events", event | {"type": kind, "data": data}))
    return rows


@st.composite
def _conversation(draw: st.DrawFn, run_id: str, job_id: str, *, asks: bool) -> Rows:
    rows: Rows = []
    outputs: Rows = []
    for message in range(0, 2 * draw(st.integers(0, 3)), 2):
        uses = draw(st.integers(0, 2))
        asked = [
            {
                "type": "tool_use",
                "id": f"toolu_{message}_{n}",
                "name": "Read",
                "input": draw(objects),
            }
            for n in range(uses)
        ]
        given = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": draw(any_text)}
            for use in asked
        ]
        said = {"type": "text", "text": draw(any_text)}
        for number, role, blocks in (
            (message, "assistant", [said, *asked]),
            (message + 1, "user", [*given, {"type": draw(_other_kinds), **draw(objects)}]),
        ):
            for position, block in enumerate(blocks):
                kind = block["type"] if isinstance(block["type"], str) else "other"
                rows.append(("blocks", _block(run_id, number, position, role, kind, block)))
        for position, use in enumerate(asked):
            outputs += draw(_call(run_id, job_id, message, position, use["id"], asks))
    return rows + outputs


def _block(
    run_id: str, message: int, position: int, role: str, kind: str, content: dict[str, Any]
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "message": message,
        "position": position,
        "role": role,
        "type": kind,
        "turn": message // 2,
        "content": {**content, "type": kind},
        "created_at": 1e9 + message,
        "spoken_by": ("person", "machine", "peer", None)[message % 4] if role == "user" else None,
    }


@st.composite
def _call(
    draw: st.DrawFn, run_id: str, job_id: str, message: int, position: int, use: str, asks: bool
) -> Rows:
    place = {"run_id": run_id, "message": message, "position": position}
    call = {
        **place,
        "turn": message // 2,
        "tool_use_id": use,
        "name": "Read",
        "decision": draw(maybe(words)),
        "started_at": draw(maybe(times)),
        "ended_at": draw(maybe(times)),
        "duration": draw(maybe(times)),
        "outcome": draw(maybe(words)),
        "interrupted": draw(st.booleans()),
        "asked_again": draw(st.booleans()),
    }
    rows: Rows = [("tool_calls", call)]
    if draw(st.booleans()):
        output = draw(st.binary(max_size=40))
        stored = {"size": len(output), "compressed": zlib.compress(output)}
        rows.append(("tool_outputs", place | stored))
    if draw(st.booleans()):
        is_open = asks and draw(st.booleans())
        rows.append(("approvals", place | {"job_id": job_id} | draw(_question(is_open))))
    return rows


@st.composite
def _question(draw: st.DrawFn, is_open: bool) -> dict[str, Any]:
    answered = {
        "answer": draw(st.sampled_from(("approved", "denied", "expired", "cancelled"))),
        "answered_at": draw(times),
        "answered_by": draw(words),
        "answered_via": draw(st.sampled_from(("person", "rule", "timeout", "cancel", "end"))),
        "edited_input": draw(maybe(objects)),
        "remembered": draw(maybe(counts)),
    }
    texts = ("tool", "input_digest", "summary", "group_key", "suggested_rule", "reason")
    return {
        "id": ids.new("apr", 1e9),
        "turn": draw(counts),
        "setting": asdict(ToolContext()),
        "checked_snapshot": draw(counts),
        **{name: draw(words) for name in texts},
        "asked_at": draw(times),
        "expires_at": draw(maybe(times)),
        "notified_at": draw(maybe(times)),
        **({} if is_open else answered),
    }


@st.composite
def _beside(draw: st.DrawFn, run_id: str) -> Rows:
    """What is recorded beside the conversation."""
    rows: Rows = []
    of_run = {"run_id": run_id}
    if draw(st.booleans()):
        workspace = {"store_id": draw(words), "path": draw(words), "created_at": draw(times)}
        rows.append(("run_workspaces", of_run | workspace))
    for number in range(1, draw(st.integers(0, 2)) + 1):
        call = {
            "number": number,
            "attempt": 1,
            "turn": number,
            "model": draw(words),
            "max_tokens": draw(counts),
            "worst_case": draw(long_counts),
            "started_at": draw(times),
            "charged_tokens": draw(maybe(st.integers(0, 2**40))),
            "cut": draw(maybe(st.just([{"type": "text", "text": "cut"}]))),
            "hour_cache": draw(maybe(st.booleans())),
        }
        rows.append(("model_calls", of_run | call))
        compaction = {
            "number": number,
            "kind": draw(st.sampled_from(("clip", "summary", "prune"))),
            "first_message": 1,
            "last_message": number,
            "text": draw(any_text),
            "clips": draw(st.just([]) | st.just([[1, 0, "truncated"]])),
            "tokens_before": draw(long_counts),
            "tokens_after": draw(long_counts),
            "turn": number,
            "first_sent_in": number,
            "created_at": draw(times),
        }
        rows.append(("compactions", of_run | compaction))
        output = draw(st.none() | st.binary(max_size=20))
        verification = {
            "number": number,
            "turn": number,
            "attempt": 1,
            "started_at": draw(times),
            "content": draw(maybe(any_text)),
            "size": None if output is None else len(output),
            "compressed": None if output is None else zlib.compress(output),
        }
        rows.append(("verifications", of_run | verification))
        said = {"text": draw(words), "created_at": draw(times), "delivered_message": None}
        rows.append(("queued_messages", of_run | said))
    return rows + draw(_session(run_id))


@st.composite
def _session(draw: st.DrawFn, run_id: str) -> Rows:
    """The stored lines of a run that was imported from Claude Code; empty for other runs."""
    of_run = {"run_id": run_id}
    session = {
        "session_id": draw(words),
        "agent_id": draw(maybe(words)),
        "title": draw(maybe(words)),
        "system": draw(any_text),
        "notes": draw(any_text),
        "stated_usd": draw(maybe(times)),
        "under_reported": draw(counts),
        "files_digest": draw(maybe(words)),
    }
    rows: Rows = [("sessions", of_run | session)]
    for part in range(1, draw(st.integers(1, 2)) + 1):
        lines = draw(st.lists(objects, min_size=1, max_size=3))
        content = b"".join(map(json_line, lines)).removesuffix(b"\n")
        kept = {
            "file": "",
            "part": part,
            "size": len(content),
            "compressed": zlib.compress(content),
        }
        rows.append(("session_lines", of_run | kept))
    return draw(st.sampled_from((rows, [])))
