"""What is sent to the model in place of messages, as rows: ``core.context.compaction``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from runner.core.context.compaction import Clip, Compacted, Compaction
from runner.core.journal.view import RunView
from runner.store.tables import compactions


def compaction_row(
    view: RunView, compaction: Compaction, made_by_call: int | None, now: float
) -> dict[str, Any]:
    """The row of a compaction, the next of its run.

    Args:
        view: the run before it.
        made_by_call: the number of the model call that wrote it, None when none did.
        now: seconds since the epoch.
    """
    return {
        "run_id": view.run_id,
        "number": view.compacted.count + 1,
        "kind": compaction.kind,
        "first_message": compaction.first,
        "last_message": compaction.last,
        "text": compaction.text,
        "clips": [[clip.message, clip.position, clip.text] for clip in compaction.clips],
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
        "turn": view.progress.turns + 1,
        "made_by_call": made_by_call,
        "first_sent_in": view.progress.model_calls + 1,
        "created_at": now,
    }


def load_compacted(
    connection: Connection,
    run_id: str,
    *,
    sent_in: int | None = None,
    until_turn: int | None = None,
) -> Compacted:
    """All compactions of a run in one.

    Args:
        sent_in: only those that were sent in the model call of this number.
        until_turn: only those that were made for this turn, or before it.
    """
    query = select(compactions).where(compactions.c.run_id == run_id).order_by(compactions.c.number)
    if sent_in is not None:
        query = query.where(compactions.c.first_sent_in <= sent_in)
    if until_turn is not None:
        query = query.where(compactions.c.turn <= until_turn)
    compacted = Compacted()
    for row in connection.execute(query):
        compacted = compacted.after(
            Compaction(
                kind=row.kind,
                first=row.first_message,
                last=row.last_message,
                text=row.text,
                clips=tuple(Clip(*clip) for clip in row.clips),
                tokens_before=row.tokens_before,
                tokens_after=row.tokens_after,
            )
        )
    return compacted
