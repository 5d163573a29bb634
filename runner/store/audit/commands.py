"""Which commands were run, or were to be run, and who let them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from runner.core.rows import Column, Rows
from runner.store import ids
from runner.store.audit.filters import Filters
from runner.store.audit.finding.candidates import candidates
from runner.store.audit.finding.patterns import command_pattern
from runner.store.audit.finding.shown import at_most, cut, labelled
from runner.store.audit.finding.walk import Walked, walk
from runner.store.connection.database import Database
from runner.store.tables import tool_calls

COLUMNS = (
    Column("call_id"),
    Column("at", "time"),
    Column("run_id"),
    Column("item"),
    Column("turn", "integer"),
    Column("outcome"),
    Column("seconds", "seconds"),
    Column("decision"),
    Column("rule"),
    Column("answer"),
    Column("answered_by"),
    Column("ran"),
    Column("command"),
)
MOST_TAKEN_APART = 1_000

_IS_BASH = tool_calls.c.name == "Bash"


def commands(
    database: Database, filters: Filters, pattern: str | None = None, *, limit: int | None = None
) -> Rows:
    """The calls of Bash, the newest first. ``command`` is what the model asked for, and ``ran`` what
    a person or a hook had it run instead.

    Args:
        pattern: only commands that it finds: ``store.audit.finding.patterns.command_pattern``. One
            without a word, as ``:opaque``, is tried on the newest calls alone unless all are asked for.

    Raises:
        UsageError: the pattern can match nothing.
    """
    wanted = None if pattern is None else command_pattern(pattern)
    among = candidates(database, filters, wanted.terms, "Bash") if wanted else None
    needles = wanted.needles if wanted else ()
    most = at_most(limit)
    # What no index and no search narrows is taken apart one by one, a thousand in a third of a second.
    is_slow = wanted is not None and not needles and limit is not None

    def work(connection: Connection) -> tuple[list[tuple[Any, ...]], bool]:
        found: list[tuple[Any, ...]] = []
        calls = walk(connection, filters, _IS_BASH, limit=most, needles=needles, among=among)
        for looked_at, walked in enumerate(calls):
            if is_slow and looked_at == MOST_TAKEN_APART:
                return found, True
            row = _row(walked)
            if wanted is None or any(wanted.matches(text) for text in row[-2:] if text):
                found.append(row)
            if len(found) == most:
                break
        return found, False

    found, is_given_up = database.read(work)
    answer = labelled(database, cut(COLUMNS, found, limit, "the newest"))
    if is_given_up:
        answer.note = (
            f"only the newest {MOST_TAKEN_APART:,} commands were looked at: narrow with --job or "
            "--since (--limit 0 looks at all, which takes long)"
        )
    return answer


def _row(walked: Walked) -> tuple[Any, ...]:
    call = walked.row
    return (
        ids.call_id(call.run_id, call.turn, call.position),
        call.at,
        call.run_id,
        call.item_key,
        call.turn,
        call.state,
        call.took,
        call.decision,
        call.rule,
        call.answer,
        call.answered_by,
        None if call.edited_input is None else _command(call.edited_input),
        _command(walked.asked),
    )


def _command(arguments: Any) -> str | None:
    """The command in an input, whatever a model gave as one."""
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else None
