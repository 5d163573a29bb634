"""The journal in the database: loading a run's view, and appending what an attempt did.

One transaction holds the guard (this attempt still has the run), what happened, and what is decided
next with the queued messages and the pause flag as they stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from runner.core import decide
from runner.core.budget import Reservation
from runner.core.conversation import Message, Usage, tool_uses
from runner.core.decide import Effect
from runner.core.journal import (
    Call,
    Entry,
    Failure,
    OpenCall,
    Progress,
    QueuedMessage,
    RunView,
    Stop,
    fold,
)
from runner.core.permissions import Decision
from runner.core.run import Lease
from runner.core.spec import JobSpec
from runner.errors import LeaseLost, StaleView
from runner.store.database import Database
from runner.store.rows import Rows, change
from runner.store.tables import blocks, jobs, queued_messages, runs, tool_calls

_SPECS_KEPT = 256

_HELD = (
    (runs.c.id == bindparam("run"))
    & (runs.c.state == "running")
    & (runs.c.attempt == bindparam("lease_attempt"))
)
_GUARD = (
    select(
        runs.c.queued_count,
        runs.c.pause_requested,
        runs.c.event_count,
        runs.c.revision,
        runs.c.denials,
    )
    .where(_HELD)
    .with_for_update()
)
_UNDELIVERED = (
    select(queued_messages.c.id, queued_messages.c.text)
    .where(
        queued_messages.c.run_id == bindparam("run"),
        queued_messages.c.delivered_message.is_(None),
    )
    .order_by(queued_messages.c.id)
)


def progress_to_json(progress: Progress) -> dict[str, Any]:
    """What ``runs.progress`` holds: the progress without the counters that have columns."""
    call = progress.open_call
    return {
        "model_calls": progress.model_calls,
        "tries": progress.tries,
        "last_prompt_tokens": progress.last_prompt_tokens,
        "appended_bytes": progress.appended_bytes,
        "continuations": progress.continuations,
        "nudges": progress.nudges,
        "stop": _fields(progress.stop),
        "failure": _fields(progress.failure),
        "open_call": call
        and {
            "number": call.number,
            "attempt": call.attempt,
            "reservation": _fields(call.reservation),
        },
    }


def _fields(value: Stop | Failure | Reservation | None) -> dict[str, Any] | None:
    return None if value is None else {name: getattr(value, name) for name in value.__slots__}


def progress_from_row(row: Row[Any]) -> Progress:
    """The progress that a row of ``runs`` tells."""
    data = dict(row.progress)
    stop, failure, open_call = data.pop("stop"), data.pop("failure"), data.pop("open_call")
    return Progress(
        **data,
        turns=row.turns,
        usage=Usage(
            row.input_tokens, row.cache_read_tokens, row.cache_creation_tokens, row.output_tokens
        ),
        charged_tokens=row.charged_tokens,
        stop=Stop(**stop) if stop else None,
        failure=Failure(**failure) if failure else None,
        open_call=OpenCall(**{**open_call, "reservation": Reservation(**open_call["reservation"])})
        if open_call
        else None,
    )


class StoredJournal:
    """``engine.ports.Journal`` over the database.

    Args:
        database: where the runs are.
        now: the time in seconds since the epoch, by the database's clock.
    """

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now
        self._specs: dict[str, JobSpec] = {}

    def load(self, lease: Lease) -> RunView:
        """The run as its rows tell it. Raises ``LeaseLost``."""
        return self._database.read(lambda connection: self._load(connection, lease))

    def append(self, lease: Lease, view: RunView, entries: Sequence[Entry]) -> RunView:
        """Store ``entries``. Raises ``LeaseLost`` or ``StaleView``; nothing is stored then."""
        return self._write(lease, view, entries)[0]

    def advance(
        self, lease: Lease, view: RunView, entries: Sequence[Entry], *, draining: bool
    ) -> tuple[RunView, Effect]:
        """Store ``entries`` and what follows from them; see the port."""
        view_after, effect = self._write(lease, view, entries, draining=draining)
        assert effect is not None
        return view_after, effect

    def _write(
        self,
        lease: Lease,
        view: RunView,
        entries: Sequence[Entry],
        draining: bool | None = None,
    ) -> tuple[RunView, Effect | None]:
        def look(connection: Connection) -> tuple[Any, RunView]:
            row = self._guard(connection, lease, view)
            queued = _undelivered(connection, lease.run_id) if row.queued_count else ()
            return row, replace(view, queued=queued, pause_requested=row.pause_requested)

        def work(
            connection: Connection, seen: tuple[Any, RunView]
        ) -> tuple[RunView, Effect | None]:
            row, before = seen
            now = self._now()
            applied, effect = fold(before, entries), None
            if draining is not None:
                after = applied[-1].after if applied else before
                decided, effect = decide.advance(after, now, draining)
                applied += decided
            if not applied:
                return before, effect
            rows = Rows(lease, now, row.event_count)
            rows.add(applied)
            rows.write(connection)
            after = replace(applied[-1].after, revision=before.revision + 1)
            self._update_run(connection, after, rows, row.denials)
            return after, effect

        return self._database.look_and_write(look, work)

    def _guard(self, connection: Connection, lease: Lease, view: RunView) -> Any:
        held = {"run": lease.run_id, "lease_attempt": lease.attempt}
        row = connection.execute(_GUARD, held).one_or_none()
        if row is None:
            raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
        if row.revision != view.revision:
            raise StaleView(f"{lease.run_id} is at {row.revision}, the view at {view.revision}")
        return row

    def _update_run(self, connection: Connection, view: RunView, rows: Rows, denials: int) -> None:
        progress = view.progress
        changes = {
            "revision": view.revision,
            "event_count": rows.event_count,
            "message_count": len(view.messages),
            "queued_count": len(view.queued),
            "turns": progress.turns,
            "denials": denials + rows.denials,
            "input_tokens": progress.usage.input_tokens,
            "cache_read_tokens": progress.usage.cache_read_tokens,
            "cache_creation_tokens": progress.usage.cache_creation_tokens,
            "output_tokens": progress.usage.output_tokens,
            "charged_tokens": progress.charged_tokens,
            "progress": progress_to_json(progress),
            **rows.run_changes,
        }
        change(connection, runs, changes, id=view.run_id)

    def _load(self, connection: Connection, lease: Lease) -> RunView:
        held = {"run": lease.run_id, "lease_attempt": lease.attempt}
        row = connection.execute(select(runs).where(_HELD), held).one_or_none()
        if row is None:
            raise LeaseLost(f"attempt {lease.attempt} no longer holds {lease.run_id}")
        spec = self._spec(connection, row.job_id)
        messages, calls = load_conversation(connection, lease.run_id)
        return RunView(
            run_id=row.id,
            item_key=row.item_key,
            attempt=row.attempt,
            spec=spec,
            limits=replace(spec.limits, max_turns=row.max_turns, token_ceiling=row.token_ceiling),
            submitted_at=row.created_at,
            messages=messages,
            calls=calls,
            progress=progress_from_row(row),
            queued=_undelivered(connection, lease.run_id) if row.queued_count else (),
            pause_requested=row.pause_requested,
            revision=row.revision,
        )

    def _spec(self, connection: Connection, job_id: str) -> JobSpec:
        """Jobs never change, so each is read once. On the same connection: a second one, asked for
        while all others wait for theirs, might never come."""
        spec = self._specs.get(job_id)
        if spec is None:
            if len(self._specs) >= _SPECS_KEPT:
                self._specs.clear()
            query = select(jobs.c.spec).where(jobs.c.id == job_id)
            spec = JobSpec.from_json(connection.execute(query).scalar_one())
            self._specs[job_id] = spec
        return spec


def _undelivered(connection: Connection, run_id: str) -> tuple[QueuedMessage, ...]:
    rows = connection.execute(_UNDELIVERED, {"run": run_id})
    return tuple(QueuedMessage(row.id, row.text) for row in rows)


def load_conversation(
    connection: Connection, run_id: str
) -> tuple[tuple[Message, ...], tuple[Call, ...]]:
    """The whole messages of a run, and the last reply's calls while any of them has no result."""
    query = (
        select(blocks.c.message, blocks.c.position, blocks.c.role, blocks.c.content)
        .where(blocks.c.run_id == run_id)
        .order_by(blocks.c.message, blocks.c.position)
    )
    contents: dict[int, dict[int, Any]] = {}
    roles: dict[int, Any] = {}
    for row in connection.execute(query):
        contents.setdefault(row.message, {})[row.position] = row.content
        roles[row.message] = row.role
    reply = max((number for number, role in roles.items() if role == "assistant"), default=None)
    calls = () if reply is None else _open_calls(connection, run_id, reply, contents)
    whole = [n for n in contents if not (calls and reply is not None and n > reply)]
    return tuple(Message(roles[n], tuple(contents[n].values())) for n in whole), calls


def _open_calls(
    connection: Connection, run_id: str, reply: int, contents: dict[int, dict[int, Any]]
) -> tuple[Call, ...]:
    query = (
        select(tool_calls)
        .where(tool_calls.c.run_id == run_id, tool_calls.c.message == reply)
        .order_by(tool_calls.c.position)
    )
    rows = connection.execute(query).all()
    if all(row.ended_at is not None for row in rows):
        return ()
    uses = tool_uses(contents[reply].values())
    results = contents.get(reply + 1, {})
    return tuple(
        Call(
            index=row.position,
            id=use["id"],
            name=use["name"],
            input=use["input"],
            decision=Decision(row.decision, row.rule) if row.decision else None,
            started_by=row.started_attempt,
            interrupted=row.interrupted,
            result=results.get(row.position),
        )
        for row, use in zip(rows, uses, strict=True)
    )
